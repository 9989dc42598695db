"""Requests of reads to the leaders of partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from sampleapp.brokers.kafka.cluster_client import ClusterClient, RequestFailed, request_failed
from sampleapp.brokers.kafka.connections.failure_reason import FailureReason
from sampleapp.brokers.kafka.protocol import Request

__all__ = ["Leaders"]

_TIMEOUT_S: Final = 5.0
_PATIENCE_S: Final = 1.0
"""The wait for the last of several leaders, in seconds; see `Leaders.ask`."""

_LATE: Final = FailureReason(
    sentence="The broker has not answered an earlier request in time.",
    public="A broker does not answer at the moment.",
    lasting=False,
)


class Leaders:
    """
    Asks several leaders at once, and does not let one that is slow, or frozen, delay every read.

    A leader that keeps a read waiting for longer than others is late. It is not asked again until it has
    answered, or its connection is given up, which takes some seconds.
    """

    def __init__(self, *, client: ClusterClient, clock: IReactorTime) -> None:
        """:param client: has connections for nothing but reading: brokers answer a connection in order."""
        self._client = client
        self._clock = clock
        self._late: Counter[int] = Counter()

    def ask(self, requests: Sequence[tuple[int, Request[Any]]]) -> Deferred[list[Any]]:
        """
        Send requests, and wait for all responses; for one second only if several leaders are asked.

        :param requests: each with the node id of the broker.
        :return: fires with the responses in the same order, each of which may be a `RequestFailed` instead.
            Never fails. Cancelling it stops the waiting only.
        """
        asking = _Asking(late=self._late, clock=self._clock, count=len(requests))
        several = len({node_id for node_id, _ in requests}) > 1
        for index, (node_id, request) in enumerate(requests):
            if self._late[node_id]:
                asking.set_response(index, RequestFailed(_LATE, sent=False))
            else:
                asking.send(index, node_id, self._client.request(node_id, request, timeout_s=_TIMEOUT_S))
        return asking.begin(patience_s=_PATIENCE_S if several else None)


class _Asking:
    """The responses to some requests, until all are there."""

    def __init__(self, *, late: Counter[int], clock: IReactorTime, count: int) -> None:
        self._late = late
        self._clock = clock
        self._responses: list[Any] = [None] * count
        self._missing: dict[int, int] = {}
        """The node id of each request that has no response, by index."""
        self._timer: IDelayedCall | None = None
        self._done: Deferred[list[Any]] = Deferred(self._cancelled)
        self._has_begun = False
        self._is_over = False

    def set_response(self, index: int, response: object) -> None:
        self._responses[index] = response

    def send(self, index: int, node_id: int, response: Deferred[Any]) -> None:
        self._missing[index] = node_id
        response.addErrback(request_failed)
        response.addCallback(self._responded, index, node_id)

    def begin(self, *, patience_s: float | None) -> Deferred[list[Any]]:
        self._has_begun = True
        if not self._missing:
            self._finish()
        elif patience_s is not None:
            self._timer = self._clock.callLater(patience_s, self._give_up)
        return self._done

    def _responded(self, response: object, index: int, node_id: int) -> None:
        if self._is_over:
            # The read has ended without this response, which is dropped.
            if index in self._missing:
                self._late[node_id] -= 1
            return
        del self._missing[index]
        self._responses[index] = response
        if self._has_begun and not self._missing:
            self._finish()

    def _give_up(self) -> None:
        self._timer = None
        for index, node_id in self._missing.items():
            self._late[node_id] += 1
            self._responses[index] = RequestFailed(_LATE, sent=True)
        self._finish()

    def _cancelled(self, _: Deferred[list[Any]]) -> None:
        self._missing.clear()
        self._end()

    def _finish(self) -> None:
        self._end()
        self._done.callback(self._responses)

    def _end(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
