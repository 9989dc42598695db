"""Waiting in tests, with a deadline."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

__all__ = ["DEADLINE_S", "eventually", "outcomes", "turns", "within"]

DEADLINE_S = 30.0
"""Much more than any test takes. It only ends a test that would otherwise hang."""

_POLL_S = 0.005

T = TypeVar("T")


def within(deferred: Deferred[T]) -> Deferred[T]:
    """Return the same Deferred; after `DEADLINE_S` it fails with Twisted's `TimeoutError`."""
    return deferred.addTimeout(DEADLINE_S, _reactor())


async def eventually(condition: Callable[[], object]) -> None:
    """Run the reactor until a condition is true; fail after `DEADLINE_S`."""
    reactor = _reactor()
    give_up_at_s = reactor.seconds() + DEADLINE_S
    while not condition():
        if reactor.seconds() >= give_up_at_s:
            raise AssertionError("the condition did not become true in time")
        await deferLater(reactor, _POLL_S)


async def outcomes(deferreds: Iterable[Deferred[Any]]) -> list[Any]:
    """Wait for all Deferreds, and return each result or exception, in order. No failure is left unhandled."""
    results = await within(DeferredList(deferreds, consumeErrors=True))
    return [result if succeeded else result.value for succeeded, result in results]


async def turns(count: int = 20) -> None:
    """Run some turns of the reactor, to check that something does not happen."""
    for _ in range(count):
        await deferLater(_reactor(), 0)


def _reactor() -> IReactorTime:
    # Not imported at the top: pytest-twisted may install another reactor first.
    from twisted.internet import reactor

    return cast(IReactorTime, reactor)
