"""Cursor: the progress of a reader of a topic: the next read from there, and the meaning of its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sampleapp.errors import Fault, InvalidParameters
from sampleapp.model import EARLIEST, ReadRequest, ReadResult, ReadStart, Start, epoch_of
from sampleapp.records.position_errors import PositionExpired, PositionUnknown, TopicReplaced
from sampleapp.records.positions import Position, PositionTooLong, format_position, position_after

__all__ = ["Cursor"]

_MOST_NAMED: Final = 5


class Cursor:
    """
    The progress of a reader, from the start that its client has asked for.

    A page and a stream read alike: they read what `request` returns, check the result, and `advance`.
    """

    __slots__ = ("offsets", "partitions", "skipped", "start", "topic", "topic_id")

    def __init__(
        self, topic: str, start: Position | Start, partitions: tuple[int, ...] | None = None
    ) -> None:
        """
        :param start: where to begin in each partition that is read.
        :param partitions: the only ones to read; what a position says of others does not count. By default,
            all that the position does not skip, and those that the topic gets later.
        """
        self.topic: Final = topic
        self.partitions: Final = partitions
        self.topic_id = ""
        """The topic's id; empty before the first result if no position has told it."""
        self.offsets: Mapping[int, int] = {}
        """The offset to read next of each partition, which is replaced, and never changed. Of all partitions
        that are read, once there was a result."""
        self.skipped: frozenset[int] = frozenset()
        """The partitions that are not read, if `partitions` is ``None``."""
        self.start: Start = EARLIEST
        """Where to begin in partitions without an offset."""
        if not isinstance(start, Position):
            self.start = start
            return
        self.topic_id = start.topic_id
        if partitions is None:
            self.offsets, self.skipped = start.offsets, start.skipped
        else:
            self.offsets = {each: start.offsets[each] for each in partitions if each in start.offsets}

    def position_text(self) -> str:
        """
        Return the position to continue at, which is complete once there was a result.

        :raise InvalidParameters: it is too long for a header; the request must name partitions.
        """
        return self._text_at(self.topic_id, self.offsets)

    def request(self, *, limit: int, max_bytes: int, caller: str = "") -> ReadRequest:
        """Return the next read; for its arguments see `ReadRequest`."""
        starts: Mapping[int, ReadStart | None] = self.offsets
        if self.partitions is not None:
            starts = {each: self.offsets.get(each, self.start) for each in self.partitions}
        elif self.skipped:
            starts = {**self.offsets, **dict.fromkeys(self.skipped)}
        others = self.start if self.partitions is None else None
        return ReadRequest(
            topic=self.topic, starts=starts, others=others, limit=limit, max_bytes=max_bytes, caller=caller
        )

    def look(self) -> ReadRequest:
        """Return a read that only asks for the topic's id and its number of partitions."""
        return ReadRequest(topic=self.topic, others=None, limit=0, max_bytes=1)

    def problem(self, result: ReadResult) -> TopicReplaced | PositionUnknown | None:
        """Return the reason why the topic of a result does not continue here; ``None`` if it does."""
        if self.topic_id and result.topic_id != self.topic_id:
            return TopicReplaced(self.topic, expected=self.topic_id, topic_id=result.topic_id)
        named = 1 + max((*self.offsets, *self.skipped), default=-1)
        if named > result.partitions:
            return PositionUnknown(
                self.topic, f"it names {named} partitions, and the topic has {result.partitions}"
            )
        if result.beyond:
            ends = sorted(result.beyond.items())
            where = ", ".join(
                f"{_of_epoch(end)}partition {partition} ends at {int(end)}, and the position is "
                f"{self.offsets.get(partition)!r}"
                for partition, end in ends[:_MOST_NAMED]
            )
            more = f", and {len(ends) - _MOST_NAMED} more" if len(ends) > _MOST_NAMED else ""
            return PositionUnknown(self.topic, where + more)
        return None

    def require_all(self, result: ReadResult) -> None:
        """
        Check that a result has all records from here on.

        :raise TopicReplaced: it is that of another topic.
        :raise PositionUnknown: the position is beyond the end.
        :raise PositionExpired: records are gone.
        :raise InvalidParameters: the position after those would be too long.
        """
        problem = self.problem(result)
        if problem is not None:
            raise problem
        if result.gone:
            after = {**self.before(result), **{each.partition: each.earliest for each in result.gone}}
            raise PositionExpired(result.gone, resume=self._text_at(result.topic_id, after))

    def require_partition(self, result: ReadResult, *, source: str = "from") -> None:
        """
        Check that at least one partition is read.

        :param source: the name of the parameter or of the header field that has the position.
        :raise InvalidParameters: the position skips all partitions of the topic.
        """
        if self.partitions is None and self.skipped.issuperset(range(result.partitions)):
            raise InvalidParameters(
                [
                    Fault(
                        f"/{source}",
                        f"The position reads none of the {result.partitions} partitions of {self.topic}: "
                        '"-" is a partition that is not read. Give an offset of one, or nothing for its '
                        "first record.",
                    )
                ]
            )

    def before(self, result: ReadResult) -> Mapping[int, int]:
        """Return the offsets from which on the records of a result were read, of each partition."""
        # A partition without an offset was read from a start that the broker has found.
        first = dict(result.positions)
        for record in reversed(result.records):
            first[record.partition] = record.offset
        return {**first, **self.offsets}

    def advance(self, result: ReadResult) -> None:
        """Move behind a result, and behind records that are gone."""
        self.topic_id = result.topic_id
        gone = {each.partition: each.earliest for each in result.gone}
        self.offsets = {**self.offsets, **result.positions, **gone}
        # Partitions that come from now on are new, and read from their first record.
        self.start = EARLIEST

    def move_to(self, offsets: Mapping[int, int]) -> None:
        """Set the offsets to read next, of some partitions."""
        self.offsets = {**self.offsets, **offsets}

    def begin_again(self, result: ReadResult | None = None) -> None:
        """
        Go on at the first record of each partition.

        :param result: that of the topic that is there now, if it is known.
        """
        self.offsets = {}
        self.start = EARLIEST
        if result is not None:
            self.topic_id = result.topic_id
            self.skipped = frozenset(each for each in self.skipped if each < result.partitions)

    def _text_at(self, topic_id: str, offsets: Mapping[int, int]) -> str:
        if self.partitions is None:
            position = Position(topic_id, offsets, self.skipped)
        else:
            position = position_after(topic_id, offsets)
        try:
            return format_position(position)
        except PositionTooLong as error:
            raise InvalidParameters(
                [Fault("/partition", f"A position in all partitions that this request reads {error}.")]
            ) from None


def _of_epoch(end: int) -> str:
    return f"leader epoch {epoch_of(end)} of " if epoch_of(end) >= 0 else ""
