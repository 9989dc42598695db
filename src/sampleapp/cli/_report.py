"""The report on the lines of a file, for a person."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from sampleapp.cli._lines import Line
from sampleapp.cli._run import start_it
from sampleapp.model import RecordMetadata

__all__ = ["LineResult", "Report"]


class LineResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one line: the metadata of its record, or an error."""

    line: int
    """Its number, from 1."""
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    error: str | None = None
    """Why it was not published, or may not have been."""


class Report:
    """The outcome of the lines so far."""

    def __init__(self, result: Callable[[LineResult], None] | None = None) -> None:
        """:param result: is called with the outcome of each line."""
        self._result = result
        self.published = 0
        self.published_before = 0
        """Lines of ``published`` in batches that an earlier run had published as a whole."""
        self.failed = 0
        """Lines that were not published."""
        self.in_doubt = 0
        """Lines that may have been published."""
        self.finished_bytes = 0
        """Bytes of the file in lines whose outcome is known."""
        self.unreachable = False
        """True if the service could not be reached, so that no more lines are sent."""
        self.rejected = False
        """True if the service rejects the caller, so that no more lines are sent."""
        self.held_back_s = 0.0
        """Time for which nothing was sent because of the caller's rate, in seconds."""
        self.waited_s = 0.0
        """Time for which nothing was sent because the service was busy or away, in seconds."""
        self.waiting_because: str | None = None
        """Why nothing is sent now, if the service is busy or away; ``None`` otherwise."""
        self.unreadable: str | None = None
        """Why the file could not be read to its end; ``None`` if there was no such error."""
        self.interrupted = False
        """True if the publishing was cancelled, so that no more lines are sent."""
        # There are few reasons and many lines: an array takes 8 bytes per line, a list several times as much.
        self._failures: dict[str, array[int]] = {}

    @property
    def complete(self) -> bool:
        """True if every line has been published."""
        return not (self.failed or self.in_doubt or self.stopped)

    @property
    def stopped(self) -> bool:
        """True if no more lines are sent, although there may be some."""
        return bool(self.unreachable or self.rejected or self.unreadable or self.interrupted)

    def publish(self, lines: Sequence[Line], published: Sequence[RecordMetadata]) -> None:
        """Add lines that were published, with the metadata of their records."""
        self.published += len(lines)
        if self._result is not None:
            for line, metadata in zip(lines, published, strict=True):
                self._result(
                    LineResult(
                        line=line.number,
                        topic=metadata.topic,
                        partition=metadata.partition,
                        offset=metadata.offset,
                    )
                )

    def outcome(self) -> str:
        """Return the numbers of lines with each outcome."""
        doubt = f", {self.in_doubt} in doubt" if self.in_doubt else ""
        return f"{self.published} published, {self.failed} failed{doubt}"

    def fail(self, number: int, reason: str, *, in_doubt: bool = False) -> None:
        """
        Add a line that could not be published.

        :param number: of the line, from 1.
        :param in_doubt: True if it may have been published.
        """
        if in_doubt:
            self.in_doubt += 1
            reason = f"{reason} May have been published."
        else:
            self.failed += 1
        if self._result is not None:
            self._result(LineResult(line=number, error=reason))
        self._failures.setdefault(reason, array("Q")).append(number)

    def sentences(self) -> Iterator[str]:
        """Return the report in sentences: the failed lines with reasons, why it stopped, and the numbers."""
        for reason, numbers in self._failures.items():
            word = "Line" if len(numbers) == 1 else "Lines"
            yield f"{word} {', '.join(_ranges(numbers))}: {reason}"
        after = f"after line {self.published + self.failed + self.in_doubt}"
        if self.unreachable:
            yield f"Stopped {after}: the lines that follow were not sent. {start_it()}"
        elif self.rejected:
            yield f"Stopped {after}: the lines that follow were not sent; they would be rejected as well."
        elif self.unreadable is not None:
            yield f"Stopped {after}: reading failed ({self.unreadable})."
        elif self.interrupted:
            yield f"Interrupted {after}: the lines that follow were not sent."
        if self.held_back_s:
            yield f"Nothing was sent for {_seconds(self.held_back_s)} in all: a rate limit was reached (429)."
        if self.waited_s:
            yield f"Nothing was sent for {_seconds(self.waited_s)} in all: the service was busy or away."
        lines = "line" if self.published == 1 else "lines"
        doubt = f", {self.in_doubt} may have been published" if self.in_doubt else ""
        yield f"Published {self.published} {lines}, {self.failed} failed{doubt}."
        if self.published_before:
            yield (
                f"At least {self.published_before} of them had been published before, by a run with equal "
                "lines, and were not published again."
            )


def _seconds(duration_s: float) -> str:
    number = round(duration_s)
    return "1 second" if number == 1 else f"{number} seconds"


def _ranges(numbers: array[int]) -> Iterator[str]:
    """Write distinct numbers as ranges: 1-3, 7."""
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
