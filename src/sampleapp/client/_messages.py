"""Messages to publish, and their encoding as request bodies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain
from urllib.parse import quote

import msgspec
from msgspec import Struct

from sampleapp.errors import Fault, InvalidMessage
from sampleapp.model import is_legal_topic

__all__ = ["Message", "encode_message", "encode_messages", "topic_path"]


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
