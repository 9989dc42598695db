"""
Messages to publish, records, and other values in the service's responses, with their encoding.

The client may be newer than the service, or older: a member that the service's types get later is not in the
responses of every service.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain
from typing import Annotated, Literal, TypeAlias
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct

from sampleapp.errors import Fault, InvalidMessage
from sampleapp.model import (
    ConsumerRecord,
    GoneRecords,
    LeasedRecord,
    Reading,
    RecordMetadata,
    ReplayedRecord,
    is_legal_topic,
)

Number: TypeAlias = Annotated[int, Meta(ge=0)]
"""The number of a partition, or an offset."""


class PublishedRecord(Struct, frozen=True):
    """The position of an acknowledged record."""

    topic: str
    partition: Number
    offset: Number

    def metadata(self, *, is_replayed: bool = False) -> RecordMetadata:
        """:param is_replayed: True if an earlier request had published the record."""
        kind = ReplayedRecord if is_replayed else RecordMetadata
        return kind(topic=self.topic, partition=self.partition, offset=self.offset)


class Gone(Struct, frozen=True):
    """Records of a partition that are no longer in its topic."""

    partition: int
    asked: int
    earliest: int

    def records(self) -> GoneRecords:
        """Return the client's value."""
        return GoneRecords(partition=self.partition, asked=self.asked, earliest=self.earliest)


class Entry(Struct, frozen=True):
    """One reading."""

    id: str
    value: float

    def reading(self) -> Reading:
        """Return the client's value."""
        return Reading(id=self.id, value=self.value)


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A message to publish."""

    topic: str
    """The name of the topic."""
    content: str | bytes
    """The record's value; text is stored as UTF-8."""
    key: str | bytes | None = None
    """The record's key; text is stored as UTF-8. ``None`` for no key, which differs from the empty key."""
    headers: dict[str, str] | Sequence[tuple[str, bytes | None]] | None = None
    """
    The record's headers, in this order; text is stored as UTF-8.

    As a sequence, such as `sampleapp.model.ConsumerRecord.headers`, names may repeat, and values are bytes or
    null.
    """
    timestamp: int | datetime | None = None
    """
    The time of the record; ``None`` for the time of its arrival.

    Milliseconds since the epoch, an integer of 12 to 14 digits (1973 to 5138), or a time with an offset, from
    1970 on.
    """


class _MessageWithBytes(Struct, kw_only=True, omit_defaults=True):
    """A message in the form of the interface; msgspec encodes bytes as base64 with padding."""

    topic: str
    content: str | None = None
    content_base64: bytes | None = None
    key: str | None = None
    key_base64: bytes | None = None
    headers: dict[str, str] | None = None
    headers_base64: Sequence[tuple[str, bytes | None]] | None = None
    timestamp: int | datetime | None = None


_encoder = msgspec.json.Encoder()


def encode_message(message: Message) -> bytes:
    """
    Encode a message as JSON; bytes are base64.

    :raise InvalidMessage: a text in it has a lone surrogate.
    """
    try:
        return _encoder.encode(_members(message))
    except UnicodeEncodeError as error:
        raise InvalidMessage(list(_surrogate_faults(message))) from error


def encode_messages(messages: Sequence[Message]) -> bytes:
    """
    Encode messages as NDJSON, one per line.

    :raise InvalidMessage: a text in one has a lone surrogate. Pointers begin with the number of the message,
        from 0.
    """
    try:
        return _encoder.encode_lines(list(map(_members, messages)))
    except UnicodeEncodeError as error:
        raise InvalidMessage(
            [
                Fault(f"/{number}{fault.pointer}", fault.detail)
                for number, message in enumerate(messages)
                for fault in _surrogate_faults(message)
            ]
        ) from error


def topic_path(topic: str, *, key: str | bytes | None) -> tuple[str, str]:
    """
    Return the path of a topic, without a leading slash, and the query with the key.

    :raise InvalidMessage: the name of the topic is illegal, or the key has a lone surrogate.
    """
    faults = []
    if not is_legal_topic(topic):
        faults.append(
            Fault("/topic", 'The topic must be 1 to 249 characters out of A-Z, a-z, 0-9, ".", "_" and "-".')
        )
    if isinstance(key, str) and _has_surrogate(key):
        faults.append(_surrogate_fault("key"))
    if faults:
        raise InvalidMessage(faults)
    return f"topics/{topic}", "" if key is None else f"?key={quote(key, safe='')}"


def _members(message: Message) -> Message | _MessageWithBytes:
    content, key, headers = message.content, message.key, message.headers
    is_object = headers is None or isinstance(headers, dict)
    if isinstance(content, str) and not isinstance(key, bytes) and is_object:
        return message
    return _MessageWithBytes(
        topic=message.topic,
        content=content if isinstance(content, str) else None,
        content_base64=content if isinstance(content, bytes) else None,
        key=key if isinstance(key, str) else None,
        key_base64=key if isinstance(key, bytes) else None,
        headers=headers if isinstance(headers, dict) else None,
        headers_base64=None if isinstance(headers, dict) else headers,
        timestamp=message.timestamp,
    )


