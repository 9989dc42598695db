"""
Content negotiation by ``Accept`` (RFC 9110, sections 12.4.2 and 12.5.1), and preconditions (section 13.1).

The readings have two representations. Version 1 is for every client that does not name version 2, whatever
else it sends: clients that worked once must always work, so no ``Accept`` is rejected with 406.

werkzeug, a dependency of Klein, has a parser as well. It does not match a media type with a parameter such as
``charset=utf-8``, and takes 13.7 ms for a header of 16 kB, which blocks all other requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Final, NamedTuple

from sampleapp.model import MEDIA_TYPES, Version

_VERSION_2: Final = MEDIA_TYPES[2].lower().encode("ascii")
# The ranges that include version 1. Only the most specific one in the header, the first here, counts.
_VERSION_1_RANGES: Final = (MEDIA_TYPES[1].encode("ascii"), b"application/*", b"*/*")

_STREAM: Final = b"text/event-stream"
_OF_A_PAGE: Final = frozenset(
    (
        *(b"application/x-ndjson", b"application/ndjson", b"application/jsonl", b"application/json"),
        *(b"*/*", b"application/*", b"text/*"),
    )
)

# Each pattern is matched where the last one ended, and none can match the same bytes in two ways, so that the
# time for any header is linear in its length.
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
    """The header does not match the grammar."""


class _MediaRange(NamedTuple):
    name: bytes
    """``type/subtype``, in lower case."""
    quality: int
    """The weight in thousandths, the resolution of the grammar."""


@lru_cache(maxsize=256)
def choose_version(accept: bytes | None) -> Version:
    """
    Choose between the two representations of the readings.

    The result is version 2 if the header names its media type with a weight above zero, and gives version 1
    no greater weight by the most specific of ``application/json``, ``application/*`` and ``*/*`` in it.
    Parameters other than ``q`` are ignored. A malformed header chooses version 1.

    :param accept: the value of the header, its lines joined with commas; ``None`` without one.
    """
    return 2 if is_preferred(_VERSION_2, to=_VERSION_1_RANGES, accept=accept) else 1


@lru_cache(maxsize=256)
def asks_for_stream(accept: bytes | None) -> bool:
    """
    Return whether a header asks for the records of a topic as a stream of events, and not as a page of lines.

    It does if it names ``text/event-stream`` with a weight above zero, and gives no media type of lines of
    JSON, no JSON and no wildcard a greater one. Parameters other than ``q`` are ignored. A malformed header
    asks for a page.

    :param accept: the value of the header, its lines joined with commas; ``None`` without one.
    """
    ranges = _media_ranges(accept)
    wanted = max((quality for name, quality in ranges if name == _STREAM), default=0)
    others = (quality for name, quality in ranges if name in _OF_A_PAGE)
    return wanted > 0 and wanted >= max(others, default=0)


def is_preferred(media_type: bytes, *, to: Iterable[bytes], accept: bytes | None) -> bool:
    """
    Return whether a header names a media type, and does not prefer another one to it.

    :param media_type: in lower case.
    :param to: the ranges that include the other media type, in lower case, the most specific first.
    :param accept: as for `choose_version`. For a malformed header the result is False.
    """
    ranges = _media_ranges(accept)
    qualities: dict[bytes, int] = {}
    for name, quality in ranges:
        qualities[name] = max(quality, qualities.get(name, 0))
    wanted = qualities.get(media_type, 0)
    other = next((qualities[name] for name in to if name in qualities), 0)
    return wanted > 0 and wanted >= other


def most_preferred(media_types: Sequence[bytes], *, accept: bytes | None) -> bytes | None:
    """
    Return the media type with the greatest weight in a header.

    :param media_types: in lower case; the first one with the greatest weight is chosen.
    :param accept: as for `choose_version`. A malformed header counts as none, so the first one is chosen.
    :return: ``None`` if the header accepts none of them (RFC 9110, section 12.5.1).
    """
    ranges = _media_ranges(accept)
    if not ranges:
        return media_types[0]
    # The last one of each name counts, which has the greatest weight.
    qualities = dict[bytes, int](sorted(ranges, key=attrgetter("quality")))

    def weight(media_type: bytes) -> int:
        kind, _, _ = media_type.partition(b"/")
        ranges = (media_type, kind + b"/*", b"*/*")
        return next((qualities[name] for name in ranges if name in qualities), 0)

    best = max(media_types, key=weight)
    return best if weight(best) > 0 else None


def _media_ranges(accept: bytes | None) -> list[_MediaRange]:
    """Return the elements of a header; none for a malformed header, or without one."""
    try:
        return [] if accept is None else list(_parse(accept))
    except _MalformedError:
        return []


def _parse(accept: bytes) -> Iterator[_MediaRange]:
    """
    Yield the elements of ``#( media-range [ weight ] )``; they may be empty (RFC 9110, section 5.6.1.2).

    :raise _MalformedError: the header does not match the grammar.
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
                # "a/b;" and "a/b;;c=d" match the grammar: a parameter may be empty (section 5.6.6).
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


def match_fails(if_match: bytes, etag: bytes) -> bool:
    """
    Return whether ``If-Match`` does not name the current representation, so that the response is 412.

    It is defined with the strong comparison (RFC 9110, section 13.1.1): a weak tag never matches.

    :param if_match: the value of the header, its lines joined with commas.
    :param etag: the entity tag of the current representation, with its quotes, without ``W/`` and commas.
    """
    elements = _elements(if_match)
    return elements != [b"*"] and etag not in elements


def none_match_fails(if_none_match: bytes, etag: bytes) -> bool:
    """
    Return whether ``If-None-Match`` names the current representation, so that the response is 304.

    It is defined with the weak comparison (RFC 9110, section 13.1.2). Text that is not a tag is skipped, and
    so is a tag with a comma, which only other servers make: the representation is then sent again.

    :param if_none_match: the value of the header, its lines joined with commas.
    :param etag: the entity tag of the current representation, with its quotes, without ``W/`` and commas.
    """
    if if_none_match == etag:
        return True
    elements = _elements(if_none_match)
    return elements == [b"*"] or any(element.removeprefix(b"W/") == etag for element in elements)


def _elements(tags: bytes) -> list[bytes]:
    return [element.strip(b" \t") for element in tags.split(b",")]
