"""Parsing of queries, and of the query of a request that publishes: the record's key and headers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from sampleapp.errors import Fault, InvalidParameters, pointer_token, shown

GET_PUBLISHES_NOTHING: Final = (
    "GET publishes nothing; to publish, send a POST: the value to /topics/TOPIC?key=KEY, or a message to "
    "/messages"
)

_KEY: Final = b"key"
_ENVELOPE: Final = b"envelope"
_NONE: Final[Mapping[bytes, str]] = MappingProxyType({})
_OF_MESSAGES: Final = {b"topic", _KEY, b"key_base64", b"content", b"content_base64", b"value"}
_MOST_PARAMETERS: Final = 200
_MOST_FAULTS: Final = 20
"""The most unknown parameters that are named."""


class RecordQuery(NamedTuple):
    """The parts of a record that are in the query of its request."""

    key: bytes | None = None
    """The octets of the key, which may not be UTF-8; ``None`` without a key."""
    headers: tuple[tuple[str, bytes], ...] = ()
    """The parameters that become headers, in the order of the query."""
    keeps_envelope: bool = False
    """True if an envelope of REST Proxy's API is the value: ``envelope=value``."""


def read_key(query: bytes, faults: list[Fault]) -> bytes | None:
    """
    Find the key in a query that may have nothing else.

    :param query: as for `decoded_parameters`.
    :param faults: gets the faults: unknown parameters, and a repeated key.
    :return: the octets, which may not be UTF-8; ``None`` without a key.
    """
    return _read(query, faults, known={_KEY}, right='the only one is "key"').key


def read_record_query(query: bytes, faults: list[Fault], recorded: Mapping[bytes, str]) -> RecordQuery:
    """
    Find all that a query may say about a record whose value is the body.

    :param faults: gets the faults, as of `read_key`; also another value of ``envelope``.
    :param recorded: the names of the headers that parameters become, by the parameters.
    """
    return _read(query, faults, recorded, known=_OF_RECORD, right=_RIGHT_OF_RECORD)


def read_headers(
    query: bytes, faults: list[Fault], recorded: Mapping[bytes, str]
) -> tuple[tuple[str, bytes], ...]:
    """Find the headers, as `read_record_query` does, in the query of a hook, which has no key."""
    return _read(query, faults, recorded, known=frozenset(), right=f"a hook takes none, {_RECORDED}").headers


_RECORDED: Final = "besides those that the service's option --record-query names"
_OF_RECORD: Final = frozenset({_KEY, _ENVELOPE})
_RIGHT_OF_RECORD: Final = f'there are "key" and "envelope", {_RECORDED}'


def _read(
    query: bytes,
    faults: list[Fault],
    recorded: Mapping[bytes, str] = _NONE,
    *,
    known: AbstractSet[bytes],
    right: str,
) -> RecordQuery:
    """
    Read a query.

    :param known: the parameters that it may have besides those in ``recorded``.
    :param right: as for `unknown_parameters`.
    """
    if not query:
        return RecordQuery()
    if _KEY in known and query.startswith(b"key=") and b"&" not in query:
        # Nearly all requests.
        return RecordQuery(_decoded(query[4:]))
    values: dict[bytes, list[bytes]] = {}
    for name, value in decoded_parameters(query):
        values.setdefault(name, []).append(value)
    found = {name: values.pop(name) for name in [*values] if name in known or name in recorded}
    envelope = found.pop(_ENVELOPE, []) if _ENVELOPE in known else []
    if envelope and envelope != [b"value"]:
        said = 'The parameter "envelope" is there once, and is "value"; or leave it out.'
        faults.append(Fault("/envelope", said))
    for name, each in found.items():
        if len(each) > 1:
            text, what = name.decode("ascii"), "key" if name in known else "header of this name"
            said = f'The parameter "{text}" is there {len(each)} times; a record has one {what}.'
            faults.append(Fault(f"/{pointer_token(text)}", said))
    faults += unknown_parameters(values, right)
    headers = tuple((recorded[name], each[0]) for name, each in found.items() if name not in known)
    return RecordQuery(found[_KEY][0] if _KEY in known and _KEY in found else None, headers, bool(envelope))


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
