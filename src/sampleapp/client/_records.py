"""Records that the service sends, and the queries that ask for them."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

import msgspec
from msgspec import Struct

from sampleapp.client._messages import topic_path
from sampleapp.errors import Fault, InvalidMessage
from sampleapp.model import ConsumerRecord

__all__ = ["Page", "decode_record", "decode_records", "records_path"]


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
