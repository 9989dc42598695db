"""The place of a reader in a topic while it reads by itself: where to read on, and its position as text."""

from __future__ import annotations

from collections.abc import Mapping

from sampleapp.model import EARLIEST, ReadResult, ReadStart, Start
from sampleapp.records.positions import Position

__all__ = ["Place", "offsets_before"]


def offsets_before(result: ReadResult, asked: Mapping[int, int]) -> dict[int, int]:
    """
    Return the offsets from which on the records of a result were read, in each partition that was read.

    :param asked: the offsets that were asked for. Other partitions were read from a start that the broker
        has found: it is known from their first record.
    """
    first = dict(result.positions)
    for record in reversed(result.records):
        first[record.partition] = record.offset
    return {**first, **asked}


class Place:
    """The progress of a reader, from the start that its client has asked for."""

    __slots__ = ("known", "offsets", "partitions", "skipped", "start", "topic_id")

    def __init__(self, start: Position | Start, partitions: tuple[int, ...] | None) -> None:
        """:param partitions: the only ones to read; ``None`` for all but those that the position skips."""
        self.partitions = partitions
        self.topic_id: str | None = None
        """The topic's id; ``None`` before the first reading without a position."""
        self.offsets: dict[int, int] = {}
        """The offset to read next of each partition; without one, it is read from `start` on."""
        self.skipped: frozenset[int] = frozenset()
        self.start: Start = EARLIEST
        self.known = 0
        """With `skipped`: the number of partitions that are read or skipped; there may be more."""
        if isinstance(start, Position):
            self.topic_id = start.topic_id
            if partitions is None:
                self.skipped = start.skipped
                self.offsets = dict(start.offsets)
                self.known = 1 + max(max(self.offsets, default=-1), max(self.skipped, default=-1))
            else:
                self.offsets = {each: start.offsets[each] for each in partitions if each in start.offsets}
        else:
            self.start = start

    def starts(self) -> tuple[dict[int, ReadStart], ReadStart | None]:
        """Return the arguments ``starts`` and ``others`` of `sampleapp.interfaces.IBroker.read`."""
        if self.partitions is not None:
            return {each: self.offsets.get(each, self.start) for each in self.partitions}, None
        if self.skipped:
            read = (each for each in range(self.known) if each not in self.skipped)
            return {each: self.offsets.get(each, EARLIEST) for each in read}, None
        return dict(self.offsets), self.start

    def before(self, result: ReadResult) -> Mapping[int, int]:
        """Return the offsets from which on the records of a result were read, as far as they are known."""
        return offsets_before(result, self.offsets)

    def advance(self, result: ReadResult) -> None:
        """Go on after a result, and after records that are gone."""
        self.topic_id = result.topic_id
        self.offsets.update(result.positions)
        for gone in result.gone:
            self.offsets[gone.partition] = gone.earliest
        self.start = EARLIEST
        self.known = result.partitions

    def begin_again(self, result: ReadResult) -> None:
        """Go on at the first record of each partition."""
        self.topic_id = result.topic_id
        self.offsets = {}
        self.start = EARLIEST
        self.known = result.partitions
        self.skipped = frozenset(each for each in self.skipped if each < self.known)
