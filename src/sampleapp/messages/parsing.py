"""
Parsing and validation of one message, and its conversion into a record.

Nearly all bodies are valid, so a strict decoder that stops at the first fault reads them. Only a body that it
rejects is read again, in `sampleapp.messages.faults`, to name its faults.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from sampleapp.errors import Fault, InvalidMessage
from sampleapp.messages.faults import has_too_many_strings, parse_or_name_faults
from sampleapp.messages.json_text import LARGE
from sampleapp.messages.timestamps import InvalidTimestamp, parse_timestamp
from sampleapp.model import CALLER_HEADER, FINGERPRINT_HEADER, MOST_HEADERS, Message, Record, is_legal_topic

RecordHeaders: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""The headers of a record, in order. A name may be there more than once, or be empty."""

_TRACEPARENT: Final = "traceparent"
_TRACE: Final = frozenset({_TRACEPARENT, "tracestate"})

_RESERVED: Final = 'The header "{name}" is reserved: the service adds {why}. Omit it.'


def record_of(message: Message, *, now_ms: int, of_request: RecordHeaders = ()) -> Record:
    """
    Convert a message into a record.

    :param message: a valid message, such as `sampleapp.messages.parsing.parse_message` returns.
    :param now_ms: the timestamp for a message without one; milliseconds since the epoch.
    :param of_request: the headers that its request gives to each of its records: the caller, and the trace.
        They follow the message's own, of which a ``traceparent`` takes precedence.
    :raise InvalidMessage: the message brings a header that the service adds.
    """
    key, content, timestamp = message.key, message.content, message.timestamp
    if isinstance(key, str):
        key_bytes: bytes | None = key.encode("utf-8")
    else:
        key_bytes = None if message.key_base64 is UNSET else message.key_base64
    if timestamp is UNSET:
        timestamp = now_ms
    elif isinstance(timestamp, str):
        timestamp = parse_timestamp(timestamp)
    return Record(
        topic=message.topic,
        key=key_bytes,
        value=content_of(message) if content is UNSET else content.encode("utf-8"),
        timestamp_ms=timestamp,
        has_own_time=message.timestamp is not UNSET,
        headers=of_request
        if message.headers is UNSET and message.headers_base64 is UNSET
        else _own_first(message, of_request),
    )


def content_of(message: Message) -> bytes:
    """Return the content of a valid message as bytes."""
    content = message.content
    # A valid message has one of the two contents.
    return message.content_base64 if content is UNSET else content.encode("utf-8")  # type: ignore[return-value]


def content_pointer(message: Message) -> str:
    """Return the pointer to the content of a message."""
    return "/content_base64" if message.content is UNSET else "/content"


def _own_first(message: Message, of_request: RecordHeaders) -> RecordHeaders:
    headers, pairs = message.headers, message.headers_base64
    own: RecordHeaders = ()
    names: Collection[str] = ()
    if headers is not UNSET:
        own, names = tuple([(name, value.encode("utf-8")) for name, value in headers.items()]), headers
    if pairs is not UNSET:
        own += tuple(pairs)
        names = dict(own)
    has_caller = bool(of_request) and of_request[0][0] == CALLER_HEADER
    # A consumer may compare names without regard to case.
    if FINGERPRINT_HEADER in names or (has_caller and CALLER_HEADER in map(str.lower, names)):
        raise InvalidMessage(list(_reserved_faults(message, has_caller=has_caller)))
    if not of_request:
        return own
    # A tracestate belongs to its own traceparent only (W3C Trace Context, section 3.3).
    without = _TRACE if _TRACEPARENT in names else names
    return own + tuple([header for header in of_request if header[0] not in without])


def _reserved_faults(message: Message, *, has_caller: bool) -> Iterator[Fault]:
    places = [(f"/headers/{name}", name) for name in message.headers or ()]
    pairs = message.headers_base64 or ()
    places += [(f"/headers_base64/{index}", name) for index, (name, _) in enumerate(pairs)]
    for at, name in places:
        if name == FINGERPRINT_HEADER:
            yield Fault(at, _RESERVED.format(name=name, why="it to records with an Idempotency-Key"))
        elif has_caller and name.lower() == CALLER_HEADER:
            yield Fault(at, _RESERVED.format(name=name, why="the name of the caller to each record"))


def length_of(record: Record) -> int:
    """Return the bytes of a record's key and value together, as metrics and limits count them."""
    key, value = record.key, record.value
    return (0 if key is None else len(key)) + (0 if value is None else len(value))


