"""
``Content-Type`` that is there more than once.

It is one media type, but some clients send the field twice, and proxies join the values with a comma (RFC
9110, section 8.3, warns of recipients that choose one of them).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

from sampleapp.web.server.fields import BLANKS, Fields

_NAME: Final = b"content-type"
_LONGEST: Final = 1024
"""Bytes of all values together. Longer ones are not compared: real media types are much shorter."""

# A comma in a quoted string separates nothing (RFC 9110, section 5.6.4). What does not end takes the rest.
_MEMBER: Final = re.compile(rb'(?:[^",]|"(?:[^"\\]|\\.)*+(?:"|\\?\Z))++', re.DOTALL)
_TOKEN: Final = rb"[!#-'*+.^_`|~0-9A-Za-z-]++"
_TYPE: Final = re.compile(rb"%b/%b" % (_TOKEN, _TOKEN))
# RFC 9110, section 5.6.6; a parameter may be empty.
_PARAMETER: Final = re.compile(
    rb'[ \t]*+;[ \t]*+(?:(%b)=(?:(%b)|"((?:[^"\\]|\\.)*+)"))?' % (_TOKEN, _TOKEN), re.DOTALL
)
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)

_Parsed: TypeAlias = tuple[bytes, frozenset[tuple[bytes, bytes]]]


def merge_content_types(fields: Fields) -> None:
    """
    Keep one ``Content-Type`` of those that are the same media type with the same parameters.

    Media types that differ and are joined by commas become several fields, which no reader takes for one.
    """
    values = fields.all(_NAME)
    if values and (len(values) > 1 or b"," in values[0]) and sum(map(len, values)) <= _LONGEST:
        fields.replace(_NAME, *_merged(values))


def _merged(values: tuple[bytes, ...]) -> Iterable[bytes]:
    merged: dict[_Parsed, bytes] = {}
    for value in values:
        for member in _MEMBER.findall(value):
            text = member.strip(BLANKS)
            parsed = _parse(text)
            if parsed is not None:
                # The first one in each spelling.
                merged.setdefault(parsed, text)
            elif text:
                # Not a list of media types.
                return dict.fromkeys(values)
    return merged.values() or dict.fromkeys(values)


def _parse(text: bytes) -> _Parsed | None:
    """
    Parse a media type (RFC 9110, section 8.3.1).

    :return: equal for equal media types: names are in lower case, that of a ``charset`` too (section 8.3.2),
        and parameters have no order. ``None`` if it is not a media type.
    """
    match = _TYPE.match(text)
    if match is None:
        return None
    parameters = set()
    position = match.end()
    while position < len(text):
        found = _PARAMETER.match(text, position)
        if found is None:
            return None
        position = found.end()
        if found[1] is not None:
            name = found[1].lower()
            value = _ESCAPED.sub(rb"\1", found[3]) if found[2] is None else found[2]
            parameters.add((name, value.lower() if name == b"charset" else value))
    return match[0].lower(), frozenset(parameters)
