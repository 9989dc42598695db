"""Acquired records: the messages among them, and the offsets that have none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from typing import Final

from msgspec import Struct
from twisted.logger import Logger

from sampleapp.brokers.kafka.batches import TooLargeBatch, UnreadableBatch, read_gradually, split_batches
from sampleapp.brokers.kafka.protocol import AcknowledgeType, SharePartition
from sampleapp.concurrency.slices import TimeSlices
from sampleapp.model import ConsumerRecord, LeasedRecord

_OFFSET_BYTES: Final = 8

_log = Logger()


class AcquiredRecords(Struct):
    """The response to one ShareFetch."""

    messages: list[LeasedRecord]
    """Those of each partition are together, in the order of their offsets."""
    others: dict[tuple[int, int], AcknowledgeType]
    """Acknowledgements by partition and offset of what is acquired, and no message."""
    released: list[int]
    """Of each offset that is released, the number of its attempts."""
    errors: frozenset[int]
    """The error codes of partitions."""


class _Unsettled(Struct):
    """The acquired offsets of a partition that are neither messages nor others yet."""

    partition: int
    counts: dict[int, int]
    """The number of attempts of each."""
    found: AcquiredRecords

    async def take(
        self, reading: Iterator[ConsumerRecord | TooLargeBatch | int | None], slices: TimeSlices
    ) -> None:
        for each in reading:
            if each is None:
                await slices.next()
            elif isinstance(each, TooLargeBatch):
                self.settle(each.next_offset, AcknowledgeType.RELEASE)
            elif isinstance(each, int):
                self.settle(each, AcknowledgeType.GAP)
            elif each.offset in self.counts:
                self.found.messages.append(LeasedRecord(each, self.counts.pop(each.offset)))
                # A batch has many more records than are acquired of it.
                if not self.counts:
                    break

    def settle(self, end: float, kind: AcknowledgeType) -> None:
        """Acknowledge the offsets before one."""
        for offset in [each for each in self.counts if each < end]:
            count = self.counts.pop(offset)
            self.found.others[self.partition, offset] = kind
            if kind == AcknowledgeType.RELEASE:
                self.found.released.append(count)


def _first_offset(batch: bytes) -> int:
    return int.from_bytes(batch[:_OFFSET_BYTES], "big")


async def decode(
    partitions: Iterable[SharePartition], *, topic: str, slices: TimeSlices, max_batch_bytes: int
) -> AcquiredRecords:
    """
    Decode the response to a ShareFetch.

    Offsets inside a batch without a record are gaps: markers of transactions, and what compaction has
    removed. An offset is released if its batch is not there as a whole, or cannot be read: it may have a
    record.
    """
    found = AcquiredRecords([], {}, [], frozenset(each.error for each in partitions if each.error))
    for partition in partitions:
        counts = {
            offset: run.delivery_count
            for run in partition.acquired
            for offset in range(run.first_offset, run.last_offset + 1)
        }
        unsettled = _Unsettled(partition.partition, counts, found)
        for batch, following in pairwise(chain(split_batches(partition.records), [b""])):
            if not counts:
                break
            reading = read_gradually(
                batch,
                topic=topic,
                partition=partition.partition,
                position=min(counts),
                aborted=(),
                max_batch_bytes=max_batch_bytes,
            )
            try:
                await unsettled.take(reading, slices)
            except UnreadableBatch as error:
                _log.warn("A message cannot be given to workers: {reason}", reason=str(error))
                # If its length is wrong, too, the bytes that follow are not a batch.
                if _first_offset(following) <= _first_offset(batch):
                    break
                unsettled.settle(_first_offset(following), AcknowledgeType.RELEASE)
        unsettled.settle(math.inf, AcknowledgeType.RELEASE)
    return found
