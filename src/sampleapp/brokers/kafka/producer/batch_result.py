"""The outcomes of records that were published together."""

from __future__ import annotations

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

    def put(self, index: int, outcome: Outcome) -> None:
        """Set the outcome of one record, unless it has one or the caller was answered."""
        if self._missing and self._outcomes[index] is None:
            self._outcomes[index] = outcome
            self._missing -= 1
            if not self._missing:
                outcomes = self._close()
                if not self.done.called:
                    self.done.callback(cast("list[Outcome]", outcomes))

    def reject(self, error: PublishError) -> None:
        """Answer the caller with one error: none of the records was published."""
        self._close()
        if not self.done.called:
            self.done.errback(error)

    def _close(self) -> list[Outcome | None]:
        outcomes, self._outcomes, self._missing = self._outcomes, [], 0
        return outcomes
