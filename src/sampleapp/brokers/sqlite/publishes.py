"""Pending publishes: calls with one record or many that are not stored yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, cast

from twisted.internet.defer import Deferred

from sampleapp.errors import PublishError
from sampleapp.interfaces import Outcome
from sampleapp.model import Record, RecordMetadata

__all__ = ["Publish", "PublishMany", "PublishOne", "weight"]

RECORD_OVERHEAD_BYTES: Final = 256
"""Counted for each waiting record besides its key and value, so that empty ones are bounded as well."""
_HEADER_OVERHEAD_BYTES: Final = 160
"""Counted for each header besides its name and value, so that empty ones are bounded as well."""

_SLICE_RECORDS: Final = 100
_SLICE_BYTES: Final = 256 * 1024
"""Maximum records and bytes of one call in a row. Then records of other calls follow."""
_WEIGHED_RECORDS: Final = 50
_WEIGHED_BYTES: Final = 4 * 1024 * 1024
"""One call of `PublishMany.weigh` ends after this many bytes, in about 2 ms; checked every 50 records."""


class Publish(Protocol):
    """A pending call: accepted, and not yet answered."""

    def take(self) -> tuple[int, Sequence[Record], int]:
        """
        Take the next records, at least one, for a transaction.

        :return: the index of the first one, the records, and their bytes of the buffer.
        """

    def left(self) -> tuple[int, int, int]:
        """
        Take all remaining records.

        :return: the index of the first one, their count, and their bytes of the buffer.
        """

    @property
    def is_taken(self) -> bool:
        """True if all records are taken."""

    def settle(self, first: int, outcomes: Sequence[Outcome]) -> None:
        """
        Set the outcomes of some records. The caller is answered when all records have one.

        :param first: the index of the first one.
        """

    def give_up(self, error: PublishError) -> None:
        """Fail the call, unless it is answered; for use after `settle` has raised."""


class PublishOne:
    """A pending call with a single record."""

    __slots__ = ("_record", "_weight", "is_taken", "result")

    def __init__(self, record: Record, weight_bytes: int) -> None:
        self._record = record
        self._weight = weight_bytes
        self.is_taken = False
        # A Deferred without a canceller ignores the result after it is cancelled: the caller stops waiting,
        # and the record is stored all the same.
        self.result: Deferred[RecordMetadata] = Deferred()

    def take(self) -> tuple[int, Sequence[Record], int]:
        """See `Publish.take`."""
        self.is_taken = True
        return 0, (self._record,), self._weight

    def left(self) -> tuple[int, int, int]:
        """See `Publish.left`."""
        self.is_taken = True
        return 0, 1, self._weight

    def settle(self, first: int, outcomes: Sequence[Outcome]) -> None:  # noqa: ARG002 -- it is 0
        """See `Publish.settle`."""
        (outcome,) = outcomes
        if isinstance(outcome, PublishError):
            self.result.errback(outcome)
        else:
            self.result.callback(outcome)

    def give_up(self, error: PublishError) -> None:
        """See `Publish.give_up`."""
        if not self.result.called:
            self.result.errback(error)


class PublishMany:
    """
    A pending call with many records.

    They are taken slice by slice. Records of other calls may come between two slices, so that they do not
    wait for a whole batch.
    """

    __slots__ = (
        "_outcomes",
        "_taken",
        "_taken_bytes",
        "_unknown",
        "records",
        "result",
        "weighed",
        "weight_bytes",
    )

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.weighed = 0
        """The number of records that `weigh` has counted."""
        self.weight_bytes = 0
        """The bytes of the buffer for these records."""
        self._taken = self._taken_bytes = 0
        self._unknown = len(records)
        self._outcomes: list[Outcome | None] = [None] * len(records)
        # Without a canceller, like the Deferred of `PublishOne`.
        self.result: Deferred[list[Outcome]] = Deferred()

    def weigh(self, most_records: int) -> None:
        """Count the bytes of the next records; of fewer if they are large or have many headers."""
        end, until_bytes = self.weighed + most_records, self.weight_bytes + _WEIGHED_BYTES
        while self.weighed < min(end, len(self.records)) and self.weight_bytes < until_bytes:
            some = self.records[self.weighed : min(end, self.weighed + _WEIGHED_RECORDS)]
            self.weighed += len(some)
            self.weight_bytes += sum(map(weight, some))

    @property
    def is_taken(self) -> bool:
        """See `Publish.is_taken`."""
        return self._taken == len(self.records)

    def take(self) -> tuple[int, Sequence[Record], int]:
        """See `Publish.take`."""
        first = end = self._taken
        size = 0
        for record in self.records[first : first + _SLICE_RECORDS]:
            size += weight(record)
            end += 1
            if size >= _SLICE_BYTES:
                break
        some = self.records[first:end]
        # Only now, since the lines above may raise.
        self._taken, self._taken_bytes = end, self._taken_bytes + size
        return first, some, size

    def left(self) -> tuple[int, int, int]:
        """See `Publish.left`."""
        first, self._taken = self._taken, len(self.records)
        size, self._taken_bytes = self.weight_bytes - self._taken_bytes, self.weight_bytes
        return first, self._taken - first, size

    def settle(self, first: int, outcomes: Sequence[Outcome]) -> None:
        """See `Publish.settle`."""
        self._outcomes[first : first + len(outcomes)] = outcomes
        self._unknown -= len(outcomes)
        if not self._unknown and not self.result.called:
            self.result.callback(cast("list[Outcome]", self._outcomes))

    def give_up(self, error: PublishError) -> None:
        """See `Publish.give_up`."""
        if not self.result.called:
            self.result.errback(error)


def weight(record: Record) -> int:
    """Return the bytes of the buffer for a waiting record; approximately if header names are not ASCII."""
    size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += _HEADER_OVERHEAD_BYTES + len(name) + len(value or b"")
    return size
