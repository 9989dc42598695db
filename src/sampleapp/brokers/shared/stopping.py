"""Stopping of a broker: done once, with a deadline, for any number of callers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from sampleapp.concurrency.waiting import Waiters


class Stopping:
    """
    Implements the deadline and the callers of `sampleapp.interfaces.IBroker.stop`.

    The first call begins the work. Each call sets a deadline, and the earliest one counts.
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
        :param work: stops the broker; called once. An exception is logged, and ends it.
        :param deadline_passed: makes the work end soon; called at each deadline before its end.
        """
        self._clock = clock
        self._work = work
        self._deadline_passed = deadline_passed
        self._waiters: Waiters[None] = Waiters()
        self._timers: list[IDelayedCall] = []
        self._is_finished = False
        self.is_requested = False
        """Whether a stop has been requested."""

    def request(self, *, deadline_s: float) -> Deferred[None]:
        """
        Begin to stop, unless it has begun.

        :param deadline_s: seconds until ``deadline_passed`` is called.
        :return: a new Deferred that fires with ``None`` at the end of the work, and may be cancelled.
        """
        if self._is_finished:
            return succeed(None)
        waiter = self._waiters.wait()
        self.later(deadline_s, self._on_deadline)
        if not self.is_requested:
            self.is_requested = True
            Deferred.fromCoroutine(self._run())
        return waiter

    def later(self, delay_s: float, do: Callable[[], None]) -> None:
        """Call a function after some seconds, unless the work has ended by then."""
        self._timers.append(self._clock.callLater(delay_s, do))

    def finish(self) -> None:
        """Answer all callers, even if the work has not ended and is abandoned."""
        if self._is_finished:
            return
        self._is_finished = True
        for timer in self._timers:
            if timer.active():
                timer.cancel()
        self._waiters.succeed(None)

    def _on_deadline(self) -> None:
        try:
            self._deadline_passed()
        except Exception:  # noqa: BLE001 -- after any error, no caller waits forever
            self._log.failure("Stopping the broker at its deadline failed")
            self.finish()

    async def _run(self) -> None:
        try:
            await self._work()
        except Exception:  # noqa: BLE001 -- after any error, no caller waits forever
            self._log.failure("Stopping the broker failed")
        self.finish()
