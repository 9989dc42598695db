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
from functools import lru_cache, partial
from typing import Any, Final

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from sampleapp.errors import Fault, InvalidMessage, MalformedMessage
from sampleapp.json_members import emptied, first_members, is_intricate, require_json_text, written_object
from sampleapp.model import MOST_HEADERS, TOPIC_PATTERN, Message
from sampleapp.timestamps import InvalidTimestamp, parse_timestamp

__all__ = ["TOPIC_RULE", "is_legal_topic", "may_have_many_headers", "parse_message", "require_json"]

TOPIC_RULE: Final = '1 to 249 characters out of A-Z, a-z, 0-9, ".", "_" and "-", and neither "." nor ".."'
"""What a legal topic is, for those who have to be told."""

_MEMBERS: Final = ("topic", "key", "content", "headers", "timestamp")
_REQUIRED: Final = ("topic", "content")
_OTHER_WORDS: Final = {"value": "content", "time": "timestamp", "ts": "timestamp"}
"""What Kafka's users call a member."""

# A body of the greatest size has room for a hundred thousand unknown members, or for one with a name of a
# megabyte; the answer has not.
_MOST_FAULTS: Final = 100
_MOST_MEMBERS: Final = 1000
"""With more, it is not told which of them are wrong, which would take long."""
_LONGEST_POINTER: Final = 200
_LONGEST_NAME: Final = 40

_LONGEST_INTEGER: Final = 40
"""An integer of more digits is no timestamp."""
_MOST_QUOTES: Final = 20_000
"""Those of 5,000 to 10,000 headers: the strict decoder is through with these in 2 ms."""
_GREATEST_WHOLE: Final = 2.0**53
"""Beyond it a floating-point number may be another than the one that was written."""

# How many quotation marks there are for the members; a key that is none may be null, or not be there.
_WITH_KEY: Final = (12,)
_WITHOUT_KEY: Final = (8, 10)

_A_TIMESTAMP: Final = (
    'milliseconds since the epoch or a date-time of RFC 3339 with an offset, such as "2026-03-01T12:00:00Z"'
)

_LONGEST_TOPIC: Final = 249
_TOPIC = re.compile(TOPIC_PATTERN)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


_decode = msgspec.json.Decoder(Message).decode

if Message.__struct_fields__ != ("topic", "content", "key", "headers", "timestamp"):
    raise AssertionError("_may_repeat_one_of_all has to count the quotation marks of every member")


def is_legal_topic(topic: str) -> bool:
    """Whether a topic may have this name, by Kafka's rule (``org.apache.kafka.common.internals.Topic``)."""
    return len(topic) <= _LONGEST_TOPIC and _is_legal(topic)


# Nearly all messages are for few topics. Longer names are not kept.
@lru_cache(maxsize=512)
def _is_legal(topic: str) -> bool:
    return _TOPIC.fullmatch(topic) is not None and topic not in (".", "..")


def parse_message(body: bytes, *, what: str = "body") -> Message:
    """
    Read a message.

    :param body: JSON text in UTF-8 (RFC 8259).
    :param what: how it is called in what is said of it.
    :raise MalformedMessage: it is not that.
    :raise InvalidMessage: it is, but not a message; names every fault.
    """
    quotes = body.count(b'"')
    if may_have_many_headers(body, quotes):
        return _parse_slowly(body, what)
    try:
        message = _decode(body)
        topic = message.topic
        # Every message passes here, so what one takes that is as usual comes first.
        if len(topic) <= _LONGEST_TOPIC and _is_legal(topic):
            if message.headers is UNSET and message.timestamp is UNSET:
                once = _WITHOUT_KEY if message.key is None else _WITH_KEY
                if quotes in once or not _may_repeat_a_member(body, quotes, message, once):
                    return message
            elif not _may_repeat_one_of_all(body, quotes, message):
                return _with_milliseconds(message)
    except (msgspec.DecodeError, UnicodeDecodeError, InvalidTimestamp):
        # What is wrong, and all that is, is found out below.
        pass
    return _parse_slowly(body, what)


