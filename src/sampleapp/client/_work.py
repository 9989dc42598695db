"""A worker: pulls messages of a group, lets a function handle them, and answers for each."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

from twisted.internet.defer import CancelledError, Deferred, DeferredList
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.client._errors import ClientError, LeaseLost
from sampleapp.client._exchange import pause_s
from sampleapp.client._messages import Lease
from sampleapp.model import Acknowledged, LeasedRecord

Handler: TypeAlias = "Callable[[LeasedRecord], Awaitable[None] | None]"
"""Handles a message, which is accepted when this returns, or when what it returns is done."""

_WAIT_S = 20
_LEAST_PAUSE_S = 0.1

T = TypeVar("T")


class Rejected(Exception):
    """A handler raises it for a message that must never be given again."""


class Released(Exception):
    """A handler raises it for a message that another attempt may handle. It is not logged."""


class _Held:
    """A message that is being handled."""

    def __init__(self, lease: Lease, handling: Deferred[None]) -> None:
        self.lease = lease
        self.handling = handling
        self.pause: Deferred[None] = Deferred()
        self.is_over = self.is_lost = False


class Worker:
    """
    A worker that handles messages until it is stopped.

    A message is accepted when its handler is done, rejected if that raises `Rejected`, and released if it
    raises `Released`, or anything else, which is logged. Until then its lease is extended. If the lease is
    lost, the handler is cancelled.
    """

    _log = Logger()

    def __init__(
        self,
        handler: Handler,
        *,
        pull: Callable[..., Deferred[Lease | None]],
        ack: Callable[..., Deferred[Acknowledged]],
        extend: Callable[..., Deferred[Lease]],
        clock: IReactorTime,
        parallel: int,
        most: int | None,
        on_trouble: Callable[[str], None] | None,
    ) -> None:
        """
        :param pull: `Client.pull` for one group; and so the next two.
        :param parallel: the number of messages that are handled at one time.
        :param most: the number of messages after which it stops; ``None`` for no end.
        :param on_trouble: is told of errors of the service, in sentences; by default they are logged.
        """
        self._tell = self._log_trouble if on_trouble is None else on_trouble
        self._handler = handler
        self._pull = pull
        self._ack = ack
        self._extend = extend
        self._clock = clock
        self._left = math.inf if most is None else most
        self._waiting: set[Deferred[Any]] = set()
        self._held: set[_Held] = set()
        self.accepted = 0
        """The number of messages that were accepted."""
        self.done: Deferred[None] = Deferred.fromCoroutine(self._run(parallel))
        """
        Fires when it has stopped, and each of its messages is answered.

        Fails with the `ClientError` of a pull that cannot succeed later, which stops it.
        """

    def stop(self) -> None:
        """Stop after the messages that are handled now."""
        self._left = -math.inf
        for waiting in tuple(self._waiting):
            waiting.cancel()

    def abort(self) -> None:
        """Stop now: cancel the handlers, and release their messages."""
        self.stop()
        for held in tuple(self._held):
            held.handling.cancel()

    def _log_trouble(self, sentence: str) -> None:
        self._log.warn("{sentence}", sentence=sentence)

    async def _run(self, parallel: int) -> None:
        lines = [Deferred.fromCoroutine(self._work()) for _ in range(parallel)]
        outcomes: Any = await DeferredList(lines, consumeErrors=True)
        for _, outcome in outcomes:
            if isinstance(outcome, Failure):
                outcome.raiseException()

    async def _work(self) -> None:
        failures = 0
        while self._left > 0:
            # The other lines must not take more than are left.
            self._left -= 1
            lease = None
            try:
                lease = await self._until_stopped(self._pull(wait_s=_WAIT_S))
                failures = 0
            except ClientError as error:
                if not error.retriable:
                    self.stop()
                    raise
                failures += 1
                self._tell(f"Cannot pull messages now; trying again: {error}")
                await self._until_stopped(deferLater(self._clock, pause_s(error, failures)))
            if lease is None:
                self._left += 1
            else:
                await self._handle(lease)

    async def _until_stopped(self, waiting: Deferred[T]) -> T | None:
        """Wait for a Deferred; return ``None`` if the worker is stopped before that."""
        self._waiting.add(waiting)
        try:
            return await waiting
        except CancelledError:
            return None
        finally:
            self._waiting.discard(waiting)

    async def _handle(self, lease: Lease) -> None:
        held = _Held(lease, Deferred.fromCoroutine(_call(self._handler, lease.messages[0])))
        self._held.add(held)
        extending = Deferred.fromCoroutine(self._keep(held))
        result = "release"
        try:
            await held.handling
            result = "accept"
        except Rejected:
            result = "reject"
        except (CancelledError, Released):
            pass
        except Exception:  # noqa: BLE001 -- whatever it is, the message is for another attempt
            self._log.failure("The handler has failed; its message is released")
        self._held.discard(held)
        held.is_over = True
        held.pause.cancel()
        await extending
        try:
            if not held.is_lost:
                await self._ack(lease=held.lease, **{result: "all"})
                self.accepted += result == "accept"
        except ClientError as error:
            self._tell(f"A result has not reached the service: {error}")

    async def _keep(self, held: _Held) -> None:
        """Extend a lease at half of its time, until its message is handled."""
        while not held.is_over:
            held.pause = deferLater(self._clock, max(_LEAST_PAUSE_S, held.lease.lasts_s / 2))
            try:
                await held.pause
                # Not cancelled: only the response has the lease that can be answered.
                held.lease = await self._extend(lease=held.lease)
            except CancelledError:
                return
            except LeaseLost as error:
                self._tell(f"A message is given again: {error}")
                held.is_lost = True
                held.handling.cancel()
                return
            except ClientError as error:
                self._tell(f"Cannot extend a lease now; trying again: {error}")


async def _call(handler: Handler, message: LeasedRecord) -> None:
    result = handler(message)
    if result is not None:
        await result
