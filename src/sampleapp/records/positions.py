"""
Positions: how far a client has read each partition of a topic, as text.

A position needs no escape in a URL or in a header. It is up to 16 characters of the topic's id, ``~``, and
for partition 0, 1, 2, … the offset to read next, separated by ``.``::

    pVqT3f8WQb6~42.0..-.7

An offset may have the leader epoch of the record before it, as in ``42e3``: a log that was cut before the
offset, and has grown again, is noticed by it (KIP-320).

Nothing between two dots is the first record there is, and ``-`` a partition that is not read. Partitions
after the last one named are new, and read from their first record; so ``pVqT3f8WQb6~`` is everything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from sampleapp.errors import Fault, InvalidParameters, SampleAppError
from sampleapp.model import (
    EARLIEST,
    GoneRecords,
    ReadRequest,
    ReadResult,
    ReadStart,
    Start,
    epoch_of,
    with_epoch,
)

_MOST_NAMED: Final = 5
"""The most partitions in the message of an error; ``gone`` of a `PositionExpired` has all of them."""


class PositionError(SampleAppError):
    """A topic cannot be read on from a position."""


class PositionExpired(PositionError):
    """Records after the position are gone: the topic's retention has removed them."""

    def __init__(self, gone: Sequence[GoneRecords], *, resume: str) -> None:
        """
        :param gone: what is missing, at least one.
        :param resume: the position after the missing records, as text.
        """
        named = ", ".join(
            f"partition {each.partition} from {each.asked} up to {each.earliest}"
            for each in gone[:_MOST_NAMED]
        )
        if len(gone) > _MOST_NAMED:
            named += f" and {len(gone) - _MOST_NAMED} more"
        super().__init__(
            f"Records after the position are no longer in the topic: {named} (not included). "
            f'To read what is left, go on with "from={resume}".'
        )
        self.gone = tuple(gone)
        self.resume = resume


class TopicReplaced(PositionError):
    """The topic was deleted and created again, or the position belongs to another topic."""

    def __init__(self, topic: str, *, expected: str, topic_id: str) -> None:
        """
        :param topic: its name.
        :param expected: the id in the position.
        :param topic_id: the id of the topic.
        """
        super().__init__(
            f"The position belongs to a topic with the id {expected}, but {topic} has the id {topic_id}. It "
            "was deleted and created again, or the position is that of another topic. Begin again, with "
            '"from=earliest" or "from=latest".'
        )
        self.topic_id = topic_id


class PositionUnknown(PositionError):
    """The log has not the position: that of another cluster, or of a log that was cut."""

    def __init__(self, topic: str, why: str) -> None:
        """
        :param topic: its name.
        :param why: a sentence without its full stop.
        """
        super().__init__(
            f"The position is not in the log of the topic {topic}: {why}. It is that of another cluster, or "
            'the topic has lost records. Begin again, with "from=earliest" or "from=latest".'
        )


LONGEST_POSITION: Final = 4096
"""Characters. Proxies take some 8 KiB for a line of a header, and browsers send a position in one."""

GREATEST_OFFSET: Final = 2**63 - 1

_GREATEST_EPOCH: Final = 2**31 - 1

_EPOCH: Final = re.compile("e[0-9]+")
_PART: Final = r"(?:-|[0-9]{1,19}(?:e[0-9]{1,10})?|)"
_FORM: Final = re.compile(rf"[A-Za-z0-9_-]{{1,16}}~{_PART}(?:\.{_PART})*", re.ASCII)
_SKIPPED: Final = "-"
_RULE: Final = (
    "a position is 1 to 16 characters out of A-Z, a-z, 0-9, _ and -, then ~ and the offset to read next of "
    'each partition, separated by dots, as in "pVqT3f8WQb6~42.0.7"; an offset may be followed by "e" and a '
    "leader epoch"
)


class InvalidPosition(ValueError):
    """A text is not a position. The message says why, as the end of a sentence about the text."""


class PositionTooLong(InvalidPosition):
    """A position has more than `LONGEST_POSITION` characters."""

    def __init__(self) -> None:
        super().__init__(
            f"is longer than {LONGEST_POSITION} characters; name the partitions to read with the parameter "
            '"partition", fewer in each request'
        )


