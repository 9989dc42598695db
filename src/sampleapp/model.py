"""
The values of sampleapp's domain: messages, records, topics and readings.

Keys and values of records are bytes, as in Kafka; functions that convert text name the encoding. Every value
is immutable, and every time is an integer of milliseconds since the epoch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Final, Literal, Self, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

__all__ = [
    "ALL",
    "CALLER_HEADER",
    "EARLIEST",
    "FINGERPRINT_HEADER",
    "HEADER_BYTES",
    "MEDIA_TYPES",
    "MOST_HEADERS",
    "TOPIC_PATTERN",
    "TOPIC_RULE",
    "Acknowledged",
    "ConsumerRecord",
    "Extended",
    "FromEnd",
    "FromOffset",
    "FromOffsets",
    "FromTime",
    "GoneRecords",
    "Health",
    "Lease",
    "LeasedRecord",
    "Message",
    "MessageIds",
    "OffsetAndEpoch",
    "PartitionDescription",
    "ReadRequest",
    "ReadResult",
    "ReadStart",
    "Reading",
    "Record",
    "RecordIdentity",
    "RecordMetadata",
    "ReplayedRecord",
    "Start",
    "TopicDescription",
    "Verdicts",
    "Version",
    "epoch_of",
    "is_legal_topic",
    "with_epoch",
]


TOPIC_PATTERN: Final = r"[A-Za-z0-9._-]{1,249}"
"""The pattern of a whole topic name; ``.`` and ``..`` match, but are not allowed."""

TOPIC_RULE: Final = '1 to 249 characters out of A-Z, a-z, 0-9, ".", "_" and "-", and neither "." nor ".."'
"""The rule for topic names in words, for error messages."""

HEADER_BYTES: Final = 64
"""The bytes of a header besides its name and content, where the size of a record is limited."""

MOST_HEADERS: Final = 1000
"""
The most headers of a message.

Kafka has no limit. Clients and tracing set some dozens at most. A body has room for a hundred thousand, which
would block the reactor.
"""

# These describe and do not check: the decoder is faster without checks, and the parser names faults better.
_Topic: TypeAlias = Annotated[
    str,
    Meta(
        description="The topic that gets the record.",
        examples=["readings"],
        extra_json_schema={"pattern": rf"^(?!\.{{1,2}}$){TOPIC_PATTERN}$", "maxLength": 249},
    ),
]


_Base64: TypeAlias = Annotated[
    bytes,
    Meta(
        # RFC 4648, section 4, with padding.
        extra_json_schema={
            "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
            "contentMediaType": "application/octet-stream",
        },
    ),
]


class Message(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """
    A message that a caller publishes: strings, each of which has a UTF-8 form, or bytes.

    A valid message has either ``content`` or ``content_base64``, and at most one key.
    """

    topic: _Topic
    content: Annotated[
        str | UnsetType,
        Meta(
            description="The record's value: a string also when it looks like a number. It may be empty. "
            "Required, unless there is `content_base64`.",
            examples=["21.5"],
        ),
    ] = UNSET
    key: Annotated[
        str | UnsetType | None,
        Meta(
            description="The record's key. Absent or null: the record has none. The empty string is one.",
            examples=["kitchen"],
        ),
    ] = UNSET
    """The record's key; ``None`` and unset for none, which is not the same as the empty key."""
    headers: Annotated[
        Annotated[dict[str, str], Meta(max_length=MOST_HEADERS)] | UnsetType,
        Meta(
            description="Headers of the record, in this order. A name may be empty; it may not be repeated: "
            "see `headers_base64`.",
            examples=[{"unit": "celsius"}],
        ),
    ] = UNSET
    """The record's headers by their names, in order. Must not be changed."""
    timestamp: Annotated[
        Annotated[
            int,
            Meta(
                description="Milliseconds since the epoch, in 12 to 14 digits: 1973 to 5138.",
                extra_json_schema={"minimum": 10**11, "maximum": 10**14 - 1, "format": "int64"},
            ),
        ]
        | Annotated[
            str,
            Meta(
                description="A date-time with an offset (RFC 3339), not before 1970. "
                "Fractions of a millisecond are cut off.",
                extra_json_schema={"format": "date-time"},
            ),
        ]
        | UnsetType,
        Meta(
            description="When the record was made. Absent: now.",
            examples=[1700000000000, "2023-11-14T22:13:20Z"],
        ),
    ] = UNSET
    """When the record was made: milliseconds, or before validation any of the forms. Unset: now."""
    content_base64: Annotated[
        _Base64 | UnsetType,
        Meta(
            description="The record's value as base64 (RFC 4648, section 4, with padding), instead of "
            "`content`: for bytes that are not text. It may be empty.",
            examples=["AP8="],
        ),
    ] = UNSET
    """The record's value, decoded."""
    key_base64: Annotated[
        _Base64 | UnsetType | None,
        Meta(
            description="The record's key as base64, instead of `key`. Absent or null: as for `key`.",
            examples=["AP8="],
        ),
    ] = UNSET
    """The record's key, decoded; ``None`` and unset if there is none here."""
    headers_base64: Annotated[
        Annotated[
            list[tuple[str, _Base64 | None]],
            Meta(max_length=MOST_HEADERS),
        ]
        | UnsetType,
        Meta(
            description="More headers of the record, after `headers`, each with its name and its value as "
            "base64 or null: for names that repeat, and for values that are not text or are null. Up to "
            f"{MOST_HEADERS} with those in `headers`.",
            examples=[[["trace", "AP8="], ["trace", None]]],
        ),
    ] = UNSET
    """More headers of the record, decoded, after ``headers``. Must not be changed."""


