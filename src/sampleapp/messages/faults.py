"""
A second, slower parsing of a message, which names its faults.

Up to 64 KiB, Python's decoder is fast enough to name all faults. Of a larger message it is the fault at which
the strict decoder stops.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from itertools import chain, islice
from math import isfinite
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from sampleapp.errors import LONGEST_NAME, Fault, InvalidMessage, MalformedMessage, pointer_token, shown
from sampleapp.messages.json_text import LARGE, JSONObject, decode_json, require_json
from sampleapp.messages.timestamps import InvalidTimestamp, parse_timestamp
from sampleapp.model import MOST_HEADERS, TOPIC_RULE, Message, is_legal_topic

_MEMBERS: Final = (
    *("topic", "key", "key_base64", "content", "content_base64", "headers", "headers_base64", "timestamp"),
)
_PAIRS: Final = {"key": "key_base64", "content": "content_base64"}
"""Two members of which a message has one."""
_MOST_OF_ONE: Final = len(_MEMBERS) - len(_PAIRS)
_OTHER_WORDS: Final = {
    "data_base64": "content_base64",
    "time": "timestamp",
    "ts": "timestamp",
    "value": "content",
    "value_base64": "content_base64",
}
"""Other names that users of Kafka give to a member."""

_MOST_FAULTS: Final = 100
_MOST_MEMBERS: Final = 1000
"""Of an object with more members, only their number is a fault."""
_LONGEST_POINTER: Final = 200

_MOST_STRINGS: Final = 10_000
"""The strict decoder reads this many headers' names and values in 2 ms. A valid message has up to 2,008."""
_GREATEST_WHOLE: Final = 2.0**53
"""The greatest floating-point number that is surely the integer that the caller wrote."""

_BASE64: Final = 'base64 with padding (RFC 4648, section 4), such as "AP8="'
_PAIR: Final = f'Each header in "headers_base64" must be a list of a name and null or {_BASE64}.'
_MANY: Final = "Send many messages in one request as application/x-ndjson, one on each line."
_AFTER_JSON: Final = re.compile(r"not JSON: (?:Extra data|trailing characters)")
"""Of the errors of both decoders, the one about more than one value."""
_WAYS_OUT: Final = "Send its JSON as a string, or as the body of a POST to /topics/{topic}."
"""For a ``content`` that is JSON itself."""
_A_TIMESTAMP: Final = (
    "milliseconds since the epoch (an integer of 12 to 14 digits, 1973 to 5138) or, also for older times, a "
    'date-time of RFC 3339 with an offset, such as "2026-03-01T12:00:00Z"'
)
_RIGHT_VALUES: Final = {
    "content_base64": f"a string of {_BASE64}",
    "headers": "an object of strings",
    "headers_base64": "a list of lists, each of a name and base64 or null",
    "key_base64": f"a string of {_BASE64}",
    "timestamp": _A_TIMESTAMP,
}
"""For the members that are not just strings."""
_NULLABLE: Final = ("key", "key_base64")
_NO_TOPIC: Final = Fault("/topic", '"topic" is missing; a message must have it.')
_NO_CONTENT: Final = Fault("/content", '"content" is missing; a message must have it, or "content_base64".')
_TOO_MANY_HEADERS: Final = {
    name: Fault(f"/{name}", f"There are more than {MOST_HEADERS} headers, which is the most for a message.")
    for name in ("headers", "headers_base64")
}
_NOT_BASE64: Final = {name: Fault(f"/{name}", f'"{name}" must be {_BASE64}.') for name in _PAIRS.values()}
_WITHOUT_TYPE: Final = {**_TOO_MANY_HEADERS, **_NOT_BASE64}
"""The faults of a value of the right type."""

_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_TYPE_NAMES: Final = {
    "array": "an array",
    "bool": "a boolean",
    "float": "a number",
    "int": "a number",
    "list": "an array",
    "null": "null",
    "object": "an object",
    "str": "a string",
}
"""By the names that msgspec and Python have for a type of JSON."""
# The messages of msgspec.ValidationError.
_UNKNOWN_FIELD: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING_FIELD: Final = re.compile(r"Object missing required field `(\w+)`")
_PLACE: Final = re.compile(r" - at `\$\.(\w+)(?:\[(\.\.\.|\d+)].*)?`$")
_GOT: Final = re.compile(r", got `(\w+)`")


