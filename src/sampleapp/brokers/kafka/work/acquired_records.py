"""Acquired records: the messages among them, and the offsets that have none."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from twisted.logger import Logger

from sampleapp.brokers.kafka.batches import TooLargeBatch, UnreadableBatch, read_gradually
from sampleapp.brokers.kafka.protocol import AcknowledgeType, SharePartition
from sampleapp.concurrency.slices import TimeSlices
from sampleapp.model import ConsumerRecord, LeasedRecord

_log = Logger()


class AcquiredRecords(Struct):
    """The response to one ShareFetch."""

    messages: list[LeasedRecord]
    """Those of each partition are together, in the order of their offsets."""
    others: dict[tuple[int, int], AcknowledgeType]
    """Acknowledgements by partition and offset of what is acquired, and no message."""
    errors: frozenset[int]
    """The error codes of partitions."""


async def decode(
    partitions: Iterable[SharePartition], *, topic: str, slices: TimeSlices, max_batch_bytes: int
) -> AcquiredRecords:
    """
    Decode the response to a ShareFetch.

    Offsets inside a batch without a record are gaps: markers of transactions, and what compaction has
    removed. An offset is released if its batch is not there as a whole, or cannot be read: it may have a
    record.
    """
    found = AcquiredRecords([], {}, frozenset(each.error for each in partitions if each.error))
    for partition in partitions:
        number = partition.partition
        counts = {
            offset: run.delivery_count
            for run in partition.acquired
            for offset in range(run.first_offset, run.last_offset + 1)
        }
        if not counts:
            continue
        reading = read_gradually(
            partition.records,
            topic=topic,
            partition=number,
            position=min(counts),
            aborted=(),
            max_batch_bytes=max_batch_bytes,
        )
        try:
            for each in reading:
                if each is None:
                    await slices.next()
                elif isinstance(each, ConsumerRecord):
                    if each.offset in counts:
                        found.messages.append(LeasedRecord(each, counts.pop(each.offset)))
                        # A batch has many more records than are acquired of it.
                        if not counts:
                            break
                else:
                    is_read = not isinstance(each, TooLargeBatch)
                    end = each if isinstance(each, int) else each.next_offset
                    kind = AcknowledgeType.GAP if is_read else AcknowledgeType.RELEASE
                    for offset in [offset for offset in counts if offset < end]:
                        del counts[offset]
                        found.others[number, offset] = kind
        except UnreadableBatch as error:
            _log.warn("A message cannot be given to workers: {reason}", reason=str(error))
        found.others |= {(number, offset): AcknowledgeType.RELEASE for offset in counts}
    return found
