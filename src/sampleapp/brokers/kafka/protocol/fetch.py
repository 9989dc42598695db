"""Fetch: reads batches of records from partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from typing import ClassVar, TypeVar
from uuid import UUID

import msgspec

from sampleapp.brokers.kafka.protocol.codec import (
    FLEXIBLE,
    Api,
    Decoder,
    Fields,
    ProtocolError,
    Request,
    by_topic,
    negotiate,
    with_epochs,
)
from sampleapp.model import OffsetAndEpoch, epoch_of, with_epoch

_LOG_START_OFFSET_SINCE = 5
_SESSIONS_SINCE = 7
_LEADER_EPOCH_SINCE = 9
_RACKS_SINCE = 11
_FLEXIBLE_SINCE = 12
_TOPIC_IDS_SINCE = 13

_LIMITS = Struct(">iiiib")
_SESSION_AND_EPOCH = Struct(">ii")
_PARTITION = Struct(">iqi")
_PARTITION_V5 = Struct(">iqqi")
_PARTITION_V9 = Struct(">iiqqi")
_PARTITION_V12 = Struct(">iiqiqi")

_NO_TOPIC_ID = UUID(int=0)

_THROTTLE_TIME = Struct(">4x")
_THROTTLE_TIME_AND_SESSION = Struct(">4xhi")
_STATE = Struct(">ihqq")
_STATE_V5 = Struct(">ihqqq")
_ABORTED = Struct(">qq")
_DIVERGING_EPOCH_TAG = 0
_DIVERGING_EPOCH = Struct(">iq")
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
    diverging: OffsetAndEpoch | None = None
    """
    The end of the last leader epoch in this log that is not after the one of the position (KIP-595).

    Instead of records: the log has not the record that was read before the position.
    """


def follow_divergence(position: int, end: OffsetAndEpoch) -> int | None:
    """
    Compare a position with the end of its leader epoch in the log; see `Fetched.diverging`.

    If the end is not before the position, the log was not cut: compaction has left no record of the epoch, or
    none was written in it. Kafka's consumers judge by the end, too (KIP-320).

    :return: the position with the epoch that the log has; ``None`` if the log was cut before the position.
    """
    if end < position:
        return None
    return with_epoch(int(position), min(end.leader_epoch, epoch_of(position) - 1))


class SessionFetched(msgspec.Struct, frozen=True, gc=False):
    """The response within a fetch session."""

    error: int
    """Of the request as a whole, such as an unknown session; then there are no partitions."""
    session_id: int
    """0 if the broker has no session for the request, and before v7 (Kafka 1.1)."""
    partitions: list[Fetched]
    """In an incremental response, those with records, an error, or another end than before."""


R_co = TypeVar("R_co", covariant=True)


class _Fetch(Request[R_co], frozen=True, kw_only=True):
    """
    Read from positions. The broker answers when it has ``min_bytes``, or after ``max_wait_ms``.

    Kafka 0.11 supports v4; batches compressed with zstd need v10 (KIP-110).

    From v13 on (Kafka 3.1, KIP-516) topics have ids instead of names, so that the records of a topic that was
    deleted and made again are never taken for those of the old one. It is used when the ids of all topics are
    given.
    """

    api: ClassVar[Api] = Api(key=1, name="Fetch", lowest=4, highest=13, flexible=_FLEXIBLE_SINCE)

    topics: Sequence[tuple[str, Sequence[tuple[int, int]]]]
    """
    Topics, each with partitions and the offset to read from.

    The epoch of an `OffsetAndEpoch` is sent since v12 (Kafka 2.7): see `Fetched.diverging`.
    """
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
            parts.append(self._session())
        parts += by_topic(
            with_epochs(self.topics, self.leader_epochs),
            _partition_writer(version, self.partition_max_bytes),
            fields=fields,
            topic=self._id_of if version >= _TOPIC_IDS_SINCE else None,
        )
        if version >= _SESSIONS_SINCE:
            parts += self._topics_to_forget(version, fields)
        if version >= _RACKS_SINCE:
            parts.append(fields.string(""))
        parts.append(fields.tags)
        return parts

    def _session(self) -> bytes:
        """Return the id of the session, and the epoch of the request in it."""
        return _SESSION_AND_EPOCH.pack(0, -1)

    def _topics_to_forget(self, version: int, fields: Fields) -> Sequence[bytes]:  # noqa: ARG002 -- for subclasses
        return (fields.count(0),)

    def _read_all(self, version: int, reader: Decoder) -> SessionFetched:
        head = _THROTTLE_TIME_AND_SESSION if version >= _SESSIONS_SINCE else _THROTTLE_TIME
        error, session_id = reader.fields(head) or (0, 0)
        names = {topic_id: topic for topic, topic_id in self.topic_ids.items()}
        found: list[Fetched] = []
        for _ in range(reader.count(_SMALLEST_TOPIC)):
            topic = _name(reader.uuid(), names) if version >= _TOPIC_IDS_SINCE else reader.string()
            partitions = reader.count(_SMALLEST_PARTITION)
            found += [_partition(version, topic, reader) for _ in range(partitions)]
            reader.tags()
        reader.tags()
        return SessionFetched(error, session_id, found)

    def _id_of(self, topic: str) -> bytes:
        topic_id = self.topic_ids.get(topic)
        if topic_id is None:
            raise ValueError(f"Fetch needs the ids of all topics from v{_TOPIC_IDS_SINCE} on.")
        return topic_id.bytes


class FetchRequest(_Fetch[list[Fetched]], frozen=True, kw_only=True):
    """Read from positions, without a session: each request is complete."""

    def _read(self, version: int, reader: Decoder) -> list[Fetched]:
        response = self._read_all(version, reader)
        if response.error:
            return [Fetched(topic, part, response.error) for topic, parts in self.topics for part, _ in parts]
        return response.partitions


class SessionFetchRequest(_Fetch[SessionFetched], frozen=True, kw_only=True):
    """
    Read from positions, within a fetch session (KIP-227).

    The broker keeps the partitions of a session. A request of epoch 0 begins one, and names all of them.
    Later ones name those that are new, or have another position. ``topic_ids`` are those of the session.
    """

    session_id: int
    """0 before the broker has given one. A request of epoch 0 ends the session with this id."""
    session_epoch: int
    """The number of the request in its session."""
    forgotten: Sequence[tuple[str, UUID | None, Sequence[int]]] = ()
    """Partitions to remove from the session: topics with their ids."""
    uses_ids: bool = True
    """False if the ids of some topics of the session are not known."""

    def version_for(self, ranges: Mapping[int, tuple[int, int]]) -> int | None:
        """See `Request.version_for`."""
        return super().version_for(ranges) if self.uses_ids else negotiate(_WITH_NAMES, ranges)

    def _session(self) -> bytes:
        return _SESSION_AND_EPOCH.pack(self.session_id, self.session_epoch)

    def _topics_to_forget(self, version: int, fields: Fields) -> Sequence[bytes]:
        parts = [fields.count(len(self.forgotten))]
        for topic, topic_id, numbers in self.forgotten:
            if version < _TOPIC_IDS_SINCE:
                parts.append(fields.string(topic))
            else:
                parts.append((topic_id or _NO_TOPIC_ID).bytes)
            parts += (fields.count(len(numbers)), Struct(f">{len(numbers)}i").pack(*numbers), fields.tags)
        return parts

    def _read(self, version: int, reader: Decoder) -> SessionFetched:
        return self._read_all(version, reader)


_WITH_NAMES = Api(
    key=_Fetch.api.key,
    name=_Fetch.api.name,
    lowest=_Fetch.api.lowest,
    highest=_TOPIC_IDS_SINCE - 1,
    flexible=_FLEXIBLE_SINCE,
)


def _name(topic_id: UUID | None, names: Mapping[UUID, str]) -> str:
    if topic_id is None or topic_id not in names:
        raise ProtocolError(f"The topic with the id {topic_id} was not requested.")
    return names[topic_id]


def _partition_writer(version: int, max_bytes: int) -> Callable[[tuple[int, int, int]], bytes]:
    """
    Return a function that encodes a partition, the offset to read from, and the leader's epoch.

    The fields that only followers have are -1.
    """
    if version >= _FLEXIBLE_SINCE:
        return lambda part: (
            _PARTITION_V12.pack(part[0], part[2], part[1], epoch_of(part[1]), -1, max_bytes) + FLEXIBLE.tags
        )
    if version >= _LEADER_EPOCH_SINCE:
        return lambda part: _PARTITION_V9.pack(part[0], part[2], part[1], -1, max_bytes)
    if version >= _LOG_START_OFFSET_SINCE:
        return lambda part: _PARTITION_V5.pack(part[0], part[1], -1, max_bytes)
    return lambda part: _PARTITION.pack(part[0], part[1], max_bytes)


def _partition(version: int, topic: str, reader: Decoder) -> Fetched:
    partition, error, high_watermark, last_stable_offset, log_start_offset = (
        reader.fields(_STATE_V5) if version >= _LOG_START_OFFSET_SINCE else (*reader.fields(_STATE), -1)
    )
    aborted = tuple(_aborted(reader) for _ in range(reader.nullable_count(_ABORTED.size)))
    if version >= _RACKS_SINCE:
        reader.int32()  # preferred read replica: only for clients that send their rack (KIP-392)
    records = reader.nullable_data() or b""
    # They may also have the new leader, which is taken from the metadata instead.
    diverging = reader.tags().get(_DIVERGING_EPOCH_TAG)
    return Fetched(
        topic,
        partition,
        error,
        high_watermark,
        last_stable_offset,
        log_start_offset,
        aborted,
        records,
        None if diverging is None else _diverging(diverging),
    )


def _diverging(tag: bytes) -> OffsetAndEpoch:
    epoch, end_offset = _DIVERGING_EPOCH.unpack_from(tag)
    return OffsetAndEpoch(end_offset, epoch)


def _aborted(reader: Decoder) -> AbortedTransaction:
    transaction = AbortedTransaction(*reader.fields(_ABORTED))
    reader.tags()
    return transaction
