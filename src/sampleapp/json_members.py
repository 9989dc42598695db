"""
The members of a large JSON object, found without making anything of what is in them.

A decoder makes an object of each value: a MiB of ``{},{},`` keeps it busy for a tenth of a second. One that
only has to skip values is through in a millisecond or two, and tells where the first one ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

__all__ = ["Member", "emptied", "first_members", "is_intricate", "require_json_text", "written_object"]

Member: TypeAlias = tuple[bytes, bytes]
"""The JSON texts of a name and of its value."""

_SMALL: Final = 32 * 1024
_MOST_TOKENS: Final = 20_000
"""A decoder is through with so many in 5 ms, whatever they are."""

# Each value has one of these around or before it, but for the first one of all.
_MARKS: Final = (b'"', b",", b"[", b"{")

_BLANKS: Final = rb"[ \t\n\r]*"
_BLANKS_ONLY: Final = re.compile(_BLANKS)
# With few escapes, and nothing inside: nearly all are so, and are found without skipping.
_STRING: Final = rb'"[^"\\]*(?:\\.[^"\\]*){0,20}"'
_SIMPLE_VALUE: Final = rb"%b|[^]\"[{,} \t\n\r]+|\[\]|\{\}" % _STRING
_SIMPLE_MEMBER: Final = re.compile(
    rb"%b(%b)%b:%b(%b)%b[,}]" % (_BLANKS, _STRING, _BLANKS, _BLANKS, _SIMPLE_VALUE, _BLANKS)
)
_END_OF_NAME: Final = b":"
_ENDS_OF_VALUE: Final = b",}"
_TRAILING: Final = re.compile(r"trailing characters \(byte ([0-9]+)\)")

_skip = msgspec.json.Decoder(msgspec.Raw).decode


def is_intricate(text: bytes) -> bool:
    """Whether there may be so much in a JSON text that it takes long to decode."""
    tokens = 0
    if len(text) > _SMALL:
        for mark in _MARKS:
            tokens += text.count(mark)
            if tokens > _MOST_TOKENS:
                return True
    return False


def require_json_text(text: bytes) -> None:
    """
    See whether something is JSON, whatever it says.

    :raise UnicodeDecodeError: it is not UTF-8.
    :raise msgspec.DecodeError: it is not JSON.
    :raise RecursionError: it is nested too deeply to tell.
    """
    # What is skipped is not decoded, so this is.
    text.decode()
    _skip(_without_surrogates(text))


def first_members(text: bytes, *, most: int) -> list[Member]:
    """
    Find the members of an object in order, repeated ones included.

    :param text: JSON that `require_json_text` has seen, with an object in it.
    :param most: no more than so many are looked for.
    :raise msgspec.DecodeError: they cannot be found in this way.
    """
    seen = _without_surrogates(text)
    view = memoryview(seen)
    members: list[Member] = []
    position = _after_blanks(seen, seen.index(b"{") + 1)
    if seen[position] == ord("}"):
        return members
    while len(members) < most:
        simple = _SIMPLE_MEMBER.match(seen, position)
        if simple is not None:
            name, value = text[slice(*simple.span(1))], text[slice(*simple.span(2))]
            end = simple.end() - 1
        else:
            start = _after_blanks(seen, position)
            colon = _end_of_value(view, start, _END_OF_NAME)
            end = _end_of_value(view, colon + 1, _ENDS_OF_VALUE)
            name, value = text[start:colon].rstrip(), text[colon + 1 : end].strip()
        members.append((name, value))
        if seen[end] == ord("}"):
            break
        position = end + 1
    return members


def emptied(value: bytes) -> bytes:
    """Leave out what is in an array or an object; any other value stays as it is."""
    return {b"[": b"[]", b"{": b"{}"}.get(value[:1], value)


def written_object(members: Iterable[Member]) -> bytes:
    """Write an object."""
    return b"{%b}" % b",".join([b"%b:%b" % member for member in members])


def _after_blanks(text: bytes, position: int) -> int:
    blanks = _BLANKS_ONLY.match(text, position)
    return position if blanks is None else blanks.end()


def _end_of_value(view: memoryview, start: int, ends: bytes) -> int:
    """
    Return where the first thing comes that is neither a value nor blank.

    :param ends: what that may be.
    :raise msgspec.DecodeError: the decoder does not tell.
    """
    try:
        _skip(view[start:])
    except msgspec.DecodeError as error:
        # What it says is no promise of the decoder, so it is looked at.
        trailing = _TRAILING.search(str(error))
        end = 0 if trailing is None else start + int(trailing[1]) - 1
        if start < end < len(view) and view[end] in ends:
            return end
        raise
    raise msgspec.DecodeError


def _without_surrogates(text: bytes) -> bytes:
    r"""
    Put other characters in place of surrogates, of the same length.

    A decoder that skips refuses half a pair of them, which is JSON all the same. A backslash before an escape
    (``\\ud800``) does no harm.
    """
    return text.replace(rb"\ud", rb"\u0").replace(rb"\uD", rb"\u0") if b"\\" in text else text
