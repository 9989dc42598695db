"""Watching the cluster: whether it can be reached at all, and what has changed in it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.client import Client, RequestFailed
from sampleapp.brokers.kafka.connections.failure_reason import FailureReason
from sampleapp.brokers.shared.condition import WRITING, Condition

__all__ = ["Watch"]

_RETRY_FIRST_S: Final = 0.2
_RETRY_MAX_S: Final = 5.0
_SOON_S: Final = 0.2
"""After news of a connection: there is often more of it."""


class Watch:
    """Asks for metadata now and then, sooner when connections come and go, and keeps the condition."""

    _log = Logger()

    def __init__(
        self,
        *,
        client: Client,
        condition: Condition,
        refresh: Callable[[], None],
        interval_s: float,
        clock: IReactorTime,
    ) -> None:
        """
        :param refresh: is called when the cluster was reached, to refresh what else is known of it.
        :param interval_s: how often to ask when nothing happens, in seconds.
        """
        self._client = client
        self._condition = condition
        self._refresh = refresh
        self._interval_s = interval_s
        self._clock = clock
        self._timer: IDelayedCall | None = None
        self._looking = False
        self._again = False
        self._stopped = False
        self._failures = 0
        self._was_reached = False

    def start(self) -> None:
        """Begin to watch."""
        self._look()

    def wake(self) -> None:
        """Something has happened to a connection."""
        if self._looking:
            self._again = True
        elif self._timer is not None and self._timer.getTime() > self._clock.seconds() + _SOON_S:
            self._timer.reset(_SOON_S)

    def lost(self) -> None:
        """A connection has ended; while nothing works, that is no news, but what the last attempt came to."""
        if not self._failures:
            self.wake()

    def stop(self) -> None:
        """Watch no more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        self._looking = True
        self._again = False
        Deferred.fromCoroutine(self._reach()).addErrback(
            lambda failure: self._log.failure("Watching the cluster failed", failure=failure)
        ).addBoth(self._looked)

    async def _reach(self) -> None:
        try:
            await self._client.load_metadata(())
            await self._reach_advertised()
        except RequestFailed as error:
            self._failures += 1
            if not self._stopped:
                self._condition.bad(WRITING, error.reason.sentence)
            return
        self._failures = 0
        if not self._stopped:
            if not self._was_reached:
                self._was_reached = True
                self._log.info("Kafka was reached; brokers: {count}", count=len(self._client.node_ids()))
            self._condition.good(WRITING)
            self._refresh()

    async def _reach_advertised(self) -> None:
        """
        Connect to one of the brokers at the address that it advertises, as publishing will.

        The address that metadata came from may be another one: what an operator configures is not what
        brokers say of themselves (``advertised.listeners``).
        """
        nodes = self._client.node_ids()
        if not nodes or any(self._client.is_connected(node_id) for node_id in nodes):
            return
        *others, last = nodes
        for node_id in others:
            with suppress(RequestFailed):
                await self._client.when_connected(node_id)
                return
        try:
            await self._client.when_connected(last)
        except RequestFailed as error:
            raise RequestFailed(_advertised(error.reason), sent=False) from error

    def _looked(self, _: object) -> None:
        self._looking = False
        if self._stopped:
            return
        if self._failures:
            delay_s = min(_RETRY_FIRST_S * 2 ** min(self._failures - 1, 10), _RETRY_MAX_S)
        else:
            delay_s = _SOON_S if self._again else self._interval_s
        self._timer = self._clock.callLater(delay_s, self._look)


def _advertised(reason: FailureReason) -> FailureReason:
    return FailureReason(
        sentence=f"The brokers advertise addresses of which none can be used from here: {reason.sentence} "
        "Check advertised.listeners of the brokers.",
        public=reason.public,
        lasting=reason.lasting,
        incompatible=reason.incompatible,
    )