class _LargeMessage(Message, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    # 1.7e12 is a timestamp, see _whole.
    timestamp: int | float | str | UnsetType = UNSET  # type: ignore[assignment]


class _AnyHeaders(_LargeMessage, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    headers: Raw | UnsetType = UNSET  # type: ignore[assignment]
    headers_base64: Raw | UnsetType = UNSET  # type: ignore[assignment]


_decode_large: Final = msgspec.json.Decoder(_LargeMessage).decode
_skip_headers: Final = msgspec.json.Decoder(_AnyHeaders).decode


def has_too_many_strings(text: bytes) -> bool:
    """
    Check for too many headers, without decoding them.

    :param text: one message or several.
    """
    quotes = text.count(b'"')
    # Quotation marks inside of strings, which may be JSON themselves, are escaped.
    return quotes > 2 * _MOST_STRINGS and quotes - text.count(b'\\"') > 2 * _MOST_STRINGS


def parse_or_name_faults(body: bytes, source: str) -> Message:
    """
    Parse and validate a message; see `sampleapp.messages.parsing.parse_message`.

    :raise MalformedMessage: the body is not JSON.
    :raise InvalidMessage: the body is not a message.
    """
    document = _decode_one(body, source)
    if not isinstance(document, JSONObject):
        raise InvalidMessage([_not_an_object(_type_name(document))])
    if len(document) > _MOST_MEMBERS:
        too_many = f"There are more than {_MOST_MEMBERS} members; a message has {_MOST_OF_ONE} at most."
        raise InvalidMessage([Fault("", too_many)])
    values = dict(document)
    faults = list(_faults(document, values))
    headers, pairs = (
        values[name] if name in values and not any(_value_faults(name, values[name])) else JSONObject()
        for name in _TOO_MANY_HEADERS
    )
    if len(headers) + len(pairs) > MOST_HEADERS:
        faults.append(_TOO_MANY_HEADERS["headers_base64"])
    faults += _faults_with_names(headers, pairs, values, room=_MOST_FAULTS - len(faults))
    if faults:
        raise InvalidMessage(faults)
    if "headers" in values:
        values["headers"] = dict(headers)
    if "headers_base64" in values:
        values["headers_base64"] = msgspec.convert(pairs, list[tuple[str, bytes | None]])
    for name in _PAIRS.values():
        if values.get(name) is not None:
            values[name] = _from_base64(values[name])
    if "timestamp" in values:
        values["timestamp"] = parse_timestamp(_whole(values["timestamp"]))
    return Message(**values)


def _decode_one(body: bytes, source: str) -> Any:
    """Decode the JSON of a message; raises as `parse_or_name_faults` does."""
    try:
        if len(body) > LARGE:
            _require_few_values(body, source)
        return decode_json(body, source=source)
    except MalformedMessage as error:
        if _AFTER_JSON.search(str(error)) is None:
            raise
        raise MalformedMessage(f"{error} {_MANY}") from error


def _faults_with_names(
    headers: JSONObject, pairs: list[Any], values: dict[str, Any], *, room: int
) -> list[Fault]:
    """Name the wrong headers and the unknown members, of which there may be a thousand."""
    wrong_headers = _wrong_headers(headers)
    wrong_pairs = [index for index, pair in enumerate(pairs) if not _is_pair(pair)]
    unknown = [name for name in values if name not in _MEMBERS]
    absent = _absent({name for name in _MEMBERS if name in values})
    count = len(wrong_headers) + len(wrong_pairs) + len(unknown)
    named = room if count <= room else room - 1
    # Write sentences only for those that are named.
    sentences = chain(
        _header_faults(headers, wrong_headers[:named]),
        (Fault(f"/headers_base64/{index}", _PAIR) for index in wrong_pairs),
        (_unknown_member_fault(name, absent) for name in unknown),
    )
    faults = [*islice(sentences, named)]
    if count > named:
        faults.append(Fault("", f"{count - named} further members are wrong, too."))
    return faults


def _require_few_values(body: bytes, source: str) -> None:
    """
    Check that a large body has nothing but a message's strings and numbers, so that decoding it is quick.

    :raise MalformedMessage: the body is not JSON.
    :raise InvalidMessage: names the first fault.
    """
    require_json(body, source=source)
    has_too_many = has_too_many_strings(body)
    try:
        (_skip_headers if has_too_many else _decode_large)(body)
    except msgspec.ValidationError as error:
        raise InvalidMessage([_first_fault(str(error), body)]) from error
    except msgspec.DecodeError as error:
        lone = "A string has a lone surrogate, which has no form in UTF-8."
        raise InvalidMessage([Fault("", lone)]) from error
    if has_too_many:
        too_many = (
            f"There are more than {_MOST_STRINGS} strings; a message has {MOST_HEADERS} headers at most."
        )
        raise InvalidMessage([Fault("", too_many)])


def _first_fault(error: str, body: bytes) -> Fault:
    """
    Name the fault at which the strict decoder stopped.

    :param error: the message of its `msgspec.ValidationError`.
    """
    if (unknown := _UNKNOWN_FIELD.match(error)) is not None:
        # Only for the advice in the fault, and a search in all of it would take milliseconds.
        start = body[:LARGE]
        present = {name for name in _MEMBERS if b'"%b"' % name.encode() in start}
        return _unknown_member_fault(unknown[1], _absent(present))
    if _MISSING_FIELD.match(error) is not None:
        return _NO_TOPIC
    got = _GOT.search(error)
    found = "a number" if got is None else _TYPE_NAMES.get(got[1], "another type")
    place = _PLACE.search(error)
    if place is None:
        return _not_an_object(found)
    name, inside = place.groups()
    if inside is not None:
        of_object = Fault("/headers", f"The value of each header must be a string, not {found}.")
        return of_object if name == "headers" else Fault(f"/{name}/{inside}", _PAIR)
    if got is None and name in _WITHOUT_TYPE:
        return _WITHOUT_TYPE[name]
    return _wrong_type(name, found)


def _faults(members: JSONObject, values: dict[str, Any]) -> Iterator[Fault]:
    for name, count in _counts(members).items():
        if count > 1 and name in _MEMBERS:
            yield Fault(f"/{name}", f'"{name}" is there {count} times; a message has it once.')
    if "topic" not in values:
        yield _NO_TOPIC
    if "content" not in values and "content_base64" not in values:
        yield _NO_CONTENT
    given = {name for name, value in values.items() if value is not None or name not in _NULLABLE}
    for name in _MEMBERS:
        if name in given:
            yield from _value_faults(name, values[name])
    for name, instead in _PAIRS.items():
        if {name, instead} <= given:
            yield Fault(f"/{instead}", f'"{name}" and "{instead}" are both there; a message has one of them.')


def _not_an_object(type_name: str) -> Fault:
    ways_out = f" {_MANY}" if type_name == _TYPE_NAMES["array"] else ""
    return Fault("", f"A message is a JSON object, not {type_name}.{ways_out}")


def _wrong_type(name: str, type_name: str) -> Fault:
    right = _RIGHT_VALUES.get(name, "a string")
    ways_out = f" {_WAYS_OUT}" if name == "content" and type_name != _TYPE_NAMES["null"] else ""
    return Fault(f"/{name}", f'"{name}" must be {right}, not {type_name}.{ways_out}')


def _from_base64(text: str) -> bytes:
    """
    Decode as the strict decoder does.

    :raise msgspec.ValidationError: the text is not base64 with padding.
    """
    return msgspec.convert(text, bytes)


def _value_faults(name: str, value: Any) -> Iterator[Fault]:
    if name == "timestamp":
        yield from _timestamp_faults(value)
    elif name in _TOO_MANY_HEADERS:
        # An object is a list of its members here.
        if not isinstance(value, list) or isinstance(value, JSONObject) is not (name == "headers"):
            yield _wrong_type(name, _type_name(value))
        elif len(value) > MOST_HEADERS:
            yield _TOO_MANY_HEADERS[name]
    elif not isinstance(value, str):
        yield _wrong_type(name, _type_name(value))
    elif (surrogate := _lone_surrogate(value)) is not None:
        yield Fault(f"/{name}", f'"{name}" holds {_described(surrogate)}.')
    elif name == "topic" and not is_legal_topic(value):
        yield Fault("/topic", f'"topic" must be {TOPIC_RULE}.')
    elif name in _PAIRS.values():
        try:
            _from_base64(value)
        except msgspec.ValidationError:
            yield _NOT_BASE64[name]


def _is_pair(value: Any) -> bool:
    """Check for a header of ``headers_base64``, as the strict decoder does."""
    try:
        name, _ = msgspec.convert(value, tuple[str, bytes | None])
        name.encode()
    except (msgspec.ValidationError, UnicodeEncodeError):
        return False
    return True


def _timestamp_faults(value: Any) -> Iterator[Fault]:
    # A number with a fraction is rejected, too, but its unit is the first thing to say.
    written = int(value) if isinstance(value, float) and isfinite(value) else value
    try:
        if isinstance(written, int | str) and not isinstance(written, bool):
            parse_timestamp(written)
    except InvalidTimestamp as error:
        yield Fault("/timestamp", f'"timestamp" {error}; it must be {_A_TIMESTAMP}.')
        return
    if not isinstance(_whole(value), int | str) or isinstance(value, bool):
        yield _wrong_type("timestamp", _type_name(value))


def _whole(number: Any) -> Any:
    """Convert a floating-point number to an integer if it is one, such as ``1.7e12``."""
    is_whole = isinstance(number, float) and number.is_integer() and abs(number) <= _GREATEST_WHOLE
    return int(number) if is_whole else number


def _wrong_headers(headers: JSONObject) -> list[str]:
    """Return the names of the headers that are wrong, each once, in order."""
    search = _lone_surrogate
    wrong = dict.fromkeys(
        name
        for name, value in headers
        if not isinstance(value, str) or search(value) is not None or search(name) is not None
    )
    if len(dict(headers)) < len(headers):
        wrong.update(dict.fromkeys(name for name, count in _counts(headers).items() if count > 1))
    return list(wrong)


def _header_faults(headers: JSONObject, names: list[str]) -> Iterator[Fault]:
    """Name the first fault of each header in ``names``."""
    counts = _counts(headers)
    named = set(names)
    values = {name: value for name, value in reversed(headers) if name in named}
    for name in names:
        yield Fault(
            f"/headers/{_pointer_token(name)}",
            f'The header "{shown(name)}" {_wrong_with(name, counts[name], values[name])}.',
        )


def _wrong_with(name: str, count: int, value: Any) -> str:
    """
    Describe the fault of a header, as the end of a sentence.

    :param value: its first value.
    """
    if count > 1:
        return f"is there {count} times; a message has it once"
    if (surrogate := _lone_surrogate(name)) is not None:
        return f"has in its name {_described(surrogate)}"
    if isinstance(value, str) and (surrogate := _lone_surrogate(value)) is not None:
        return f"holds {_described(surrogate)}"
    return f"must be a string, not {_type_name(value)}"


def _counts(members: JSONObject) -> Counter[str]:
    return Counter(name for name, _ in members)


def _lone_surrogate(text: str) -> re.Match[str] | None:
    # Encoding takes a hundredth of the time of the search.
    try:
        text.encode()
    except UnicodeEncodeError:
        return _LONE_SURROGATE.search(text)
    return None


def _described(surrogate: re.Match[str]) -> str:
    return f"a lone surrogate, \\u{ord(surrogate[0]):04x}, which has no form in UTF-8"


def _unknown_member_fault(name: str, absent: list[str]) -> Fault:
    meant = _meant(name, absent)
    if meant is not None:
        detail = f'"{shown(name)}" is not a member of a message; did you mean "{meant}"?'
    else:
        detail = (
            f'"{shown(name)}" is not a member of a message; it has "topic", "content" or '
            '"content_base64" and, if wanted, "key" or "key_base64", "headers", "headers_base64" and '
            '"timestamp".'
        )
    return Fault(f"/{_pointer_token(name)}", detail)


def _absent(present: Collection[str]) -> list[str]:
    """Return the members that a message may have besides those that it has."""
    excluded = {*present, *(instead for name, instead in _PAIRS.items() if name in present)}
    excluded |= {name for name, instead in _PAIRS.items() if instead in present}
    return [name for name in _MEMBERS if name not in excluded]


def _meant(name: str, absent: list[str]) -> str | None:
    if len(name) > LONGEST_NAME:
        return None
    lower = name.strip().lower()
    matches = get_close_matches(_OTHER_WORDS.get(lower, lower), absent, n=1)
    return matches[0] if matches else None


def _pointer_token(name: str) -> str:
    # A pointer that was cut off points to nothing, but still says where to look.
    short = name if len(name) <= _LONGEST_POINTER else f"{name[:_LONGEST_POINTER]}…"
    return _LONE_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", pointer_token(short))


def _type_name(value: Any) -> str:
    if isinstance(value, JSONObject):
        return "an object"
    return "null" if value is None else _TYPE_NAMES[type(value).__name__]
