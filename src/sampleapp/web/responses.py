"""
Responses: immutable responses of handlers, and their head as bytes.

A response is complete: the code that writes it decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Final, Protocol

import msgspec
from msgspec import Struct
from twisted.web.iweb import IRequest

from sampleapp.model import RecordMetadata

Headers = tuple[tuple[bytes, bytes], ...]

SERVER: Final = b"sampleapp"
NO_SNIFFING: Final = (b"X-Content-Type-Options", b"nosniff")
"""Browsers must not guess another type than ``Content-Type`` (https://fetch.spec.whatwg.org/#nosniff)."""
SERVER_REASONS: Final = ("client", "drain-timeout", "fault", "head", "send-timeout")
"""
The reasons for which the server ends a response that is sent part by part.

The client has gone, or has closed its side; the time to stop was over; there was a fault; the request was
``HEAD``; the client read nothing for too long.
"""
_OK: Final = HTTPStatus.OK
"""A constant, since the look-up of an Enum member is slow before Python 3.12."""
_JSON: Final[Headers] = ((b"Content-Type", b"application/json"),)

_encode: Final = msgspec.json.Encoder().encode

# RFC 9110 renamed two statuses; the standard library follows from Python 3.13 on.
_NEW_PHRASES: Final = {413: "Content Too Large", 422: "Unprocessable Content"}

# RFC 9110, section 8.6: no Content-Length with 204, and with 304 only the one that a 200 would have.
_WITHOUT_LENGTH: Final = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})


class TopicTotal(Struct, frozen=True):
    """The number and size of the records that were published to one topic."""

    topic: str
    records: int
    bytes: int
    """The sum of the lengths of their keys and values."""


class Batch(Struct, frozen=True, kw_only=True):
    """The outcome of a request with several records, for metrics and logs."""

    published: tuple[TopicTotal, ...] = ()
    """Each topic once. If there are very many topics, some may be missing."""
    records: int = 0
    """The number of published records, for all topics."""
    rejected: int = 0
    """
    The number of records that were not published, or may not have been.

    If the request was rejected: the number of records with faults that were found.
    """


class Budget(Protocol):
    """The part of one client in a budget of memory."""

    def has_room(self, size: int) -> bool:
        """Return whether there is room for ``size`` more bytes."""

    def hold(self, size: int, *, owner: str | None = None) -> Budget:
        """
        Count bytes that are there, until `release` is called on what this returns.

        :param owner: the caller that they belong to; this one by default, and empty for none.
        """

    def release(self) -> None:
        """Return everything to the budget."""


class Event:
    """
    A part of a response that is sent part by part: one or more whole events, made once for all clients.

    Its framing for HTTP/1.1 is made with it, since most clients need it.
    """

    __slots__ = ("__weakref__", "_held", "_start", "chunk")

    def __init__(self, data: bytes) -> None:
        """
        :param data: the bytes of the body; a response can be ended after them.
        :raise ValueError: they are empty, which would end the response.
        """
        self._held: Budget | None = None
        if not data:
            raise ValueError("An event without a byte would end the answer: give at least one byte.")
        size = b"%x\r\n" % len(data)
        self._start = len(size)
        self.chunk: Final = b"%b%b\r\n" % (size, data)
        """The bytes as one chunk (RFC 9112, section 7.1)."""

    @property
    def data(self) -> bytes:
        """The bytes without their framing: a copy."""
        return bytes(self.view)

    @property
    def view(self) -> memoryview:
        """The bytes without their framing, as for HTTP/1.0, in the memory of `chunk`."""
        return memoryview(self.chunk)[self._start : -2]

    @property
    def is_held(self) -> bool:
        """True if its memory is counted: a client has not taken all of it."""
        return self._held is not None

    def hold(self, budget: Budget) -> None:
        """Count its memory as long as it is there, once for all clients: one has not taken all of it."""
        if self._held is None:
            self._held = budget.hold(len(self.chunk))

    def __del__(self) -> None:
        """Return its memory to the budget."""
        if self._held is not None:
            self._held.release()

    def __len__(self) -> int:
        """Return the length of `data`, in bytes."""
        return len(self.chunk) - self._start - 2


class SharedBody(tuple[bytes, ...]):  # noqa: SLOT001 -- a tuple can have no others
    """A body in parts that is in memory once for all clients, until a newer one takes its place."""

    is_replaced = False
    """True if a newer one has taken its place: it is there only for clients that read it slowly."""

    counted: Mapping[int, _Counted] = {}
    """The memory of parts that it shares with replaced bodies, by their ids; of all once it is replaced."""

    def replace(self, newer: Iterable[bytes], budget: Budget) -> None:
        """Count the parts that a newer body does not have, as long as a client reads one that has them."""
        self.is_replaced = True
        counted = self.counted = {id(part): self.counted.get(id(part)) or _Counted() for part in self}
        common = counted.keys() & set(map(id, newer))
        for part in self:
            of_part = counted[id(part)]
            if id(part) not in common and of_part.held is None:
                of_part.held = budget.hold(len(part), owner="")
        if isinstance(newer, SharedBody):
            newer.counted = {each: counted[each] for each in common}


