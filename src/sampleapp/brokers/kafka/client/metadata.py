"""Asking for metadata: one question at a time, for everybody who has one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.client.failures import RequestFailed, reason_of
from sampleapp.brokers.kafka.client.hedging import ask_one_of

__all__ = ["MetadataLoads"]


class MetadataLoads:
    """
    The loads of one client, of which one is under way at a time.

    Whoever asks meanwhile shares the next one, so that no number of unknown topics makes a storm of
    requests.
    """

    def __init__(
        self,
        *,
        ask: Callable[[int, Sequence[str]], Deferred[Any]],
        candidates: Callable[[], Sequence[int]],
        clock: IReactorTime,
    ) -> None:
        """
        :param ask: asks one broker about topics; fails with `RequestFailed`.
        :param candidates: the node ids of those who may be asked, the best first.
        """
        self._ask = ask
        self._candidates = candidates
        self._clock = clock
        self._topics: set[str] = set()
        self._waiters: list[Deferred[None]] = []
        self._loading = False

    def load(self, topics: Iterable[str]) -> Deferred[None]:
        """
        Ask about topics.

        :return: fires with ``None`` after an answer that was asked for from now on, or fails with the
            `RequestFailed` of the broker that says the most.
        """
        waiter: Deferred[None] = Deferred()
        self._topics.update(topics)
        self._waiters.append(waiter)
        if not self._loading:
            self._begin()
        return waiter

    def _begin(self) -> None:
        topics, self._topics = sorted(self._topics), set()
        waiters, self._waiters = self._waiters, []
        self._loading = True
        ask_one_of(
            self._candidates(), ask=lambda node_id: self._ask(node_id, topics), clock=self._clock
        ).addBoth(self._end, waiters)

    def _end(self, result: Any, waiters: list[Deferred[None]]) -> None:
        self._loading = False
        if self._waiters:
            self._begin()
        for waiter in waiters:
            if waiter.called:
                continue
            if isinstance(result, Failure):
                # Each has an exception of its own, which it may raise and chain as it likes.
                waiter.errback(RequestFailed(reason_of(result), sent=False))
            else:
                waiter.callback(None)
