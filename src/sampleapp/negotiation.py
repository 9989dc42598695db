"""
Which version of the readings an ``Accept`` header asks for (RFC 9110, sections 12.4.2 and 12.5.1).

There are two representations to choose from. Version 1 is for every client that does not ask for version
2 by its name, whatever else they send: a caller that was right once stays right for ever, so nothing
here fails and nothing is "not acceptable".

werkzeug, which Klein brings, has a parser as well. It matches no media type that has a parameter such as
``charset=utf-8``, and a header of 16 kB costs it 13.7 ms, during which nobody else is served.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Final, Literal, NamedTuple, TypeAlias

__all__ = ["MEDIA_TYPES", "Version", "choose_version", "is_preferred", "most_welcome"]

Version: TypeAlias = Literal[1, 2]

MEDIA_TYPES: Final[dict[Version, str]] = {
    1: "application/json",
    2: "application/vnd.sampleApp.v2+json",
}

_VERSION_2: Final = MEDIA_TYPES[2].lower().encode("ascii")
# What says how welcome version 1 is, the most specific first: it alone counts (section 12.5.1).
_VERSION_1_RANGES: Final = (MEDIA_TYPES[1].encode("ascii"), b"application/*", b"*/*")

# Each pattern is matched where the last one ended, and none can match the same bytes in two ways, so
# that no header, however odd, costs more than its length.
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_SEPARATORS = re.compile(rb"[ \t,]*")
_MEDIA_RANGE = re.compile(rb"(%b/%b)" % (_TOKEN, _TOKEN))
_SEMICOLON = re.compile(rb"[ \t]*;[ \t]*")
_PARAMETER = re.compile(
    rb'(%b)(?:=(%b|"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t \x21-\x7e\x80-\xff])*"))?'
    % (_TOKEN, _TOKEN)
)
_END_OF_ELEMENT = re.compile(rb"[ \t]*(?:,|$)")
_QVALUE = re.compile(rb"0(?:\.([0-9]{0,3}))?|1(?:\.0{0,3})?")


class _MalformedError(Exception):
    """The header does not follow the grammar."""


class _MediaRange(NamedTuple):
    name: bytes
    """``type/subtype``, in lower case."""
    quality: int
    """The weight in thousandths, which is as fine as the grammar goes."""


@lru_cache(maxsize=256)
def choose_version(accept: bytes | None) -> Version:
    """
    Choose between the two representations of the readings.

    Version 2 is chosen when the header names its media type with a weight above zero, and does not give
    version 1 a greater one through the most specific of ``application/json``, ``application/*`` and
    ``*/*`` that it holds. Parameters other than ``q`` are ignored. A header that does not follow the
    grammar chooses version 1.

    :param accept: the value of the header, its lines joined with commas; ``None`` when there is none.
    """
    return 2 if is_preferred(_VERSION_2, to=_VERSION_1_RANGES, accept=accept) else 1


def is_preferred(media_type: bytes, *, to: Iterable[bytes], accept: bytes | None) -> bool:
    """
    Whether a header asks for a media type by its name, and for no other one more.

    :param media_type: in lower case.
    :param to: the ranges that the other one is in, in lower case, the most specific first.
    :param accept: as for `choose_version`. One that does not follow the grammar asks for nothing.
    """
    if accept is None:
        return False
    try:
        ranges = list(_parse(accept))
    except _MalformedError:
        return False
    qualities: dict[bytes, int] = {}
    for name, quality in ranges:
        qualities[name] = max(quality, qualities.get(name, 0))
    wanted = qualities.get(media_type, 0)
    other = next((qualities[name] for name in to if name in qualities), 0)
    return wanted > 0 and wanted >= other


def most_welcome(media_types: Sequence[bytes], *, accept: bytes | None) -> bytes | None:
    """
    Find out which of some media types a header asks for most.

    :param media_types: in lower case; of those that are as welcome, the first one is it.
    :param accept: as for `choose_version`. One that does not follow the grammar asks for nothing.
    :return: ``None`` if none of them is welcome (RFC 9110, section 12.5.1).
    """
    if accept is None:
        return media_types[0]
    try:
        ranges = sorted(_parse(accept), key=attrgetter("quality"))
    except _MalformedError:
        return media_types[0]
    if not ranges:
        return media_types[0]
    # The greatest one of each, since it comes last.
    qualities = dict[bytes, int](ranges)

    def welcome(media_type: bytes) -> int:
        kind, _, _ = media_type.partition(b"/")
        ranges = (media_type, kind + b"/*", b"*/*")
        return next((qualities[name] for name in ranges if name in qualities), 0)

    best = max(media_types, key=welcome)
    return best if welcome(best) > 0 else None


def _parse(accept: bytes) -> Iterator[_MediaRange]:
    """
    Read ``#( media-range [ weight ] )``; elements may be empty (RFC 9110, section 5.6.1.2).

    :raise _MalformedError: the header does not follow the grammar.
    """
    position = _skip(_SEPARATORS, accept, 0)
    while position < len(accept):
        name = _MEDIA_RANGE.match(accept, position)
        if name is None or (name[1].startswith(b"*/") and name[1] != b"*/*"):
            raise _MalformedError
        quality = None
        position = name.end()
        while (semicolon := _SEMICOLON.match(accept, position)) is not None:
            position = semicolon.end()
            parameter = _PARAMETER.match(accept, position)
            if parameter is None:
                # "a/b;" and "a/b;;c=d" are within the grammar: a parameter may be empty (section 5.6.6).
                continue
            position = parameter.end()
            if parameter[1].lower() == b"q":
                if quality is not None:
                    raise _MalformedError
                quality = _quality(parameter[2])
        end = _END_OF_ELEMENT.match(accept, position)
        if end is None:
            raise _MalformedError
        yield _MediaRange(name[1].lower(), 1000 if quality is None else quality)
        position = _skip(_SEPARATORS, accept, end.end())


def _quality(qvalue: bytes | None) -> int:
    match = _QVALUE.fullmatch(qvalue or b"")
    if match is None:
        raise _MalformedError
    if match[0].startswith(b"1"):
        return 1000
    return int((match[1] or b"0").ljust(3, b"0"))


def _skip(pattern: re.Pattern[bytes], subject: bytes, position: int) -> int:
    match = pattern.match(subject, position)
    return position if match is None else match.end()
