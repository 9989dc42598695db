"""Stopping a broker: once, with a deadline, whoever and how many ask for it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.shared.waiters import Waiters

__all__ = ["Stopping"]


class Stopping:
    """
    What `sampleapp.interfaces.IBroker.stop` promises of its callers and of its deadline.

    The work is begun by the first call. Each call sets a deadline, and the earliest one counts.
    """

    _log = Logger()

    def __init__(
        self,
        *,
        clock: IReactorTime,
        work: Callable[[], Coroutine[Deferred[Any], Any, None]],
        deadline_passed: Callable[[], None],
    ) -> None:
        """
        :param work: does all that stopping takes; called once. What it raises is logged, and ends it.
        :param deadline_passed: makes the work end soon; called at each deadline that comes before its end.
        """
        self._clock = clock
        self._work = work
        self._deadline_passed = deadline_passed
        self._waiters: Waiters[None] = Waiters()
        self._timers: list[IDelayedCall] = []
        self._is_finished = False
        self.is_requested = False
        """Whether anybody has asked for it."""

    def request(self, *, deadline_s: float) -> Deferred[None]:
        """
        Begin to stop, if nobody has.

        :param deadline_s: seconds until ``deadline_passed`` is called.
        :return: fires with ``None`` at the end of the work; one for each caller, which may cancel it.
        """
        if self._is_finished:
            return succeed(None)
        waiter = self._waiters.wait()
        self.later(deadline_s, self._deadline_passed)
        if not self.is_requested:
            self.is_requested = True
            Deferred.fromCoroutine(self._run())
        return waiter

    def later(self, delay_s: float, do: Callable[[], None]) -> None:
        """Call something after some seconds, unless the work has ended by then."""
        self._timers.append(self._clock.callLater(delay_s, do))

    def finish(self) -> None:
        """End it for all callers, also if the work goes on: it is left behind."""
        if self._is_finished:
            return
        self._is_finished = True
        for timer in self._timers:
            if timer.active():
                timer.cancel()
        self._waiters.succeed(None)

    async def _run(self) -> None:
        try:
            await self._work()
        except Exception:  # noqa: BLE001 -- whatever it was, nobody waits for ever
            self._log.failure("Stopping the broker failed")
        self.finish()
