"""Partitions that are followed: the position, the state, and the error that stops the reading of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from typing import Final, Protocol
from uuid import UUID

from sampleapp.brokers.kafka.consumer.offsets import Extent, first_offset
from sampleapp.brokers.kafka.consumer.read_failures import ReadFailure, no_leader
from sampleapp.brokers.kafka.protocol import Fetched, follow_divergence
from sampleapp.concurrency.rates import Backoff
from sampleapp.model import EARLIEST, FromOffsets, OffsetAndEpoch, Start, epoch_of, with_epoch

RETRY: Final = Backoff(first_s=0.1, max_s=5.0)
"""The delays between attempts to read."""
SLICE_S: Final = 0.005
"""The time that delivering may take in one turn of the reactor, in seconds."""

_REPLACED_AFTER_S: Final = 1.0
"""A log counts as replaced after this time: a former leader, whose log may be shorter, may still answer."""
_GONE_AFTER_S: Final = 1.0
"""A partition counts as removed after this time: brokers learn of changes one after another."""
_NOTHING_LEFT_AFTER_S: Final = 5.0
"""See `FollowedPartition.note_nothing`."""
_OPEN_TRANSACTION_AFTER_S: Final = 10.0
"""A transaction that is open for a shorter time is not logged."""


class Found(Enum):
    """The result of comparing a position with the extent of its partition."""

    IN_THE_LOG = "the position is valid"
    DELETED = "the records there were deleted: reading goes on with the first one that remains"
    UNCERTAIN = "this broker may not be the leader any longer: load the metadata again"
    REPLACED = "the log ends before the position: it is another log than the one that was read"


class PartitionState(Enum):
    """The states of a partition."""

    LOST = "its position must be located in the log: it is new, or may be outside"
    LOCATING = "a ListOffsets request names it"
    READY = "a Fetch may name it"
    FETCHING = "a Fetch names it"
    WAITING = "it has no more records for now: the Fetch that waits for new ones should name it"
    DELIVERING = "its records are being delivered, and no request may name it"
    DROPPED = "it was removed from the topic, or following has ended: nothing more is delivered"


class PartitionEvent(Enum):
    """The events in the life of a partition."""

    ASKED = auto()
    """A request names it."""
    LOCATED = auto()
    """The log has its position."""
    NOTHING = auto()
    """A response has no records for it."""
    RECORDS = auto()
    """A response has records for it."""
    OUT_OF_RANGE = auto()
    """The position may be outside the log."""
    RELEASED = auto()
    """The request failed, was rejected, or its response is ignored."""
    DELIVERED = auto()
    """The records were delivered."""
    DROPPED = auto()
    """It was removed from the topic, or following has ended."""


TRANSITIONS: Final[dict[PartitionState, dict[PartitionEvent, PartitionState]]] = {
    PartitionState.LOST: {
        PartitionEvent.ASKED: PartitionState.LOCATING,
        PartitionEvent.OUT_OF_RANGE: PartitionState.LOST,
        PartitionEvent.RELEASED: PartitionState.LOST,
        PartitionEvent.DROPPED: PartitionState.DROPPED,
    },
    PartitionState.LOCATING: {
        PartitionEvent.LOCATED: PartitionState.READY,
        PartitionEvent.RELEASED: PartitionState.LOST,
        PartitionEvent.DROPPED: PartitionState.DROPPED,
    },
    PartitionState.READY: {
        PartitionEvent.ASKED: PartitionState.FETCHING,
        PartitionEvent.OUT_OF_RANGE: PartitionState.LOST,
        PartitionEvent.RELEASED: PartitionState.READY,
        PartitionEvent.DROPPED: PartitionState.DROPPED,
    },
    PartitionState.FETCHING: {
        PartitionEvent.NOTHING: PartitionState.WAITING,
        PartitionEvent.RECORDS: PartitionState.DELIVERING,
        PartitionEvent.OUT_OF_RANGE: PartitionState.LOST,
        PartitionEvent.RELEASED: PartitionState.READY,
        PartitionEvent.DROPPED: PartitionState.DROPPED,
    },
    PartitionState.WAITING: {
        PartitionEvent.ASKED: PartitionState.FETCHING,
        PartitionEvent.RELEASED: PartitionState.READY,
        PartitionEvent.DROPPED: PartitionState.DROPPED,
    },
    PartitionState.DELIVERING: {
        PartitionEvent.DELIVERED: PartitionState.READY,
        PartitionEvent.RELEASED: PartitionState.DELIVERING,
        PartitionEvent.DROPPED: PartitionState.DROPPED,
    },
    PartitionState.DROPPED: dict.fromkeys(PartitionEvent, PartitionState.DROPPED),
}
"""The next state after an event; no other pairs may occur."""


class Follower(Protocol):
    """The subscription of a partition, as the fetcher of the partition sees it."""

    topic: str

    @property
    def topic_id(self) -> UUID | None:
        """The id of the topic; ``None`` if it does not exist, or the brokers have no topic ids."""

    def start_in(self, partition: int) -> Start:
        """Return where to begin in a partition that exists when following begins."""

    def tell_located(self, partition: FollowedPartition, *, before: int | None) -> None:
        """Handle a position that may have changed without records. ``before`` is the old one."""

    async def deliver(self, partition: FollowedPartition, fetched: Fetched, *, began_s: float) -> None:
        """
        Deliver records to the observer, and keep the partition's position up to date.

        :param began_s: when this turn of the reactor began its work.
        :raise sampleapp.brokers.kafka.batches.UnreadableBatch: a batch cannot be read.
        """

    def changed(self) -> None:
        """Handle changes of partitions, such as an error or its end."""

    def refresh_metadata(self) -> None:
        """Load the metadata soon: it may be out of date."""

    def reset(self, why: str) -> None:
        """Discard all records and positions: the log of a partition was replaced."""


class Holder(Protocol):
    """The fetcher of a partition, as the partition sees it."""

    def add(self, partition: FollowedPartition) -> None:
        """Read the partition; to be followed by `wake`."""

    def release(self, partition: FollowedPartition) -> None:
        """Name the partition in no further request, and ignore the responses to earlier ones."""

    def wake(self) -> None:
        """Look for partitions that are ready."""


class FollowedPartition:
    """The reading state of one partition."""

    def __init__(self, number: int, *, follower: Follower, existed: bool) -> None:
        """:param existed: ``True`` if it existed when following began, so that catching up waits for it."""
        self.number = number
        self.follower = follower
        self.state = PartitionState.LOST
        self.holder: Holder | None = None
        self.leader: int | None = None
        self.leader_epoch = -1
        """The epoch of the leader, which requests name; -1 if it is not known."""
        self.position: int | None = None
        """The offset to read next; ``None`` until the extent of the partition is known."""
        self.last_round = 0
        """The round that had its last records. The earliest comes first, so that none starves (KIP-74)."""
        self.failures = 0
        self.failure: ReadFailure | None = None
        self.retry_at_s = 0.0
        self._end: int | None = None
        """The high watermark in the last response."""
        self._stable = -1
        """The last stable offset in the last response."""
        self._goal: int | None = None
        """The high watermark when the position was first located: catching up ends there."""
        self._beyond_since_s: float | None = None
        """The time since which the leader's log ends before the position."""
        self._missing_since_s: float | None = None
        """The time since which it is missing from the metadata."""
        self._existed = self._awaited = existed
        self._nothing_since_s: float | None = None
        self._transaction_since_s: float | None = None
        self._fresh = True
        """``True`` if nothing was read since the position was located."""

    # Queries

    @property
    def dropped(self) -> bool:
        """``True`` if no more of its records may be delivered."""
        return self.state is PartitionState.DROPPED

    @property
    def settled(self) -> bool:
        """``True`` if it has a leader, and the last attempt to read had no error."""
        return not self.failures and self.leader is not None and self._missing_since_s is None

    @property
    def lag(self) -> int | None:
        """The number of offsets from the position to the end; ``None`` while unknown."""
        if self.position is None or self._end is None:
            return None
        return max(0, self._end - self.position)

    def is_awaited(self, now_s: float) -> bool:
        """Return ``True`` if catching up waits for it."""
        if self._awaited and self._goal is not None and self.position is not None:
            since_s = self._nothing_since_s
            has_nothing_left = since_s is not None and now_s - since_s >= _NOTHING_LEFT_AFTER_S
            self._awaited = self.position < self._goal and not has_nothing_left
        return self._awaited

    def has_nothing(self) -> bool:
        """Return ``True`` if the last response had nothing for it, although catching up waits for it."""
        return self._nothing_since_s is not None

    def has_open_transaction(self) -> bool:
        """Return ``True`` if an open transaction blocks reading."""
        return self._transaction_since_s is not None

    def is_blocked(self, now_s: float) -> bool:
        """Return ``True`` if an open transaction has blocked reading for `_OPEN_TRANSACTION_AFTER_S`."""
        since_s = self._transaction_since_s
        return since_s is not None and now_s - since_s >= _OPEN_TRANSACTION_AFTER_S

    # Events

    def handle(self, event: PartitionEvent) -> None:
        """Go to the next state: see `TRANSITIONS`."""
        self.state = TRANSITIONS[self.state][event]

    def drop(self) -> None:
        """Deliver nothing more: it was removed from the topic, or following has ended."""
        self.handle(PartitionEvent.DROPPED)
        if self.holder is not None:
            self.holder.release(self)

    def locate(self, extent: Extent, *, now_s: float, start: Start = EARLIEST) -> Found:
        """
        Set the first position, or correct it if it is not in the log any longer.

        :param start: where to begin, if the partition existed when following began.
        """
        position = self.position
        found = Found.IN_THE_LOG
        if position is None:
            self.position = first_offset(start if self._existed else EARLIEST, extent)
            self._goal, self._fresh = extent.latest, True
            self._end = extent.latest
        elif position < extent.earliest:
            self.position = with_epoch(extent.earliest, extent.leader_epoch)
            found = Found.DELETED
        elif position > extent.latest or 0 <= extent.leader_epoch < epoch_of(position):
            if self._beyond_since_s is None:
                self._beyond_since_s = now_s
            return Found.REPLACED if now_s - self._beyond_since_s >= _REPLACED_AFTER_S else Found.UNCERTAIN
        else:
            # Another broker, a former leader, has answered that the position is not in the log, or the leader
            # has no epochs, as with `message.format.version` 0.10.
            found = Found.UNCERTAIN
            self.position = int(position)
        self.handle(PartitionEvent.LOCATED)
        self._beyond_since_s = None
        return found

    def note_diverging(self, end: OffsetAndEpoch) -> bool:
        """
        Compare the position with the end of its leader epoch in the log; see `Fetched.diverging`.

        :return: ``True`` if the log was cut before the position.
        """
        position = follow_divergence(self.position or 0, end)
        if position is None:
            return True
        self.position = position
        return False

    def discard_unread_position(self) -> None:
        """Locate the position again if nothing was read: it may be that of a former topic of this name."""
        if self._fresh:
            self.position = self._goal = None
            self.handle(PartitionEvent.OUT_OF_RANGE)

    def note_end(self, fetched: Fetched, *, now_s: float) -> None:
        """Note the high watermark and the last stable offset, if the leader sent them."""
        if fetched.high_watermark < 0:
            return
        self._end, self._stable = fetched.high_watermark, fetched.last_stable_offset
        self._look_for_transaction(now_s)

    def note_nothing(self, *, is_alone: bool, now_s: float) -> None:
        """
        Note a response without records from the position on.

        This is normal at the end of the log, and before an open transaction. It also happens if compaction
        has removed the last records below the high watermark, or an unclean election has cut them off: then
        no fetch ever reaches the end. Java's consumer waits there for ever; here catching up waits for
        `_NOTHING_LEFT_AFTER_S` only. The position does not change: a broker with tiered storage (KIP-405)
        sends nothing if getting old segments takes too long.

        :param is_alone: ``True`` if the response had no records of partitions before this one. Otherwise the
            size limits may have left no room for its records.
        """
        if self.has_open_transaction() or not self.is_awaited(now_s):
            self._nothing_since_s = None
        elif is_alone and self._nothing_since_s is None:
            self._nothing_since_s = now_s

    def begin_delivery(self, fetch_round: int) -> None:
        """Note that batches of this round are being delivered."""
        self.handle(PartitionEvent.RECORDS)
        self.last_round = fetch_round
        self._nothing_since_s = self._transaction_since_s = None
        self._fresh = False

    def end_delivery(self, now_s: float) -> None:
        """Note that the records were delivered, or as many as can be read."""
        self.handle(PartitionEvent.DELIVERED)
        self._look_for_transaction(now_s)

    def mark_failed(self, failure: ReadFailure, *, now_s: float, transient: bool = False) -> None:
        """
        Note an error, and back off: each time longer.

        :param transient: ``True`` for an error that is normal in a healthy cluster, such as a change of the
            leader. It is reported only if it repeats.
        """
        self.failures += 1
        self.retry_at_s = now_s + RETRY.delay_s(self.failures)
        if self.failures > 1 or not transient:
            self.failure = failure

    def clear_failure(self) -> None:
        """Note that reading had no error."""
        self.failures = 0
        self.failure = None
        self._missing_since_s = None

    def _look_for_transaction(self, now_s: float) -> None:
        if self.position is None or self._end is None or not self._stable <= self.position < self._end:
            self._transaction_since_s = None
        elif self._transaction_since_s is None:
            self._transaction_since_s = now_s

    # Metadata

    def set_leader(self, leader: int | None, *, now_s: float) -> None:
        """Set the node id of the leader; ``None`` for none."""
        self._missing_since_s = None
        if leader is None:
            failure = no_leader(self.follower.topic, self.number)
            self.mark_failed(failure, now_s=now_s, transient=True)
        elif leader != self.leader:
            self.retry_at_s = now_s
        self.leader = leader

    def note_missing(self, now_s: float) -> bool:
        """
        Note that it is missing from the metadata.

        :return: ``True`` if it was removed: for `_GONE_AFTER_S` neither the metadata nor its leader knew it.
        """
        if self._missing_since_s is None:
            self._missing_since_s = now_s
            return False
        is_gone = now_s - self._missing_since_s >= _GONE_AFTER_S
        return is_gone and self.failures > 0 and self.state is not PartitionState.DELIVERING


