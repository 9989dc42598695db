"""Fetch: read batches of records from partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from typing import ClassVar
from uuid import UUID

import msgspec

from sampleapp.brokers.kafka.protocol.reading import ProtocolError, Reader
from sampleapp.brokers.kafka.protocol.request import Api, Request, negotiate
from sampleapp.brokers.kafka.protocol.writing import FLEXIBLE, by_topic

__all__ = ["AbortedTransaction", "FetchRequest", "Fetched"]

_LOG_START_OFFSET_SINCE = 5
_SESSIONS_SINCE = 7
_LEADER_EPOCH_SINCE = 9
_RACKS_SINCE = 11
_FLEXIBLE_SINCE = 12
_TOPIC_IDS_SINCE = 13

_LIMITS = Struct(">iiiib")
_NO_SESSION = Struct(">ii").pack(0, -1)
_PARTITION = Struct(">iqi")
_PARTITION_V5 = Struct(">iqqi")
_PARTITION_V9 = Struct(">iiqqi")
_PARTITION_V12 = Struct(">iiqiqi")

_SESSION = Struct(">hi")
_STATE = Struct(">ihqq")
_ABORTED = Struct(">qq")
# What an element takes at least, in any version: its numbers, and the lengths of its strings and arrays.
_SMALLEST_TOPIC = 1 + 1
_SMALLEST_PARTITION = _STATE.size + 1 + 1


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

    From v13 on (Kafka 3.1, KIP-516) a topic is known by its id: one that was deleted and made again under the
    same name is another one, whose records never come instead. It is spoken when the ids of all topics are
    given.
    """

    api: ClassVar[Api] = Api(key=1, name="Fetch", lowest=4, highest=13, flexible=_FLEXIBLE_SINCE)

    topics: Sequence[tuple[str, Sequence[tuple[int, int]]]]
    """Topics, each with partitions and the offset to read from."""
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    """Of all partitions; a batch that is larger is sent alone, so that reading never gets stuck (KIP-74)."""
    partition_max_bytes: int
    read_committed: bool
    """Whether to stop before transactions that are not finished, and be told which were aborted."""

    topic_ids: Mapping[str, UUID] = msgspec.field(default_factory=dict)
    """
    What `TopicMetadata.topic_id` says of these topics, as far as it is known.

    A broker that has a topic of this name, but of another id, answers UNKNOWN_TOPIC_ID or
    INCONSISTENT_TOPIC_ID.
    """

    def version_for(self, ranges: Mapping[int, tuple[int, int]]) -> int | None:
        """See `Request.version_for`: without all ids, it is one that has names."""
        if all(topic in self.topic_ids for topic, _ in self.topics):
            return negotiate(self.api, ranges)
        return negotiate(_WITH_NAMES, ranges)

    def _parts(self, version: int) -> Iterable[bytes]:
        fields = self._fields(version)
        parts = [_LIMITS.pack(-1, self.max_wait_ms, self.min_bytes, self.max_bytes, self.read_committed)]
        if version >= _SESSIONS_SINCE:
            parts.append(_NO_SESSION)
        parts += by_topic(
            self.topics,
            _partition_writer(version, self.partition_max_bytes),
            fields=fields,
            topic=self._id_of if version >= _TOPIC_IDS_SINCE else None,
        )
        if version >= _SESSIONS_SINCE:
            parts.append(fields.count(0))  # topics to forget
        if version >= _RACKS_SINCE:
            parts.append(fields.string(""))
        parts.append(fields.tags)
        return parts

    def _read(self, version: int, reader: Reader) -> list[Fetched]:
        reader.int32()  # throttle time
        error, _ = reader.fields(_SESSION) if version >= _SESSIONS_SINCE else (0, 0)
        answer: list[Fetched] = []
        for _ in range(reader.count(_SMALLEST_TOPIC)):
            topic = self._name_of(reader.uuid()) if version >= _TOPIC_IDS_SINCE else reader.string()
            partitions = reader.count(_SMALLEST_PARTITION)
            answer += [_partition(version, topic, reader) for _ in range(partitions)]
            reader.tags()
        reader.tags()
        if error:
            # Then nothing is said about any partition.
            return [Fetched(topic, part, error) for topic, parts in self.topics for part, _ in parts]
        return answer

    def _id_of(self, topic: str) -> bytes:
        topic_id = self.topic_ids.get(topic)
        if topic_id is None:
            raise ValueError(f"Fetch from v{_TOPIC_IDS_SINCE} on needs the id of every topic.")
        return topic_id.bytes

    def _name_of(self, topic_id: UUID | None) -> str:
        for topic, known in self.topic_ids.items():
            if known == topic_id:
                return topic
        raise ProtocolError(f"Nothing was asked of a topic with the id {topic_id}.")


_WITH_NAMES = Api(
    key=FetchRequest.api.key,
    name=FetchRequest.api.name,
    lowest=FetchRequest.api.lowest,
    highest=_TOPIC_IDS_SINCE - 1,
    flexible=_FLEXIBLE_SINCE,
)


def _partition_writer(version: int, max_bytes: int) -> Callable[[tuple[int, int]], bytes]:
    """
    What writes a partition and the offset to read from.

    No leader's epoch is given, and no epoch or first offset of a log of our own, which a follower has.
    """
    if version >= _FLEXIBLE_SINCE:
        return lambda part: _PARTITION_V12.pack(part[0], -1, part[1], -1, -1, max_bytes) + FLEXIBLE.tags
    if version >= _LEADER_EPOCH_SINCE:
        return lambda part: _PARTITION_V9.pack(part[0], -1, part[1], -1, max_bytes)
    if version >= _LOG_START_OFFSET_SINCE:
        return lambda part: _PARTITION_V5.pack(*part, -1, max_bytes)
    return lambda part: _PARTITION.pack(*part, max_bytes)


def _partition(version: int, topic: str, reader: Reader) -> Fetched:
    partition, error, high_watermark, last_stable_offset = reader.fields(_STATE)
    log_start_offset = reader.int64() if version >= _LOG_START_OFFSET_SINCE else -1
    aborted = tuple(_aborted(reader) for _ in range(reader.nullable_count(_ABORTED.size)))
    if version >= _RACKS_SINCE:
        reader.int32()  # preferred read replica: only for those who say where they are (KIP-392)
    records = reader.nullable_data() or b""
    # Among them who leads the partition now, which metadata will say.
    reader.tags()
    return Fetched(
        topic, partition, error, high_watermark, last_stable_offset, log_start_offset, aborted, records
    )


def _aborted(reader: Reader) -> AbortedTransaction:
    transaction = AbortedTransaction(*reader.fields(_ABORTED))
    reader.tags()
    return transaction