CALLER_HEADER: Final = "sampleapp-caller"
"""The header of a record that has the name of its caller, if the operator wants it; see `--record-caller`."""

FINGERPRINT_HEADER: Final = "idempotency-fingerprint"
"""The header of a record on Kafka that has its fingerprint. A message may not bring it."""


class RecordIdentity(Struct, frozen=True, kw_only=True, gc=False):
    """
    Names a record, so that a broker publishes it once however often it is sent.

    Both are SHA-256 digests, of 32 bytes; see `sampleapp.messages.idempotency_key`.
    """

    id: bytes
    """Of the caller, the topic, the idempotency key, and the record's number in its request."""
    fingerprint: bytes
    """Of what the caller sent: the same again, or another record with the same key."""


class Record(Struct, frozen=True, kw_only=True, gc=False):
    """A record to publish. The broker chooses the offset and, unless it is given, the partition."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    """When the record was made: milliseconds since the epoch."""
    has_own_time: bool = False
    """True if the sender gave the timestamp; otherwise it is the time of this service."""
    headers: tuple[tuple[str, bytes | None], ...] = ()
    """Names and contents, in order. A name may repeat."""
    partition: int | None = None
    """The partition; ``None``, as nearly always, leaves the choice to the broker."""
    identity: RecordIdentity | None = None
    """Publish it unless a record with this id was published; ``None``, as nearly always: publish it."""


class RecordMetadata(Struct, frozen=True, kw_only=True, gc=False):
    """The position of an acknowledged record: topic, partition, and the record's own offset."""

    topic: Annotated[str, Meta(examples=["readings"])]
    partition: Annotated[int, Meta(examples=[0], extra_json_schema={"format": "int32"})]
    offset: Annotated[
        int,
        Meta(
            description="The record's own offset in its partition.",
            examples=[42],
            extra_json_schema={"format": "int64"},
        ),
    ]


class ReplayedRecord(RecordMetadata, frozen=True, kw_only=True, gc=False):
    """The position of a record that an earlier request with the same idempotency key has published."""


class ConsumerRecord(Struct, frozen=True, kw_only=True, gc=False):
    """A record that was read from a topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """When the record was made: milliseconds since the epoch."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    """Names and contents, in order. A name may repeat."""
    leader_epoch: int = -1
    """The epoch of the partition's leader that has written it (KIP-320); -1 if the broker has no epochs."""

    @property
    def next_offset(self) -> int:
        """The position after it, with its leader epoch."""
        return with_epoch(self.offset + 1, self.leader_epoch)

    def matches(self, key: bytes | None, headers: Sequence[tuple[str, bytes]]) -> bool:
        """
        Check the key and headers.

        :param key: the key that it must have; ``None`` for any key, or none.
        :param headers: the headers that it must all have.
        """
        if key is not None and self.key != key:
            return False
        if len(headers) > 1:
            return set(self.headers).issuperset(headers)
        return not headers or headers[0] in self.headers

    @property
    def size(self) -> int:
        """The bytes of key, value and headers, as `ReadRequest.max_bytes` counts them."""
        size = len(self.key or b"") + len(self.value or b"")
        if self.headers:
            size += sum([HEADER_BYTES + len(name) + len(content or b"") for name, content in self.headers])
        return size


class PartitionDescription(Struct, frozen=True, kw_only=True):
    """One partition of a topic, as the broker describes it."""

    partition: int
    leader: int | None
    """The id of the leading node; ``None`` if the partition has no leader at the moment."""
    replicas: tuple[int, ...]
    """The ids of the nodes that store it, the leader included."""
    in_sync: tuple[int, ...]
    """The replicas that have all of its records."""


