"""The partitions of one followed topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sampleapp.brokers.kafka.consumer.failures import ReadFailure
from sampleapp.brokers.kafka.consumer.partition import FollowedPartition, Follower
from sampleapp.model import EARLIEST, FromOffsets, Start

__all__ = ["Positions"]


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
