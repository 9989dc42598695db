"""Cooperative scheduling of generators: one step in each turn of the reactor."""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Cooperator

__all__ = ["cooperator_on"]


def cooperator_on(clock: IReactorTime) -> Cooperator:
    """Return a cooperator that runs one step of one of its tasks in each turn of the reactor, in rotation."""
    return Cooperator(
        terminationPredicateFactory=lambda: lambda: True, scheduler=lambda tick: clock.callLater(0, tick)
    )
