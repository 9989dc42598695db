"""Loading metadata: one request at a time for all callers, and a second broker if the first is slow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred, fail, maybeDeferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.cluster_client.broker_connection import RequestFailed, request_failed
from sampleapp.brokers.kafka.connections.diagnostics import FailureReason
from sampleapp.concurrency.waiting import Waiters

_HEDGE_S: Final = 1.0
"""Seconds without a response after which the next broker is asked, too."""

_NO_BROKERS: Final = FailureReason(
    sentence="The cluster's metadata lists no brokers.", public="No broker is known.", lasting=False
)


class MetadataLoads:
    """
    The metadata requests of one client, one in flight at a time.

    Callers that ask during a request share the next one, so that many unknown topics do not cause a storm of
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
        :param candidates: returns the node ids of the brokers to ask, the best first.
        """
        self._ask = ask
        self._candidates = candidates
        self._clock = clock
        self._topics: set[str] = set()
        self._waiters: Waiters[None] = Waiters()
        self._loading = False

    def load(self, topics: Iterable[str]) -> Deferred[None]:
        """
        Ask about topics.

        :return: fires with ``None`` after the response to a request made from now on, or fails with the
            `RequestFailed` of the broker with the most specific reason.
        """
        self._topics.update(topics)
        loaded = self._waiters.wait()
        if not self._loading:
            self._begin()
        return loaded

    def _begin(self) -> None:
        topics, self._topics = sorted(self._topics), set()
        waiters, self._waiters = self._waiters, Waiters()
        self._loading = True
        asked: Deferred[Any] = maybeDeferred(self._ask_candidates, topics)
        asked.addBoth(self._end, waiters)

    def _ask_candidates(self, topics: Sequence[str]) -> Deferred[Any]:
        return ask_one_of(
            self._candidates(), ask=lambda node_id: self._ask(node_id, topics), clock=self._clock
        )

    def _end(self, result: Any, waiters: Waiters[None]) -> None:
        self._loading = False
        if self._waiters:
            self._begin()
        if isinstance(result, Failure):
            reason = request_failed(result).reason
            waiters.fail(lambda: RequestFailed(reason, sent=False))
        else:
            waiters.succeed(None)


def ask_one_of(
    candidates: Sequence[int], *, ask: Callable[[int], Deferred[Any]], clock: IReactorTime
) -> Deferred[Any]:
    """
    Ask one broker after another until one answers.

    :param candidates: their node ids, the best first.
    :param ask: asks one of them; fails with `RequestFailed`. It is cancelled when another has answered.
    :return: fires with the first response. When all have failed, fails with the most specific reason.
    """
    if not candidates:
        return fail(RequestFailed(_NO_BROKERS, sent=False))
    return _Hedged(ask=ask, candidates=candidates, clock=clock).begin()


class _Hedged:
    """One request, sent to one broker after another until one answers."""

    def __init__(
        self, *, ask: Callable[[int], Deferred[Any]], candidates: Sequence[int], clock: IReactorTime
    ) -> None:
        self._ask = ask
        self._candidates = list(candidates)
        self._clock = clock
        self._asked: list[Deferred[Any]] = []
        self._failures: list[Failure] = []
        self._timer: IDelayedCall | None = None
        self._result: Deferred[Any] = Deferred(self._cancelled)

    def begin(self) -> Deferred[Any]:
        self._next()
        return self._result

    def _next(self) -> None:
        self._stop_timer()
        if self._candidates:
            node_id = self._candidates.pop(0)
            if self._candidates:
                self._timer = self._clock.callLater(_HEDGE_S, self._next)
            asked: Deferred[Any] = maybeDeferred(self._ask, node_id)
            self._asked.append(asked)
            asked.addCallbacks(self._responded, self._failed)

    def _cancelled(self, _: object) -> None:
        """Ask no further broker: the caller has stopped waiting."""
        self._candidates.clear()
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None

    def _responded(self, response: Any) -> None:
        if self._result.called:
            return
        self._stop_timer()
        self._result.callback(response)
        for asked in self._asked:
            asked.cancel()

    def _failed(self, failure: Failure) -> None:
        self._failures.append(failure)
        if self._result.called:
            return
        if self._candidates:
            self._next()
        elif len(self._failures) == len(self._asked):
            self._result.errback(max(self._failures, key=_is_specific))


def _is_specific(failure: Failure) -> bool:
    """Return whether the reason is lasting, which tells more than an unreachable broker."""
    return isinstance(failure.value, RequestFailed) and failure.value.reason.lasting
