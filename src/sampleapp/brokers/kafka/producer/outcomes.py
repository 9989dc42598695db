"""What became of many records that were published together."""

from __future__ import annotations

from typing import cast

from twisted.internet.defer import Deferred

from sampleapp.errors import PublishError
from sampleapp.interfaces import Outcome

__all__ = ["Outcomes"]


class Outcomes:
    """
    The outcomes of one `sampleapp.interfaces.IBroker.publish_many`, until all of them are known.

    One for all records, so that none of them needs a Deferred of its own.
    """

    __slots__ = ("done", "each", "missing")

    def __init__(self, count: int) -> None:
        """:param count: how many records there are: at least one."""
        self.each: list[Outcome | None] = [None] * count
        """In the order of the records; ``None`` while it is not known."""
        self.missing = count
        """How many are not known yet. Who puts an outcome where none was counts it, and calls `finish`."""
        self.done: Deferred[list[Outcome]] = Deferred()
        """Fires with all of them. Cancelling it stops the waiting only."""

    def put(self, index: int, outcome: Outcome) -> None:
        """Note what became of one record, unless that was told already."""
        if self.each[index] is None:
            self.each[index] = outcome
            self.missing -= 1
            if not self.missing:
                self.finish()

    def finish(self) -> None:
        """Tell who waits, now that nothing is missing."""
        if not self.done.called:
            self.done.callback(cast("list[Outcome]", self.each))

    def refuse(self, error: PublishError) -> None:
        """Tell who waits that none of the records was published."""
        if not self.done.called:
            self.done.errback(error)
