"""ListOffsets: the first and the last offset of a partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import ClassVar

import msgspec

from sampleapp.brokers.kafka.protocol.codec import INT32, Api, Decoder, Request, by_topic, with_epochs

EARLIEST = -2
"""Instead of a timestamp: the first offset that the partition still has."""
LATEST = -1
"""Instead of a timestamp: the offset of the next record."""

_ISOLATION_SINCE = 2
_LEADER_EPOCH_SINCE = 4

_ANY_REPLICA = INT32.pack(-1)
_PARTITION = Struct(">iq")
_PARTITION_V4 = Struct(">iiq")
_LISTED = Struct(">ihqq")
_LISTED_V4 = Struct(">ihqqi")
_SMALLEST_TOPIC = 2 + 4


class ListedOffset(msgspec.Struct, frozen=True, gc=False):
    """An offset of a partition."""

    topic: str
    partition: int
    error: int
    timestamp_ms: int
    """Of the record at the offset; -1 for `EARLIEST` and `LATEST`."""
    offset: int
    """-1 if there was an error, or no record has the timestamp or a later one."""
    leader_epoch: int = -1
    """Of the record at the offset; for `LATEST`, of the leader. -1 if it is not known, and before v4."""


class ListOffsetsRequest(Request[list[ListedOffset]], frozen=True, kw_only=True):
    """Ask for the first offset with at least a timestamp, or for the first or the last offset."""

    api: ClassVar[Api] = Api(key=2, name="ListOffsets", lowest=1, highest=5)

    topics: Sequence[tuple[str, Sequence[tuple[int, int]]]]
    """Topics, each with partitions and a timestamp in milliseconds, `EARLIEST` or `LATEST`."""
    read_committed: bool
    """True if `LATEST` means the last stable offset, not the high watermark; v1 has only the latter."""

    leader_epochs: Mapping[tuple[str, int], int] = msgspec.field(default_factory=dict)
    """The known epochs of the leaders, as in `FetchRequest.leader_epochs`; sent since v4 (Kafka 2.1)."""

    def _parts(self, version: int) -> Iterable[bytes]:
        parts = [_ANY_REPLICA]
        if version >= _ISOLATION_SINCE:
            parts.append(b"\1" if self.read_committed else b"\0")
        if version >= _LEADER_EPOCH_SINCE:
            topics = with_epochs(self.topics, self.leader_epochs)
            return parts + by_topic(topics, lambda part: _PARTITION_V4.pack(part[0], part[2], part[1]))
        return parts + by_topic(self.topics, lambda part: _PARTITION.pack(*part))

    def _read(self, version: int, reader: Decoder) -> list[ListedOffset]:
        if version >= _ISOLATION_SINCE:
            reader.int32()  # throttle time
        layout = _LISTED_V4 if version >= _LEADER_EPOCH_SINCE else _LISTED
        response: list[ListedOffset] = []
        for _ in range(reader.count(_SMALLEST_TOPIC)):
            topic = reader.string()
            partitions = reader.count(layout.size)
            response += [ListedOffset(topic, *reader.fields(layout)) for _ in range(partitions)]
        return response
