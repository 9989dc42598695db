"""Health tracker: the reasons why a broker is not ready, with a log line for each change."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from sampleapp.concurrency.failures import LogLimit
from sampleapp.model import Health

WRITING = "writing"
"""The part for storing records."""

_CANNOT_BE_STORED: Final = "Records cannot be stored at the moment; the log of the service says why."


class HealthTracker:
    """The parts of a broker that are not working now, with one reason each."""

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime | None = None,
        *,
        broker: str = "The broker",
        unavailable: str = "The broker is not ready",
    ) -> None:
        """
        :param clock: for the limit of log lines; by default the system's clock.
        :param broker: the broker's name in log lines.
        :param unavailable: begins the log line when `WRITING` has failed.
        """
        self._broker = broker
        self._unavailable = unavailable
        self._reasons: dict[Hashable, str] = {}
        self._public_reason = _CANNOT_BE_STORED
        self._limit = LogLimit(clock)

    def expect(self, part: Hashable, reason: str, *, public_reason: str = _CANNOT_BE_STORED) -> None:
        """
        Mark a part as not ready without a log line, since this is expected now.

        :param reason: for the operator.
        :param public_reason: the reason for callers, without paths and addresses; only for `WRITING`.
        """
        self._reasons[part] = reason
        if part == WRITING:
            self._public_reason = public_reason

    def mark_failed(
        self,
        part: Hashable,
        reason: str,
        *,
        public_reason: str = _CANNOT_BE_STORED,
        needs_restart: bool = False,
    ) -> None:
        """
        Mark a part as failed.

        It is logged if the part worked before or the reason has changed, at most once a minute for each part,
        and not if another part has failed for the same reason.

        :param reason: for the operator.
        :param public_reason: the reason for callers, without paths and addresses; only for `WRITING`.
        :param needs_restart: the part does not recover by itself.
        """
        is_known = self._is_reason_of_another(part, reason)
        self.expect(part, reason, public_reason=public_reason)
        if self._limit.is_news(part, reason) and not is_known:
            state = self._unavailable if part == WRITING else f"{self._broker} is not ready"
            if needs_restart:
                self._log.error("{state}: {reason}", state=state, reason=reason)
            else:
                self._log.error("{state}; still trying: {reason}", state=state, reason=reason)

    def mark_healthy(self, part: Hashable) -> None:
        """Mark a part as working; logged if it has failed before, unless another part has the same reason."""
        reason = self._reasons.pop(part, None)
        if self._limit.forget(part) and not self._is_reason_of_another(part, reason):
            self._log.info("{broker} is ready again. Before: {reason}", broker=self._broker, reason=reason)

    def forget(self, part: Hashable) -> None:
        """Remove a part that has ended."""
        self._reasons.pop(part, None)
        self._limit.forget(part)

    def health(self) -> Health:
        """Return the health of the broker, with each reason once."""
        reasons = tuple(dict.fromkeys(self._reasons.values()))
        public_reasons = (self._public_reason,) if WRITING in self._reasons else ()
        return Health(ready=not reasons, reasons=reasons, public_reasons=public_reasons)

    def _is_reason_of_another(self, part: Hashable, reason: str | None) -> bool:
        return any(other != part and known == reason for other, known in self._reasons.items())
