"""What became of the lines of a file, told to a person."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from sampleapp.cli._run import START_IT

__all__ = ["Report"]


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
        """Whether the service takes nothing of the caller, so that no more lines are begun."""
        self.held_back_s = 0.0
        """How long nothing was sent because the caller's rate did not allow it, in seconds."""
        self.waited_s = 0.0
        """How long nothing was sent because the service could not take it, or was not there, in seconds."""
        self.waiting_because: str | None = None
        """Why nothing is sent at the moment, if the service cannot take it; ``None`` if it can."""
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

    def fail(self, number: int, reason: str) -> None:
        """
        Account for a line that could not be published.

        :param number: of the line, from 1.
        """
        self.failed += 1
        self._failures.setdefault(reason, array("Q")).append(number)

    def sentences(self) -> Iterator[str]:
        """All there is to say, for a person: why lines failed, and how many did not."""
        for reason, numbers in self._failures.items():
            word = "Line" if len(numbers) == 1 else "Lines"
            yield f"{word} {', '.join(_ranges(numbers))}: {reason}"
        after = f"after line {self.published + self.failed}"
        if self.unreachable:
            yield f"Stopped {after}: what follows was not sent. Is the service running? {START_IT}"
        elif self.refused:
            yield f"Stopped {after}: what follows was not sent, since the service would refuse it as well."
        elif self.unreadable is not None:
            yield f"Stopped {after}: reading failed ({self.unreadable})."
        elif self.interrupted:
            yield f"Interrupted {after}: what follows was not sent."
        if self.held_back_s:
            yield f"Nothing was sent for {_seconds(self.held_back_s)} in all: the service allows no more."
        if self.waited_s:
            yield f"Nothing was sent for {_seconds(self.waited_s)} in all: the service could not take it."
        lines = "line" if self.published == 1 else "lines"
        yield f"Published {self.published} {lines}, {self.failed} failed."


def _seconds(duration_s: float) -> str:
    number = round(duration_s)
    return "1 second" if number == 1 else f"{number} seconds"


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
