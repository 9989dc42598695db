"""Clocks for tests of work that takes several turns of the reactor."""

from __future__ import annotations

from twisted.internet.task import Clock


class ClockInTurns(Clock):
    """A clock that runs one turn of the reactor at a time; Twisted's runs all that is due at once."""

    def callLater(self, delay, function, *args, **kwargs):
        return super().callLater(delay or 1, function, *args, **kwargs)

    def take(self):
        """Run one turn of the reactor."""
        self.advance(1)
