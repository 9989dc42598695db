"""Messages between the service and the process that checks contents: MessagePack with a length before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from sampleapp.errors import Fault

DEADLINE_S: Final = 1.0
"""The longest time of one `Check`, in seconds."""

_LENGTH_BYTES: Final = 4


class Load(Struct, tag=True, gc=False):
    """A request to compile the schemas of a directory. The answer is `Done`."""

    version: int
    files: dict[str, bytes]
    """As for `sampleapp.messages.schemas.compile_schemas`."""
    forgotten: list[int]
    """The versions that are not needed any more."""


class Check(Struct, tag=True, gc=False):
    """A request to check contents. The answer is `Found` for each that does not match, and then `Done`."""

    version: int
    topics: list[str]
    """Of the contents."""
    contents: list[bytes]


class Found(Struct, tag=True, gc=False):
    """The faults of a content. A second one for the same content replaces the first."""

    number: int
    """The index in `Check.contents`."""
    faults: list[Fault]


class Done(Struct, tag=True, gc=False):
    """A request has been done."""


Request: TypeAlias = Load | Check
Reply: TypeAlias = Found | Done

_encode: Final = msgspec.msgpack.Encoder().encode
decode_request: Final = msgspec.msgpack.Decoder[Request](Request).decode
decode_reply: Final = msgspec.msgpack.Decoder[Reply](Reply).decode


def frame(message: Request | Reply) -> bytes:
    """Encode a message, with its length before."""
    encoded = _encode(message)
    return len(encoded).to_bytes(_LENGTH_BYTES, "big") + encoded


class Frames:
    """Splits a stream of bytes into messages."""

    def __init__(self) -> None:
        self._received = bytearray()

    def receive(self, data: bytes) -> Iterator[bytes]:
        """Take bytes that have come, and yield each message that is whole, still encoded."""
        received = self._received
        received += data
        while len(received) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(received[:_LENGTH_BYTES], "big")
            if len(received) < end:
                return
            message = bytes(received[_LENGTH_BYTES:end])
            del received[:end]
            yield message
