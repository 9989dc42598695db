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

__all__ = [
    "Member",
    "emptied",
    "end_of_value",
    "first_members",
    "is_intricate",
    "require_json_text",
    "written_object",
]

Member: TypeAlias = tuple[bytes, bytes]
"""The JSON texts of a name and of its value."""

_SMALL: Final = 32 * 1024
_MOST_TOKENS: Final = 20_000
"""The decoder of Python is through with so many in 5 ms, whatever they are."""

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
_END_OF_OBJECT: Final = ord("}")
_AFTER_VALUES: Final = b":,]}"
_TRAILING: Final = re.compile(r"trailing characters \(byte ([0-9]+)\)")

_skip = msgspec.json.Decoder(msgspec.Raw).decode


def is_intricate(text: bytes, *, most: int = _MOST_TOKENS) -> bool:
    """
    Whether there may be so much in a JSON text that it takes long to decode.

    :param most: so many strings, commas and brackets are not too many; the default suits Python's decoder.
    """
    tokens = 0
    if len(text) > _SMALL:
        for mark in _MARKS:
            tokens += text.count(mark)
            if tokens > most:
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
    try:
        _skip(text)
    except msgspec.DecodeError:
        _skip(_without_surrogates(text))


def first_members(text: bytes, *, most: int) -> list[Member]:
    """
    Find the members of an object in order, repeated ones included.

    :param text: JSON that `require_json_text` has seen, with an object in it.
    :param most: no more than so many are looked for.
    :raise msgspec.DecodeError: they cannot be found in this way.
    """
    members: list[Member] = []
    position = _after_blanks(text, text.index(b"{") + 1)
    if text[position] == _END_OF_OBJECT:
        return members
    view = memoryview(text)
    while len(members) < most:
        simple = _SIMPLE_MEMBER.match(text, position)
        if simple is not None:
            name, value, end = simple[1], simple[2], simple.end() - 1
        else:
            start = _after_blanks(text, position)
            try:
                colon, end = _ends_of_member(view, start)
            except msgspec.DecodeError:
                view = memoryview(_without_surrogates(text))
                colon, end = _ends_of_member(view, start)
            name, value = text[start:colon].rstrip(), text[colon + 1 : end].strip()
        members.append((name, value))
        if text[end] == _END_OF_OBJECT:
            break
        position = end + 1
    return members


def end_of_value(text: bytes, start: int, stop: int) -> int:
    """
    Find where a value ends.

    :param start: where it begins.
    :param stop: where the text is taken to end.
    :return: where the first thing comes after it that is not blank: at the latest where the text ends.
    :raise msgspec.DecodeError: it is not JSON, or does not end.
    :raise RecursionError: it is nested too deeply to tell.
    """
    try:
        return start + _end(memoryview(text)[start:stop])
    except msgspec.DecodeError:
        return start + _end(memoryview(_without_surrogates(text[start:stop])))


def emptied(value: bytes) -> bytes:
    """Leave out what is in an array or an object; any other value stays as it is."""
    return {b"[": b"[]", b"{": b"{}"}.get(value[:1], value)


def written_object(members: Iterable[Member]) -> bytes:
    """Write an object."""
    return b"{%b}" % b",".join([b"%b:%b" % member for member in members])


def _after_blanks(text: bytes, position: int) -> int:
    blanks = _BLANKS_ONLY.match(text, position)
    return position if blanks is None else blanks.end()


def _ends_of_member(view: memoryview, start: int) -> tuple[int, int]:
    """:return: where its colon is, and what comes after its value."""
    colon = start + _end(view[start:])
    return colon, colon + 1 + _end(view[colon + 1 :])


def _end(view: memoryview) -> int:
    """Return where the first thing comes after a value."""
    try:
        _skip(view)
    except msgspec.DecodeError as error:
        # What it says is no promise of the decoder, so it is looked at.
        trailing = _TRAILING.search(str(error))
        end = 0 if trailing is None else int(trailing[1]) - 1
        if 0 < end < len(view) and view[end] in _AFTER_VALUES:
            return end
        raise
    return len(view)


def _without_surrogates(text: bytes) -> bytes:
    r"""
    Put other characters in place of surrogates, of the same length.

    A decoder that skips refuses half a pair of them, which is JSON all the same. A backslash before an escape
    (``\\ud800``) does no harm.
    """
    return text.replace(rb"\ud", rb"\u0").replace(rb"\uD", rb"\u0") if b"\\" in text else text
