"""Reactors on which time goes faster, or only when the test says so, for tests of what waits for seconds."""

from __future__ import annotations

from twisted.internet import reactor
from twisted.internet.task import Clock
from zope.interface import directlyProvides, providedBy

__all__ = ["FASTER", "FasterReactor", "HeldTime"]

FASTER = 5.0
"""A second of such a reactor is a fifth of one."""


class FasterReactor:
    """
    The global reactor with a faster clock: all that waits on it waits less, in the same proportions.

    Only its timers are faster. Sockets, threads, and peers in other processes are as slow as they are: give
    a deadline that has to leave them room five times the seconds.
    """

    def __init__(self):
        self._began_s = reactor.seconds()
        directlyProvides(self, providedBy(reactor))

    def seconds(self):
        return self._began_s + (reactor.seconds() - self._began_s) * FASTER

    def callLater(self, delay, call, *arguments, **options):
        return reactor.callLater(delay / FASTER, call, *arguments, **options)

    def __getattr__(self, name):
        return getattr(reactor, name)


class HeldTime(Clock):
    """
    A clock that only `advance` moves, so that nothing that is slow is late. What is due at once runs on the
    global reactor.
    """

    def callLater(self, delay, call, *arguments, **options):
        return (super() if delay else reactor).callLater(delay, call, *arguments, **options)
