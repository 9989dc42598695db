"""Long polls that wait for a record of a topic, found by partition and key."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, TypeAlias

from twisted.internet.defer import Deferred

from sampleapp.model import ConsumerRecord

_ByKey: TypeAlias = "dict[bytes | None, dict[Wait, None]]"


class Wait:
    """One caller that waits for a record at or after its positions."""

    __slots__ = ("deferred", "key", "others", "positions", "skipped")

    def __init__(
        self,
        positions: Mapping[int, int],
        *,
        key: bytes | None,
        others: bool,
        skipped: frozenset[int] = frozenset(),
        cancelled: Callable[[Wait], None],
    ) -> None:
        """
        :param positions: the next offset of each partition.
        :param key: the only key to wait for; ``None`` for any record.
        :param others: true to wait for records of all other partitions, too,
        :param skipped: but for these.
        :param cancelled: called when the caller stops waiting.
        """
        self.positions: Final = positions
        self.key: Final = key
        self.others: Final = others
        self.skipped: Final = skipped
        self.deferred: Deferred[bool] = Deferred(lambda _: cancelled(self))

    def end(self, *, is_worth_it: bool) -> None:
        """Fire `deferred`."""
        self.deferred.callback(is_worth_it)

    def concerns(self, partition: int, end: int) -> bool:
        """Return whether records of a partition before the offset ``end`` may be new to the caller."""
        position = self.positions.get(partition)
        if position is None:
            # A new partition, which is read from its first record.
            return self.others and partition not in self.skipped and end > 0
        return position < end


class Waits:
    """
    The waits for one topic.

    A record may end thousands of them. They are found at once, and looked at and ended in small numbers, with
    turns of the reactor in between.
    """

    def __init__(self) -> None:
        self._in_partition: dict[int, _ByKey] = {}
        self._from_partition: dict[int, _ByKey] = {}
        """By the first of the partitions all of which the waits are for; 0 for the whole topic."""
        self._all: dict[Wait, None] = {}
        self._found: deque[tuple[Iterator[Wait], int | None, int]] = deque()
        """Waits that a change may end, with the partition, and the offset after the change."""

    def __len__(self) -> int:
        return len(self._all)

    @property
    def is_busy(self) -> bool:
        """True if `end_some` has something to do."""
        return bool(self._found)

    def add(self, wait: Wait) -> None:
        """Add a wait, for records that come from now on."""
        self._all[wait] = None
        for index, partition in self._entries(wait):
            index.setdefault(partition, {}).setdefault(wait.key, {})[wait] = None

    def remove(self, wait: Wait) -> None:
        """Remove a wait. Does nothing if it is not there."""
        if wait not in self._all:
            return
        del self._all[wait]
        for index, partition in self._entries(wait):
            by_key = index[partition]
            waits = by_key[wait.key]
            del waits[wait]
            if not waits:
                del by_key[wait.key]
                if not by_key:
                    del index[partition]

    def found(self, partition: int, records: Sequence[ConsumerRecord]) -> None:
        """Find the waits for one of these records of a partition."""
        if not self._all:
            return
        end = records[-1].offset + 1
        for by_key in self._of(partition):
            if None in by_key:
                self._find(by_key[None], partition, end)
            if len(by_key) > (None in by_key):
                for record in records:
                    if record.key is not None and record.key in by_key:
                        self._find(by_key[record.key], partition, record.offset + 1)

    def moved(self, partition: int, offset: int) -> None:
        """Find the waits that would miss records of a partition before an offset."""
        for by_key in self._of(partition):
            self._find(chain.from_iterable(by_key.values()), partition, offset)

    def find_all(self) -> None:
        """Find all waits."""
        self._find(self._all, None, 0)

    def end_some(self, count: int, *, is_worth_it: bool = True) -> None:
        """Look at up to ``count`` of the waits that were found, and end those whose record has come."""
        for _ in range(count):
            if not self._found:
                return
            waits, partition, end = self._found[0]
            wait = next(waits, None)
            if wait is None:
                self._found.popleft()
            elif wait in self._all and (partition is None or wait.concerns(partition, end)):
                self.remove(wait)
                wait.end(is_worth_it=is_worth_it)

    def _of(self, partition: int) -> Iterator[_ByKey]:
        for first, by_key in self._from_partition.items():
            if first <= partition:
                yield by_key
        in_partition = self._in_partition.get(partition)
        if in_partition is not None:
            yield in_partition

    def _find(self, waits: Iterable[Wait], partition: int | None, end: int) -> None:
        self._found.append((iter(list(waits)), partition, end))

    def _entries(self, wait: Wait) -> Iterator[tuple[dict[int, _ByKey], int]]:
        """Return the indexes that have a wait, with the partition: never one that it skips."""
        if not wait.others:
            partitions: Iterable[int] = wait.positions
        elif not wait.skipped:
            partitions = ()
            yield self._from_partition, 0
        else:
            first = 1 + max(chain(wait.positions, wait.skipped))
            partitions = (each for each in range(first) if each not in wait.skipped)
            yield self._from_partition, first
        for partition in partitions:
            yield self._in_partition, partition