def may_have_many_headers(data: bytes, quotes: int) -> bool:
    """
    Whether a strict decoder might be busy for long before it finds that a message has too many headers.

    :param data: one message or several.
    :param quotes: how many quotation marks there are in it.
    """
    # Those inside of strings, which may be JSON themselves, do not count.
    return quotes > _MOST_QUOTES and quotes - data.count(b'\\"') > _MOST_QUOTES


def _with_milliseconds(message: Message) -> Message:
    """:raise InvalidTimestamp: its timestamp is none."""
    written = message.timestamp
    if written is UNSET:
        return message
    timestamp_ms = parse_timestamp(written)
    return message if timestamp_ms is written else replace(message, timestamp=timestamp_ms)


def _may_repeat_a_member(body: bytes, quotes: int, message: Message, once: tuple[int, ...]) -> bool:
    """
    Whether a member may be there twice, of which the decoder keeps the last without a word.

    A body that holds each member once has two quotation marks for each name, two for each string, and one
    for each that a string contains, unless the body has that one as a number. A repeated member has further
    ones: at least the two of its name, and those of its value unless that is null, as only that of the key
    may be. A legal topic has none.

    :param quotes: how many quotation marks the body has.
    :param once: how many there are for the members.
    """
    key = message.key
    contained = message.content.count('"') + (0 if key is None else key.count('"'))
    return quotes - contained not in once or b"\\u0022" in body


def _may_repeat_one_of_all(body: bytes, quotes: int, message: Message) -> bool:
    """
    Whether that may be so, with a header as well, in a message that has headers or a timestamp.

    A number, or an empty object, that is repeated has two further quotation marks, as many as a key that is
    null. So a message with one of those is always read slowly.
    """
    strings = [message.content]
    marks = _WITHOUT_KEY[0]
    if message.key is not None:
        strings.append(message.key)
        marks = _WITH_KEY[0]
    if message.headers is not UNSET:
        strings += message.headers
        strings += message.headers.values()
        marks += 2 + 4 * len(message.headers)
    if message.timestamp is not UNSET:
        # A string that has quotation marks is no timestamp.
        marks += 4 if isinstance(message.timestamp, str) else 2
    contained = "".join(strings).count('"')
    return quotes != marks + contained or (contained > 0 and b"\\u0022" in body)


class _Object(list[tuple[str, Any]]):
    """The members of a JSON object in order, repeated ones included."""


def _parse_slowly(body: bytes, what: str) -> Message:
    document = _parse_object(body, what)
    values = dict(document)
    faults = list(_faults(document, values))
    headers = values.get("headers")
    if not isinstance(headers, _Object) or len(headers) > MOST_HEADERS:
        headers = None
    wrong_headers = [] if headers is None else _wrong_headers(headers)
    unknown = [name for name in values if name not in _MEMBERS]
    # There may be very many of these, so only those are put into words for which there is room.
    room = _MOST_FAULTS - len(faults)
    if (more := len(wrong_headers) + len(unknown) - room) > 0:
        more += 1
        unknown = unknown[: max(0, len(unknown) - more)]
        wrong_headers = wrong_headers[: room - 1]
    if headers is not None:
        faults += _header_faults(headers, wrong_headers)
    absent = [name for name in _MEMBERS if name not in values]
    faults += [_unknown_member_fault(name, absent) for name in unknown]
    if more > 0:
        faults.append(Fault("", f"{more} further members are not right either."))
    if faults:
        raise InvalidMessage(faults)
    if headers is not None:
        values["headers"] = dict(headers)
    if "timestamp" in values:
        values["timestamp"] = parse_timestamp(_whole(values["timestamp"]))
    return Message(**values)


def _parse_object(body: bytes, what: str) -> _Object:
    """:raise InvalidMessage: it is none, or has very many members."""
    if is_intricate(body):
        body = _without_excess(body, what)
    document = _parse_json(body, what)
    if not isinstance(document, _Object):
        raise InvalidMessage([Fault("", f"A message is a JSON object, not {_type_name(document)}.")])
    if len(document) > _MOST_MEMBERS:
        too_many = f"There are more than {_MOST_MEMBERS} members; a message has {len(_MEMBERS)} at most."
        raise InvalidMessage([Fault("", too_many)])
    return document


