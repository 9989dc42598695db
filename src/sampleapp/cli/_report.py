"""The report on the lines of a file, for a person, and the progress so far."""

from __future__ import annotations

import itertools
import os
import stat
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

import click
from msgspec import Struct
from twisted.internet.interfaces import IReactorTime

from sampleapp.cli._lines import Line
from sampleapp.cli._output import note
from sampleapp.cli._run import start_it
from sampleapp.model import RecordMetadata


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


# Fast enough for the eye; drawing for each line would cost more than publishing the line.
INTERVAL_S = 0.1
# Without a terminal, only waiting for the service is reported, at this interval.
WAITING_INTERVAL_S = 30.0


@contextmanager
def progress_of(file: IO[bytes], *, clock: IReactorTime) -> Iterator[Callable[[Report], None]]:
    """
    Show progress on stderr: a progress bar on a terminal, otherwise sentences when it must wait.

    :param file: if it is a regular file, its size is the total.
    :return: a function to call with each new state of the report.
    """
    if not sys.stderr.isatty() or os.isatty(file.fileno()):
        # A bar would be drawn over the lines that the user types.
        yield _Waiting(clock).show
        return

    size = _remaining_bytes(file)
    latest: list[Report] = []
    shown_bytes = 0
    shown_at_s = clock.seconds()

    def outcome(_item: object) -> str:
        if not latest:
            return ""
        report = latest[0]
        waiting = "; waiting for the service" if report.waiting_because is not None else ""
        return f"{report.outcome()}{waiting}"

    bar: Any
    with click.progressbar(
        # Without a length, click shows activity, and not how much is left.
        None if size is not None else itertools.repeat(0),
        length=size,
        file=sys.stderr,
        label="Publishing",
        item_show_func=outcome,
        show_eta=size is not None,
    ) as bar:

        def show(report: Report) -> None:
            nonlocal shown_bytes, shown_at_s
            latest[:] = [report]
            now_s = clock.seconds()
            waits = report.waiting_because is not None
            if waits or now_s - shown_at_s >= INTERVAL_S or report.finished_bytes == size:
                bar.update(report.finished_bytes - shown_bytes)
                if waits:
                    # Since update() draws only after progress.
                    bar.render_progress()
                shown_bytes, shown_at_s = report.finished_bytes, now_s

        yield show


class _Waiting:
    """Prints that publishing waits for the service, and that it goes on."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._since_s: float | None = None
        self._reported_at_s = 0.0

    def show(self, report: Report) -> None:
        now_s = self._clock.seconds()
        if report.waiting_because is None:
            if self._since_s is not None:
                note(f"Sending lines again after {now_s - self._since_s:.0f} seconds.")
            self._since_s = None
        elif self._since_s is None:
            note(f"{report.waiting_because} Waiting; {report.published} lines are published so far.")
            self._since_s = self._reported_at_s = now_s
        elif now_s - self._reported_at_s >= WAITING_INTERVAL_S:
            note(f"Still waiting after {now_s - self._since_s:.0f} seconds: {report.waiting_because}")
            self._reported_at_s = now_s


def _remaining_bytes(file: IO[bytes]) -> int | None:
    """Return the number of bytes left to read, or ``None`` if it is not a regular file."""
    descriptor = file.fileno()
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        return None
    return max(0, status.st_size - os.lseek(descriptor, 0, os.SEEK_CUR))
