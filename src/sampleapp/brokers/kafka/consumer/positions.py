"""How far each partition of a topic has been read, and what keeps it from being read on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from msgspec import Struct

from sampleapp.brokers.kafka.protocol import Fetched
from sampleapp.brokers.shared.backoff import Backoff
from sampleapp.model import EARLIEST, FromEnd, FromOffset, Start

__all__ = ["RETRY", "Extent", "Found", "Obstacle", "Partition", "Positions"]

RETRY: Final = Backoff(first_s=0.1, max_s=5.0)
"""Between attempts to read."""

_REPLACED_AFTER_S: Final = 1.0
"""A broker that has not noticed yet that it is no longer the leader may have a shorter log."""
_GONE_AFTER_S: Final = 1.0
"""Brokers learn one by one of a change, so that one of them may not know a partition that is there."""
_NOTHING_LEFT_AFTER_S: Final = 5.0
_OPEN_TRANSACTION_AFTER_S: Final = 10.0
"""Transactions take their time; only one that takes long is worth a word."""


class Obstacle(Struct, frozen=True):
    """What keeps something from being read."""

    sentence: str
    """For the operator."""
    public: str
    """For any caller: without addresses and paths."""


class Extent(Struct, frozen=True, gc=False):
    """Where a partition begins and ends, as its leader says."""

    error: int
    """Kafka's error code; the offsets mean something only if it is 0."""
    earliest: int = -1
    latest: int = -1
    """The high watermark."""
    since: int = -1
    """The first record that is late enough, when a time was asked for; -1 if there is none."""


class Found(Enum):
    """What the extent of a partition's log says of the position in it."""

    IN_THE_LOG = "it can be read from there"
    DELETED = "the records there were deleted: reading goes on with the first one that is left"
    UNCERTAIN = "this leader may not be one any more: look again"
    REPLACED = "the log ends before it: it is another log than the one that was read"


