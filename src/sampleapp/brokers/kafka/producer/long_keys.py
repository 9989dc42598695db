"""Hashing of long keys in slices, so that no key, however long, delays the records of other callers."""

from __future__ import annotations

from typing import Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.cluster_client import SERVICE_FAULT
from sampleapp.brokers.kafka.producer.partitioner import hash_in_steps
from sampleapp.brokers.kafka.producer.results import unavailable
from sampleapp.concurrency.slices import TimeSlices
from sampleapp.concurrency.waiting import Waiters
from sampleapp.errors import PublishError


class LongKeys:
    """
    Hashes keys of more than `sampleapp.brokers.kafka.producer.partitioner.HASHED_AT_ONCE` bytes.

    Keys take turns, so that one is not delayed by all the others. The waiters for one key share its hash and
    go on in the order in which they came, so that the records of a key keep their order.
    """

    _log = Logger()

    def __init__(self, slices: TimeSlices) -> None:
        """:param slices: for one step of one key in each turn of the reactor."""
        self._slices = slices
        self._waiters: Final[dict[bytes, Waiters[int]]] = {}

    def hash(self, key: bytes) -> Deferred[int]:
        """
        Hash a key.

        :return: fires with its hash without the sign, after the Deferreds of earlier calls for this key.
            Fails with a `PublishError`. Cancelling it stops the waiting only.
        """
        waiters = self._waiters.get(key)
        if waiters is not None:
            return waiters.wait()
        waiters = self._waiters[key] = Waiters()
        waiting = waiters.wait()
        Deferred.fromCoroutine(self._hash(key, waiters)).addErrback(self._failed, key, waiters)
        return waiting

    def give_up(self, error: PublishError) -> None:
        """Fail all waiters."""
        while self._waiters:
            _, waiters = self._waiters.popitem()
            waiters.fail(lambda: type(error)(*error.args))

    async def _hash(self, key: bytes, waiters: Waiters[int]) -> None:
        steps = hash_in_steps(key)
        while self._waiters.get(key) is waiters:
            await self._slices.next()
            try:
                next(steps)
            except StopIteration as end:
                del self._waiters[key]
                waiters.succeed(end.value)
                return

    def _failed(self, failure: Failure, key: bytes, waiters: Waiters[int]) -> None:
        self._log.failure("Hashing a key of {length} bytes failed", failure=failure, length=len(key))
        if self._waiters.get(key) is waiters:
            del self._waiters[key]
        waiters.fail(lambda: unavailable(SERVICE_FAULT))