class TopicDescription(Struct, frozen=True, kw_only=True):
    """An existing topic and its partitions."""

    name: str
    partitions: tuple[PartitionDescription, ...]
    """In the order of their numbers."""


class OffsetAndEpoch(int):
    """
    The offset to read next, and the leader epoch of the record before it (KIP-320).

    It compares and computes as the offset. The result of arithmetic is an ``int``: an offset without epoch.
    """

    leader_epoch: int

    def __new__(cls, offset: int, leader_epoch: int) -> Self:
        """Add an epoch, at least 0, to an offset."""
        self = super().__new__(cls, offset)
        self.leader_epoch = leader_epoch
        return self

    def __repr__(self) -> str:
        return f"{int(self)}e{self.leader_epoch}"

    __str__ = int.__repr__


def with_epoch(offset: int, leader_epoch: int) -> int:
    """Add the leader epoch of the record before it to an offset; -1 for none."""
    return offset if leader_epoch < 0 else OffsetAndEpoch(offset, leader_epoch)


def epoch_of(offset: int) -> int:
    """Return the leader epoch of the record before an offset; -1 if it is not known."""
    return offset.leader_epoch if isinstance(offset, OffsetAndEpoch) else -1


class FromOffset(Struct, frozen=True):
    """Begin to read a partition at an offset, or at the nearest one that the partition has."""

    offset: int


class FromEnd(Struct, frozen=True):
    """Begin to read a partition ``count`` offsets before its end; 0 begins with the next record."""

    count: int


class FromTime(Struct, frozen=True):
    """Begin to read a partition at the first record that is at least as late, or at its end."""

    timestamp_ms: int
    """Milliseconds since the epoch."""


Start: TypeAlias = FromOffset | FromEnd | FromTime
"""The start position of each partition that exists at the time."""

EARLIEST: Final = FromOffset(0)
"""The first record that still exists."""


class FromOffsets(Struct, frozen=True):
    """Begin to read each partition at its own offset, or at the nearest one that it has."""

    offsets: Mapping[int, int]
    """By partition. One that is not named is read from its first record. Must not be changed."""
    skipped: frozenset[int] = frozenset()
    """The partitions that are not read."""

    def start_in(self, partition: int) -> Start:
        """Return the start position of one partition."""
        return FromOffset(self.offsets.get(partition, 0))


ReadStart: TypeAlias = int | Start
"""
Where to read a partition.

A number is the exact offset to continue at: a read reports if it is gone, or beyond the end; with an epoch
(`OffsetAndEpoch`), also if the log was cut before it, and has grown again. A `Start` is resolved to the
nearest offset there is.
"""


class ReadRequest(Struct, frozen=True, kw_only=True):
    """A read of some partitions of a topic; see `sampleapp.interfaces.IBroker.read`."""

    topic: str
    """Its name; it is not created."""
    starts: Mapping[int, ReadStart | None] = {}
    """
    Where to read the partitions that are named here; ``None``: it is not read, but must exist.

    An offset is at least 0. Must not be changed.
    """
    others: ReadStart | None = EARLIEST
    """Where to read all other partitions of the topic; ``None``: they are not read."""
    limit: int
    """The most records; with 0, only positions and ends are looked up."""
    max_bytes: int
    """
    The most bytes of keys, values and headers, at least 1. Each header counts `HEADER_BYTES` more.

    One record may exceed it, since at least one is returned if there is one.
    """
    caller: str = ""
    """The caller, or its address: a broker may let the reads of callers take turns."""
    key: bytes | None = None
    """If set, a broker may leave out records with other keys, or none. They count for the limit."""


class GoneRecords(Struct, frozen=True):
    """Records of a partition that are no longer in its topic, because of the topic's retention."""

    partition: Annotated[int, Meta(examples=[0], extra_json_schema={"format": "int32"})]
    asked: Annotated[
        int,
        Meta(
            description="The offset that was asked for.", examples=[42], extra_json_schema={"format": "int64"}
        ),
    ]
    earliest: Annotated[
        int,
        Meta(
            description="The first offset that is left.", examples=[99], extra_json_schema={"format": "int64"}
        ),
    ]