class Positions:
    """The known partitions of one topic."""

    def __init__(
        self, *, follower: Follower, start: Start | FromOffsets = EARLIEST, only: int | None = None
    ) -> None:
        """
        :param follower: the subscription.
        :param start: where to begin in the partitions that exist when following begins.
        :param only: the number of the only partition to read; ``None`` for all.
        """
        self._follower = follower
        self._offsets = start if isinstance(start, FromOffsets) else None
        self.start: Start = EARLIEST if isinstance(start, FromOffsets) else start
        """Where to begin in partitions without an offset of their own."""
        self.exists: bool | None = None
        """``True`` if the last metadata had partitions to read; ``None`` before the first."""
        self._only = only
        self._partitions: dict[int, FollowedPartition] = {}
        self._begun = False

    def __bool__(self) -> bool:
        """Return ``True`` if there is a partition."""
        return bool(self._partitions)

    def __iter__(self) -> Iterator[FollowedPartition]:
        return iter(self._partitions.values())

    def update(self, leaders: Mapping[int, int | None], *, now_s: float) -> list[int]:
        """
        Apply metadata. The partitions of the first metadata are those that existed at the start.

        :param leaders: the node id of each partition's leader; ``None`` if it has none.
        :return: the partitions that were removed; see `FollowedPartition.note_missing`.
        """
        skipped = frozenset() if self._offsets is None else self._offsets.skipped
        if self._only is not None or skipped:
            leaders = {
                number: leader
                for number, leader in leaders.items()
                if number not in skipped and self._only in {None, number}
            }
        self.exists = bool(leaders)
        for number, leader in leaders.items():
            partition = self._partitions.get(number)
            if partition is None:
                partition = self._partitions[number] = FollowedPartition(
                    number, follower=self._follower, existed=not self._begun
                )
            partition.set_leader(leader, now_s=now_s)
        self._begun = True
        return self._drop([number for number in self._partitions if number not in leaders], now_s)

    def mark_empty(self) -> None:
        """Note that the topic does not exist: partitions found later did not exist at the start."""
        self._begun = True
        self.exists = False

    def reset(self) -> None:
        """Forget all partitions; the next metadata has the ones of the start."""
        for partition in self._partitions.values():
            partition.drop()
        self._partitions.clear()
        self._begun = False
        # The given start was a place in the former topic.
        self.start, self._offsets = EARLIEST, None

    def start_in(self, partition: int) -> Start:
        """Return where to begin in a partition that exists when following begins."""
        return self.start if self._offsets is None else self._offsets.start_in(partition)

    def note_missing(self, *, now_s: float) -> list[int]:
        """
        Note that the topic is missing from the metadata.

        :return: the partitions that were removed, as in `update`.
        """
        return self._drop(list(self._partitions), now_s)

    @property
    def begun(self) -> bool:
        """``True`` if the partitions that existed at the start are known."""
        return self._begun

    @property
    def settled(self) -> bool:
        """``True`` if reading every partition had no error."""
        return all(each.settled for each in self._partitions.values())

    @property
    def lag(self) -> int | None:
        """The sum of the lags; ``None`` while one is unknown."""
        if not self._begun:
            return None
        left = 0
        for partition in self._partitions.values():
            lag = partition.lag
            if lag is None:
                return None
            left += lag
        return left

    def is_caught_up(self, now_s: float) -> bool:
        """Return ``True`` if all records that existed at the start have been read."""
        return self._begun and not any(each.is_awaited(now_s) for each in self._partitions.values())

    @property
    def failure(self) -> ReadFailure | None:
        """The error of one of the partitions, if there is any."""
        return next((each.failure for each in self._partitions.values() if each.failure is not None), None)

    def is_pending(self, now_s: float) -> bool:
        """Return ``True`` if the passing of time alone may end catching up, or make a transaction block."""
        return any(each.has_open_transaction() or each.is_awaited(now_s) for each in self)

    def open_transactions(self, now_s: float) -> list[FollowedPartition]:
        """Return all partitions blocked by transactions, if one of them has been blocked for long."""
        waiting = [each for each in self._partitions.values() if each.has_open_transaction()]
        return waiting if any(each.is_blocked(now_s) for each in waiting) else []

    def _drop(self, numbers: Iterable[int], now_s: float) -> list[int]:
        gone = [number for number in numbers if self._partitions[number].note_missing(now_s)]
        for number in gone:
            self._partitions.pop(number).drop()
        return gone
