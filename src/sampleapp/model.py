"""
The values that travel through sampleapp.

Records carry bytes, as they do in Kafka; whatever reads text into them or out of them says which
encoding. Every value is immutable, and every time is an integer of milliseconds since the epoch.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

__all__ = [
    "EARLIEST",
    "MOST_HEADERS",
    "TOPIC_PATTERN",
    "ConsumerRecord",
    "FromEnd",
    "FromOffset",
    "FromTime",
    "Health",
    "Message",
    "PartitionDescription",
    "Reading",
    "Record",
    "RecordMetadata",
    "Start",
    "TopicDescription",
]


TOPIC_PATTERN: Final = r"[A-Za-z0-9._-]{1,249}"
"""What the whole of a topic's name matches, which is also neither ``.`` nor ``..``."""

MOST_HEADERS: Final = 1000
"""
So many headers a message may have.

Kafka has no limit. Clients and tracing set some dozens at most, and a hundred thousand, for which a body has
room, would keep everybody else waiting.
"""

# These describe, and do not check: the decoder is quicker without, and the parser says more of what is wrong.
_Topic: TypeAlias = Annotated[
    str,
    Meta(
        description="The topic that gets the record.",
        examples=["readings"],
        extra_json_schema={"pattern": rf"^(?!\.{{1,2}}$){TOPIC_PATTERN}$", "maxLength": 249},
    ),
]


class Message(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What a caller asks to have published: plain strings, each of which has a UTF-8 form."""

    topic: _Topic
    content: Annotated[
        str,
        Meta(
            description="The record's value: a string also when it looks like a number. It may be empty.",
            examples=["21.5"],
        ),
    ]
    key: Annotated[
        str | None,
        Meta(
            description="The record's key. Absent or null: the record has none. The empty string is one.",
            examples=["kitchen"],
        ),
    ] = None
    """The record's key; ``None`` for none, which is not the same as the empty key."""
    headers: Annotated[
        Annotated[dict[str, str], Meta(max_length=MOST_HEADERS)] | UnsetType,
        Meta(
            description="Headers of the record, in this order. A name may be empty; it may not be repeated.",
            examples=[{"unit": "celsius"}],
        ),
    ] = UNSET
    """The record's headers by their names, in order. Not to be changed."""
    timestamp: Annotated[
        Annotated[
            int,
            Meta(
                description="Milliseconds since the epoch.",
                extra_json_schema={"minimum": 0, "maximum": 2**63 - 1, "format": "int64"},
            ),
        ]
        | Annotated[
            str,
            Meta(
                description="A date-time with an offset (RFC 3339), not before 1970. "
                "What is finer than a millisecond is cut off.",
                extra_json_schema={"format": "date-time"},
            ),
        ]
        | UnsetType,
        Meta(
            description="When the record was made. Absent: now.",
            examples=[1700000000000, "2023-11-14T22:13:20Z"],
        ),
    ] = UNSET
    """When the record was made, as it was written; an integer once it was read. Unset: now."""


class Record(Struct, frozen=True, kw_only=True, gc=False):
    """A record on its way to a topic. The broker chooses the offset and, unless it is told, the partition."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    """When the record was made: milliseconds since the epoch."""
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int | None = None
    """Where it is to go; ``None``, as nearly always, leaves that to the broker."""


class RecordMetadata(Struct, frozen=True, kw_only=True, gc=False):
    """Where an acknowledged record is: the topic, the partition, and that record's own offset."""

    topic: Annotated[str, Meta(examples=["readings"])]
    partition: Annotated[int, Meta(examples=[0], extra_json_schema={"format": "int32"})]
    offset: Annotated[
        int,
        Meta(
            description="Of this very record, in its partition.",
            examples=[42],
            extra_json_schema={"format": "int64"},
        ),
    ]


class ConsumerRecord(Struct, frozen=True, kw_only=True, gc=False):
    """A record as it was read back from a topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """When the record was made: milliseconds since the epoch."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


class PartitionDescription(Struct, frozen=True, kw_only=True):
    """One partition of a topic, as far as the broker tells."""

    partition: int
    leader: int | None
    """The node that leads it; ``None`` if there is none at the moment."""
    replicas: tuple[int, ...]
    """The nodes that keep it, the leader included."""
    in_sync: tuple[int, ...]
    """Those of the replicas that have all of it."""


class TopicDescription(Struct, frozen=True, kw_only=True):
    """A topic that there is."""

    name: str
    partitions: tuple[PartitionDescription, ...]
    """In the order of their numbers."""


class FromOffset(Struct, frozen=True):
    """Where to begin to read a partition: at an offset, or at the nearest one that the partition has."""

    offset: int


class FromEnd(Struct, frozen=True):
    """Where to begin to read a partition: so many offsets before its end; 0 is with the next record."""

    count: int


class FromTime(Struct, frozen=True):
    """Where to begin to read a partition: at the first record that is at least as late, or at its end."""

    timestamp_ms: int
    """Milliseconds since the epoch."""


Start: TypeAlias = FromOffset | FromEnd | FromTime
"""Where to begin to read; each partition that there is at the time begins there."""

EARLIEST: Final = FromOffset(0)
"""At the first record that there is."""


class Reading(Struct, frozen=True, gc=False):
    """One entry of the readings collection."""

    id: Annotated[str, Meta(description="The key of its records.", examples=["kitchen"])]
    value: Annotated[float, Meta(description="The latest value.", examples=[21.5])]
    """A finite number: JSON has no form for NaN and the infinities (RFC 8259, section 6)."""


class Health(Struct, frozen=True, kw_only=True):
    """Whether something would work if it were tried now, and if not, why not."""

    ready: bool
    reasons: tuple[str, ...] = ()
    """One sentence a reason, for an operator; empty exactly when ready."""
    obstacles: tuple[str, ...] = ()
    """
    What would keep a record from being stored if it were published now.

    One sentence each that may be shown to any caller: no path, address or secret is in them. Empty also while
    there are only reasons that keep records from being read.
    """
