"""
Records as JSON, one line each (NDJSON), which are also the data of events (``text/event-stream``).

::

    {"topic":"t","partition":0,"offset":42,"timestamp":1795363727918,"key":"k","content":"21.5","headers":{}}

A record without a key has no ``key``, and a tombstone has the content null. A key or content that is not
UTF-8 is ``key_base64`` or ``content_base64`` (RFC 4648, section 4). ``headers`` has the headers whose name
comes once and whose content is UTF-8. All others are in ``headers_base64``: a list of
``[name, base64 or null]``.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from json.encoder import encode_basestring
from typing import Final

import msgspec

from sampleapp.model import ConsumerRecord, LeasedRecord

_encode: Final = msgspec.json.Encoder().encode
_LARGE: Final = 32 * 1024
"""
Characters. msgspec takes 15 ms to escape a mebibyte of control characters, and the standard library 5.

For other texts, the standard library takes longer: 3 ms for a mebibyte.
"""
_NO_HEADERS: Final = b',"headers":{}}'


def record_line(record: ConsumerRecord) -> bytes:
    """
    Encode a record as JSON in UTF-8, without a line end.

    U+0085, U+2028 and U+2029 are escaped: some clients of event streams break lines there.
    """
    key, value = record.key, record.value
    if key is None:
        name = b""
    else:
        try:
            name = b'"key":%b,' % _encode(key.decode())
        except UnicodeDecodeError:
            name = b'"key_base64":"%b",' % b2a_base64(key, newline=False)
    # The name of a topic has no character that JSON escapes.
    parts = [
        b'{"topic":"%b","partition":%d,"offset":%d,"timestamp":%d,%b'
        % (record.topic.encode(), record.partition, record.offset, record.timestamp_ms, name)
    ]
    if value is None:
        parts.append(b'"content":null')
    else:
        try:
            text = value.decode()
        except UnicodeDecodeError:
            parts += b'"content_base64":"', b2a_base64(value, newline=False), b'"'
        else:
            parts.append(b'"content":')
            if len(text) < _LARGE:
                parts.append(_encode(text))
            else:
                parts += _encoded_gradually(text)
    parts.append(_headers(record.headers) if record.headers else _NO_HEADERS)
    line = b"".join(parts)
    if line.isascii():
        return line
    # Outside of strings JSON is ASCII, so these bytes are characters of strings.
    if b"\xe2\x80" in line:
        line = line.replace(b"\xe2\x80\xa8", rb"\u2028").replace(b"\xe2\x80\xa9", rb"\u2029")
    if b"\xc2\x85" in line:
        line = line.replace(b"\xc2\x85", rb"\u0085")
    return line


def leased_line(message: LeasedRecord) -> bytes:
    """Encode a message of a lease as `record_line` does, with ``id`` and ``attempts`` in front."""
    record = message.record
    return b'{"id":"%d-%d","attempts":%d,%b' % (
        record.partition,
        record.offset,
        message.attempts,
        record_line(record)[1:],
    )


def record_lines(records: Iterable[ConsumerRecord]) -> bytes:
    """Encode records as lines, each with a line feed at its end."""
    lines = [record_line(record) for record in records]
    if not lines:
        return b""
    lines.append(b"")
    return b"\n".join(lines)


def _encoded_gradually(text: str) -> Iterator[bytes]:
    """Encode a large text in parts, which stay in the processor's cache."""
    yield b'"'
    for start in range(0, len(text), _LARGE):
        yield encode_basestring(text[start : start + _LARGE])[1:-1].encode()
    yield b'"'


def _headers(headers: tuple[tuple[str, bytes | None], ...]) -> bytes:
    texts: dict[str, str] = {}
    for name, content in headers:
        if content is None or name in texts:
            break
        try:
            texts[name] = content.decode()
        except UnicodeDecodeError:
            break
    else:
        return b',"headers":%b}' % _encode(texts)
    counts = Counter([name for name, _ in headers])
    texts.clear()
    others = []
    for name, content in headers:
        if content is not None and counts[name] == 1:
            with suppress(UnicodeDecodeError):
                texts[name] = content.decode()
        if name not in texts:
            others.append((name, content))
    # msgspec encodes bytes as base64.
    return b',"headers":%b,"headers_base64":%b}' % (_encode(texts), _encode(others))
