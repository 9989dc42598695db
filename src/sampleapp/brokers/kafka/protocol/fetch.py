"""Fetch: reads batches of records from partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from typing import ClassVar
from uuid import UUID

import msgspec

from sampleapp.brokers.kafka.protocol.decoder import Decoder, ProtocolError
from sampleapp.brokers.kafka.protocol.request import Api, Request, negotiate
from sampleapp.brokers.kafka.protocol.writing import FLEXIBLE, by_topic, with_epochs

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
# The smallest size of an element in any version: its numbers, and the lengths of its strings and arrays.
_SMALLEST_TOPIC = 1 + 1
_SMALLEST_PARTITION = _STATE.size + 1 + 1


class AbortedTransaction(msgspec.Struct, frozen=True, gc=False):
    """An aborted transaction: hides a producer's records from an offset to its abort marker (KIP-98)."""

    producer_id: int
    first_offset: int


class Fetched(msgspec.Struct, frozen=True, gc=False):
    """The response for one partition."""

    topic: str
    partition: int
    error: int
    high_watermark: int = -1
    """The offset after the last record that all in-sync replicas have."""
    last_stable_offset: int = -1
    """The offset up to which all transactions have ended."""
    log_start_offset: int = -1
    """The first offset that the partition still has; -1 if the version does not say (before v5)."""
    aborted: tuple[AbortedTransaction, ...] = ()
    """Only if committed records were requested; ordered by offset."""
    records: bytes = b""
    """Batches; the first may begin before the position, and the last may be cut short."""


class FetchRequest(Request[list[Fetched]], frozen=True, kw_only=True):
    """
    Read from positions. The broker answers when it has ``min_bytes``, or after ``max_wait_ms``.

    Fetch sessions (KIP-227) are not used: each request is complete. Kafka 0.11 supports v4; batches
    compressed with zstd need v10 (KIP-110).

    From v13 on (Kafka 3.1, KIP-516) topics have ids instead of names, so that the records of a topic that was
    deleted and made again are never taken for those of the old one. It is used when the ids of all topics are
    given.
    """

    api: ClassVar[Api] = Api(key=1, name="Fetch", lowest=4, highest=13, flexible=_FLEXIBLE_SINCE)

    topics: Sequence[tuple[str, Sequence[tuple[int, int]]]]
    """Topics, each with partitions and the offset to read from."""
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    """The limit of all partitions; a larger batch is sent alone, so that reading continues (KIP-74)."""
    partition_max_bytes: int
    read_committed: bool
    """True to stop before open transactions, and to get the list of aborted ones."""

    topic_ids: Mapping[str, UUID] = msgspec.field(default_factory=dict)
    """
    The known ids of these topics, from `TopicMetadata.topic_id`.

    A broker whose topic of this name has another id answers UNKNOWN_TOPIC_ID or INCONSISTENT_TOPIC_ID.
    """

    leader_epochs: Mapping[tuple[str, int], int] = msgspec.field(default_factory=dict)
    """
    The known epochs of the leaders, by topic and partition (KIP-320); sent since v9 (Kafka 2.1).

    A broker with an older epoch answers UNKNOWN_LEADER_EPOCH, and one with a newer epoch FENCED_LEADER_EPOCH.
    """

    def version_for(self, ranges: Mapping[int, tuple[int, int]]) -> int | None:
        """See `Request.version_for`; without the ids of all topics, a version with names."""
        if all(topic in self.topic_ids for topic, _ in self.topics):
            return negotiate(self.api, ranges)
        return negotiate(_WITH_NAMES, ranges)

    def _parts(self, version: int) -> Iterable[bytes]:
        fields = self._fields(version)
        parts = [_LIMITS.pack(-1, self.max_wait_ms, self.min_bytes, self.max_bytes, self.read_committed)]
        if version >= _SESSIONS_SINCE:
            parts.append(_NO_SESSION)
        parts += by_topic(
            with_epochs(self.topics, self.leader_epochs),
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

    def _read(self, version: int, reader: Decoder) -> list[Fetched]:
        reader.int32()  # throttle time
        error, _ = reader.fields(_SESSION) if version >= _SESSIONS_SINCE else (0, 0)
        response: list[Fetched] = []
        for _ in range(reader.count(_SMALLEST_TOPIC)):
            topic = self._name_of(reader.uuid()) if version >= _TOPIC_IDS_SINCE else reader.string()
            partitions = reader.count(_SMALLEST_PARTITION)
            response += [_partition(version, topic, reader) for _ in range(partitions)]
            reader.tags()
        reader.tags()
        if error:
            # With an error, the response has no partitions.
            return [Fetched(topic, part, error) for topic, parts in self.topics for part, _ in parts]
        return response

    def _id_of(self, topic: str) -> bytes:
        topic_id = self.topic_ids.get(topic)
        if topic_id is None:
            raise ValueError(f"Fetch needs the ids of all topics from v{_TOPIC_IDS_SINCE} on.")
        return topic_id.bytes

    def _name_of(self, topic_id: UUID | None) -> str:
        for topic, known in self.topic_ids.items():
            if known == topic_id:
                return topic
        raise ProtocolError(f"The topic with the id {topic_id} was not requested.")


_WITH_NAMES = Api(
    key=FetchRequest.api.key,
    name=FetchRequest.api.name,
    lowest=FetchRequest.api.lowest,
    highest=_TOPIC_IDS_SINCE - 1,
    flexible=_FLEXIBLE_SINCE,
)


def _partition_writer(version: int, max_bytes: int) -> Callable[[tuple[int, int, int]], bytes]:
    """
    Return a function that encodes a partition, the offset to read from, and the leader's epoch.

    The fields that only followers have are -1.
    """
    if version >= _FLEXIBLE_SINCE:
        return lambda part: _PARTITION_V12.pack(part[0], part[2], part[1], -1, -1, max_bytes) + FLEXIBLE.tags
    if version >= _LEADER_EPOCH_SINCE:
        return lambda part: _PARTITION_V9.pack(part[0], part[2], part[1], -1, max_bytes)
    if version >= _LOG_START_OFFSET_SINCE:
        return lambda part: _PARTITION_V5.pack(part[0], part[1], -1, max_bytes)
    return lambda part: _PARTITION.pack(part[0], part[1], max_bytes)


def _partition(version: int, topic: str, reader: Decoder) -> Fetched:
    partition, error, high_watermark, last_stable_offset = reader.fields(_STATE)
    log_start_offset = reader.int64() if version >= _LOG_START_OFFSET_SINCE else -1
    aborted = tuple(_aborted(reader) for _ in range(reader.nullable_count(_ABORTED.size)))
    if version >= _RACKS_SINCE:
        reader.int32()  # preferred read replica: only for clients that send their rack (KIP-392)
    records = reader.nullable_data() or b""
    # They may have the new leader, which is taken from the metadata instead.
    reader.tags()
    return Fetched(
        topic, partition, error, high_watermark, last_stable_offset, log_start_offset, aborted, records
    )


def _aborted(reader: Decoder) -> AbortedTransaction:
    transaction = AbortedTransaction(*reader.fields(_ABORTED))
    reader.tags()
    return transaction
