"""A record that waits to be acknowledged, and what a batch of them is while it is on its way."""

from __future__ import annotations

from msgspec import Struct
from twisted.internet.defer import Deferred

from sampleapp.model import Record, RecordMetadata

__all__ = ["Batch", "Pending"]


class Pending(Struct, gc=False):
    """
    One record, and who waits for it.

    It needs no garbage collector: it leaves its queue when it is answered, and so every cycle.
    """

    record: Record
    size: int
    """The bytes that it takes in the buffer."""
    deadline_s: float
    """When its caller has to be answered, in seconds of the reactor's clock."""
    answer: Deferred[RecordMetadata]


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
