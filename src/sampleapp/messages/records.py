"""Conversion of a message into a record."""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import UNSET

from sampleapp.messages.timestamps import parse_timestamp
from sampleapp.model import Message, Record

__all__ = ["RecordHeaders", "length_of", "record_of"]

RecordHeaders: TypeAlias = tuple[tuple[str, bytes], ...]
"""The headers of a record, in order. A name may be there more than once, or be empty."""

_TRACEPARENT: Final = "traceparent"


def record_of(message: Message, *, now_ms: int, trace: RecordHeaders = ()) -> Record:
    """
    Convert a message into a record.

    :param message: a valid message, such as `sampleapp.messages.parsing.parse_message` returns.
    :param now_ms: the timestamp for a message without one; milliseconds since the epoch.
    :param trace: the trace headers of its request, see `sampleapp.messages.trace_context.trace_headers`.
        They follow the message's own.
    """
    key, content, headers, timestamp = message.key, message.content, message.headers, message.timestamp
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
        # A valid message has one of the two contents.
        value=message.content_base64 if content is UNSET else content.encode("utf-8"),  # type: ignore[arg-type]
        timestamp_ms=timestamp,
        headers=trace if headers is UNSET else _own_first(headers, trace),
    )


def _own_first(headers: dict[str, str], trace: RecordHeaders) -> RecordHeaders:
    own = tuple([(name, value.encode("utf-8")) for name, value in headers.items()])
    # A tracestate belongs to its own traceparent only (W3C Trace Context, section 3.3).
    if not trace or _TRACEPARENT in headers:
        return own
    return own + tuple([header for header in trace if header[0] not in headers])


def length_of(record: Record) -> int:
    """Return the bytes of a record's key and value together, as metrics and limits count them."""
    key, value = record.key, record.value
    return (0 if key is None else len(key)) + (0 if value is None else len(value))
