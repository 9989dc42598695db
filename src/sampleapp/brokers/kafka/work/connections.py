"""The connections of share sessions: one session each, used again when it has ended."""

from __future__ import annotations

from typing import Any, Final

from twisted.internet.defer import Deferred, DeferredList, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from sampleapp.brokers.kafka.cluster_client import ClusterClient, Connection

_IDLE_S: Final = 60.0
"""Seconds after which a connection without a session is closed. Kafka closes idle ones after 10 minutes."""


class ConnectionPool:
    """
    Connections to brokers, each of which is taken by one session.

    Only connections whose session has certainly ended may be given back; others must be closed.
    """

    def __init__(self, *, client: ClusterClient, most: int, clock: IReactorTime) -> None:
        """:param most: maximum number of connections, at least 1."""
        self._client = client
        self._most = most
        self._clock = clock
        self._idle: dict[Connection, tuple[int, float]] = {}
        """Their brokers, and when they were given back, the last one at the end."""
        self._taken: dict[Connection, int] = {}
        self._timer: IDelayedCall | None = None

    @property
    def is_full(self) -> bool:
        """True if all connections are taken."""
        return len(self._taken) >= self._most

    def take(self, node_id: int) -> Connection | None:
        """
        Take a connection to a broker, the one that was used last.

        :return: ``None`` if the broker is not in the cluster. Check `is_full` before.
        """
        for connection, (at, _) in reversed([*self._idle.items()]):
            if connection.is_expiring:
                self.close(connection)
            elif at == node_id:
                del self._idle[connection]
                self._taken[connection] = node_id
                return connection
        made = self._client.new_connection(node_id)
        if made is not None:
            if len(self._taken) + len(self._idle) >= self._most and self._idle:
                self.close(next(iter(self._idle)))
            self._taken[made] = node_id
        return made

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next session. Its own has ended."""
        node_id = self._taken.pop(connection, None)
        if node_id is None:
            return
        if connection.is_expiring:
            connection.close()
            return
        self._idle[connection] = node_id, self._clock.seconds()
        if self._timer is None:
            self._timer = self._clock.callLater(_IDLE_S, self._close_idle)

    def close(self, connection: Connection) -> Deferred[None]:
        """Close a connection, unless it is closed, and with it the session that was begun on it last."""
        if self._taken.pop(connection, None) is None and self._idle.pop(connection, None) is None:
            return succeed(None)
        return connection.close()

    def close_all(self) -> Deferred[Any]:
        """Close all connections. Fires when they are closed; never fails."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        closing: Deferred[Any] = DeferredList([self.close(each) for each in (*self._taken, *self._idle)])
        return closing

    def _close_idle(self) -> None:
        self._timer = None
        now_s = self._clock.seconds()
        for connection, (_, since_s) in [*self._idle.items()]:
            if since_s + _IDLE_S > now_s:
                self._timer = self._clock.callLater(since_s + _IDLE_S - now_s, self._close_idle)
                break
            self.close(connection)
