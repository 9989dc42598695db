"""
Conversion of CloudEvents over HTTP into keys and headers of Kafka records.

By version 1.0.2 of CloudEvents' bindings for HTTP and for Kafka. The value of the record is the body in
binary and in structured mode. For batches, see `sampleapp.messages.event_lists`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import lru_cache
from typing import Annotated, Final, Literal, TypeAlias
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Meta, Raw, Struct

from sampleapp.errors import Fault, InvalidMessage, MalformedMessage
from sampleapp.messages.json_text import require_json
from sampleapp.messages.parsing import RecordHeaders

_HTTP_PREFIX: Final = b"ce-"
_KAFKA_PREFIX: Final = "ce_"
_CONTENT_TYPE: Final = "content-type"
_SPECVERSION: Final = b"ce-specversion"
_DATACONTENTTYPE: Final = b"ce-datacontenttype"
# CloudEvents, section "Required attributes": none of them may be empty.
_REQUIRED: Final = (b"ce-id", b"ce-source", _SPECVERSION, b"ce-type")
# An extension of CloudEvents (extensions/partitioning.md), which the Kafka binding makes the key.
_PARTITIONKEY: Final = b"ce-partitionkey"
_NOT_EMPTY: Final = (*_REQUIRED, _PARTITIONKEY)
_VERSION: Final = "1.0"
_NULL: Final = Raw(b"null")
_NOT_UTF_8: Final = (
    "is not UTF-8 after percent-decoding; perhaps it is ISO-8859-1, which some libraries send. Send UTF-8, "
    "with all but ASCII percent-encoded, as in %E2%82%AC (HTTP binding, section 3.1.3.2)"
)
_WRONG_VERSION: Final = f"must be {_VERSION}, the only version of CloudEvents that is supported"

_STRUCTURED: Final = b"application/cloudevents"

# CloudEvents, section "Attribute naming convention"; names of HTTP fields ignore case.
_ATTRIBUTE: Final = re.compile(rb"ce-[a-z0-9]+")
# RFC 9110, section 5.6.4.
_QUOTED: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)
_MOST_FAULTS: Final = 100


class EventFormat(Enum):
    """The formats of bodies with CloudEvents."""

    STRUCTURED = "structured"
    """One event as JSON."""
    BATCHED = "batched"
    """A JSON array of events."""
    UNSUPPORTED = "unsupported"
    """A format other than JSON."""


_FORMATS: Final = {
    b"application/cloudevents+json": EventFormat.STRUCTURED,
    b"application/cloudevents-batch+json": EventFormat.BATCHED,
}


class _Event(Struct):
    """The members that are checked, as they are written."""

    specversion: Raw = _NULL
    id: Raw = _NULL
    source: Raw = _NULL
    type: Raw = _NULL
    partitionkey: Raw = _NULL
    data: Raw = _NULL
    data_base64: Raw = _NULL


_NotEmpty: TypeAlias = Annotated[str, Meta(min_length=1)]


class _ValidEvent(Struct):
    """The members that are checked, of an event that has no faults."""

    specversion: Literal["1.0"]
    id: _NotEmpty
    source: _NotEmpty
    type: _NotEmpty
    partitionkey: _NotEmpty | None = None
    data: Raw = _NULL
    data_base64: Raw = _NULL


_MOST_COLONS: Final = 10_000
"""The most colons outside of the data of an event that is checked: its members are decoded in 1 or 2 ms."""

_CHECKED: Final = ("specversion", "id", "source", "type", "partitionkey")
_decode_valid: Final = msgspec.json.Decoder(_ValidEvent).decode
_decode_event: Final = msgspec.json.Decoder(_Event).decode
_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_base64: Final = msgspec.json.Decoder(bytes).decode
_decode_string: Final = msgspec.json.Decoder(str).decode


def may_be_event(names: Iterable[bytes]) -> bool:
    """
    Check quickly whether a request has attributes of a CloudEvent: nearly all requests have none.

    :param names: of its header fields, in lower case.
    """
    # One search in all of them. No name has a comma.
    return b",ce-" in b",".join((b"", *names))


@lru_cache(maxsize=256)
def event_format(content_type: bytes) -> EventFormat | None:
    """Return the format that a ``Content-Type`` names; ``None`` if it is not for CloudEvents."""
    media_type = content_type.partition(b";")[0].strip().lower()
    # HTTP binding, section 3: the beginning of the media type decides on the mode.
    if not media_type.startswith(_STRUCTURED):
        return None
    return _FORMATS.get(media_type, EventFormat.UNSUPPORTED)


def read_event_headers(
    fields: Iterable[tuple[bytes, bytes]], content_type: bytes | None, faults: list[Fault]
) -> RecordHeaders:
    """
    Convert the header fields of a CloudEvent into headers of its record.

    :param fields: the names, in lower case, and the values of the header fields, in order.
    :param content_type: the value of ``Content-Type``, or ``None``.
    :param faults: gets the faults of the event: attributes that are missing, empty, repeated, or not UTF-8,
        another version, and names that no attribute may have.
    :return: ``content-type``, if the request has it; in binary mode also each attribute, as ``ce_…``. Nothing
        if the request is not a CloudEvent, or a batch of them.
    """
    own = () if content_type is None else ((_CONTENT_TYPE, content_type),)
    mode = None if content_type is None else event_format(content_type)
    if mode is not None:
        return () if mode is EventFormat.BATCHED else own
    attributes = [field for field in fields if field[0].startswith(_HTTP_PREFIX)]
    if not attributes:
        return ()
    found = list(_faults(attributes))
    faults += found[:_MOST_FAULTS]
    return (*own, *(_header(name, value) for name, value in attributes))


def key_of_headers(headers: RecordHeaders) -> bytes | None:
    """Return the key that the headers of an event in binary mode give its record: ``partitionkey``."""
    return dict(headers).get(_KAFKA_PREFIX + "partitionkey")


def read_event_key(body: bytes, *, source: str = "body") -> bytes | None:
    """
    Check a CloudEvent in structured mode, and return the key that it gives its record.

    :param body: the event in the JSON format.
    :param source: the name of the body in error messages.
    :return: ``partitionkey``; ``None`` if it has none.
    :raise MalformedMessage: the body is not JSON.
    :raise InvalidMessage: it is not a CloudEvent of version 1.0. Names all faults.
    """
    try:
        # The decoder does not look at the bytes of strings that it skips.
        body.decode()
        valid = _decode_valid(body)
        if _NULL in (valid.data, valid.data_base64):
            key = valid.partitionkey
            return None if key is None else key.encode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # All faults are named below.
        pass
    if not body.strip():
        raise MalformedMessage("The body is empty; a CloudEvent in structured mode is a JSON object.")
    require_json(body, source=source)
    event = _decode(body)
    faults: list[Fault] = []
    if _NULL not in (event.data, event.data_base64):
        # JSON format, section 3.1: readers differ on which of the two is the data.
        faults.append(Fault("/data_base64", 'An event has "data" or "data_base64", not both.'))
    for name in _CHECKED:
        written = getattr(event, name)
        if written == _NULL:
            # An attribute of null is not set (JSON format, section 2.2).
            if name != "partitionkey":
                faults.append(Fault(f"/{name}", f'"{name}" is missing; a CloudEvent must have it.'))
            continue
        value = _string(written)
        if not value:
            faults.append(Fault(f"/{name}", f'"{name}" must be a string that is not empty.'))
        elif name == "specversion" and value != _VERSION:
            faults.append(Fault("/specversion", f'"specversion" {_WRONG_VERSION}.'))
    # Of a repeated attribute, only the last was looked at.
    raise InvalidMessage(faults or [Fault("", "An attribute is there more than once.")])


def read_event_data(body: bytes) -> tuple[bytes, str]:
    """
    Return the data of a CloudEvent in structured mode, and the pointer to it.

    :param body: an event that `read_event_key` has accepted. Without data it has the data ``null``.
    :raise InvalidMessage: ``data_base64`` is not base64, a member is there more than once, or there are too
        many.
    """
    event = _decode(body)
    colons = body.count(b":")
    if colons - bytes(event.data).count(b":") > _MOST_COLONS:
        too_many = f"The attributes of the event have more than {_MOST_COLONS} colons, which is the most."
        raise InvalidMessage([Fault("", too_many)])
    members = _decode_members(body)
    # Each member has a colon after its name, and no name of an attribute has one. Of a repeated member, only
    # the last is decoded, and consumers may read the first.
    if colons != len(members) + b"\n".join(members.values()).count(b":") or ":" in "".join(members):
        raise InvalidMessage(
            [Fault("", "A member of the event is there more than once, or its name has a colon.")]
        )
    if event.data_base64 == _NULL:
        return bytes(event.data), "/data"
    try:
        return _decode_base64(event.data_base64), "/data_base64"
    except msgspec.DecodeError as error:
        wrong = '"data_base64" must be a string of base64 with padding (RFC 4648, section 4).'
        raise InvalidMessage([Fault("/data_base64", wrong)]) from error


def _decode(body: bytes) -> _Event:
    try:
        return _decode_event(body)
    except msgspec.ValidationError as error:
        raise InvalidMessage([Fault("", "A CloudEvent in the JSON format is an object.")]) from error
    except msgspec.DecodeError as error:
        lone = "A string has a lone surrogate, which has no form in UTF-8."
        raise InvalidMessage([Fault("", lone)]) from error


def _string(written: Raw) -> str:
    """Return a string, or the empty one for anything else."""
    try:
        return _decode_string(written)
    except msgspec.DecodeError:
        return ""


def _header(name: bytes, value: bytes) -> tuple[str, bytes]:
    return _KAFKA_PREFIX + name[len(_HTTP_PREFIX) :].decode("ascii"), _decoded(value)


def _faults(attributes: list[tuple[bytes, bytes]]) -> Iterator[Fault]:
    counts = Counter(name for name, _ in attributes)
    for name in _REQUIRED:
        if name not in counts:
            yield _fault(name, "is missing; a CloudEvent must have it")
    yield from _faults_of_names(counts)
    for name, value in attributes:
        decoded = _decoded(value)
        if not decoded and name in _NOT_EMPTY:
            yield _fault(name, "is empty; if it is there, it must have a value")
        elif name == _SPECVERSION and decoded != _VERSION.encode():
            yield _fault(name, _WRONG_VERSION)
        try:
            decoded.decode("utf-8")
        except UnicodeDecodeError:
            yield _fault(name, _NOT_UTF_8)


def _faults_of_names(counts: Counter[bytes]) -> Iterator[Fault]:
    for name, count in counts.items():
        if count > 1:
            yield _fault(name, f"is there {count} times; a CloudEvent has each attribute once")
        if name == _DATACONTENTTYPE:
            yield _fault(name, "is not allowed; use Content-Type instead")
        elif not _ATTRIBUTE.fullmatch(name):
            yield _fault(
                name, "is not an attribute of a CloudEvent: their names have letters and digits only"
            )


def _fault(name: bytes, wrong: str) -> Fault:
    # The name of a field is a token (RFC 9110, section 5.6.2), and no token has a slash.
    text = name.decode("ascii")
    return Fault(f"/{text.replace('~', '~0')}", f"{text} {wrong}.")


def _decoded(value: bytes) -> bytes:
    """Decode an attribute's value (HTTP binding, section 3.1.3.2)."""
    quoted = _QUOTED.fullmatch(value)
    # The list has the group of the pattern, too: each escaped character. `sub` takes 1 µs for each.
    return unquote_to_bytes(value if quoted is None else b"".join(_ESCAPED.split(quoted[1])))