def _surrogate_faults(message: Message) -> Iterator[Fault]:
    texts = {"topic": message.topic, "content": message.content, "key": message.key}
    for name, text in texts.items():
        if isinstance(text, str) and _has_surrogate(text):
            yield _surrogate_fault(name)
    headers = message.headers or ()
    texts_of_headers = chain(*headers.items()) if isinstance(headers, dict) else [name for name, _ in headers]
    if any(map(_has_surrogate, texts_of_headers)):
        yield Fault("/headers", "The headers have characters that UTF-8 cannot carry (lone surrogates).")


def _surrogate_fault(name: str) -> Fault:
    return Fault(f"/{name}", f"The {name} has characters that UTF-8 cannot carry (lone surrogates).")


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


class Page(Struct, frozen=True, kw_only=True):
    """Some records of a topic, and the position after them."""

    records: tuple[ConsumerRecord, ...]
    """In the order of their offsets within each partition; may be empty."""
    position: str
    """The position to go on at."""
    up_to_date: bool
    """True if there were no more records when the service answered."""


class _Line(Struct, frozen=True, kw_only=True):
    """A record as the service encodes it. In ``…_base64``, msgspec decodes base64 (RFC 4648, section 4)."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: str | None = None
    key_base64: bytes | None = None
    content: str | None = None
    content_base64: bytes | None = None
    headers: dict[str, str] = {}
    headers_base64: tuple[tuple[str, bytes | None], ...] = ()

    def record(self) -> ConsumerRecord:
        return ConsumerRecord(
            topic=self.topic,
            partition=self.partition,
            offset=self.offset,
            timestamp_ms=self.timestamp,
            key=self.key_base64 if self.key is None else self.key.encode(),
            value=self.content_base64 if self.content is None else self.content.encode(),
            headers=(
                *[(name, value.encode()) for name, value in self.headers.items()],
                *self.headers_base64,
            ),
        )


_decoder = msgspec.json.Decoder(_Line)


class Lease(Struct, frozen=True, kw_only=True):
    """Messages that a worker has, until the lease ends."""

    token: str
    """Names the lease; only its worker knows it."""
    lasts_s: float
    """Seconds until it ends, from the response on."""
    messages: tuple[LeasedRecord, ...] = ()


class _LeasedLine(_Line, frozen=True, kw_only=True):
    attempts: int


class LeaseDocument(Struct, frozen=True):
    """A lease as the service encodes it."""

    lease: str
    expires: datetime
    messages: list[_LeasedLine] = []

    def lease_at(self, date: datetime) -> Lease:
        """:param date: when the response was made, by the service's clock."""
        return Lease(
            token=self.lease,
            lasts_s=(self.expires - date).total_seconds(),
            messages=tuple([LeasedRecord(each.record(), each.attempts) for each in self.messages]),
        )


def ids_of(messages: Iterable[LeasedRecord] | Literal["all"]) -> list[str] | str:
    """Return the ids of messages."""
    if isinstance(messages, str):
        return messages
    return [f"{each.record.partition}-{each.record.offset}" for each in messages]


def group_path(topic: str, group: str) -> str:
    """
    Return the path of a group of workers, without a leading slash.

    :raise InvalidMessage: a name is illegal.
    """
    path, _ = topic_path(topic, key=None)
    if not is_legal_topic(group):
        raise InvalidMessage([Fault("/group", "The group must have the form of the name of a topic.")])
    return f"{path}/groups/{group}"


def decode_record(line: bytes) -> ConsumerRecord:
    """
    Decode one record.

    :raise msgspec.MsgspecError: the line is not a record.
    :raise UnicodeDecodeError: the line is not UTF-8.
    """
    return _decoder.decode(line).record()


def decode_records(lines: bytes) -> tuple[ConsumerRecord, ...]:
    """Decode records, one per line; raises as `decode_record` does."""
    return tuple([line.record() for line in _decoder.decode_lines(lines)])


def records_path(
    topic: str,
    *,
    start: str | None = None,
    partitions: Iterable[int] | None = None,
    key: str | bytes | None = None,
    headers: Iterable[tuple[str, str | bytes]] = (),
    limit: int | None = None,
    wait_s: int = 0,
) -> tuple[str, str]:
    """
    Return the path of a topic's records, without a leading slash, and the query.

    :raise sampleapp.errors.InvalidMessage: the name of the topic is illegal, the name of a header has a
        colon, or a text has a lone surrogate.
    """
    path, _ = topic_path(topic, key=key)
    parameters: list[tuple[str, str | bytes]] = []
    if start is not None:
        parameters.append(("from", start))
    if partitions is not None:
        parameters.append(("partition", ",".join(map(str, partitions))))
    if key is not None:
        parameters.append(("key", key))
    parameters += [("header", _header_filter(name, content)) for name, content in headers]
    if limit is not None:
        parameters.append(("limit", str(limit)))
    if wait_s:
        parameters.append(("wait", str(wait_s)))
    query = "&".join(f"{name}={quote(value, safe=',:')}" for name, value in parameters)
    return f"{path}/records", f"?{query}" if query else ""


def _header_filter(name: str, content: str | bytes) -> bytes:
    try:
        if ":" not in name:
            return b"%b:%b" % (name.encode(), content.encode() if isinstance(content, str) else content)
    except UnicodeEncodeError:
        pass
    raise InvalidMessage(
        [Fault("/header", "A header to look for has no colon in its name, and text without lone surrogates.")]
    )