class ReadResult(Struct, frozen=True, kw_only=True):
    """Records that were read from some partitions of a topic, and how far."""

    topic_id: str
    """
    1 to 16 characters out of A-Z, a-z, 0-9, ``_`` and ``-``.

    ``_`` if the broker has no ids of topics. A topic that is deleted and created again gets another one.
    """
    records: Sequence[ConsumerRecord]
    """Grouped by partition, in the order of offsets in each; none of those in ``gone`` or ``beyond``."""
    positions: Mapping[int, int]
    """The offset to read next, of each partition that was asked for; as asked if ``gone`` or ``beyond``."""
    ends: Mapping[int, int]
    """
    The offset after the last committed record, of each partition that was asked for.

    Of a partition that could not be reached, or was not read because the limit was used up, it may be any
    offset after the position.
    """
    gone: Sequence[GoneRecords] = ()
    """The partitions that were asked for at an offset before their first one."""
    beyond: Mapping[int, int] = {}
    """
    The end of each partition that was asked for at an offset beyond it.

    With an epoch (`OffsetAndEpoch`), the end of that leader epoch: the log may have other records after it.
    """
    held: frozenset[int] = frozenset()
    """The partitions with records that are not committed yet, after those that can be read."""
    partitions: int
    """The number of partitions that the topic has now. They are numbered from 0."""
    left_out: int = 0
    """Records before the positions that the broker has left out, since they do not have the key."""

    @property
    def is_up_to_date(self) -> bool:
        """True if there were no more committed records after those that were read."""
        positions = self.positions
        return (
            not self.gone
            and not self.beyond
            and all(positions[partition] >= end for partition, end in self.ends.items())
        )


class LeasedRecord(Struct, frozen=True, gc=False):
    """A message of a lease."""

    record: ConsumerRecord
    attempts: int
    """The number of times that it was given to a worker of the group, with this one; 1 the first time."""


class Lease(Struct, frozen=True, kw_only=True):
    """Messages that one worker of a group has for some time; see `sampleapp.interfaces.IWorkBroker.pull`."""

    token: bytes
    """Names the lease; only its worker knows it. At most 4 KiB."""
    ends_ms: int
    """When it ends, unless it is extended: milliseconds since the epoch."""
    messages: Sequence[LeasedRecord]
    """At least one, in about the order of the topic."""


ALL: Final = "all"
"""All messages of a lease that have no other verdict."""

MessageIds: TypeAlias = frozenset[tuple[int, int]] | Literal["all"]
"""Messages of a lease, each by its partition and offset; or `ALL`."""


class Verdicts(Struct, frozen=True, kw_only=True):
    """
    The results of a worker for the messages of its lease.

    No message has two of them, and at most one of them is `ALL`. Messages without one are released.
    """

    accept: MessageIds = frozenset()
    """Done."""
    release: MessageIds = frozenset()
    """Free at once for any worker of the group, as another attempt."""
    reject: MessageIds = frozenset()
    """Never to be given again."""


class Acknowledged(Struct, frozen=True, kw_only=True):
    """The numbers of messages of a lease that has ended, by verdict."""

    accepted: int
    released: int
    """With those that had no verdict."""
    rejected: int


class Extended(Struct, frozen=True, kw_only=True):
    """A lease that replaces another one, with the same messages."""

    token: bytes
    ends_ms: int
    """When it ends: milliseconds since the epoch."""


class Reading(Struct, frozen=True, gc=False):
    """One entry of the readings collection."""

    id: Annotated[str, Meta(description="The key of its records.", examples=["kitchen"])]
    value: Annotated[float, Meta(description="The latest value.", examples=[21.5])]
    """A finite number: JSON has no form for NaN and the infinities (RFC 8259, section 6)."""


class Health(Struct, frozen=True, kw_only=True):
    """The result of a health check of a broker."""

    ready: bool
    """True if a record that is published now is expected to be stored, also if topics cannot be read."""
    reasons: tuple[str, ...] = ()
    """The reasons why records cannot be stored, or topics not be read: one sentence each, for an operator."""
    public_reasons: tuple[str, ...] = ()
    """
    The reasons why a record that is published now would not be stored; empty exactly when ready.

    One sentence each, which may be shown to any caller: without paths, addresses or secrets.
    """
    warnings: tuple[str, ...] = ()
    """Problems that do not keep the broker from working now: one sentence each, without paths and secrets."""


_LONGEST_TOPIC: Final = 249
_TOPIC = re.compile(TOPIC_PATTERN)


def is_legal_topic(topic: str) -> bool:
    """Check a topic name against Kafka's rule (``org.apache.kafka.common.internals.Topic``)."""
    return len(topic) <= _LONGEST_TOPIC and _is_legal(topic)


# Nearly all messages are for a few topics. Names that are too long are not cached.
@lru_cache(maxsize=512)
def _is_legal(topic: str) -> bool:
    return _TOPIC.fullmatch(topic) is not None and topic not in (".", "..")


Version: TypeAlias = Literal[1, 2]
"""A version of the representation of the readings."""

MEDIA_TYPES: Final[dict[Version, str]] = {
    1: "application/json",
    2: "application/vnd.sampleApp.v2+json",
}
