"""All that clients sent and got during a run, and what the topics have then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from tests.real_kafka.reading import Stored

__all__ = [
    "FOREIGN",
    "NOT_STORED",
    "UNKNOWN",
    "Attempt",
    "History",
    "Item",
    "Outcome",
    "Place",
    "Readings",
    "Request",
    "Sent",
    "Topic",
]

Place = tuple[int, int]
"""A partition and an offset."""
NOT_STORED = "not stored"
UNKNOWN = "unknown"
Outcome = Place | str
"""What a response says about a record: its place, `NOT_STORED` or `UNKNOWN`."""


FOREIGN = "foreign"
"""Values of other clients begin with it."""


class Sent(Struct):
    """A record as a client sent it."""

    value: str | None
    """No other record has it, unless it is a tombstone: ``None``."""
    key: str | None
    headers: Mapping[str, str] = {}


class Attempt(Struct):
    """One try of a request."""

    begun_s: float
    ended_s: float
    outcomes: Sequence[Outcome]
    """Of each record."""
    is_replayed: bool = False
    """Whether the response has ``Idempotent-Replayed``."""


class Request(Struct):
    """Records that are sent together, and with an idempotency key again and again."""

    topic: str
    sender: str
    """A client sends a request when the one before it is answered or given up."""
    records: Sequence[Sent]
    is_identified: bool = False
    """Whether it has an idempotency key."""
    is_rejected: bool = False
    """Whether its idempotency key is that of another request, so that it must not be published."""
    attempts: list[Attempt] = []

    def places(self, n: int) -> set[Place]:
        """The places that responses gave for one record."""
        return {each.outcomes[n] for each in self.attempts if isinstance(each.outcomes[n], tuple)}


class Item(Struct):
    """Something that a reader got: a record, or the message that records are missing."""

    kind: str
    """``message``, ``gap`` or ``reset``, as the events of a stream are called."""
    data: Mapping


class Topic(Struct):
    """The records of a topic, as a consumer of librdkafka found them."""

    generations: list[dict[Place, Stored]]
    """One for each time that the topic was made; each with all records that were ever seen."""
    starts: Mapping[int, int] = {}
    """The first offset that a partition of the last generation still has."""
    latest: Sequence[Stored] = []
    """What the last generation has at the end."""
    is_cut: bool = False
    """Whether unclean elections may lose records that were acknowledged."""


class Readings(Struct):
    """The readings of one gateway at the end."""

    version_1: Sequence[float]
    version_2: Sequence[tuple[str, float]]
    etag: str
    changes: Sequence[tuple[str, Mapping[str, float]]]
    """The id of each event of ``GET /changes``, and the readings after it."""


class History(Struct):
    """Everything that the checker needs."""

    requests: Sequence[Request]
    topics: Mapping[str, Topic]
    readers: Mapping[str, tuple[str, Sequence[Item]]]
    """The topic of each reader, and what it got, from the first record on."""
    readings_topic: str = ""
    readings: Mapping[str, Readings] = {}
    """By gateway."""
    served: Mapping[str, Mapping[str, float]] = {}
    """What ``GET /`` was answered with during the run, by entity tag."""
