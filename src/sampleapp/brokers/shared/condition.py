"""What is known of the state of a broker: kept for `health`, and logged when it changes."""

from __future__ import annotations

from collections.abc import Hashable

from twisted.logger import Logger

from sampleapp.model import Health

__all__ = ["WRITING", "Condition"]

WRITING = "writing"
"""The part that says whether records can be stored."""


class Condition:
    """The parts of the broker that do not work at the moment, with one reason each."""

    _log = Logger()

    def __init__(self) -> None:
        self._reasons: dict[Hashable, str] = {}
        self._logged: set[Hashable] = set()

    def expect(self, part: Hashable, reason: str) -> None:
        """A part does not work, as is right at this time: that is not worth a line in the log."""
        self._reasons[part] = reason

    def bad(self, part: Hashable, reason: str) -> None:
        """A part does not work; logged if it did before, not once for each message that fails."""
        self._reasons[part] = reason
        if part not in self._logged:
            self._logged.add(part)
            self._log.error("The broker does not work: {reason}", reason=reason)

    def good(self, part: Hashable) -> None:
        """A part works; logged if it did not before."""
        reason = self._reasons.pop(part, None)
        if part in self._logged:
            self._logged.discard(part)
            self._log.info("The broker works again. Before: {reason}", reason=reason)

    def forget(self, part: Hashable) -> None:
        """A part is no more."""
        self._reasons.pop(part, None)
        self._logged.discard(part)

    def health(self) -> Health:
        """All reasons, each once."""
        reasons = tuple(dict.fromkeys(self._reasons.values()))
        return Health(ready=not reasons, reasons=reasons)
