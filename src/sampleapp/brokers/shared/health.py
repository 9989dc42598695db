"""
Health tracker: why records cannot be stored, or topics not be read, with a log line for each change.

Storing and reading fail apart from one another, and so have levels and sentences of their own: an operator
judges storing by the lines about `WRITING`, which no other part writes.
"""

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
        Mark a part as not working, without a log line: this is expected now, or logged elsewhere.

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

        It is logged if the part worked before or the reason is a new one (see `LogLimit`): as an error for
        `WRITING`; for any other part, which reads, as a warning, unless a part has failed for this reason.

        :param reason: for the operator.
        :param public_reason: the reason for callers, without paths and addresses; only for `WRITING`.
        :param needs_restart: the part does not recover by itself; only for `WRITING`.
        """
        is_known = part != WRITING and reason in self._reasons_but(part)
        self.expect(part, reason, public_reason=public_reason)
        if not self._limit.is_news(part, reason) or is_known:
            return
        if part != WRITING:
            self._log.warn("Reading is interrupted; trying again: {reason}", reason=reason)
        elif needs_restart:
            self._log.error("{state}: {reason}", state=self._unavailable, reason=reason)
        else:
            self._log.error("{state}; still trying: {reason}", state=self._unavailable, reason=reason)

    def mark_healthy(self, part: Hashable) -> None:
        """Mark a part as working; logged if it has failed before, for reading once no part has the reason."""
        reason = self._reasons.pop(part, None)
        if not self._limit.forget(part):
            return
        if part == WRITING:
            self._log.info("{broker} is ready again. Before: {reason}", broker=self._broker, reason=reason)
        elif reason not in self._reasons_but(part, WRITING):
            self._log.info("Reading continues. Before: {reason}", reason=reason)

    def forget(self, part: Hashable) -> None:
        """Remove a part that has ended."""
        self._reasons.pop(part, None)
        self._limit.forget(part)

    def health(self) -> Health:
        """Return the health of the broker, with each reason once. It is ready if records can be stored."""
        is_ready = WRITING not in self._reasons
        return Health(
            ready=is_ready,
            reasons=tuple(dict.fromkeys(self._reasons.values())),
            public_reasons=() if is_ready else (self._public_reason,),
        )

    def _reasons_but(self, *parts: Hashable) -> list[str]:
        return [reason for part, reason in self._reasons.items() if part not in parts]
