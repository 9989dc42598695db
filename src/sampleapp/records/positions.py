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
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from sampleapp.model import with_epoch

__all__ = [
    "GREATEST_OFFSET",
    "LONGEST_POSITION",
    "InvalidPosition",
    "Position",
    "PositionTooLong",
    "format_position",
    "parse_position",
    "position_after",
    "without_epochs",
]

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
