"""Publishing many lines, a bounded number at a time, and accounting for each."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from sampleapp.cli._lines import MAX_LINE_BYTES, Line, LineSource
from sampleapp.cli._run import START_IT
from sampleapp.client import (
    Client,
    ClientError,
    Forbidden,
    ServiceUnreachable,
    TooManyRequests,
    Unauthorized,
)

__all__ = ["Report", "publish_lines"]

# What to wait after a refusal that does not say it, and the longest that is believed.
DEFAULT_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
# After so long without one published line, there is more amiss than a rate: a line may be larger than any
# second's share.
PATIENCE_S = 300.0


class Report:
    """What became of the lines so far."""

    def __init__(self) -> None:
        self.published = 0
        self.failed = 0
        self.finished_bytes = 0
        """Of the file, in lines whose outcome is known."""
        self.unreachable = False
        """Whether the service could not be reached, so that no more lines are begun."""
        self.refused = False
        """Whether the service does not let the caller in, so that no more lines are begun."""
        self.waited_s = 0.0
        """How long nothing was sent because the caller's rate did not allow it, in seconds."""
        self.unreadable: str | None = None
        """Why the file could not be read to its end; ``None`` if it could."""
        self.interrupted = False
        """Whether the publishing was cancelled, so that no more lines are begun."""
        # Reasons are few, lines many: eight bytes each, where a str or even an int would be dozens.
        self._failures: dict[str, array[int]] = {}

    @property
    def complete(self) -> bool:
        """Whether every line has been published."""
        return not (self.failed or self.stopped)

    @property
    def stopped(self) -> bool:
        """Whether no more lines are begun, although there may be some."""
        return bool(self.unreachable or self.refused or self.unreadable or self.interrupted)

    def fail(self, line: Line, reason: str) -> None:
        """Account for a line that could not be published."""
        self.failed += 1
        self._failures.setdefault(reason, array("Q")).append(line.number)

    def sentences(self) -> Iterator[str]:
        """All there is to say, for a person: why lines failed, and how many did not."""
        for reason, numbers in self._failures.items():
            word = "Line" if len(numbers) == 1 else "Lines"
            yield f"{word} {', '.join(_ranges(numbers))}: {reason}"
        if self.unreachable:
            yield (
                f"Stopped after line {self.published + self.failed}: what follows was not sent. "
                f"Is the service running? {START_IT}"
            )
        elif self.refused:
            yield (
                f"Stopped after line {self.published + self.failed}: what follows was not sent, since the "
                "service would refuse it as well."
            )
        elif self.unreadable is not None:
            yield f"Stopped after line {self.published + self.failed}: reading failed ({self.unreadable})."
        elif self.interrupted:
            yield f"Interrupted after line {self.published + self.failed}: what follows was not sent."
        if self.waited_s:
            yield f"Nothing was sent for {self.waited_s:.0f} seconds in all: the service allows no more."
        lines = "line" if self.published == 1 else "lines"
        yield f"Published {self.published} {lines}, {self.failed} failed."


async def publish_lines(
    *,
    client: Client,
    topic: str,
    key: str | None,
    source: LineSource,
    in_flight: int,
    clock: IReactorTime,
    progress: Callable[[Report], None],
) -> Report:
    """
    Publish each line as a message.

    A line that the service refuses because the caller has sent too much (429) is sent again when it may be,
    and no other before. Cancelling it cancels what is in flight, and returns the report all the same.

    :param key: the key of every record; ``None`` for none.
    :param in_flight: how many messages may wait for their answers at one time.
    :param clock: tells when lines may be sent again.
    :param progress: is told each time the outcome of a line is known.
    :return: what became of the lines.
    """
    report = Report()
    pace = _Pace(clock, report)

    async def work() -> None:
        while not report.stopped:
            try:
                line = await source.next()
            except CancelledError:
                report.interrupted = True
                return
            except OSError as error:
                report.unreadable = error.strerror or str(error)
                return
            if line is None:
                return
            await _publish_line(line, client=client, topic=topic, key=key, pace=pace, report=report)
            report.finished_bytes += line.size
            progress(report)

    await gatherResults([Deferred.fromCoroutine(work()) for _ in range(in_flight)], consumeErrors=True)
    return report


class _Pace:
    """When lines may be sent: a rate is one of the caller, so what one line is told counts for all."""

    def __init__(self, clock: IReactorTime, report: Report) -> None:
        self._clock = clock
        self._report = report
        self._since_s = clock.seconds()
        self._until_s = 0.0

    @property
    def is_hopeless(self) -> bool:
        """Whether nothing but refusals has come for a long time."""
        return self._clock.seconds() - self._since_s > PATIENCE_S

    def publishes(self) -> None:
        """Take note that a line was published."""
        self._since_s = self._clock.seconds()

    def hold(self, retry_after_s: float | None) -> None:
        """
        Let nobody send anything.

        :param retry_after_s: for so many seconds; ``None`` if the service does not say.
        """
        pause_s = DEFAULT_PAUSE_S if retry_after_s is None else min(retry_after_s, LONGEST_PAUSE_S)
        now_s = self._clock.seconds()
        begins_s, self._until_s = max(now_s, self._until_s), max(now_s + pause_s, self._until_s)
        self._report.waited_s += self._until_s - begins_s

    async def wait(self) -> None:
        """Wait until it is allowed to send."""
        while (pause_s := self._until_s - self._clock.seconds()) > 0:
            await deferLater(self._clock, pause_s)


async def _publish_line(
    line: Line, *, client: Client, topic: str, key: str | None, pace: _Pace, report: Report
) -> None:
    if line.content is None:
        report.fail(line, f"longer than {MAX_LINE_BYTES} bytes.")
        return
    try:
        content = line.content.decode("utf-8")
    except UnicodeDecodeError:
        # Where in the line would make a reason of each line; the number of the line finds it.
        report.fail(line, "not UTF-8.")
        return
    refusal: TooManyRequests | None = None
    while refusal is None or not pace.is_hopeless:
        try:
            await pace.wait()
        except CancelledError:
            report.interrupted = True
            report.fail(line, "interrupted before it was sent.")
            return
        try:
            await client.publish(topic=topic, content=content, key=key)
        except TooManyRequests as error:
            pace.hold(error.retry_after_s)
            refusal = error
            continue
        except ClientError as error:
            report.unreachable = report.unreachable or isinstance(error, ServiceUnreachable)
            # The other lines are of the same caller, for the same topic.
            report.refused = report.refused or isinstance(error, Unauthorized | Forbidden)
            report.fail(line, f"{error} May have been published." if error.possibly_published else str(error))
        except CancelledError:
            report.interrupted = True
            report.fail(line, "interrupted before the answer. May have been published.")
        else:
            report.published += 1
            pace.publishes()
        return
    report.refused = True
    report.fail(line, str(refusal))


def _ranges(numbers: array[int]) -> Iterator[str]:
    """Write numbers, of which each occurs once, as a person would: 1-3, 7."""
    first = last = None
    for number in sorted(numbers):
        if last is not None and number == last + 1:
            last = number
            continue
        if first is not None:
            yield _range(first, last)
        first = last = number
    if first is not None:
        yield _range(first, last)


def _range(first: int, last: int | None) -> str:
    return str(first) if first == last else f"{first}-{last}"