def _without_excess(body: bytes, what: str) -> bytes:
    """
    Write a body again without what no message has, so that it can be read in a moment.

    What is left has the same faults, and at least one if anything was left out: arrays and objects have
    nothing in them, and of too many members or headers there are as many as are too many.

    :raise MalformedMessage: it is not JSON.
    """
    _require_json_text(body, what)
    text = body.strip()
    if not text.startswith(b"{"):
        return emptied(text)
    try:
        members = first_members(text, most=_MOST_MEMBERS + 1)
        last_headers = max((n for n, (name, _) in enumerate(members) if _is_headers(name)), default=None)
        simple = []
        for number, (name, value) in enumerate(members):
            if number == last_headers and value.startswith(b"{"):
                headers = first_members(value, most=MOST_HEADERS + 1)
                simple.append((name, written_object((each, emptied(of_each)) for each, of_each in headers)))
            else:
                simple.append((name, emptied(value)))
    except msgspec.DecodeError:
        return body
    return written_object(simple)


def _is_headers(name: bytes) -> bool:
    return name == b'"headers"' or (b"\\" in name and json.loads(name) == "headers")


def _require_json_text(body: bytes, what: str) -> None:
    """:raise MalformedMessage: it is not JSON. Where that is, is told in few words."""
    try:
        require_json_text(body)
    except UnicodeDecodeError as error:
        raise _not_utf_8(body, what, error) from error
    except msgspec.DecodeError as error:
        reason = str(error).removeprefix("JSON is malformed: ")
        raise MalformedMessage(f"The {what} is not JSON: {reason}.") from error
    except RecursionError as error:
        raise _too_deep(what) from error


def require_json(body: bytes, *, what: str = "body") -> None:
    """
    See whether what is no message is JSON at least.

    :param what: how it is called in what is said of it.
    :raise MalformedMessage: it is not.
    """
    try:
        require_json_text(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if is_intricate(body):
            _require_json_text(body, what)
        _parse_json(body, what)


def _parse_json(body: bytes, what: str) -> Any:
    try:
        return json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_Object,
            parse_constant=partial(_refuse_constant, what),
            parse_int=_parse_int,
        )
    except UnicodeDecodeError as error:
        raise _not_utf_8(body, what, error) from error
    except json.JSONDecodeError as error:
        if body.startswith(codecs.BOM_UTF8):
            raise MalformedMessage(f"The {what} is not JSON: it begins with a byte order mark.") from error
        if not body.strip():
            raise MalformedMessage(
                f'The {what} is empty; send a JSON object such as {{"topic": "readings", "content": "21.5"}}.'
            ) from error
        raise MalformedMessage(
            f"The {what} is not JSON: {error.msg} (line {error.lineno}, column {error.colno})."
        ) from error
    except RecursionError as error:
        raise _too_deep(what) from error


def _not_utf_8(body: bytes, what: str, error: UnicodeDecodeError) -> MalformedMessage:
    return MalformedMessage(
        f"The {what} is not UTF-8: see byte 0x{body[error.start]:02x} at offset {error.start}."
    )


def _too_deep(what: str) -> MalformedMessage:
    return MalformedMessage(f"The {what} is nested too deeply; a message has two levels at most.")


def _parse_int(digits: str) -> int | float:
    # Only a timestamp may be a number, and int() refuses to read a very long one, or takes very long.
    return int(digits) if len(digits) <= _LONGEST_INTEGER else float(digits)


def _refuse_constant(what: str, name: str) -> None:
    raise MalformedMessage(f"The {what} is not JSON: {name} is not a JSON value.")


def _faults(members: _Object, values: dict[str, Any]) -> Iterator[Fault]:
    for name, count in _counts(members).items():
        if count > 1 and name in _MEMBERS:
            yield Fault(f"/{name}", f'"{name}" is there {count} times; a message has it once.')
    for name in _REQUIRED:
        if name not in values:
            yield Fault(f"/{name}", f'"{name}" is missing; a message has to have it.')
    for name in _MEMBERS:
        if name in values and not (name == "key" and values[name] is None):
            yield from _value_faults(name, values[name])