_decode: Final = msgspec.json.Decoder(Message).decode

_MEMBERS: Final = {
    *("topic", "content", "content_base64", "key", "key_base64", "headers", "headers_base64", "timestamp")
}
if set(Message.__struct_fields__) != _MEMBERS:
    raise AssertionError("_count_members must count every member")


def parse_message(body: bytes, *, source: str = "body") -> Message:
    """
    Parse and validate a message.

    Takes at most a few milliseconds for any body of up to 1 MiB.

    :param body: JSON text in UTF-8 (RFC 8259).
    :param source: the name of the body in error messages.
    :raise MalformedMessage: the body is not JSON.
    :raise InvalidMessage: the body is JSON but not a message. Names all faults, up to 100; of a body of more
        than 64 KiB, perhaps the first only.
    """
    if len(body) > LARGE and has_too_many_strings(body):
        return parse_or_name_faults(body, source)
    try:
        message = _decode(body)
        # Every message passes here, so the usual ones come first.
        if is_legal_topic(message.topic):
            key, content = message.key, message.content
            if content is not UNSET and message.headers is UNSET and message.timestamp is UNSET:
                inside = body.count(b":") - (2 if key is UNSET else 3)
                # As may_repeat_a_member does it, without the calls. A member with base64 is one colon more.
                if not inside or (
                    inside == (content + (key or "")).count(":") and not has_escaped_colon(body)
                ):
                    return message
            if is_consistent(message) and not may_repeat_a_member(body, (message,)):
                return with_milliseconds(message)
    except (msgspec.DecodeError, UnicodeDecodeError, InvalidTimestamp):
        # Named below, with all other faults.
        pass
    return parse_or_name_faults(body, source)


def is_consistent(message: Message) -> bool:
    """Check that a message has one content, at most one key, and not too many headers."""
    if (message.content is UNSET) is (message.content_base64 is UNSET):
        return False
    headers, pairs = message.headers, message.headers_base64
    if headers is not UNSET and pairs is not UNSET and len(headers) + len(pairs) > MOST_HEADERS:
        return False
    return message.key_base64 is UNSET or message.key_base64 is None or not isinstance(message.key, str)


def may_repeat_a_member(text: bytes, messages: Sequence[Message]) -> bool:
    """
    Check whether a member, or a header, may be there twice; msgspec keeps the last without an error.

    A decoder that notices takes ten times as long. But each name of a member is followed by a colon, so JSON
    with no more colons than its messages need repeats none.

    :param text: the JSON of the messages.
    :param messages: see `is_consistent`.
    :return: true also if a colon in a string is escaped: it would hide the colon of a repeated member.
    """
    inside = text.count(b":") - sum(map(_count_members, messages))
    return inside != 0 and (inside != sum(map(_count_colons_inside, messages)) or has_escaped_colon(text))


def has_escaped_colon(text: bytes) -> bool:
    """Check whether a JSON text may have a colon that is written as an escape."""
    # Most texts have no backslash, which is found much faster.
    return b"\\" in text and (b"\\u003a" in text or b"\\u003A" in text)


def _count_members(message: Message) -> int:
    """Count the members of a message with one content, and its headers."""
    headers = message.headers
    members = 2 if message.key is UNSET else 3
    if message.key_base64 is not UNSET:
        members += 1
    if message.timestamp is not UNSET:
        members += 1
    if message.headers_base64 is not UNSET:
        members += 1
    return members if headers is UNSET else members + 1 + len(headers)


def _count_colons_inside(message: Message) -> int:
    """Count the colons in the strings; a valid topic has none, and neither has base64."""
    content, key, headers, timestamp = message.content, message.key, message.headers, message.timestamp
    strings = [content] if content else []
    if key:
        strings.append(key)
    if headers is not UNSET:
        strings += headers
        strings += headers.values()
    if isinstance(timestamp, str):
        strings.append(timestamp)
    if message.headers_base64 is not UNSET:
        strings += [name for name, _ in message.headers_base64]
    return "".join(strings).count(":")


def with_milliseconds(message: Message) -> Message:
    """
    Convert the timestamp of a message to milliseconds.

    :raise InvalidTimestamp: the timestamp is not valid.
    """
    written = message.timestamp
    if written is UNSET:
        return message
    timestamp_ms = parse_timestamp(written)
    return message if timestamp_ms is written else replace(message, timestamp=timestamp_ms)
