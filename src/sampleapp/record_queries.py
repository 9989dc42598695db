"""The query of a request that publishes: the key of the record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote_to_bytes

from sampleapp.errors import Fault

__all__ = ["read_key"]

_KEY: Final = b"key"
_LONGEST_NAME: Final = 40
_MOST_FAULTS: Final = 20
"""More of what is unknown in one query is not told."""


def read_key(query: bytes, faults: list[Fault]) -> bytes | None:
    """
    Find the key in a query.

    It is read as forms are (``application/x-www-form-urlencoded``, by the URL Standard of WHATWG): ``+``
    is a space, a ``%`` that begins no escape is itself, and empty parts are nothing.

    :param query: as it was sent, without the question mark.
    :param faults: gets what is wrong: parameters that are not known, and a key that is there again.
    :return: the octets, which need not be UTF-8; ``None`` if there is no key.
    """
    if not query:
        return None
    key: bytes | None = None
    keys = 0
    unknown: dict[bytes, None] = {}
    for name, value in _parameters(query):
        if name == _KEY:
            key = value
            keys += 1
        else:
            unknown[name] = None
    if keys > 1:
        faults.append(Fault("/key", f'The parameter "key" is there {keys} times; a record has one key.'))
    for name in list(unknown)[:_MOST_FAULTS]:
        shown = _shown(name)
        faults.append(
            Fault(f"/{_token(shown)}", f'There is no parameter "{shown}" here; the only one is "key".')
        )
    return key


def _parameters(query: bytes) -> Iterator[tuple[bytes, bytes]]:
    for part in query.split(b"&"):
        if part:
            name, _, value = part.partition(b"=")
            yield _decoded(name), _decoded(value)


def _decoded(text: bytes) -> bytes:
    if b"%" not in text and b"+" not in text:
        return text
    return unquote_to_bytes(text.replace(b"+", b" "))


def _shown(name: bytes) -> str:
    text = name.decode("utf-8", "replace")
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:_LONGEST_NAME])
    return f"{shown}…" if len(text) > _LONGEST_NAME else shown


def _token(name: str) -> str:
    """Make a token of a JSON Pointer (RFC 6901, section 3)."""
    return name.replace("~", "~0").replace("/", "~1")