def _value_faults(name: str, value: Any) -> Iterator[Fault]:
    if name == "timestamp":
        yield from _timestamp_faults(value)
    elif name == "headers":
        if not isinstance(value, _Object):
            yield Fault("/headers", f'"headers" has to be an object of strings, not {_type_name(value)}.')
        elif len(value) > MOST_HEADERS:
            yield Fault(
                "/headers", f"There are more than {MOST_HEADERS} headers, which is the most for a message."
            )
    elif not isinstance(value, str):
        yield Fault(f"/{name}", f'"{name}" has to be a string, not {_type_name(value)}.')
    elif (surrogate := _LONE_SURROGATE.search(value)) is not None:
        yield Fault(f"/{name}", f'"{name}" holds {_described(surrogate)}.')
    elif name == "topic" and not is_legal_topic(value):
        yield Fault("/topic", f'"topic" has to be {TOPIC_RULE}.')


def _timestamp_faults(value: Any) -> Iterator[Fault]:
    written = _whole(value)
    if isinstance(written, bool) or not isinstance(written, int | str):
        yield Fault("/timestamp", f'"timestamp" has to be {_A_TIMESTAMP}, not {_type_name(value)}.')
        return
    try:
        parse_timestamp(written)
    except InvalidTimestamp as error:
        yield Fault("/timestamp", f'"timestamp" {error}; it has to be {_A_TIMESTAMP}.')


def _whole(number: Any) -> Any:
    """Make an integer of a number that is one, however it is written: ``1.7e12``."""
    is_whole = isinstance(number, float) and number.is_integer() and abs(number) <= _GREATEST_WHOLE
    return int(number) if is_whole else number


def _wrong_headers(headers: _Object) -> list[str]:
    """Return the names of those that are not right, each once, in their order."""
    search = _LONE_SURROGATE.search
    wrong = dict.fromkeys(
        name
        for name, value in headers
        if not isinstance(value, str) or search(value) is not None or search(name) is not None
    )
    if len(dict(headers)) < len(headers):
        wrong.update(dict.fromkeys(name for name, count in _counts(headers).items() if count > 1))
    return list(wrong)


def _header_faults(headers: _Object, names: list[str]) -> Iterator[Fault]:
    """Say of each of some headers what is wrong first."""
    counts = _counts(headers)
    told = set(names)
    values = {name: value for name, value in reversed(headers) if name in told}
    for name in names:
        yield Fault(
            f"/headers/{_pointer_token(name)}",
            f'The header "{_printable(name)}" {_wrong_with(name, counts[name], values[name])}.',
        )


def _wrong_with(name: str, count: int, value: Any) -> str:
    """
    Say what is wrong with a header.

    :param value: the first that it has.
    """
    if count > 1:
        return f"is there {count} times; a message has it once"
    if (surrogate := _LONE_SURROGATE.search(name)) is not None:
        return f"has in its name {_described(surrogate)}"
    if isinstance(value, str) and (surrogate := _LONE_SURROGATE.search(value)) is not None:
        return f"holds {_described(surrogate)}"
    return f"has to be a string, not {_type_name(value)}"


def _counts(members: _Object) -> Counter[str]:
    return Counter(name for name, _ in members)


def _described(surrogate: re.Match[str]) -> str:
    return f"a lone surrogate, \\u{ord(surrogate[0]):04x}, which has no form in UTF-8"


def _unknown_member_fault(name: str, absent: list[str]) -> Fault:
    meant = _meant(name, absent)
    if meant is not None:
        detail = f'"{_printable(name)}" is not a member of a message; did you mean "{meant}"?'
    else:
        detail = (
            f'"{_printable(name)}" is not a member of a message; it has "topic", "content" and, if wanted, '
            '"key", "headers" and "timestamp".'
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
    return {bool: "a boolean", int: "a number", float: "a number", list: "an array", str: "a string"}[
        type(value)
    ]
