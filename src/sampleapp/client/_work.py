"""A worker: pulls messages of a group, lets a function handle them, and acknowledges each."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from itertools import repeat
from typing import Any, TypeAlias

from msgspec import Struct
from twisted.internet import defer
from twisted.internet.defer import CancelledError, Deferred, DeferredList, maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.client._errors import ClientError, LeaseLost
from sampleapp.client._exchange import pause_s
from sampleapp.client._messages import Lease
from sampleapp.concurrency.waiting import Semaphore, shielded
from sampleapp.model import Acknowledged, LeasedRecord

Handler: TypeAlias = "Callable[[LeasedRecord], Coroutine[Any, Any, None] | Deferred[None] | None]"
"""Handles a message, which is accepted when this returns, or when what it returns is done."""

_WAIT_S = 20
_LEAST_PAUSE_S = 0.1

_log = Logger()


class Rejected(Exception):
    """A handler raises it for a message that must never be given again."""


class Released(Exception):
    """A handler raises it for a message that another attempt may handle. It is not logged."""


def log_trouble(sentence: str) -> None:
    """Log an error that may pass."""
    _log.warn("{sentence}", sentence=sentence)


class Worker(Struct, kw_only=True):
    """The state of one call of `sampleapp.client.Client.work`."""

    handler: Handler
    pull: Callable[..., Deferred[Lease | None]]
    """`Client.pull` for one group; and so the next two."""
    ack: Callable[..., Deferred[Acknowledged]]
    extend: Callable[..., Deferred[Lease]]
    clock: IReactorTime
    on_result: Callable[[Acknowledged], None]
    on_trouble: Callable[[str], None]
    running: dict[Deferred[str], Deferred[None]] = {}
    """The result of each handler that runs, and the end of its acknowledgement."""

    async def run(self, *, parallel: int, most: int | None) -> None:
        """Pull until the end, or until cancelled; a second cancel cancels the handlers."""
        numbers = repeat(0) if most is None else range(most)
        pulling = Deferred.fromCoroutine(self._pull_all(numbers, Semaphore(parallel)))
        ended = Deferred.fromCoroutine(self._end(pulling))
        try:
            await shielded(ended)
        except CancelledError:
            pulling.cancel()
            if self.running:
                self.on_trouble("Ending after the messages in progress. Another interruption releases them.")
            try:
                await shielded(ended)
            except CancelledError:
                for handling in tuple(self.running):
                    handling.cancel()
                await shielded(ended)
            raise

    async def _end(self, pulling: Deferred[None]) -> None:
        outcomes: Any = await DeferredList([pulling], consumeErrors=True)
        await DeferredList(tuple(self.running.values()))
        ((_, outcome),) = outcomes
        if isinstance(outcome, Failure) and not outcome.check(CancelledError):
            outcome.raiseException()

    async def _pull_all(self, numbers: Iterable[int], free: Semaphore) -> None:
        # Only one pull waits at a time: the service limits them for each caller.
        for _ in numbers:
            await free.acquire()
            self._begin(await self._next_lease(), free)

    async def _next_lease(self) -> Lease:
        failures = 0
        while True:
            lease = None
            try:
                lease = await self.pull(wait_s=_WAIT_S)
                failures = 0
            except ClientError as error:
                if not error.retriable:
                    raise
                failures += 1
                if failures == 1:
                    self.on_trouble(f"Cannot pull messages now; trying again: {error}")
                await deferLater(self.clock, pause_s(error, failures))
            if lease is not None:
                return lease

    def _begin(self, lease: Lease, free: Semaphore) -> None:
        handling = Deferred.fromCoroutine(self._result_of(lease.messages[0]))

        def end(outcome: object) -> object:
            del self.running[handling]
            free.release()
            return outcome

        self.running[handling] = Deferred.fromCoroutine(self._acknowledge(lease, handling))
        self.running[handling].addBoth(end)

    async def _result_of(self, message: LeasedRecord) -> str:
        try:
            await maybeDeferred(self.handler, message)
        except Rejected:
            return "reject"
        except (CancelledError, Released):
            return "release"
        except Exception:  # noqa: BLE001 -- whatever it is, the message is for another attempt
            _log.failure("The handler has failed; its message is released")
            return "release"
        return "accept"

    async def _acknowledge(self, lease: Lease, handling: Deferred[str]) -> None:
        """Extend a lease each time that a third of it is over, until its message is handled."""
        while True:
            with suppress(defer.TimeoutError):
                pause_s = max(_LEAST_PAUSE_S, lease.lasts_s / 3)
                result = await shielded(handling).addTimeout(pause_s, self.clock)
                break
            try:
                # Not cancelled: only the response has the lease that can be acknowledged.
                lease = await self.extend(lease=lease)
            except LeaseLost as error:
                self.on_trouble(f"A message is given again: {error}")
                handling.cancel()
                await handling
                return
            except ClientError as error:
                self.on_trouble(f"Cannot extend a lease now; trying again: {error}")
        try:
            self.on_result(await self.ack(lease=lease, **{result: "all"}))
        except ClientError as error:
            self.on_trouble(f"A result may not have reached the service: {error}")