class Partition:
    """The state of one partition, which others change by these methods only."""

    def __init__(self, number: int, *, existed: bool) -> None:
        """:param existed: whether it was there when following began, so that catching up waits for it."""
        self.number = number
        self.leader: int | None = None
        self.position: int | None = None
        """The offset to read next; ``None`` until it is known where the partition begins."""
        self.delivering = False
        """Whether records of it are being delivered: then nothing else may be asked about it."""
        self.turn = 0
        """When it was served last: the longest ago comes first, so that none starves (KIP-74)."""
        self.failures = 0
        self.obstacle: Obstacle | None = None
        self.retry_at_s = 0.0
        self.dropped = False
        """Whether it is no part of the topic any more: nothing of it is delivered from then on."""
        self._end: int | None = None
        """The high watermark, as of the last answer."""
        self._goal: int | None = None
        """The high watermark when the position was first looked up: what catching up waits for."""
        self._suspect = False
        """Whether the position may be outside of the log, whose extent has to be looked up then."""
        self._beyond_since_s: float | None = None
        """Since when the leader says that its log ends before the position."""
        self._request: object = None
        """The last request that asks about it: an answer to any other one comes too late."""
        self._missing_since_s: float | None = None
        """Since when the metadata does not have it."""
        self._existed = self._awaited = existed
        self._nothing_since_s: float | None = None
        self._transaction_since_s: float | None = None
        self._fresh = True
        """Whether nothing was read since the position was found."""

    # What is known of it.

    @property
    def located(self) -> bool:
        """Whether there is a position to read from."""
        return self.position is not None and not self._suspect

    @property
    def settled(self) -> bool:
        """Whether it has a leader and was last read from without an error."""
        return not self.failures and self.leader is not None and self._missing_since_s is None

    @property
    def lag(self) -> int | None:
        """How many offsets there are from the position to the end; ``None`` while that is not known."""
        if self.position is None or self._end is None:
            return None
        return max(0, self._end - self.position)

    def is_due(self, now_s: float) -> bool:
        """Whether something may be asked about it now."""
        return not self.delivering and self.retry_at_s <= now_s

    def is_awaited(self) -> bool:
        """Whether catching up waits for it."""
        if self._awaited and self._goal is not None and self.position is not None:
            self._awaited = self.position < self._goal
        return self._awaited

    def has_open_transaction(self) -> bool:
        """Whether nothing more can be read before a transaction is committed or aborted."""
        return self._transaction_since_s is not None

    def is_held_up(self, now_s: float) -> bool:
        """Whether an open transaction has kept it from being read on for long."""
        since_s = self._transaction_since_s
        return since_s is not None and now_s - since_s >= _OPEN_TRANSACTION_AFTER_S

    # Asking about it.

    def asked(self, request: object) -> None:
        """From now on only the answer to this request counts."""
        self._request = request

    def waits_for(self, request: object) -> bool:
        """Whether the answer to a request counts."""
        return self._request is request

    def locate(self, extent: Extent, *, now_s: float, start: Start = EARLIEST) -> Found:
        """
        Take the first position, or one that is in the log if that has changed under it.

        :param start: where to begin, if it existed when following began.
        """
        position = self.position
        found = Found.IN_THE_LOG
        if position is None:
            self.position = _first_offset(extent, start) if self._existed else extent.earliest
            self._goal, self._fresh = extent.latest, True
            self._end = extent.latest
        elif position < extent.earliest:
            self.position = extent.earliest
            found = Found.DELETED
        elif position > extent.latest:
            if self._beyond_since_s is None:
                self._beyond_since_s = now_s
            return Found.REPLACED if now_s - self._beyond_since_s >= _REPLACED_AFTER_S else Found.UNCERTAIN
        elif self._suspect:
            # Somebody else than the leader of now has said that it is not in the log.
            found = Found.UNCERTAIN
        self._suspect = False
        self._beyond_since_s = None
        return found

    def doubt(self) -> None:
        """Its position may be outside of the log: it has to be located again."""
        self._suspect = True

    def doubt_extent(self) -> None:
        """Its extent may be that of another topic of this name: unless it was read, look again."""
        if self._fresh:
            self.position = self._goal = None

    # What comes of it.

    def ends_at(self, end: int) -> None:
        """
        Take in where it ends.

        :param end: its high watermark; negative if its leader does not say.
        """
        if end >= 0:
            self._end = end

    def begin_delivery(self, turn: int) -> None:
        """Its leader has sent batches, which are delivered now."""
        self.turn = turn
        self.delivering = True
        self._nothing_since_s = self._transaction_since_s = None
        self._fresh = False

    def end_delivery(self) -> None:
        """Whoever leads it now may be asked."""
        self.delivering = False

    def failed(self, obstacle: Obstacle, *, now_s: float, transient: bool = False) -> None:
        """
        Something about it went wrong: it is left alone for a while, each time longer.

        :param transient: whether it happens now and then in a cluster that is well, as when another
            broker takes the lead; that is worth telling only if it goes on.
        """
        self.failures += 1
        self.retry_at_s = now_s + RETRY.delay_s(self.failures)
        if self.failures > 1 or not transient:
            self.obstacle = obstacle

    def worked(self) -> None:
        """It was read from without an error."""
        self.failures = 0
        self.obstacle = None
        self._missing_since_s = None

    def found_nothing(self, fetched: Fetched, *, alone: bool, now_s: float) -> None:
        """
        Its leader had nothing to send from the position on.

        That is so at the end of the log, and before a transaction that is still open. It is so as well
        where compaction has removed the last records below the high watermark, and where an unclean
        election has cut them off: then no fetch ever reaches the goal. Java's consumer waits there for
        ever; here catching up does not wait longer than a while. The position stays where it is: a broker
        that keeps old segments elsewhere (KIP-405) sends nothing when it takes too long to get them.

        :param alone: whether nothing else has used up the answer; otherwise the limits may have left no
            room for it, or for a batch that is beyond them.
        """
        position = self.position
        if position is not None and fetched.last_stable_offset <= position < fetched.high_watermark:
            self._nothing_since_s = None
            if self._transaction_since_s is None:
                self._transaction_since_s = now_s
            return
        self._transaction_since_s = None
        if not self.is_awaited():
            self._nothing_since_s = None
        elif not alone:
            return
        elif self._nothing_since_s is None:
            self._nothing_since_s = now_s
        elif now_s - self._nothing_since_s >= _NOTHING_LEFT_AFTER_S:
            self._awaited = False

    # What the metadata says of it.

    def has_leader(self, leader: int | None, *, topic: str, now_s: float) -> None:
        """Take in which broker leads it; ``None`` for none."""
        self._missing_since_s = None
        if leader is None:
            number = self.number
            self.failed(
                Obstacle(
                    f"Partition {number} of the topic {topic} has no leader, so nothing can be read from it.",
                    f"Partition {number} has no leader, so nothing can be read from it.",
                ),
                now_s=now_s,
                transient=True,
            )
        elif leader != self.leader:
            self.retry_at_s = now_s
        self.leader = leader

    def is_missing(self, now_s: float) -> bool:
        """
        Take in that the metadata does not have it.

        :return: whether it is gone for good: for a while neither the metadata nor its leader has known it.
        """
        if self._missing_since_s is None:
            self._missing_since_s = now_s
            return False
        return now_s - self._missing_since_s >= _GONE_AFTER_S and self.failures > 0 and not self.delivering

    def drop(self) -> None:
        """It is gone: what is still asked about it is answered too late, and what was fetched is void."""
        self.dropped = True
        self._request = None


