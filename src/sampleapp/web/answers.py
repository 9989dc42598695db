"""
What a handler answers with, and how that gets onto the wire.

A handler returns one immutable value; what writes it decides nothing any more.
"""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus
from typing import Final

import msgspec
from msgspec import Struct
from twisted.web.iweb import IRequest

from sampleapp.model import RecordMetadata

__all__ = [
    "SERVER",
    "Answer",
    "Batch",
    "Headers",
    "TopicTotal",
    "json_answer",
    "published_answer",
    "set_answer",
    "set_head",
]

Headers = tuple[tuple[bytes, bytes], ...]

SERVER: Final = b"sampleapp"
_OK: Final = HTTPStatus.OK
"""A member of an Enum is slow to look up before Python 3.12."""
_JSON: Final[Headers] = ((b"Content-Type", b"application/json"),)

# RFC 9110 has renamed two statuses, which the standard library does from Python 3.13 on.
_NEW_PHRASES: Final = {413: "Content Too Large", 422: "Unprocessable Content"}

# RFC 9110, section 8.6: no Content-Length with 204, and with 304 only the one that a 200 would have.
_WITHOUT_LENGTH: Final = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})


class TopicTotal(Struct, frozen=True):
    """What was published to one topic."""

    topic: str
    records: int
    bytes: int
    """Of their keys and values."""


class Batch(Struct, frozen=True, kw_only=True):
    """What became of the records of a request that may have several, for those who count and log."""

    published: tuple[TopicTotal, ...] = ()
    """Each topic once. Of very many topics, some may have been left out."""
    records: int = 0
    """How many were published, to all topics."""
    refused: int = 0
    """How many were not, or not for certain. Of a request that was wrong: how many are known to be."""


class Answer(Struct, frozen=True):
    """A whole response."""

    status: HTTPStatus
    headers: Headers = ()
    """
    Without ``Content-Length``, ``Date``, ``Server``, ``Connection`` and ``X-Request-Id``, which who writes it
    adds.
    """
    body: bytes | tuple[bytes, ...] = b""
    """As one, or in pieces, which are sent as the client reads them."""
    record: RecordMetadata | None = None
    """The record that was published, for those who count and log."""
    record_bytes: int = 0
    """Of its key and its value."""
    batch: Batch | None = None
    """In place of the record, if there may be several."""
    problem: str = ""
    """What kind of problem it tells of: the last part of the type, or else the phrase of the status."""

    at_once: bool = False
    """Whether it is given even if the rest of the request has not come, and ends the connection then."""

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """The body in pieces, if only in one."""
        return (self.body,) if isinstance(self.body, bytes) else self.body

    @property
    def length(self) -> int:
        """Of the body, in bytes."""
        return len(self.body) if isinstance(self.body, bytes) else sum(map(len, self.body))

    @property
    def all_headers(self) -> Headers:
        """The headers with ``Server`` and, where there may be one, ``Content-Length``."""
        headers = ((b"Server", SERVER), *self.headers)
        if self.status in _WITHOUT_LENGTH:
            return headers
        return (*headers, (b"Content-Length", b"%d" % self.length))

    @property
    def head(self) -> bytes:
        """The status line and those headers, as they are sent."""
        status, body = self.status, self.body
        start = _head_start(status, self.headers)
        if status in _WITHOUT_LENGTH:
            return start
        return b"%bContent-Length: %d\r\n" % (start, len(body) if type(body) is bytes else self.length)


# A service gives few different answers, and nearly all of them many times.
@lru_cache(maxsize=64)
def _head_start(status: HTTPStatus, headers: Headers) -> bytes:
    fields = b"".join(b"%b: %b\r\n" % field for field in headers)
    return b"HTTP/1.1 %d %b\r\nServer: %b\r\n%b" % (status, _phrase(status), SERVER, fields)


def _phrase(status: HTTPStatus) -> bytes:
    return _NEW_PHRASES.get(status, status.phrase).encode("ascii")


def json_answer(value: object) -> Answer:
    """Encode a value as JSON in UTF-8."""
    return Answer(_OK, _JSON, msgspec.json.encode(value))


def published_answer(record: RecordMetadata, length: int) -> Answer:
    """
    Tell where a record is that was published.

    :param length: of its key and its value, in bytes.
    """
    return Answer(_OK, _JSON, msgspec.json.encode(record), record, length)


def set_head(request: IRequest, answer: Answer) -> None:
    """Set status and headers."""
    request.setResponseCode(answer.status, _phrase(answer.status))
    for name, value in answer.all_headers:
        request.responseHeaders.setRawHeaders(name, [value])


def set_answer(request: IRequest, answer: Answer) -> bytes:
    """
    Set status and headers, for where Klein writes the body and finishes the request.

    :return: the body.
    """
    set_head(request, answer)
    return b"".join(answer.pieces)
