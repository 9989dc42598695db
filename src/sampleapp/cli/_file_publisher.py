"""Publishing many lines, a bounded number at a time, and accounting for each."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

from twisted.internet.defer import CancelledError, Deferred, gatherResults

from sampleapp.cli._lines import MAX_LINE_BYTES, Line, LineSource
from sampleapp.cli._run import START_IT
from sampleapp.client import Client, ClientError, ServiceUnreachable

__all__ = ["Report", "publish_lines"]


class Report:
    """What became of the lines so far."""

    def __init__(self) -> None:
        self.published = 0
        self.failed = 0
        self.finished_bytes = 0
        """Of the file, in lines whose outcome is known."""
        self.unreachable = False
        """Whether the service could not be reached, so that no more lines are begun."""
        self.unreadable: str | None = None
        """Why the file could not be read to its end; ``None`` if it could."""
        self.interrupted = False
        """Whether the publishing was cancelled, so that no more lines are begun."""
        # Reasons are few, lines many: eight bytes each, where a str or even an int would be dozens.
        self._failures: dict[str, array[int]] = {}

    @property
    def complete(self) -> bool:
        """Whether every line has been published."""
        return not (self.failed or self.unreachable or self.unreadable or self.interrupted)

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
        elif self.unreadable is not None:
            yield f"Stopped after line {self.published + self.failed}: reading failed ({self.unreadable})."
        elif self.interrupted:
            yield f"Interrupted after line {self.published + self.failed}: what follows was not sent."
        lines = "line" if self.published == 1 else "lines"
        yield f"Published {self.published} {lines}, {self.failed} failed."


async def publish_lines(
    *,
    client: Client,
    topic: str,
    key: str | None,
    source: LineSource,
    in_flight: int,
    progress: Callable[[Report], None],
) -> Report:
    """
    Publish each line as a message.

    Cancelling it cancels what is in flight, and returns the report all the same.

    :param key: the key of every record; ``None`` for none.
    :param in_flight: how many messages may wait for their answers at one time.
    :param progress: is told each time the outcome of a line is known.
    :return: what became of the lines.
    """
    report = Report()

    async def work() -> None:
        while not (report.unreachable or report.unreadable or report.interrupted):
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
            await _publish_line(line, client=client, topic=topic, key=key, report=report)
            report.finished_bytes += line.size
            progress(report)

    await gatherResults([Deferred.fromCoroutine(work()) for _ in range(in_flight)], consumeErrors=True)
    return report


async def _publish_line(line: Line, *, client: Client, topic: str, key: str | None, report: Report) -> None:
    if line.content is None:
        report.fail(line, f"longer than {MAX_LINE_BYTES} bytes.")
        return
    try:
        content = line.content.decode("utf-8")
    except UnicodeDecodeError:
        # Where in the line would make a reason of each line; the number of the line finds it.
        report.fail(line, "not UTF-8.")
        return
    try:
        await client.publish(topic=topic, content=content, key=key)
    except ClientError as error:
        report.unreachable = report.unreachable or isinstance(error, ServiceUnreachable)
        report.fail(line, f"{error} May have been published." if error.possibly_published else str(error))
    except CancelledError:
        report.interrupted = True
        report.fail(line, "interrupted before the answer. May have been published.")
    else:
        report.published += 1


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
