"""What is known of the state of a broker: kept for `health`, and logged when it changes."""

from __future__ import annotations

from collections.abc import Hashable

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.shared.log_limit import LogLimit
from sampleapp.model import Health

__all__ = ["WRITING", "Condition"]

WRITING = "writing"
"""The part that says whether records can be stored."""


class Condition:
    """The parts of the broker that do not work at the moment, with one reason each."""

    _log = Logger()

    def __init__(self, clock: IReactorTime | None = None) -> None:
        """:param clock: limits the lines in the log; without one, the system's does."""
        self._reasons: dict[Hashable, str] = {}
        self._limit = LogLimit(clock)

    def expect(self, part: Hashable, reason: str) -> None:
        """A part does not work, as is right at this time: that is not worth a line in the log."""
        self._reasons[part] = reason

    def bad(self, part: Hashable, reason: str) -> None:
        """
        A part does not work.

        It is logged when it worked before or the reason is another one, at most once a minute for each part,
        and not when the same reason keeps another part from working, too.
        """
        is_known = self._is_reason_of_another(part, reason)
        self._reasons[part] = reason
        if self._limit.is_news(part, reason) and not is_known:
            self._log.error("The broker does not work: {reason}", reason=reason)

    def good(self, part: Hashable) -> None:
        """A part works; logged if it did not before, and no other part is kept from working by the same."""
        reason = self._reasons.pop(part, None)
        if self._limit.forget(part) and not self._is_reason_of_another(part, reason):
            self._log.info("The broker works again. Before: {reason}", reason=reason)

    def forget(self, part: Hashable) -> None:
        """A part is no more."""
        self._reasons.pop(part, None)
        self._limit.forget(part)

    def health(self) -> Health:
        """All reasons, each once."""
        reasons = tuple(dict.fromkeys(self._reasons.values()))
        return Health(ready=not reasons, reasons=reasons)

    def _is_reason_of_another(self, part: Hashable, reason: str | None) -> bool:
        return any(other != part and known == reason for other, known in self._reasons.items())
