"""Which addresses can be reached: said in the log when it changes, not at each attempt."""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger

from sampleapp.brokers.kafka.connections.failure_reason import FailureReason, address

__all__ = ["Reachability"]


class Reachability:
    """The addresses of a cluster that connections fail at."""

    _log = Logger()

    def __init__(self) -> None:
        self._reasons: dict[tuple[str, int], str] = {}
        self.changed: Callable[[], None] = lambda: None
        """Is called when something was reached, or is not any more."""
        self.ended: Callable[[], None] = lambda: None
        """Is called when a connection has ended."""

    def failed(self, host: str, port: int, reason: FailureReason) -> None:
        """An attempt to connect has failed."""
        known = self._reasons.get((host, port))
        self._reasons[host, port] = reason.sentence
        if known != reason.sentence:
            self._log.warn("No connection to a broker: {reason}", reason=reason.sentence)
        if known is None:
            self.changed()

    def succeeded(self, host: str, port: int) -> None:
        """A connection is ready for use."""
        if self._reasons.pop((host, port), None) is not None:
            self._log.info("There is a connection to {address} again.", address=address(host, port))
            self.changed()

    def lost(self) -> None:
        """A connection has ended, whoever ended it."""
        self.ended()
