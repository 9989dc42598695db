"""ListOffsets: where a partition begins and ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import ClassVar

import msgspec

from sampleapp.brokers.kafka.protocol.reading import Reader
from sampleapp.brokers.kafka.protocol.request import Api, Request
from sampleapp.brokers.kafka.protocol.writing import INT32, by_topic

__all__ = ["EARLIEST", "LATEST", "ListOffsetsRequest", "ListedOffset"]

EARLIEST = -2
"""Instead of a timestamp: the first offset that the partition still has."""
LATEST = -1
"""Instead of a timestamp: the offset of the record to come."""

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
    """-1 if there was an error, or no record is as late as was asked for."""


class ListOffsetsRequest(Request[list[ListedOffset]], frozen=True, kw_only=True):
    """Which offset has the first record of at least this age?"""

    api: ClassVar[Api] = Api(key=2, name="ListOffsets", lowest=1, highest=5)

    topics: Sequence[tuple[str, Sequence[tuple[int, int]]]]
    """Topics, each with partitions and a timestamp in milliseconds, `EARLIEST` or `LATEST`."""
    read_committed: bool
    """Whether the latest is the last stable offset rather than the high watermark; v1 has only the latter."""

    def _parts(self, version: int) -> Iterable[bytes]:
        parts = [_ANY_REPLICA]
        if version >= _ISOLATION_SINCE:
            parts.append(b"\1" if self.read_committed else b"\0")
        if version >= _LEADER_EPOCH_SINCE:
            return parts + by_topic(self.topics, lambda part: _PARTITION_V4.pack(part[0], -1, part[1]))
        return parts + by_topic(self.topics, lambda part: _PARTITION.pack(*part))

    def _read(self, version: int, reader: Reader) -> list[ListedOffset]:
        if version >= _ISOLATION_SINCE:
            reader.int32()  # throttle time
        layout = _LISTED_V4 if version >= _LEADER_EPOCH_SINCE else _LISTED
        answer: list[ListedOffset] = []
        for _ in range(reader.count(_SMALLEST_TOPIC)):
            topic = reader.string()
            partitions = reader.count(layout.size)
            answer += [ListedOffset(topic, *reader.fields(layout)[:4]) for _ in range(partitions)]
        return answer
