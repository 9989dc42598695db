"""The outcomes of records that were published together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from twisted.internet.defer import Deferred

from sampleapp.errors import PublishError
from sampleapp.interfaces import Outcome

__all__ = ["BatchResult"]


class BatchResult:
    """
    Collects the outcomes of one `sampleapp.interfaces.IBroker.publish_many`, and answers its caller.

    All records share it, so that they need no Deferreds of their own. A record may outlive it: a batch stays
    at the broker after its callers were answered at their deadline. So the caller gets the list itself, and
    later outcomes are dropped.
    """

    __slots__ = ("_missing", "_outcomes", "done")

    def __init__(self, count: int) -> None:
        """:param count: the number of records, at least one."""
        self._outcomes: list[Outcome | None] = [None] * count
        """In the order of the records; ``None`` while unknown. Empty after the caller was answered."""
        self._missing = count
        self.done: Deferred[list[Outcome]] = Deferred()
        """Fires with all outcomes, in a list that the caller may keep. Cancelling stops only the waiting."""

    def put(self, indexes: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        """Set the outcomes of records, unless they have one or the caller was answered."""
        known = self._outcomes
        if not self._missing:
            return
        for index, outcome in zip(indexes, outcomes, strict=True):
            if known[index] is None:
                known[index] = outcome
                self._missing -= 1
        if not self._missing:
            self._close()
            if not self.done.called:
                self.done.callback(cast("list[Outcome]", known))

    def reject(self, error: PublishError) -> None:
        """Answer the caller with one error: none of the records was published."""
        self._close()
        if not self.done.called:
            self.done.errback(error)

    def _close(self) -> None:
        self._outcomes, self._missing = [], 0
