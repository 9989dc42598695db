"""What callers have published and the file does not have yet: one record, or many in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, cast

from twisted.internet.defer import Deferred

from sampleapp.errors import PublishError
from sampleapp.interfaces import Outcome
from sampleapp.model import Record, RecordMetadata

__all__ = ["Publish", "PublishMany", "PublishOne", "weight"]

RECORD_OVERHEAD_BYTES: Final = 256
"""What a waiting record takes besides its key and value: so that empty ones are bounded, too."""
_HEADER_OVERHEAD_BYTES: Final = 160
"""What a header takes in Python besides its name and value: so that empty ones are bounded, too."""

_SLICE_RECORDS: Final = 100
_SLICE_BYTES: Final = 256 * 1024
"""What many records give to a transaction before others have their turn."""


class Publish(Protocol):
    """One call, from when it is accepted until its caller knows what became of each record."""

    def take(self) -> tuple[int, Sequence[Record], int]:
        """
        Begin with the next records: at least one.

        :return: the number of the first of them, they themselves, and what they take of the buffer in bytes.
        """

    def left(self) -> tuple[int, Sequence[Record], int]:
        """As `take`, but all that is left."""

    @property
    def is_taken(self) -> bool:
        """Whether nothing is left to take."""

    def settle(self, first: int, outcomes: Sequence[Outcome]) -> None:
        """
        Say what became of some of its records; the caller is told when that is known of all.

        :param first: the number of the first of them.
        """


class PublishOne:
    """One record by itself."""

    __slots__ = ("_record", "_weight", "is_taken", "result")

    def __init__(self, record: Record, weight_bytes: int) -> None:
        self._record = record
        self._weight = weight_bytes
        self.is_taken = False
        # When a Deferred without a canceller is cancelled, it ignores the result that comes later: the
        # waiting stops, and the record goes its way.
        self.result: Deferred[RecordMetadata] = Deferred()

    def take(self) -> tuple[int, Sequence[Record], int]:
        """See `Publish.take`."""
        self.is_taken = True
        return 0, (self._record,), self._weight

    left = take

    def settle(self, first: int, outcomes: Sequence[Outcome]) -> None:  # noqa: ARG002 -- it is 0
        """See `Publish.settle`."""
        (outcome,) = outcomes
        if isinstance(outcome, PublishError):
            self.result.errback(outcome)
        else:
            self.result.callback(outcome)


class PublishMany:
    """
    Many records of one call.

    They are taken slice by slice, and what others publish may come between two slices, so that nobody waits
    for all of a large batch.
    """

    __slots__ = ("_outcomes", "_taken", "_unknown", "records", "result", "weighed", "weight_bytes")

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.weighed = 0
        """How many of them `weigh` has counted."""
        self.weight_bytes = 0
        """What those take of the buffer."""
        self._taken = 0
        self._unknown = len(records)
        self._outcomes: list[Outcome | None] = [None] * len(records)
        # Without a canceller, as that of `PublishOne`.
        self.result: Deferred[list[Outcome]] = Deferred()

    def weigh(self, most_records: int) -> None:
        """Count what the next ones take of the buffer."""
        some = self.records[self.weighed : self.weighed + most_records]
        self.weighed += len(some)
        self.weight_bytes += sum(map(weight, some))

    @property
    def is_taken(self) -> bool:
        """See `Publish.is_taken`."""
        return self._taken == len(self.records)

    def take(self) -> tuple[int, Sequence[Record], int]:
        """See `Publish.take`."""
        first = self._taken
        size = 0
        for record in self.records[first : first + _SLICE_RECORDS]:
            size += weight(record)
            self._taken += 1
            if size >= _SLICE_BYTES:
                break
        return first, self.records[first : self._taken], size

    def left(self) -> tuple[int, Sequence[Record], int]:
        """See `Publish.left`."""
        first, self._taken = self._taken, len(self.records)
        some = self.records[first:]
        return first, some, sum(map(weight, some))

    def settle(self, first: int, outcomes: Sequence[Outcome]) -> None:
        """See `Publish.settle`."""
        self._outcomes[first : first + len(outcomes)] = outcomes
        self._unknown -= len(outcomes)
        if not self._unknown:
            self.result.callback(cast("list[Outcome]", self._outcomes))


def weight(record: Record) -> int:
    """What a record that waits takes of the buffer, in bytes; nearly, where a name is not ASCII."""
    size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += _HEADER_OVERHEAD_BYTES + len(name) + len(value)
    return size