class Position(Struct, frozen=True):
    """A position in a topic. Partitions that it does not mention are read from their first record."""

    topic_id: str
    """1 to 16 characters; ``_`` if the broker has no ids of topics."""
    offsets: Mapping[int, int]
    """The offset to read next, by partition; each may be an `OffsetAndEpoch`. Must not be changed."""
    skipped: frozenset[int] = frozenset()
    """The partitions that are not read."""


def parse_position(text: str) -> Position:
    """
    Parse a position.

    :raise InvalidPosition: the text is not a position.
    """
    if len(text) > LONGEST_POSITION:
        raise PositionTooLong
    if _FORM.fullmatch(text) is None:
        raise InvalidPosition(f"is not a position: {_RULE}")
    topic_id, _, numbers = text.partition("~")
    offsets: dict[int, int] = {}
    skipped: list[int] = []
    for partition, text_of_offset in enumerate(numbers.split(".")):
        if text_of_offset == _SKIPPED:
            skipped.append(partition)
        elif text_of_offset:
            offset, _, epoch = text_of_offset.partition("e")
            if int(offset) > GREATEST_OFFSET or int(epoch or 0) > _GREATEST_EPOCH:
                raise InvalidPosition(
                    f"has an offset of partition {partition} that is over {GREATEST_OFFSET}, or a leader "
                    f"epoch that is over {_GREATEST_EPOCH}"
                )
            offsets[partition] = with_epoch(int(offset), int(epoch or -1))
    return Position(topic_id, offsets, frozenset(skipped))


def format_position(position: Position) -> str:
    """
    Return the shortest text of a position.

    Epochs are left out if it would be too long with them.

    :raise PositionTooLong: it has more than `LONGEST_POSITION` characters.
    """
    offsets, skipped = position.offsets, position.skipped
    count = 1 + max(max(offsets, default=-1), max(skipped, default=-1))
    # Each partition but the last has a dot. This also bounds the time for partitions with large numbers.
    if count > LONGEST_POSITION:
        raise PositionTooLong
    if len(offsets) == count:
        numbers = [repr(offsets[partition]) for partition in range(count)]
    else:
        numbers = [
            repr(offsets[partition]) if partition in offsets else _SKIPPED if partition in skipped else ""
            for partition in range(count)
        ]
    text = f"{position.topic_id}~{'.'.join(numbers)}"
    if len(text) > LONGEST_POSITION:
        text = without_epochs(text)
    if len(text) > LONGEST_POSITION:
        raise PositionTooLong
    return text


def without_epochs(text: str) -> str:
    """Leave the epochs out of the text of a position."""
    topic_id, tilde, numbers = text.partition("~")
    return topic_id + tilde + _EPOCH.sub("", numbers)


def position_after(
    topic_id: str, offsets: Mapping[int, int], skipped: frozenset[int] = frozenset()
) -> Position:
    """
    Return the position of a reader that has read the given partitions, and only those.

    :param offsets: the offset to read next of each partition that is read.
    :param skipped: the partitions that are not read. Those below the last partition that is read are skipped
        anyway; so the position of a reader of few partitions does not name the partitions after them.
    """
    between = frozenset(
        partition for partition in range(max(offsets, default=-1)) if partition not in offsets
    )
    return Position(topic_id, offsets, skipped | between)


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

    def request(
        self, *, limit: int, max_bytes: int, caller: str = "", key: bytes | None = None
    ) -> ReadRequest:
        """Return the next read; for its arguments see `ReadRequest`."""
        starts: Mapping[int, ReadStart | None] = self.offsets
        if self.partitions is not None:
            starts = {each: self.offsets.get(each, self.start) for each in self.partitions}
        elif self.skipped:
            starts = {**self.offsets, **dict.fromkeys(self.skipped)}
        others = self.start if self.partitions is None else None
        return ReadRequest(
            topic=self.topic,
            starts=starts,
            others=others,
            limit=limit,
            max_bytes=max_bytes,
            caller=caller,
            key=key,
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
