"""
Request bodies: parsers, with a declared length or in chunks, and the memory budget of all.

Pure: a parser is given bytes as they come, and returns the bytes after the body.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from io import BytesIO
from typing import Final, NoReturn, Protocol, TypeAlias

from sampleapp.web.errors import (
    BodyMemoryFull,
    BodyMemoryOfCallerFull,
    BodyNeedsTooMuchMemory,
    BodyTooLarge,
    HeaderTooLarge,
    MalformedRequest,
    RequestError,
)
from sampleapp.web.server.fields import FieldParser

_STEPS_AT_ONCE: Final = 1000
"""Lines and parts of content that are parsed in one turn of the reactor: about a millisecond."""
_STEPS_OF_TRAILER: Final = 5
_MAX_LINE_BYTES: Final = 16 * 1024
"""The greatest size of all extensions of chunks together, and of all trailers together, in bytes."""

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED = rb'"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t \x21-\x7e\x80-\xff])*"'
# RFC 9112, section 7.1.1: a client must not send white space here, but a server must read it.
_EXTENSION = rb"[\t ]*;[\t ]*%b(?:[\t ]*=[\t ]*(?:%b|%b))?" % (_TOKEN, _TOKEN, _QUOTED)
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]+)((?:%b)*)\r\n" % _EXTENSION)
_CRLF: Final = b"\r\n"


class Content(Protocol):
    """A store for the content of a body."""

    def write(self, data: bytes, /) -> object:
        """Store the next part of the content."""


class Body(Protocol):
    """A parser of one body."""

    def receive(self, data: bytes) -> tuple[bool, bytes]:
        """
        Parse bytes that have come.

        :return: whether the body is whole now, and the bytes after it. While it is not whole, the bytes are
            those to be parsed in the next turn of the reactor.
        :raise RequestError: the body does not follow the grammar of HTTP, or is over the limit.
        """

    def content(self) -> bytes:
        """Return the content of the whole body; empty if it is not kept here."""


class SizedBody:
    """A body whose length was declared (RFC 9112, section 6.2)."""

    def __init__(self, length: int, *, keep: bool, content: Content | None = None) -> None:
        """
        :param length: in bytes.
        :param keep: whether the content is needed.
        :param content: stores the content, which `content()` does not return then.
        """
        self._left = length
        self._keep = keep
        # When the body is whole, its content is not copied again.
        self._content = BytesIO()
        self._write = (self._content if content is None else content).write

    def receive(self, data: bytes) -> tuple[bool, bytes]:
        """Parse bytes that have come; see `Body`."""
        rest = data[self._left :]
        if rest:
            data = data[: self._left]
        self._left -= len(data)
        if self._keep:
            self._write(data)
        return not self._left, rest

    def content(self) -> bytes:
        """Return the content; see `Body`."""
        return self._content.getvalue()


class NoBody:
    """A request that declares no body, on a connection that it ends: more bytes would be a part of one."""

    __slots__ = ()

    def receive(self, data: bytes) -> tuple[bool, bytes]:
        """Drop an empty line (RFC 9112, section 2.2), and reject anything else; see `Body`."""
        if data.strip(b"\r\n"):
            raise MalformedRequest(
                "More bytes follow the last request of this connection. If they are a part of its body, send "
                "the whole length of the body in bytes, as Content-Length, or send it in chunks."
            )
        return False, b""

    def content(self) -> bytes:
        """Return nothing; see `Body`."""
        return b""


class ChunkedBody:
    """
    A body that comes in chunks (RFC 9112, section 7.1).

    Its extensions and trailers are checked, and not used.
    """

    def __init__(self, limit: int, *, keep: bool, content: Content | None = None) -> None:
        """
        :param limit: the greatest length of the content, in bytes.
        :param keep: whether the content is needed.
        :param content: stores the content, which `content()` does not return then.
        """
        self._limit = limit
        self._keep = keep
        self._content = BytesIO()
        self._write = (self._content if content is None else content).write
        self._length = 0
        self._extensions = 0
        self._line = b""
        self._left = 0
        self._is_after_chunk = False
        self._trailers: FieldParser | None = None
        self._trailer_size = 0

    def receive(self, data: bytes) -> tuple[bool, bytes]:
        """Parse bytes that have come; see `Body`."""
        position = 0
        steps = _STEPS_AT_ONCE
        while position < len(data) and steps > 0:
            steps -= 1 if self._trailers is None else _STEPS_OF_TRAILER
            if self._left:
                part = data[position : position + self._left]
                self._left -= len(part)
                position += len(part)
                if self._keep:
                    self._write(part)
                continue
            end = data.find(b"\n", position) + 1 or len(data)
            self._line += data[position:end]
            position = end
            if not self._line.endswith(b"\n"):
                self._check_length_of_line()
            elif self._line_is_last():
                return True, data[position:]
        return False, data[position:]

    def content(self) -> bytes:
        """Return the content; see `Body`."""
        return self._content.getvalue()

    def _count(self, size: int) -> None:
        self._length += size
        if self._length > self._limit:
            raise BodyTooLarge(self._limit)

    def _line_is_last(self) -> bool:
        self._check_length_of_line()
        line, self._line = self._line, b""
        if self._trailers is not None:
            self._trailer_size += len(line)
            self._trailers.feed(line)
            if line == _CRLF:
                self._trailers.fields()
                return True
        elif self._is_after_chunk:
            if line != _CRLF:
                raise MalformedRequest("A chunk is longer than its size, or does not end with CR LF.")
            self._is_after_chunk = False
        else:
            self._begin_chunk(line)
        return False

    def _begin_chunk(self, line: bytes) -> None:
        match = _CHUNK_LINE.fullmatch(line)
        if match is None:
            raise MalformedRequest(
                "A chunk must begin with its size in hexadecimal digits, on a line that ends with CR LF."
            )
        self._extensions += len(match[2])
        size = int(match[1], 16)
        if size == 0:
            self._trailers = FieldParser()
            return
        self._count(size)
        self._left = size
        self._is_after_chunk = True

    def _check_length_of_line(self) -> None:
        if self._trailers is not None:
            if self._trailer_size + len(self._line) > _MAX_LINE_BYTES:
                raise HeaderTooLarge(
                    f"The trailers are longer than {_MAX_LINE_BYTES} bytes, which is the limit."
                )
        elif self._is_after_chunk and len(self._line) > len(_CRLF):
            raise MalformedRequest("A chunk is longer than its size, or does not end with CR LF.")
        elif self._extensions + len(self._line) > _MAX_LINE_BYTES:
            raise HeaderTooLarge(
                f"The extensions of the chunks are longer than {_MAX_LINE_BYTES} bytes, which is the limit."
            )


_SMALL: Final = 64 * 1024
"""A request that needs up to this many bytes may also use the part that is kept for small requests."""
_KEPT_FOR_SMALL: Final = 1 / 8
_OF_ONE_CALLER: Final = 1 / 2
_OF_UNVERIFIED: Final = 1 / 8


class Unverified(Enum):
    """The owner of all requests together whose sender is not verified yet."""

    SENDERS = "senders"


Owner: TypeAlias = str | Unverified
"""The name of a caller; empty if callers need no credentials: then nobody has a part of its own."""


class BodyMemory:
    """
    A budget of bytes: for the bodies of requests that have come, and the records and answers made of them.

    Nothing is reserved for bytes that are only announced. A request that does not fit is rejected. It does
    not wait, so requests that each hold a part cannot wait for one another. An eighth is for small requests
    only, so that large ones cannot keep them out; of a caller's half, too.
    """

    __slots__ = ("_count_rejection", "_of_owners", "limit", "reserved")

    def __init__(self, limit: int, *, count_rejection: Callable[[str], None] | None = None) -> None:
        """
        :param limit: for all requests together, in bytes.
        :param count_rejection: called for each request that does not fit, with the name of the option that is
            the limit.
        """
        self.limit = limit
        self.reserved = 0
        """The memory of all requests and streams together, in bytes."""
        self._of_owners: dict[Owner, int] = {}
        """The part of it of each owner that has any."""
        self._count_rejection = count_rejection

    def require_room(self, owner: Owner, more: int, size: int) -> None:
        """
        Check that a request may have more memory now.

        :param more: the bytes that it has not yet.
        :param size: the bytes that it needs in total, as far as is known.
        :raise BodyMemoryFull: there is too little room now.
        :raise BodyMemoryOfCallerFull: the caller's other requests leave too little of its part.
        :raise BodyNeedsTooMuchMemory: no request of this owner may have this size.
        """
        kept_for_small = 0.0 if size <= _SMALL else _KEPT_FOR_SMALL
        most, most_of_owner = int(self.limit * (1 - kept_for_small)), self.limit
        if owner is Unverified.SENDERS:
            # Nor may these, however small, use the part that is kept for small requests.
            most, most_of_owner = int(self.limit * (1 - _KEPT_FOR_SMALL)), int(self.limit * _OF_UNVERIFIED)
        elif owner:
            most_of_owner = int(self.limit * _OF_ONE_CALLER * (1 - kept_for_small))
        is_owner_over = owner != "" and self._of_owners.get(owner, 0) + more > most_of_owner
        if not is_owner_over and self.reserved + more <= most:
            return
        if size > min(most, most_of_owner):
            self._reject(BodyNeedsTooMuchMemory(size, min(most, most_of_owner)))
        if is_owner_over and owner is not Unverified.SENDERS:
            self._reject(BodyMemoryOfCallerFull(most_of_owner))
        self._reject(BodyMemoryFull(self.limit))

    def _reject(self, error: RequestError) -> NoReturn:
        if self._count_rejection is not None:
            self._count_rejection("max-body-memory")
        raise error

    def require_part(self, owner: Owner, size: int) -> None:
        """
        Check that a large request would have room in the part of its caller.

        :raise BodyMemoryOfCallerFull: it would not.
        """
        most_of_owner = int(self.limit * _OF_ONE_CALLER * (1 - _KEPT_FOR_SMALL))
        used = self._of_owners.get(owner, 0) if owner else 0
        if used and used + size > most_of_owner:
            self._reject(BodyMemoryOfCallerFull(most_of_owner))

    def has_room(self, owner: Owner, size: int) -> bool:
        """
        Return whether a stream may have more memory now: streams leave half of it to requests.

        :param size: in bytes; more than an eighth of the limit counts as an eighth, so that it fits once.
        """
        most = self.limit // 2
        size = min(size, most // 4)
        is_owner_over = owner != "" and self._of_owners.get(owner, 0) + size > most // 2
        return not is_owner_over and self.reserved + size <= most

    def add(self, owner: Owner, more: int) -> None:
        """
        Count the memory of a request.

        :param more: in bytes; negative if memory is returned.
        """
        self.reserved += more
        if owner:
            left = self._of_owners.get(owner, 0) + more
            if left:
                self._of_owners[owner] = left
            else:
                # Issuers can make any number of callers.
                self._of_owners.pop(owner, None)


class MemoryReservation:
    """
    The part of the budget that belongs to one request.

    A connection has one reservation, and uses it for one request after the other.
    """

    __slots__ = ("_memory", "owner", "size")

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self.owner: Owner = ""
        """Must not change while there is memory; see `transfer`."""
        self.size = 0
        """In bytes."""

    def require_room(self, size: int) -> None:
        """
        Check that a request that has nothing yet could have this size now; raises as `resize`.

        :param size: the total, in bytes.
        """
        self._memory.require_room(self.owner, size, size)

    def require_part(self, size: int) -> None:
        """Check that its part has room for a large request; see `BodyMemory.require_part`."""
        self._memory.require_part(self.owner, size)

    def resize(self, size: int, *, announced: int = 0) -> None:
        """
        Set the memory that the request needs from now on.

        :param size: the total, in bytes; a smaller size than before returns the rest to the budget.
        :param announced: the least size that the request will need, in bytes.
        :raise BodyMemoryFull: there is too little room now; the reservation is unchanged.
        :raise BodyMemoryOfCallerFull: the caller's other requests leave too little of its part; as above.
        :raise BodyNeedsTooMuchMemory: no request may have this size; the reservation is unchanged.
        """
        more = size - self.size
        if more > 0:
            self._memory.require_room(self.owner, more, max(size, announced))
        self._memory.add(self.owner, more)
        self.size = size

    def transfer(self, owner: Owner) -> None:
        """
        Count the request for another owner from now on.

        :raise BodyMemoryOfCallerFull: as `resize`, like the other errors; then the request has no memory.
        """
        size = self.size
        self.release()
        self.owner = owner
        self.resize(size)

    def has_room(self, size: int) -> bool:
        """Return whether a stream may have more, in bytes; see `BodyMemory.has_room`."""
        return self._memory.has_room(self.owner, size)

    def hold(self, size: int, *, owner: str | None = None) -> MemoryReservation:
        """
        Count bytes that are there already, also beyond the limit.

        :param owner: the same by default; empty for none.
        :return: a share that has only these.
        """
        held = MemoryReservation(self._memory)
        held.owner = self.owner if owner is None else owner
        held.count(size)
        return held

    def count(self, size: int) -> None:
        """Set the memory as `resize` does, also beyond the limit: the bytes are there already."""
        self._memory.add(self.owner, size - self.size)
        self.size = size

    def release(self) -> None:
        """Return the whole share to the budget."""
        self._memory.add(self.owner, -self.size)
        self.size = 0
