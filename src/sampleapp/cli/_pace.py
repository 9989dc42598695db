"""When lines may be sent to a service that does not take them at the moment."""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from sampleapp.cli._report import Report
from sampleapp.client import ClientError, ProblemError, ServiceUnreachable, TooManyRequests

__all__ = ["Pace"]

# What to wait after a refusal that does not say it, and the longest that is believed.
DEFAULT_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
# After so long without one published line, there is more amiss than a rate or a restart: a line may be
# larger than any second's share.
PATIENCE_S = 300.0


class Pace:
    """
    When lines may be sent, and for how long to try.

    A rate is one of the caller, and a service that restarts does so for everybody: what one request is told
    counts for all.
    """

    def __init__(self, clock: IReactorTime, report: Report) -> None:
        self._clock = clock
        self._report = report
        self._refused_since_s: float | None = None
        self._until_s = 0.0
        self._reached = False

    def goes_on(self) -> None:
        """Take note that the service has taken something."""
        self._reached = True
        self._refused_since_s = None
        self._report.waiting_because = None

    def allows_another_try(self, error: ClientError) -> bool:
        """
        Whether what failed is to be sent again, which is then not before a pause; otherwise nothing more is.

        :param error: after which nothing was published, and the same may succeed later.
        """
        report = self._report
        now_s = self._clock.seconds()
        if self._refused_since_s is None:
            self._refused_since_s = now_s
        unreachable = isinstance(error, ServiceUnreachable)
        self._reached = self._reached or not unreachable
        # What was never there is not restarting: more probably its address is wrong.
        hopeless = now_s - self._refused_since_s > PATIENCE_S or not self._reached
        if hopeless or report.unreachable or report.refused:
            report.unreachable = report.unreachable or unreachable
            report.refused = report.refused or not unreachable
            return False
        retry_after_s = error.retry_after_s if isinstance(error, ProblemError) else None
        pause_s = DEFAULT_PAUSE_S if retry_after_s is None else min(retry_after_s, LONGEST_PAUSE_S)
        begins_s, self._until_s = max(now_s, self._until_s), max(now_s + pause_s, self._until_s)
        if isinstance(error, TooManyRequests):
            report.held_back_s += self._until_s - begins_s
        else:
            report.waited_s += self._until_s - begins_s
            report.waiting_because = str(error)
        return True

    async def wait(self) -> None:
        """Wait until it is allowed to send."""
        while (pause_s := self._until_s - self._clock.seconds()) > 0:
            await deferLater(self._clock, pause_s)
