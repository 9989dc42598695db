"""Reading a topic step by step, from where a request says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sampleapp.errors import Fault, InvalidParameters, UnknownPartition
from sampleapp.model import EARLIEST, ReadRequest, ReadResult, ReadStart, Start
from sampleapp.records.place import offsets_before
from sampleapp.records.position_errors import PositionExpired, PositionUnknown, TopicReplaced
from sampleapp.records.positions import Position, PositionTooLong, format_position, position_after
from sampleapp.web.gate import AuthorizedTopic
from sampleapp.web.topic_reads import TopicReads

__all__ = ["TopicReader", "position_text", "reads_nothing"]

_MOST_NAMED: Final = 5


class TopicReader:
    """
    Reads a topic from a start, one step after the other.

    Each step begins where the last one ended, in each partition.
    """

    def __init__(
        self,
        broker: TopicReads,
        topic: AuthorizedTopic,
        start: Position | Start,
        partitions: tuple[int, ...] | None = None,
    ) -> None:
        """
        :param start: where to begin in each partition that is read.
        :param partitions: the only ones to read; what a position says of others does not count. By default,
            all that the position does not skip.
        """
        self._broker = broker
        self.topic: Final = topic
        self._only = partitions
        self._topic_id: str | None = None
        self._offsets: dict[int, int] = {}
        self._skipped: frozenset[int] = frozenset()
        self._others: ReadStart = EARLIEST
        if isinstance(start, Position):
            self._topic_id = start.topic_id
            if partitions is None:
                self._offsets = dict(start.offsets)
                self._skipped = start.skipped
            else:
                self._offsets = {each: start.offsets[each] for each in partitions if each in start.offsets}
        else:
            self._others = start

    @property
    def topic_id(self) -> str:
        """The id of the topic; of the position to begin at, until there was a step."""
        return self._topic_id or "_"

    @property
    def offsets(self) -> Mapping[int, int]:
        """The offset to read next, of each partition that is read; of all of them once there was a step."""
        return self._offsets

    @property
    def reads_new_partitions(self) -> bool:
        """True if partitions that the topic gets later are read, too."""
        return self._only is None

    @property
    def skipped(self) -> frozenset[int]:
        """The partitions of the topic that are not read, of a position that has them."""
        return self._skipped

    @property
    def position(self) -> Position:
        """The position to continue at, which is complete once there was a step."""
        return self._position_at(self.topic_id, dict(self._offsets))

    def _position_at(self, topic_id: str, offsets: Mapping[int, int]) -> Position:
        if self._only is None:
            return Position(topic_id, offsets, self._skipped)
        return position_after(topic_id, offsets)

    def move_to(self, offsets: Mapping[int, int]) -> None:
        """Set the offsets to read next, of some partitions."""
        self._offsets.update(offsets)

    async def read(self, *, limit: int, max_bytes: int) -> ReadResult:
        """
        Read the next records, and move behind them.

        :param limit: the most records; 0 only finds the offsets to begin at.
        :param max_bytes: about the most bytes of keys, values and headers.
        :raise PositionExpired: records are gone.
        :raise TopicReplaced: it is not the topic of the position, or of the steps before.
        :raise PositionUnknown: the position is beyond the end.
        :raise InvalidParameters: the position reads none of the topic's partitions.
        :raise PublishError: the broker cannot read the topic; see `IBroker.read`.
        """
        starts, others = await self._starts()
        try:
            result = await self._broker.read(
                ReadRequest(topic=self.topic, starts=starts, others=others, limit=limit, max_bytes=max_bytes)
            )
        except UnknownPartition:
            if self._only is None:
                # Only the position names partitions.
                self._check_partitions(await self._look())
            raise
        self._check(result)
        self._topic_id = result.topic_id
        self._offsets.update(result.positions)
        # Partitions that come from now on are new, and read from their first record.
        self._others = EARLIEST
        return result

    async def _starts(self) -> tuple[Mapping[int, ReadStart], ReadStart | None]:
        """Return the starts of partitions, and that of all others, for `IBroker.read`."""
        if self._only is not None:
            return {each: self._offsets.get(each, self._others) for each in self._only}, None
        if not self._skipped:
            return dict(self._offsets), self._others
        look = await self._look()
        self._check_partitions(look)
        starts: dict[int, ReadStart] = {
            each: self._offsets.get(each, self._others)
            for each in range(look.partitions)
            if each not in self._skipped
        }
        if not starts:
            raise reads_nothing(self.topic, look.partitions)
        return starts, None

    async def _look(self) -> ReadResult:
        """Ask for the topic's id and its number of partitions."""
        return await self._broker.read(ReadRequest(topic=self.topic, others=None, limit=0, max_bytes=1))

    def _check_partitions(self, look: ReadResult) -> None:
        """Check that the topic has the partitions that the position names."""
        self._check_topic(look)
        named = 1 + max(max(self._offsets, default=-1), max(self._skipped, default=-1))
        if named > look.partitions:
            raise PositionUnknown(
                self.topic, f"it names {named} partitions, and the topic has {look.partitions}"
            )

    def _check_topic(self, result: ReadResult) -> None:
        if self._topic_id is not None and result.topic_id != self._topic_id:
            raise TopicReplaced(self.topic, expected=self._topic_id, topic_id=result.topic_id)

    def _check(self, result: ReadResult) -> None:
        self._check_topic(result)
        if result.beyond:
            ends = sorted(result.beyond.items())
            named = ", ".join(
                f"partition {partition} ends at {end}, and the position is {self._offsets.get(partition)}"
                for partition, end in ends[:_MOST_NAMED]
            )
            more = f", and {len(ends) - _MOST_NAMED} more" if len(ends) > _MOST_NAMED else ""
            raise PositionUnknown(self.topic, named + more)
        if result.gone:
            # Nothing has moved: a caller that handles the error must not go on behind the missing records.
            after = offsets_before(result, self._offsets)
            after.update({each.partition: each.earliest for each in result.gone})
            raise PositionExpired(
                result.gone, resume=position_text(self._position_at(result.topic_id, after))
            )


def reads_nothing(topic: str, partitions: int, *, source: str = "from") -> InvalidParameters:
    """
    Return the error for a position that skips all partitions of a topic.

    :param source: the name of the parameter or of the header field that has the position.
    """
    return InvalidParameters(
        [
            Fault(
                f"/{source}",
                f'The position reads none of the {partitions} partitions of {topic}: "-" is a partition '
                "that is not read. Give an offset of one, or nothing for its first record.",
            )
        ]
    )


def position_text(position: Position) -> str:
    """
    Return a position as text.

    :raise InvalidParameters: it is too long for a header; the request must name partitions.
    """
    try:
        return format_position(position)
    except PositionTooLong as error:
        raise InvalidParameters(
            [Fault("/partition", f"A position in all partitions that this request reads {error}.")]
        ) from None