class Positions:
    """All partitions of one topic, as far as they are known."""

    def __init__(self, *, start: Start = EARLIEST, only: int | None = None) -> None:
        """
        :param start: where to begin in those partitions that exist when following begins.
        :param only: the number of the one partition that counts; all do by default.
        """
        self.start = start
        self.exists: bool | None = None
        """Whether the topic has partitions that count, as of the last look."""
        self._only = only
        self._partitions: dict[int, Partition] = {}
        self._begun = False

    def __bool__(self) -> bool:
        """Whether there is a partition."""
        return bool(self._partitions)

    def update(self, leaders: Mapping[int, int | None], *, topic: str, now_s: float) -> list[int]:
        """
        Take in what the metadata has; the first time it says which partitions existed at the start.

        :param leaders: the node id of each partition's leader; ``None`` if it has none.
        :return: the partitions that are gone for good; see `Partition.is_missing`.
        """
        if self._only is not None:
            leaders = {number: leader for number, leader in leaders.items() if number == self._only}
        self.exists = bool(leaders)
        for number, leader in leaders.items():
            partition = self._partitions.get(number)
            if partition is None:
                partition = self._partitions[number] = Partition(number, existed=not self._begun)
            partition.has_leader(leader, topic=topic, now_s=now_s)
        self._begun = True
        return self._drop([number for number in self._partitions if number not in leaders], now_s)

    def begin_empty(self) -> None:
        """There was no partition at the start; those that come are new."""
        self._begun = True
        self.exists = False

    def begin_anew(self) -> None:
        """Forget all partitions; those that come next are the ones of the start."""
        for partition in self._partitions.values():
            partition.drop()
        self._partitions.clear()
        self._begun = False
        # What was asked for was a place in the topic that is no more.
        self.start = EARLIEST

    def missing(self, *, now_s: float) -> list[int]:
        """
        Take in that the metadata does not have the topic.

        :return: the partitions that are gone for good, as by `update`.
        """
        return self._drop(list(self._partitions), now_s)

    def led_by(self, node_id: int) -> list[Partition]:
        """Return the partitions that a broker leads, the one that has waited longest first."""
        return sorted(
            (each for each in self._partitions.values() if each.leader == node_id),
            key=lambda partition: (partition.turn, partition.number),
        )

    def leaders(self) -> set[int]:
        """Return the node ids of all leaders."""
        return {each.leader for each in self._partitions.values() if each.leader is not None}

    @property
    def begun(self) -> bool:
        """Whether it is known which partitions there were at the start."""
        return self._begun

    @property
    def settled(self) -> bool:
        """Whether every partition has been read from without an error."""
        return all(each.settled for each in self._partitions.values())

    @property
    def lag(self) -> int | None:
        """How many offsets are left to be read in all of them; ``None`` while that is not known of each."""
        if not self._begun:
            return None
        left = 0
        for partition in self._partitions.values():
            lag = partition.lag
            if lag is None:
                return None
            left += lag
        return left

    @property
    def caught_up(self) -> bool:
        """Whether all that was there at the start has been read."""
        return self._begun and not any(each.is_awaited() for each in self._partitions.values())

    @property
    def obstacle(self) -> Obstacle | None:
        """What keeps one of them from being read, if something does."""
        return next((each.obstacle for each in self._partitions.values() if each.obstacle is not None), None)

    def open_transactions(self, now_s: float) -> list[Partition]:
        """Return the partitions that wait for a transaction, once one of them has waited for long."""
        waiting = [each for each in self._partitions.values() if each.has_open_transaction()]
        return waiting if any(each.is_held_up(now_s) for each in waiting) else []

    def _drop(self, numbers: Iterable[int], now_s: float) -> list[int]:
        gone = [number for number in numbers if self._partitions[number].is_missing(now_s)]
        for number in gone:
            self._partitions.pop(number).drop()
        return gone


def _first_offset(extent: Extent, start: Start) -> int:
    if isinstance(start, FromOffset):
        return min(max(start.offset, extent.earliest), extent.latest)
    if isinstance(start, FromEnd):
        return max(extent.latest - start.count, extent.earliest)
    return extent.latest if extent.since < 0 else extent.since
