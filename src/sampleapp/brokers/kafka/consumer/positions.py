"""The reading position of each partition of a topic, and the errors that stop its reading."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from msgspec import Struct

from sampleapp.brokers.kafka.protocol import Fetched
from sampleapp.concurrency.backoff import Backoff
from sampleapp.model import EARLIEST, FromEnd, FromOffset, FromOffsets, Start

__all__ = ["RETRY", "Extent", "FollowedPartition", "Found", "Positions", "ReadFailure"]

RETRY: Final = Backoff(first_s=0.1, max_s=5.0)
"""The delays between attempts to read."""

_REPLACED_AFTER_S: Final = 1.0
"""A log counts as replaced after this time: a former leader, whose log may be shorter, may still answer."""
_GONE_AFTER_S: Final = 1.0
"""A partition counts as removed after this time: brokers learn of changes one after another."""
_NOTHING_LEFT_AFTER_S: Final = 5.0
"""See `FollowedPartition.note_empty_response`."""
_OPEN_TRANSACTION_AFTER_S: Final = 10.0
"""A transaction that is open for a shorter time is not logged."""


class ReadFailure(Struct, frozen=True):
    """An error that stops reading."""

    sentence: str
    """For the operator."""
    public: str
    """For any caller: without addresses and paths."""


class Extent(Struct, frozen=True, gc=False):
    """The first and the last offset of a partition, from its leader."""

    error: int
    """Kafka's error code. The offsets are valid only if it is 0."""
    earliest: int = -1
    latest: int = -1
    """The high watermark."""
    since: int = -1
    """The first offset at or after the start time, if one was given; -1 if there is none."""
    stable: int = -1
    """
    The last stable offset, if the start is relative to the end; -1 if it is not known.

    Records of transactions that are open now are read when they are committed.
    """


class Found(Enum):
    """The result of comparing a position with the extent of its partition."""

    IN_THE_LOG = "the position is valid"
    DELETED = "the records there were deleted: reading goes on with the first one that remains"
    UNCERTAIN = "this broker may not be the leader any longer: load the metadata again"
    REPLACED = "the log ends before the position: it is another log than the one that was read"


class FollowedPartition:
    """The reading state of one partition."""

    def __init__(self, number: int, *, existed: bool) -> None:
        """:param existed: ``True`` if it existed when following began, so that catching up waits for it."""
        self.number = number
        self.leader: int | None = None
        self.position: int | None = None
        """The offset to read next; ``None`` until the extent of the partition is known."""
        self.delivering = False
        """``True`` while its records are being delivered; no request may name it then."""
        self.last_round = 0
        """The round that had its last records. The earliest comes first, so that none starves (KIP-74)."""
        self.failures = 0
        self.failure: ReadFailure | None = None
        self.retry_at_s = 0.0
        self.dropped = False
        """``True`` after it was removed from the topic: no more of its records are delivered."""
        self._end: int | None = None
        """The high watermark in the last response."""
        self._goal: int | None = None
        """The high watermark when the position was first located: catching up ends there."""
        self._suspect = False
        """``True`` if the position may be outside the log, so that it must be located again."""
        self._beyond_since_s: float | None = None
        """The time since which the leader's log ends before the position."""
        self._request: object = None
        """The last request that names it: answers to earlier ones are ignored."""
        self._missing_since_s: float | None = None
        """The time since which it is missing from the metadata."""
        self._existed = self._awaited = existed
        self._nothing_since_s: float | None = None
        self._transaction_since_s: float | None = None
        self._fresh = True
        """``True`` if nothing was read since the position was located."""

    # Queries

    @property
    def located(self) -> bool:
        """``True`` if there is a valid position to read from."""
        return self.position is not None and not self._suspect

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

    def is_due(self, now_s: float) -> bool:
        """Return ``True`` if a request may name it now."""
        return not self.delivering and self.retry_at_s <= now_s

    def is_awaited(self) -> bool:
        """Return ``True`` if catching up waits for it."""
        if self._awaited and self._goal is not None and self.position is not None:
            self._awaited = self.position < self._goal
        return self._awaited

    def has_open_transaction(self) -> bool:
        """Return ``True`` if an open transaction blocks reading."""
        return self._transaction_since_s is not None

    def is_blocked(self, now_s: float) -> bool:
        """Return ``True`` if an open transaction has blocked reading for `_OPEN_TRANSACTION_AFTER_S`."""
        since_s = self._transaction_since_s
        return since_s is not None and now_s - since_s >= _OPEN_TRANSACTION_AFTER_S

    # Requests

    def expect_response(self, request: object) -> None:
        """Ignore the responses to all other requests from now on."""
        self._request = request

    def expects_response(self, request: object) -> bool:
        """Return ``True`` unless the response to a request must be ignored."""
        return self._request is request

    def locate(self, extent: Extent, *, now_s: float, start: Start = EARLIEST) -> Found:
        """
        Set the first position, or correct it if it is not in the log any longer.

        :param start: where to begin, if the partition existed when following began.
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
            # Another broker, a former leader, has answered that the position is not in the log.
            found = Found.UNCERTAIN
        self._suspect = False
        self._beyond_since_s = None
        return found

    def mark_suspect(self) -> None:
        """Note that the position may be outside the log: it must be located again."""
        self._suspect = True

    def discard_unread_position(self) -> None:
        """Locate the position again if nothing was read: it may be that of a former topic of this name."""
        if self._fresh:
            self.position = self._goal = None

    # Results

    def set_end(self, end: int) -> None:
        """
        Set the high watermark.

        :param end: negative if the leader did not send it.
        """
        if end >= 0:
            self._end = end

    def begin_delivery(self, fetch_round: int) -> None:
        """Note that batches of this round are being delivered."""
        self.last_round = fetch_round
        self.delivering = True
        self._nothing_since_s = self._transaction_since_s = None
        self._fresh = False

    def end_delivery(self) -> None:
        """Note that requests may name it again."""
        self.delivering = False

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

    def note_empty_response(self, fetched: Fetched, *, alone: bool, now_s: float) -> None:
        """
        Note a response without records from the position on.

        This is normal at the end of the log, and before an open transaction. It also happens if compaction
        has removed the last records below the high watermark, or an unclean election has cut them off: then
        no fetch ever reaches the end. Java's consumer waits there for ever; here catching up waits for
        `_NOTHING_LEFT_AFTER_S` only. The position does not change: a broker with tiered storage (KIP-405)
        sends nothing if getting old segments takes too long.

        :param alone: ``True`` if the response had no records of partitions before this one. Otherwise the
            size limits may have left no room for its records.
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

    # Metadata

    def set_leader(self, leader: int | None, *, topic: str, now_s: float) -> None:
        """Set the node id of the leader; ``None`` for none."""
        self._missing_since_s = None
        if leader is None:
            number = self.number
            self.mark_failed(
                ReadFailure(
                    f"Partition {number} of the topic {topic} has no leader, so nothing can be read from it.",
                    f"Partition {number} has no leader, so nothing can be read from it.",
                ),
                now_s=now_s,
                transient=True,
            )
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
        return now_s - self._missing_since_s >= _GONE_AFTER_S and self.failures > 0 and not self.delivering

    def drop(self) -> None:
        """Ignore all responses and fetched records from now on: the partition was removed."""
        self.dropped = True
        self._request = None


