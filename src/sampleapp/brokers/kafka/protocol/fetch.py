"""Fetch: read batches of records from partitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import ClassVar

import msgspec

from sampleapp.brokers.kafka.protocol.reading import Reader
from sampleapp.brokers.kafka.protocol.request import Api, Request
from sampleapp.brokers.kafka.protocol.writing import by_topic

__all__ = ["AbortedTransaction", "FetchRequest", "Fetched"]

_LOG_START_OFFSET_SINCE = 5
_SESSIONS_SINCE = 7
_LEADER_EPOCH_SINCE = 9
_RACKS_SINCE = 11

_LIMITS = Struct(">iiiib")
_NO_SESSION = Struct(">ii").pack(0, -1)
_PARTITION = Struct(">iqi")
_PARTITION_V5 = Struct(">iqqi")
_PARTITION_V9 = Struct(">iiqqi")
_NOTHING_TO_FORGET = b"\0\0\0\0"
_NO_RACK = b"\0\0"

_SESSION = Struct(">hi")
_STATE = Struct(">ihqq")
_ABORTED = Struct(">qq")
# What an element takes at least: its numbers, and the lengths of its strings and arrays.
_SMALLEST_TOPIC = 2 + 4
_SMALLEST_PARTITION = _STATE.size + 4 + 4


class AbortedTransaction(msgspec.Struct, frozen=True, gc=False):
    """The records of a producer from an offset on, up to the marker of the abort, do not count (KIP-98)."""

    producer_id: int
    first_offset: int


class Fetched(msgspec.Struct, frozen=True, gc=False):
    """What a partition had."""

    topic: str
    partition: int
    error: int
    high_watermark: int = -1
    """The offset after the last record that all in-sync replicas have."""
    last_stable_offset: int = -1
    """The offset up to which it is known which transactions were aborted."""
    log_start_offset: int = -1
    """The first offset that the partition still has; -1 if the version does not say (before v5)."""
    aborted: tuple[AbortedTransaction, ...] = ()
    """Only where committed records were asked for; ordered by offset."""
    records: bytes = b""
    """Batches, of which the first may begin before the position, and the last be cut short."""


class FetchRequest(Request[list[Fetched]], frozen=True, kw_only=True):
    """
    Read from these positions; the broker answers when there is enough, or time is up.

    Fetch sessions (KIP-227) are not used: each request stands alone. Kafka 0.11 speaks v4; batches that
    were compressed with zstd need v10 (KIP-110).
    """

    api: ClassVar[Api] = Api(key=1, name="Fetch", lowest=4, highest=11)

    topics: Sequence[tuple[str, Sequence[tuple[int, int]]]]
    """Topics, each with partitions and the offset to read from."""
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    """Of all partitions; a batch that is larger is sent alone, so that reading never gets stuck (KIP-74)."""
    partition_max_bytes: int
    read_committed: bool
    """Whether to stop before transactions that are not finished, and be told which were aborted."""

    def _parts(self, version: int) -> Iterable[bytes]:
        parts = [_LIMITS.pack(-1, self.max_wait_ms, self.min_bytes, self.max_bytes, self.read_committed)]
        if version >= _SESSIONS_SINCE:
            parts.append(_NO_SESSION)
        most = self.partition_max_bytes
        if version >= _LEADER_EPOCH_SINCE:
            parts += by_topic(self.topics, lambda part: _PARTITION_V9.pack(part[0], -1, part[1], -1, most))
        elif version >= _LOG_START_OFFSET_SINCE:
            parts += by_topic(self.topics, lambda part: _PARTITION_V5.pack(*part, -1, most))
        else:
            parts += by_topic(self.topics, lambda part: _PARTITION.pack(*part, most))
        if version >= _SESSIONS_SINCE:
            parts.append(_NOTHING_TO_FORGET)
        if version >= _RACKS_SINCE:
            parts.append(_NO_RACK)
        return parts

    def _read(self, version: int, reader: Reader) -> list[Fetched]:
        reader.int32()  # throttle time
        error, _ = reader.fields(_SESSION) if version >= _SESSIONS_SINCE else (0, 0)
        answer: list[Fetched] = []
        for _ in range(reader.count(_SMALLEST_TOPIC)):
            topic = reader.string()
            partitions = reader.count(_SMALLEST_PARTITION)
            answer += [_partition(version, topic, reader) for _ in range(partitions)]
        if error:
            # Then nothing is said about any partition.
            return [Fetched(topic, part, error) for topic, parts in self.topics for part, _ in parts]
        return answer


def _partition(version: int, topic: str, reader: Reader) -> Fetched:
    partition, error, high_watermark, last_stable_offset = reader.fields(_STATE)
    log_start_offset = reader.int64() if version >= _LOG_START_OFFSET_SINCE else -1
    count = reader.nullable_count(_ABORTED.size)
    aborted = tuple(AbortedTransaction(*reader.fields(_ABORTED)) for _ in range(count))
    if version >= _RACKS_SINCE:
        reader.int32()  # preferred read replica: only for those who say where they are (KIP-392)
    records = reader.nullable_data() or b""
    return Fetched(
        topic, partition, error, high_watermark, last_stable_offset, log_start_offset, aborted, records
    )
