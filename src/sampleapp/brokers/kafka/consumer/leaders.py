"""Requests of reads to the leaders of partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from sampleapp.brokers.kafka.cluster_client import ClusterClient, RequestFailed, request_failed
from sampleapp.brokers.kafka.connections.diagnostics import FailureReason
from sampleapp.brokers.kafka.protocol import Request

Responses: TypeAlias = "dict[int, list[Any] | RequestFailed]"
"""Those of leaders, by node id, in the order of the requests, or the failure of one of them."""

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

    def ask(self, requests: Mapping[int, Sequence[Request[Any]]]) -> Deferred[Responses]:
        """
        Send requests, and wait for all responses; for one second only if several leaders are asked.

        :param requests: by the node id of the broker.
        :return: fires with the responses of each leader in the same order, or the `RequestFailed` of one of
            its requests. Never fails. Cancelling it stops the waiting only.
        """
        asking = _Asking(late=self._late, clock=self._clock)
        for node_id, some in requests.items():
            if self._late[node_id]:
                asking.responses[node_id] = RequestFailed(_LATE, sent=False)
            else:
                client = self._client
                asking.add(node_id, [client.request(node_id, each, timeout_s=_TIMEOUT_S) for each in some])
        return asking.begin(patience_s=_PATIENCE_S if len(requests) > 1 else None)


class _Asking:
    """The responses to some requests, until all are there."""

    def __init__(self, *, late: Counter[int], clock: IReactorTime) -> None:
        self.responses: Responses = {}
        self._late = late
        self._clock = clock
        self._missing: dict[int, int] = {}
        """The number of requests without a response, by node id."""
        self._timer: IDelayedCall | None = None
        self._done: Deferred[Responses] = Deferred(self._cancelled)
        self._has_begun = False
        self._is_over = False

    def add(self, node_id: int, asked: Sequence[Deferred[Any]]) -> None:
        self.responses[node_id] = [None] * len(asked)
        self._missing[node_id] = len(asked)
        for index, response in enumerate(asked):
            response.addErrback(request_failed)
            response.addCallback(self._responded, node_id, index)

    def begin(self, *, patience_s: float | None) -> Deferred[Responses]:
        self._has_begun = True
        if not self._missing:
            self._finish()
        elif patience_s is not None:
            self._timer = self._clock.callLater(patience_s, self._give_up)
        return self._done

    def _responded(self, response: object, node_id: int, index: int) -> None:
        if self._is_over:
            # The read has ended without this response, which is dropped.
            if node_id in self._missing:
                self._late[node_id] -= 1
            return
        self._missing[node_id] -= 1
        if not self._missing[node_id]:
            del self._missing[node_id]
        responses = self.responses[node_id]
        if isinstance(response, RequestFailed):
            self.responses[node_id] = response
        elif isinstance(responses, list):
            responses[index] = response
        if self._has_begun and not self._missing:
            self._finish()

    def _give_up(self) -> None:
        self._timer = None
        for node_id, count in self._missing.items():
            self._late[node_id] += count
            self.responses[node_id] = RequestFailed(_LATE, sent=True)
        self._finish()

    def _cancelled(self, _: Deferred[Responses]) -> None:
        self._missing.clear()
        self._end()

    def _finish(self) -> None:
        self._end()
        self._done.callback(self.responses)

    def _end(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
