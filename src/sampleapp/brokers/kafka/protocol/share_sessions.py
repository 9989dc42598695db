"""Sessions of share groups: ShareFetch acquires records, and ShareAcknowledge ends or renews it (KIP-932)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import chain
from struct import Struct
from typing import ClassVar, Final
from uuid import UUID

import msgspec

from sampleapp.brokers.kafka.protocol.codec import INT32, Api, Decoder, Request

END_SHARE_SESSION: Final = -1
"""The epoch that ends a session; what it holds is released. It is not compared with the session's own."""

_LIMITS = Struct(">iiiiiibx")
_RECORD_LIMIT = 1
"""An acquire mode (KIP-1206); whether there are renewals follows, which there are not."""
_EPOCH_AND_RENEWAL = Struct(">i?")
_BATCH = Struct(">qq")
_TYPE = Struct(">b")

_PARTITION = Struct(">ih")
_LEADER = Struct(">ii")
_ACQUIRED = Struct(">qqh")
# The smallest size of an element: its numbers, the lengths of its strings and arrays, and its tagged fields.
_SMALLEST_TOPIC = 16 + 1 + 1
_SMALLEST_FETCHED = _PARTITION.size + 1 + 2 + 1 + _LEADER.size + 1 + 1 + 1 + 1
_SMALLEST_ACKNOWLEDGED = _PARTITION.size + 1 + _LEADER.size + 1 + 1
_SMALLEST_NODE = 4 + 1 + 4 + 1 + 1


class AcquiredRecords(msgspec.Struct, frozen=True, gc=False):
    """Consecutive records that are locked for the member."""

    first_offset: int
    last_offset: int
    """Inclusive. Offsets without a record may be among them."""
    delivery_count: int
    """1 for the first delivery."""


class SharePartition(msgspec.Struct, frozen=True, gc=False):
    """The response for one partition."""

    partition: int
    error: int
    acquired: tuple[AcquiredRecords, ...] = ()
    records: bytes = b""
    """Batches, which also have records that were not acquired; the last may be cut short."""


class ShareFetched(msgspec.Struct, frozen=True, gc=False):
    """The response within a share session."""

    error: int
    """Of the request as a whole, such as an unknown session; then there are no partitions."""
    lock_ms: int
    """The time for which records are locked in this group; 0 if there was an error."""
    partitions: tuple[SharePartition, ...]
    """Those with records or an error."""


class ShareFetchRequest(Request[ShareFetched], frozen=True, kw_only=True):
    """
    Acquire records of one topic. The broker answers when it has any, or after ``max_wait_ms``.

    Kafka 4.2 and newer support v2, which never gives more than ``max_records`` (KIP-1206).
    """

    api: ClassVar[Api] = Api(key=78, name="ShareFetch", lowest=2, highest=2, flexible=0)

    group: str
    member_id: str
    """Whose share session it is: at most 36 characters."""
    session_epoch: int
    """The number of the request in its session: 0 begins one, and -1 ends it without acquiring records."""
    topic_id: UUID
    partitions: Sequence[int]
    """To add to the session: all of them when it begins."""
    max_wait_ms: int
    max_records: int
    max_bytes: int
    """A larger batch is sent alone, so that fetching continues (KIP-74)."""

    def _parts(self, version: int) -> Iterable[bytes]:
        fields = self._fields(version)
        limits = _LIMITS.pack(
            self.session_epoch,
            self.max_wait_ms,
            1,  # minimal bytes
            self.max_bytes,
            self.max_records,
            self.max_records,  # the limit of one batch of acquired records
            _RECORD_LIMIT,
        )
        parts = [fields.string(self.group), fields.string(self.member_id), limits]
        parts.append(fields.count(1 if self.partitions else 0))
        if self.partitions:
            parts += (self.topic_id.bytes, fields.count(len(self.partitions)))
            # Acknowledgements go with ShareAcknowledge.
            no_batches = fields.count(0) + fields.tags
            parts += [INT32.pack(each) + no_batches for each in self.partitions]
            parts.append(fields.tags)
        parts += (fields.count(0), fields.tags)  # no partitions to forget
        return parts

    def _read(self, version: int, reader: Decoder) -> ShareFetched:  # noqa: ARG002 -- there is only one
        reader.int32()  # throttle time
        error = reader.int16()
        reader.nullable_string()  # the error's message
        lock_ms = reader.int32()
        partitions: list[SharePartition] = []
        for _ in range(reader.count(_SMALLEST_TOPIC)):
            reader.uuid()
            partitions += [_partition(reader) for _ in range(reader.count(_SMALLEST_FETCHED))]
            reader.tags()
        _skip_nodes(reader)
        reader.tags()
        return ShareFetched(error, lock_ms, tuple(partitions))


