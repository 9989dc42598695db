"""Parsing of queries, and of the query of a request that publishes: the record's key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final
from urllib.parse import unquote_to_bytes

from sampleapp.errors import Fault, InvalidParameters, pointer_token, shown

GET_PUBLISHES_NOTHING: Final = (
    "GET publishes nothing; to publish, send a POST: the value to /topics/TOPIC?key=KEY, or a message to "
    "/messages"
)

_KEY: Final = b"key"
_OF_MESSAGES: Final = {b"topic", _KEY, b"key_base64", b"content", b"content_base64", b"value"}
_MOST_PARAMETERS: Final = 200
_MOST_FAULTS: Final = 20
"""The most unknown parameters that are named."""


def read_key(query: bytes, faults: list[Fault]) -> bytes | None:
    """
    Find the key in a query.

    :param query: as for `decoded_parameters`.
    :param faults: gets the faults: unknown parameters, and a repeated key.
    :return: the octets, which may not be UTF-8; ``None`` without a key.
    """
    if not query:
        return None
    key: bytes | None = None
    keys = 0
    unknown: dict[bytes, None] = {}
    for name, value in decoded_parameters(query):
        if name == _KEY:
            key = value
            keys += 1
        else:
            unknown[name] = None
    if keys > 1:
        faults.append(Fault("/key", f'The parameter "key" is there {keys} times; a record has one key.'))
    faults += unknown_parameters(unknown, 'the only one is "key"')
    return key


def decoded_parameters(query: bytes) -> Iterator[tuple[bytes, bytes]]:
    """
    Yield the names and values of a query in order.

    The query is decoded as forms are (``application/x-www-form-urlencoded``, by the URL Standard of WHATWG):
    ``+`` is a space, a ``%`` that does not begin an escape is itself, and empty parts are ignored.

    :param query: as it was sent, without the question mark.
    :raise InvalidParameters: there are more than 200.
    """
    if query.count(b"&") >= _MOST_PARAMETERS:
        raise InvalidParameters([Fault("", f"A query has up to {_MOST_PARAMETERS} parameters.")])
    for part in query.split(b"&"):
        if part:
            name, _, value = part.partition(b"=")
            yield _decoded(name), _decoded(value)


def parameters_of_get(query: bytes) -> Iterator[tuple[bytes, bytes]]:
    """
    Yield the parameters of a ``GET`` as `decoded_parameters` does, without those that only libraries add.

    These are ``_``, with which jQuery passes caches, and ``evs_…`` of eventsource-polyfill, whose
    ``evs_last_event_id`` is the ``lastEventId`` of others.
    """
    for name, value in decoded_parameters(query):
        if name == b"evs_last_event_id":
            yield b"lastEventId", value
        elif name != b"_" and not name.startswith(b"evs_"):
            yield name, value


def unknown_parameters(names: Iterable[bytes], right: str) -> Iterator[Fault]:
    """
    Yield the faults of unknown parameters, up to twenty.

    :param names: the distinct names of unknown parameters.
    :param right: the end of a sentence that names the parameters there are.
    """
    for name in islice(names, _MOST_FAULTS):
        quoted = shown(name.decode("utf-8", "replace"))
        yield Fault(f"/{pointer_token(quoted)}", f'There is no parameter "{quoted}" here; {right}.')


def require_no_parameters(query: bytes, right: str, *, is_get: bool = False) -> None:
    """
    Reject a query that has parameters.

    :param right: as for `unknown_parameters`.
    :param is_get: true to ignore those that only libraries add to it.
    :raise InvalidParameters: names them.
    """
    parameters = parameters_of_get(query) if is_get else decoded_parameters(query)
    names = dict.fromkeys(name for name, _ in parameters)
    if names:
        raise InvalidParameters(list(unknown_parameters(names, right)))


def require_no_message(query: bytes, right: str) -> None:
    """
    Reject a query that has a part of a message; ignore other parameters, such as those that defeat caches.

    :param right: as for `unknown_parameters`.
    :raise InvalidParameters: names all parameters.
    """
    if any(name in _OF_MESSAGES for name, _ in decoded_parameters(query)):
        require_no_parameters(query, right)


def _decoded(text: bytes) -> bytes:
    if b"%" not in text and b"+" not in text:
        return text
    return unquote_to_bytes(text.replace(b"+", b" "))