class Positions:
    """The known partitions of one topic."""

    def __init__(self, *, start: Start | FromOffsets = EARLIEST, only: int | None = None) -> None:
        """
        :param start: where to begin in the partitions that exist when following begins.
        :param only: the number of the only partition to read; ``None`` for all.
        """
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

    def update(self, leaders: Mapping[int, int | None], *, topic: str, now_s: float) -> list[int]:
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
                partition = self._partitions[number] = FollowedPartition(number, existed=not self._begun)
            partition.set_leader(leader, topic=topic, now_s=now_s)
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

    def led_by(self, node_id: int) -> list[FollowedPartition]:
        """Return the partitions that a broker leads; the one that has waited longest comes first."""
        return sorted(
            (each for each in self._partitions.values() if each.leader == node_id),
            key=lambda partition: (partition.last_round, partition.number),
        )

    def leaders(self) -> set[int]:
        """Return the node ids of all leaders."""
        return {each.leader for each in self._partitions.values() if each.leader is not None}

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

    @property
    def caught_up(self) -> bool:
        """``True`` if all records that existed at the start have been read."""
        return self._begun and not any(each.is_awaited() for each in self._partitions.values())

    @property
    def failure(self) -> ReadFailure | None:
        """The error of one of the partitions, if there is any."""
        return next((each.failure for each in self._partitions.values() if each.failure is not None), None)

    def open_transactions(self, now_s: float) -> list[FollowedPartition]:
        """Return all partitions blocked by transactions, if one of them has been blocked for long."""
        waiting = [each for each in self._partitions.values() if each.has_open_transaction()]
        return waiting if any(each.is_blocked(now_s) for each in waiting) else []

    def _drop(self, numbers: Iterable[int], now_s: float) -> list[int]:
        gone = [number for number in numbers if self._partitions[number].note_missing(now_s)]
        for number in gone:
            self._partitions.pop(number).drop()
        return gone


def _first_offset(extent: Extent, start: Start) -> int:
    if isinstance(start, FromOffset):
        return min(max(start.offset, extent.earliest), extent.latest)
    if isinstance(start, FromEnd):
        end = extent.latest if extent.stable < 0 else min(extent.stable, extent.latest)
        return max(end - start.count, extent.earliest)
    return extent.latest if extent.since < 0 else extent.since