class _Counted:
    """The memory of a part, which several bodies may have."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held: Budget | None = None

    def __del__(self) -> None:
        """Return it to the budget."""
        if self.held is not None:
            self.held.release()


class Sink(Protocol):
    """The client's end of a response that is sent part by part."""

    @property
    def unsent(self) -> int:
        """The bytes that were written, and that the operating system has not taken yet."""

    def write(self, event: Event) -> bool:
        """
        Send an event, after those that were written before. After the end, it is dropped.

        :return: false if more than 256 KiB are unsent: write nothing more until `Source.resumed`.
        """

    def finish(self, reason: str) -> None:
        """
        End the response properly, after the last event. `Source.closed` is called before this returns.

        :param reason: one of a few fixed words, for metrics and the access log.
        """

    def abort(self, reason: str) -> None:
        """
        Cut the connection. `Source.closed` is called before this returns.

        :param reason: as for `finish`.
        """


class Source(Protocol):
    """
    The origin of a response that is sent part by part: made by a handler, called by the connection.

    An error that a method raises is logged, and the connection is cut.
    """

    def begin(self, sink: Sink) -> None:
        """Begin to write, now or later: the head of the response has been written."""

    def resumed(self) -> None:
        """Write on: everything is sent, after `Sink.write` has returned false."""

    def draining(self) -> None:
        """
        Call `Sink.finish` soon, at best at once: the service stops.

        The server spreads these calls over time. A source that does not end is cut at the end of that time.
        """

    def closed(self, reason: str) -> None:
        """
        Release everything: the response has ended.

        It is called exactly once for each source that a handler has returned, also if `begin` never was, and
        it is the last call.

        :param reason: the source's own reason, or one of `SERVER_REASONS`.
        """


class Response(Struct, frozen=True):
    """A whole response."""

    status: HTTPStatus
    headers: Headers = ()
    """
    Without the fields that the server adds to every response: ``Content-Length``, ``Date``, ``Server``,
    ``Connection``, ``X-Content-Type-Options``, ``X-Request-Id`` and, with TLS, ``Strict-Transport-Security``.
    """
    body: bytes | tuple[bytes, ...] = b""
    """In one part, or in several, which are sent as the client reads them."""
    record: RecordMetadata | None = None
    """The published record, for metrics and logs."""
    record_bytes: int = 0
    """The length of its key and value."""
    batch: Batch | None = None
    """Instead of ``record``, for a request that may have several records."""
    replayed: RecordMetadata | None = None
    """Instead of ``record``: the record that was published when it was sent before, for logs."""
    problem: str = ""
    """The kind of problem: the last part of its type, or the phrase of the status for ``about:blank``."""

    at_once: bool = False
    """True to answer before the whole request is received, which then closes the connection."""
    source: Source | None = None
    """Writes the body part by part, instead of ``body``, which is empty then."""

    @property
    def parts(self) -> tuple[bytes, ...]:
        """The body as a sequence of one or more parts."""
        return (self.body,) if isinstance(self.body, bytes) else self.body

    @property
    def length(self) -> int:
        """The length of the body, in bytes."""
        return len(self.body) if isinstance(self.body, bytes) else sum(map(len, self.body))

    @property
    def unshared_length(self) -> int:
        """The bytes of the body that are in memory for this response alone."""
        return 0 if isinstance(self.body, SharedBody) else self.length

    @property
    def all_headers(self) -> Headers:
        """The headers with ``Server``, `NO_SNIFFING` and, if the length is known, ``Content-Length``."""
        headers = ((b"Server", SERVER), NO_SNIFFING, *self.headers)
        if self.status in _WITHOUT_LENGTH or self.source is not None:
            return headers
        return (*headers, (b"Content-Length", b"%d" % self.length))

    @property
    def head(self) -> bytes:
        """The status line and `all_headers`, as bytes."""
        status, body = self.status, self.body
        start = _head_start(status, self.headers)
        if status in _WITHOUT_LENGTH or self.source is not None:
            return start
        return b"%bContent-Length: %d\r\n" % (start, len(body) if type(body) is bytes else self.length)


# The service has few different heads, and sends nearly all of them many times.
@lru_cache(maxsize=64)
def _head_start(status: HTTPStatus, headers: Headers) -> bytes:
    fields = b"".join(b"%b: %b\r\n" % field for field in headers)
    return b"HTTP/1.1 %d %b\r\nServer: %b\r\n%b: %b\r\n%b" % (
        status,
        _phrase(status),
        SERVER,
        *NO_SNIFFING,
        fields,
    )


def _phrase(status: HTTPStatus) -> bytes:
    return _NEW_PHRASES.get(status, status.phrase).encode("ascii")


def json_line(value: object) -> bytes:
    """Encode a value as JSON in UTF-8, with LF at the end, so that a shell's prompt begins a new line."""
    return _encode(value) + b"\n"


def json_response(value: object) -> Response:
    """Return a response with a value as a line of JSON."""
    return Response(_OK, _JSON, json_line(value))


def published_response(record: RecordMetadata, length: int) -> Response:
    """
    Return the response for a published record: its topic, partition and offset.

    :param length: of its key and value, in bytes.
    """
    return Response(_OK, _JSON, _encode(record) + b"\n", record, length)


def set_head(request: IRequest, response: Response) -> None:
    """Set status and headers of a request of twisted.web."""
    request.setResponseCode(response.status, _phrase(response.status))
    for name, value in response.all_headers:
        request.responseHeaders.setRawHeaders(name, [value])


def set_response(request: IRequest, response: Response) -> bytes:
    """
    Set status and headers; Klein then writes the body and finishes the request.

    :return: the body.
    """
    set_head(request, response)
    return b"".join(response.parts)
