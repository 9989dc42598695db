"""The pauses between attempts to send lines to a service that cannot accept them now."""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from sampleapp.cli._report import Report
from sampleapp.client import ClientError, ProblemError, ServiceUnreachable, TooManyRequests

__all__ = ["Pace"]

# The pause after a rejection without Retry-After, and the maximum pause that Retry-After may ask for.
DEFAULT_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
# Shorter pauses because of the caller's rate are usual, and are reported only at the end.
LONG_PAUSE_S = 10.0
# Without a published line for this time, the cause is not a rate or a restart: for example, a line may exceed
# the caller's rate by itself.
PATIENCE_S = 300.0


class Pace:
    """
    The time of the next attempt, and the decision to give up.

    A rate limit applies to the caller, and a restart to the whole service. So a rejection of one request
    delays all of them.
    """

    def __init__(self, clock: IReactorTime, report: Report) -> None:
        self._clock = clock
        self._report = report
        self._rejected_since_s: float | None = None
        self._until_s = 0.0
        self._reached = False

    def record_success(self) -> None:
        """Record that the service has accepted lines, or rejected them for good."""
        self._reached = True
        self._rejected_since_s = None
        self._report.waiting_because = None

    def schedule_retry(self, error: ClientError) -> bool:
        """
        Schedule a retry after a pause, or give up: then no more lines are sent.

        :param error: the error of a request that published nothing, and may succeed later.
        :return: True if the lines should be sent again.
        """
        report = self._report
        now_s = self._clock.seconds()
        if self._rejected_since_s is None:
            self._rejected_since_s = now_s
        unreachable = isinstance(error, ServiceUnreachable)
        self._reached = self._reached or not unreachable
        # A service that was never reached is not restarting: probably its URL is wrong.
        hopeless = now_s - self._rejected_since_s > PATIENCE_S or not self._reached
        if hopeless or report.unreachable or report.rejected:
            report.unreachable = report.unreachable or unreachable
            report.rejected = report.rejected or not unreachable
            return False
        retry_after_s = error.retry_after_s if isinstance(error, ProblemError) else None
        pause_s = DEFAULT_PAUSE_S if retry_after_s is None else min(retry_after_s, LONGEST_PAUSE_S)
        begins_s, self._until_s = max(now_s, self._until_s), max(now_s + pause_s, self._until_s)
        is_rate = isinstance(error, TooManyRequests)
        if is_rate:
            report.held_back_s += self._until_s - begins_s
        else:
            report.waited_s += self._until_s - begins_s
        if not is_rate or self._until_s - self._rejected_since_s >= LONG_PAUSE_S:
            report.waiting_because = str(error)
        return True

    async def wait(self) -> None:
        """Wait until the pause has ended."""
        while (pause_s := self._until_s - self._clock.seconds()) > 0:
            await deferLater(self._clock, pause_s)
