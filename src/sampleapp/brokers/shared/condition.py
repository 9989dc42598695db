"""What is known of the state of a broker: kept for `health`, and logged when it changes."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.shared.log_limit import LogLimit
from sampleapp.model import Health

__all__ = ["WRITING", "Condition"]

WRITING = "writing"
"""The part that says whether records can be stored."""

_CANNOT_BE_STORED: Final = "Records cannot be stored at the moment; the log of the service says why."


class Condition:
    """The parts of the broker that do not work at the moment, with one reason each."""

    _log = Logger()

    def __init__(self, clock: IReactorTime | None = None) -> None:
        """:param clock: limits the lines in the log; without one, the system's does."""
        self._reasons: dict[Hashable, str] = {}
        self._obstacle = _CANNOT_BE_STORED
        self._limit = LogLimit(clock)

    def expect(self, part: Hashable, reason: str, *, obstacle: str = _CANNOT_BE_STORED) -> None:
        """
        A part does not work, as is right at this time: that is not worth a line in the log.

        :param obstacle: the same for any caller, without paths and addresses; of `WRITING` only.
        """
        self._reasons[part] = reason
        if part == WRITING:
            self._obstacle = obstacle

    def bad(self, part: Hashable, reason: str, *, obstacle: str = _CANNOT_BE_STORED) -> None:
        """
        A part does not work.

        It is logged when it worked before or the reason is another one, at most once a minute for each part,
        and not when the same reason keeps another part from working, too.

        :param obstacle: the same for any caller, without paths and addresses; of `WRITING` only.
        """
        is_known = self._is_reason_of_another(part, reason)
        self.expect(part, reason, obstacle=obstacle)
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
        obstacles = (self._obstacle,) if WRITING in self._reasons else ()
        return Health(ready=not reasons, reasons=reasons, obstacles=obstacles)

    def _is_reason_of_another(self, part: Hashable, reason: str | None) -> bool:
        return any(other != part and known == reason for other, known in self._reasons.items())
