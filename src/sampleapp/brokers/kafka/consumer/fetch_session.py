"""The client's side of a fetch session: the partitions, and what of them has changed (KIP-227)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from msgspec import Struct

from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.model import epoch_of

_MAX_EPOCH: Final = 2**31 - 1


class SessionKey(NamedTuple):
    """A partition of a topic. A topic that is deleted and created again has another id."""

    topic: str
    topic_id: UUID | None
    partition: int


class SessionRequest(Struct, frozen=True):
    """The parts of a Fetch that depend on the session; see `SessionFetchRequest`."""

    session_id: int
    session_epoch: int
    topics: Sequence[tuple[str, Sequence[tuple[int, int]]]]
    leader_epochs: Mapping[tuple[str, int], int]
    topic_ids: Mapping[str, UUID]
    uses_ids: bool
    forgotten: Sequence[tuple[str, UUID | None, Sequence[int]]]


class FetchSession:
    """
    The partitions that a broker should fetch, and the changes of them that it has not been sent yet.

    A broker without sessions, or without room for another one, answers with the session id 0: then every
    request names all partitions.

    A session is never closed, since a request for that (of epoch -1) would wait for the response to the last
    one, and the end of following must not. When a broker needs room, it discards sessions that were not used
    for two minutes (``min.incremental.fetch.session.eviction.ms``).
    """

    def __init__(self) -> None:
        self._entries: dict[SessionKey, tuple[int, int, int]] = {}
        self._changed: set[SessionKey] = set()
        self._forgotten: set[SessionKey] = set()
        self._id = self._epoch = 0
        self._counts: Counter[tuple[str, UUID | None]] = Counter()
        """The number of partitions of each topic."""
        self._has_other_topics = False
        self._topic_ids: dict[str, UUID] = {}
        self._uses_ids = True

    def put(self, key: SessionKey, offset: int, *, leader_epoch: int = -1) -> None:
        """
        Fetch a partition from this offset on.

        :param leader_epoch: the epoch of the leader; -1 if it is not known.
        """
        if key not in self._entries:
            self._count(key, 1)
        entry = offset, epoch_of(offset), leader_epoch
        if self._entries.get(key) != entry:
            self._changed.add(key)
        self._entries[key] = entry
        # A broker removes the forgotten partitions after it has added the others.
        if key in self._forgotten:
            self._forgotten.remove(key)
            self._changed.add(key)

    def remove(self, key: SessionKey) -> None:
        """Fetch a partition no longer."""
        del self._entries[key]
        self._count(key, -1)
        self._changed.discard(key)
        self._forgotten.add(key)

    def next_request(self) -> SessionRequest:
        """Return the next request, with the changes since the last one."""
        if self._has_other_topics:
            self._has_other_topics = False
            self._topic_ids = {topic: topic_id for topic, topic_id in self._counts if topic_id is not None}
            uses_ids = all(topic_id is not None for _, topic_id in self._counts)
            if uses_ids is not self._uses_ids:
                # Topics have ids in all requests of a session, or in none (KIP-516).
                self._uses_ids, self._epoch = uses_ids, 0
        is_full = self._epoch == 0
        topics: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        leader_epochs: dict[tuple[str, int], int] = {}
        for key in self._entries if is_full else self._changed:
            offset, _, leader_epochs[key.topic, key.partition] = self._entries[key]
            topics[key.topic].append((key.partition, offset))
        forgotten: defaultdict[tuple[str, UUID | None], list[int]] = defaultdict(list)
        for key in () if is_full else self._forgotten:
            # In a session without ids, a topic that is created again is the same one.
            if self._uses_ids or not any(key[::2] == each[::2] for each in self._changed):
                forgotten[key.topic, key.topic_id].append(key.partition)
        self._changed.clear()
        self._forgotten.clear()
        return SessionRequest(
            self._id,
            self._epoch,
            list(topics.items()),
            leader_epochs,
            self._topic_ids,
            self._uses_ids,
            [(topic, topic_id, numbers) for (topic, topic_id), numbers in forgotten.items()],
        )

    def _count(self, key: SessionKey, change: int) -> None:
        topic = key.topic, key.topic_id
        self._counts[topic] += change
        if self._counts[topic] == max(change, 0):
            # The first partition of the topic, or the last.
            self._has_other_topics = True
            if change < 0:
                del self._counts[topic]

    def responded(self, session_id: int) -> None:
        """Note a response without an error, and the session id in it."""
        self._id = session_id
        self._epoch = 0 if not session_id else self._epoch % _MAX_EPOCH + 1

    def lost(self, error: int = ErrorCode.NONE) -> None:
        """
        Begin another session with the next request: the broker may not know the changes of the last one.

        :param error: the error in the response, if there was one.
        """
        self._epoch = 0
        if error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._id = 0
