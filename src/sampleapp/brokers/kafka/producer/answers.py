"""Answering those who wait, and knowing when nobody does any more."""

from __future__ import annotations

from collections.abc import Iterable

from twisted.internet.defer import Deferred, succeed

from sampleapp.brokers.kafka.producer.buffer import Buffer
from sampleapp.brokers.kafka.producer.pending import Batch, Pending
from sampleapp.errors import PublishError
from sampleapp.model import RecordMetadata

__all__ = ["Answers"]


class Answers:
    """
    Every record that was accepted, until it has left the buffer.

    A caller may be answered before that: at a record's deadline, while the broker still has it.
    """

    def __init__(self, *, buffer: Buffer) -> None:
        self._buffer = buffer
        self._outstanding = 0
        self._idle: list[Deferred[None]] = []

    def expect(self) -> None:
        """One more record was accepted, and has its bytes of the buffer."""
        self._outstanding += 1

    def when_idle(self) -> Deferred[None]:
        """Fires with ``None`` when there is no record left."""
        if self._outstanding == 0:
            return succeed(None)
        waiter: Deferred[None] = Deferred()
        self._idle.append(waiter)
        return waiter

    def stored(self, batch: Batch, *, topic: str, partition: int, offset: int) -> None:
        """
        Answer all records of a batch.

        :param offset: of its first record; each of the others has the next one.
        """
        self._outstanding -= len(batch.records)
        self._buffer.give_back(batch.held)
        for pending in batch.records:
            answer = pending.answer
            if not answer.called:
                answer.callback(RecordMetadata(topic=topic, partition=partition, offset=offset))
            offset += 1
        self._check_idle()

    def fail(self, records: Iterable[Pending], error: PublishError) -> None:
        """Answer those who were not answered yet; each with an exception of its own."""
        records = tuple(records)
        self._leave(records)
        for pending in records:
            self.give_up(pending, error)
        self._check_idle()

    def give_up(self, pending: Pending, error: PublishError) -> None:
        """Answer the caller of a record that stays where it is."""
        if not pending.answer.called:
            pending.answer.errback(type(error)(*error.args))

    def _leave(self, records: Iterable[Pending]) -> None:
        count = released = 0
        for pending in records:
            count += 1
            released += pending.size
        self._outstanding -= count
        self._buffer.give_back(released)

    def _check_idle(self) -> None:
        if self._outstanding == 0 and self._idle:
            waiters, self._idle = self._idle, []
            for waiter in waiters:
                if not waiter.called:
                    waiter.callback(None)
