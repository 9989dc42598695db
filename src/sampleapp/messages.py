"""
From the body of a request to a message, or to everything that is wrong with it.

Nearly every body is right, so a strict decoder that stops at the first fault reads it first. Only what
that one refuses is read again, slowly, to name all the faults.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from sampleapp.errors import Fault, InvalidMessage, MalformedMessage
from sampleapp.model import TOPIC_PATTERN, Message

__all__ = ["is_legal_topic", "parse_message"]

_MEMBERS: Final = ("topic", "key", "content")
_REQUIRED: Final = ("topic", "content")
_OTHER_WORDS: Final = {"value": "content"}
"""What Kafka's users call a member."""

# A body of the greatest size has room for a hundred thousand unknown members, or for one with a name of a
# megabyte; the answer has not.
_MOST_FAULTS: Final = 100
_LONGEST_POINTER: Final = 200
_LONGEST_NAME: Final = 40

# How many quotation marks there are for the members; a key that is none may be null, or not be there.
_WITH_KEY: Final = (12,)
_WITHOUT_KEY: Final = (8, 10)

_TOPIC = re.compile(TOPIC_PATTERN)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


_decode = msgspec.json.Decoder(Message).decode

if Message.__struct_fields__ != ("topic", "content", "key"):
    raise AssertionError("_may_repeat_a_member has to count the quotation marks of every member")


def is_legal_topic(topic: str) -> bool:
    """Whether a topic may have this name, by Kafka's rule (``org.apache.kafka.common.internals.Topic``)."""
    return _TOPIC.fullmatch(topic) is not None and topic not in (".", "..")


def parse_message(body: bytes) -> Message:
    """
    Read a message.

    :param body: JSON text in UTF-8 (RFC 8259).
    :raise MalformedMessage: it is not that.
    :raise InvalidMessage: it is, but not a message; names every fault.
    """
    try:
        message = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _parse_slowly(body)
    if not is_legal_topic(message.topic) or _may_repeat_a_member(body, message):
        return _parse_slowly(body)
    return message


def _may_repeat_a_member(body: bytes, message: Message) -> bool:
    """
    Whether a member may be there twice, of which the decoder keeps the last without a word.

    A body that holds each member once has two quotation marks for each name, two for each string, and one
    for each that a string contains, unless the body has that one as a number. A repeated member has further
    ones: at least the two of its name, and those of its value unless that is null, as only that of the key
    may be.
    """
    # Every message passes here, so what one takes that is as usual comes first. A legal topic has no
    # quotation mark.
    key = message.key
    once = _WITH_KEY if key is not None else _WITHOUT_KEY
    quotes = body.count(b'"')
    if quotes in once:
        return False
    contained = message.content.count('"') + (0 if key is None else key.count('"'))
    return quotes - contained not in once or b"\\u0022" in body


class _Object(list[tuple[str, Any]]):
    """The members of a JSON object in order, repeated ones included."""


def _parse_slowly(body: bytes) -> Message:
    document = _parse_json(body)
    if not isinstance(document, _Object):
        raise InvalidMessage([Fault("", f"A message is a JSON object, not {_type_name(document)}.")])
    values = dict(document)
    faults = _bounded(
        list(_faults(document, values)),
        unknown=[name for name in values if name not in _MEMBERS],
        absent=[name for name in _MEMBERS if name not in values],
    )
    if faults:
        raise InvalidMessage(faults)
    return Message(**values)


def _parse_json(body: bytes) -> Any:
    try:
        return json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_Object,
            parse_constant=_refuse_constant,
            # A number is refused wherever it stands, and int() refuses to read a very long one.
            parse_int=float,
        )
    except UnicodeDecodeError as error:
        raise MalformedMessage(
            f"The body is not UTF-8: see byte 0x{body[error.start]:02x} at offset {error.start}."
        ) from error
    except json.JSONDecodeError as error:
        if body.startswith(codecs.BOM_UTF8):
            raise MalformedMessage("The body is not JSON: it begins with a byte order mark.") from error
        if not body.strip():
            raise MalformedMessage(
                'The body is empty; send a JSON object such as {"topic": "readings", "content": "21.5"}.'
            ) from error
        raise MalformedMessage(
            f"The body is not JSON: {error.msg} (line {error.lineno}, column {error.colno})."
        ) from error
    except RecursionError as error:
        raise MalformedMessage("The body is nested too deeply; a message has one level.") from error


def _refuse_constant(name: str) -> None:
    raise MalformedMessage(f"The body is not JSON: {name} is not a JSON value.")


def _faults(members: _Object, values: dict[str, Any]) -> Iterator[Fault]:
    for name, count in Counter(name for name, _ in members).items():
        if count > 1 and name in _MEMBERS:
            yield Fault(f"/{name}", f'"{name}" is there {count} times; a message has it once.')
    for name in _REQUIRED:
        if name not in values:
            yield Fault(f"/{name}", f'"{name}" is missing; a message has to have it.')
    for name in _MEMBERS:
        if name in values and not (name == "key" and values[name] is None):
            yield from _value_faults(name, values[name])


def _bounded(faults: list[Fault], unknown: list[str], absent: list[str]) -> list[Fault]:
    """Add the unknown members, or as many of them as there is room for."""
    room = _MOST_FAULTS - len(faults)
    named = unknown if len(unknown) <= room else unknown[: room - 1]
    faults += [_unknown_member_fault(name, absent) for name in named]
    if len(named) < len(unknown):
        faults.append(Fault("", f"{len(unknown) - len(named)} further members are not of a message either."))
    return faults


def _value_faults(name: str, value: Any) -> Iterator[Fault]:
    if not isinstance(value, str):
        yield Fault(f"/{name}", f'"{name}" has to be a string, not {_type_name(value)}.')
    elif (surrogate := _LONE_SURROGATE.search(value)) is not None:
        yield Fault(
            f"/{name}",
            f'"{name}" holds a lone surrogate, \\u{ord(surrogate[0]):04x}, which has no form in UTF-8.',
        )
    elif name == "topic" and not is_legal_topic(value):
        yield Fault(
            "/topic",
            '"topic" has to be 1 to 249 characters out of A-Z, a-z, 0-9, ".", "_" and "-", '
            'and neither "." nor "..".',
        )


def _unknown_member_fault(name: str, absent: list[str]) -> Fault:
    meant = _meant(name, absent)
    if meant is not None:
        detail = f'"{_printable(name)}" is not a member of a message; did you mean "{meant}"?'
    else:
        detail = (
            f'"{_printable(name)}" is not a member of a message; it has "topic", "content" and, if wanted, '
            '"key".'
        )
    return Fault(f"/{_pointer_token(name)}", detail)


def _meant(name: str, absent: list[str]) -> str | None:
    if len(name) > _LONGEST_NAME:
        return None
    lower = name.strip().lower()
    matches = get_close_matches(_OTHER_WORDS.get(lower, lower), absent, n=1)
    return matches[0] if matches else None


def _printable(name: str) -> str:
    shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in shown
    )


def _pointer_token(name: str) -> str:
    # The pointer to a name of this length points to nothing; it says where to look all the same.
    shown = name if len(name) <= _LONGEST_POINTER else f"{name[:_LONGEST_POINTER]}…"
    escaped = shown.replace("~", "~0").replace("/", "~1")
    return _LONE_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", escaped)


def _type_name(value: Any) -> str:
    if isinstance(value, _Object):
        return "an object"
    if value is None:
        return "null"
    return {bool: "a boolean", float: "a number", list: "an array", str: "a string"}[type(value)]
