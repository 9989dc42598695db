"""Asking for metadata: one question at a time for all callers, and no broker that is dead holds it up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.client.call import RequestFailed, reason_of
from sampleapp.brokers.kafka.connections.failure_reason import FailureReason
from sampleapp.brokers.shared.waiters import Waiters

__all__ = ["MetadataLoads", "ask_one_of"]

_HEDGE_S: Final = 1.0
"""When a broker has not answered for so long, another one is asked as well, in seconds."""

_NOBODY: Final = FailureReason(
    sentence="The cluster says that it has no brokers.", public="No broker is known.", lasting=False
)


class MetadataLoads:
    """
    The loads of one client, of which one is in flight at a time.

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
        self._waiters: Waiters[None] = Waiters()
        self._loading = False

    def load(self, topics: Iterable[str]) -> Deferred[None]:
        """
        Ask about topics.

        :return: fires with ``None`` after an answer that was asked for from now on, or fails with the
            `RequestFailed` of the broker that says the most.
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
        ask_one_of(
            self._candidates(), ask=lambda node_id: self._ask(node_id, topics), clock=self._clock
        ).addBoth(self._end, waiters)

    def _end(self, result: Any, waiters: Waiters[None]) -> None:
        self._loading = False
        if self._waiters:
            self._begin()
        if isinstance(result, Failure):
            waiters.fail(lambda: RequestFailed(reason_of(result), sent=False))
        else:
            waiters.succeed(None)


def ask_one_of(
    candidates: Sequence[int], *, ask: Callable[[int], Deferred[Any]], clock: IReactorTime
) -> Deferred[Any]:
    """
    Ask one broker after another until one answers.

    :param candidates: their node ids, the best first.
    :param ask: asks one of them; fails with `RequestFailed`. Is cancelled when another has answered.
    :return: fires with the first answer. When all have failed, fails as the one does that says the most.
    """
    if not candidates:
        return fail(RequestFailed(_NOBODY, sent=False))
    return _Hedged(ask=ask, candidates=candidates, clock=clock).begin()


class _Hedged:
    """One question, asked of one broker after another until one answers."""

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
            asked = self._ask(node_id)
            self._asked.append(asked)
            asked.addCallbacks(self._answered, self._failed)

    def _cancelled(self, _: object) -> None:
        """Nobody waits: who was asked may answer, but nobody else is asked."""
        self._candidates.clear()
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None

    def _answered(self, answer: Any) -> None:
        if self._result.called:
            return
        self._stop_timer()
        self._result.callback(answer)
        for asked in self._asked:
            asked.cancel()

    def _failed(self, failure: Failure) -> None:
        self._failures.append(failure)
        if self._result.called:
            return
        if self._candidates:
            self._next()
        elif len(self._failures) == len(self._asked):
            self._result.errback(max(self._failures, key=_says))


def _says(failure: Failure) -> bool:
    """A lasting reason says more than that somebody could not be reached."""
    return isinstance(failure.value, RequestFailed) and failure.value.reason.lasting
