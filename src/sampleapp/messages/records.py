"""Conversion of a message into a record."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, TypeAlias

from msgspec import UNSET

from sampleapp.errors import Fault, InvalidMessage
from sampleapp.messages.timestamps import parse_timestamp
from sampleapp.model import CALLER_HEADER, FINGERPRINT_HEADER, Message, Record

__all__ = ["RecordHeaders", "content_of", "content_pointer", "length_of", "record_of"]

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
