"""A record that waits to be acknowledged, and what a batch of them is while it is on its way."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from sampleapp.model import Record, RecordMetadata

__all__ = ["Batch", "Pending"]


class Pending:
    """One record, and who waits for it."""

    __slots__ = ("answer", "deadline_s", "record", "size")

    def __init__(self, record: Record, *, size: int, deadline_s: float) -> None:
        """
        :param size: the bytes that it takes in the buffer.
        :param deadline_s: when its caller has to be answered, in seconds of the reactor's clock.
        """
        self.record = record
        self.size = size
        self.deadline_s = deadline_s
        self.answer: Deferred[RecordMetadata] = Deferred()


class Batch:
    """Records of one partition that are, or were, sent together."""

    __slots__ = ("data", "expired", "held", "records", "unresolved")

    def __init__(self, records: list[Pending], *, held: int) -> None:
        """:param held: the bytes of all records."""
        self.records = records
        self.held = held
        self.data: bytes | None = None
        """As it is on the wire. Kept for as long as the broker may have it: it must not change then."""
        self.unresolved = False
        """Whether an earlier attempt may have been stored, though no answer said so."""
        self.expired = 0
        """How many of the records, from the first on, were given up while the batch was on its way."""
