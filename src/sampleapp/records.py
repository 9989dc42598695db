"""From a message to the record that it asks for."""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import UNSET

from sampleapp.model import Message, Record
from sampleapp.timestamps import parse_timestamp

__all__ = ["RecordHeaders", "length_of", "record_of"]

RecordHeaders: TypeAlias = tuple[tuple[str, bytes], ...]
"""The headers of a record, in order. A name may be there more than once, or be empty."""

_TRACEPARENT: Final = "traceparent"


def record_of(message: Message, *, now_ms: int, trace: RecordHeaders = ()) -> Record:
    """
    Make the record that a message asks for.

    :param message: one that `sampleapp.messages.parse_message` has read, or that is as right as those.
    :param now_ms: when it was made if the message does not say so; milliseconds since the epoch.
    :param trace: the headers of the trace of its request, see `sampleapp.trace_context.trace_headers`. They
        come after the message's own.
    """
    key, headers, timestamp = message.key, message.headers, message.timestamp
    if timestamp is UNSET:
        timestamp = now_ms
    elif isinstance(timestamp, str):
        timestamp = parse_timestamp(timestamp)
    return Record(
        topic=message.topic,
        key=None if key is None else key.encode("utf-8"),
        value=message.content.encode("utf-8"),
        timestamp_ms=timestamp,
        headers=trace if headers is UNSET else _own_first(headers, trace),
    )


def _own_first(headers: dict[str, str], trace: RecordHeaders) -> RecordHeaders:
    own = tuple([(name, value.encode("utf-8")) for name, value in headers.items()])
    # The state of one trace says nothing of another (W3C Trace Context, section 3.3).
    if not trace or _TRACEPARENT in headers:
        return own
    return own + tuple([header for header in trace if header[0] not in headers])


def length_of(record: Record) -> int:
    """The bytes of a record's key and value together, which are what is counted."""
    key, value = record.key, record.value
    return (0 if key is None else len(key)) + (0 if value is None else len(value))