class AcknowledgeType(IntEnum):
    """The end of one delivery of a record, or its renewal."""

    GAP = 0
    """There is no record at the offset."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
    """Lock it for the whole time again."""


class Acknowledgement(msgspec.Struct, frozen=True, gc=False):
    """An acknowledgement of consecutive offsets."""

    first_offset: int
    last_offset: int
    """Inclusive."""
    type: AcknowledgeType


class ShareAcknowledged(msgspec.Struct, frozen=True, gc=False):
    """The response within a share session."""

    error: int
    """Of the request as a whole, such as an unknown session; then there are no partitions."""
    errors: Mapping[int, int]
    """The error, or 0, of each partition."""
    lock_ms: int
    """The time for which renewed records are locked in this group; 0 if there was an error."""


class ShareAcknowledgeRequest(Request[ShareAcknowledged], frozen=True, kw_only=True):
    """Acknowledge records of one topic that a session has acquired. Kafka 4.2 and newer support v2."""

    api: ClassVar[Api] = Api(key=79, name="ShareAcknowledge", lowest=2, highest=2, flexible=0)

    group: str
    member_id: str
    session_epoch: int
    """The number of the request in its session, or `END_SHARE_SESSION`. Never the first one."""
    topic_id: UUID
    acknowledgements: Mapping[int, Sequence[Acknowledgement]]
    """By partition: not empty, ordered by offset, and without overlaps."""

    def _parts(self, version: int) -> Iterable[bytes]:
        fields = self._fields(version)
        batches = chain.from_iterable(self.acknowledgements.values())
        renews = any(each.type is AcknowledgeType.RENEW for each in batches)
        parts = [fields.string(self.group), fields.string(self.member_id)]
        parts.append(_EPOCH_AND_RENEWAL.pack(self.session_epoch, renews))
        parts.append(fields.count(1 if self.acknowledgements else 0))
        if self.acknowledgements:
            parts += (self.topic_id.bytes, fields.count(len(self.acknowledgements)))
            for partition, of_partition in self.acknowledgements.items():
                parts += (INT32.pack(partition), fields.count(len(of_partition)))
                for each in of_partition:
                    # One type means all offsets of the batch.
                    types = fields.count(1) + _TYPE.pack(each.type)
                    parts += (_BATCH.pack(each.first_offset, each.last_offset), types, fields.tags)
                parts.append(fields.tags)
            parts.append(fields.tags)
        parts.append(fields.tags)
        return parts

    def _read(self, version: int, reader: Decoder) -> ShareAcknowledged:  # noqa: ARG002 -- there is only one
        reader.int32()  # throttle time
        error = reader.int16()
        reader.nullable_string()  # the error's message
        lock_ms = reader.int32()
        errors: dict[int, int] = {}
        for _ in range(reader.count(_SMALLEST_TOPIC)):
            reader.uuid()
            for _ in range(reader.count(_SMALLEST_ACKNOWLEDGED)):
                partition, error_of_partition = reader.fields(_PARTITION)
                errors[partition] = error_of_partition
                reader.nullable_string()
                reader.fields(_LEADER)
                reader.tags()
                reader.tags()
            reader.tags()
        _skip_nodes(reader)
        reader.tags()
        return ShareAcknowledged(error, errors, lock_ms)


def _skip_nodes(reader: Decoder) -> None:
    """Skip the addresses of new leaders, which are taken from the metadata instead."""
    for _ in range(reader.count(_SMALLEST_NODE)):
        reader.int32()
        reader.string()
        reader.int32()
        reader.nullable_string()
        reader.tags()


def _partition(reader: Decoder) -> SharePartition:
    partition, error = reader.fields(_PARTITION)
    reader.nullable_string()  # the error's message
    reader.int16()  # the error of the acknowledgements, of which there are none
    reader.nullable_string()
    reader.fields(_LEADER)
    reader.tags()
    records = reader.nullable_data() or b""
    acquired = tuple(_acquired(reader) for _ in range(reader.nullable_count(_ACQUIRED.size + 1)))
    reader.tags()
    return SharePartition(partition, error, acquired, records)


def _acquired(reader: Decoder) -> AcquiredRecords:
    acquired = AcquiredRecords(*reader.fields(_ACQUIRED))
    reader.tags()
    return acquired
