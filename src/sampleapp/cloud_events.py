"""
CloudEvents that come over HTTP, as they go into Kafka: the headers of their records.

By version 1.0.2 of CloudEvents' bindings for HTTP and for Kafka. The value of the record is the body in every
mode; a batch of events has no form in Kafka, and is a body like any other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import unquote_to_bytes

from sampleapp.errors import Fault
from sampleapp.records import RecordHeaders

__all__ = ["may_be_event", "read_event_headers"]

_HTTP_PREFIX: Final = b"ce-"
_KAFKA_PREFIX: Final = "ce_"
_CONTENT_TYPE: Final = "content-type"
_SPECVERSION: Final = b"ce-specversion"
_DATACONTENTTYPE: Final = b"ce-datacontenttype"
# CloudEvents, section "Required attributes": none of them may be empty.
_REQUIRED: Final = (b"ce-id", b"ce-source", _SPECVERSION, b"ce-type")

_STRUCTURED: Final = b"application/cloudevents"
_BATCHED: Final = b"application/cloudevents-batch"

# CloudEvents, section "Attribute naming convention"; HTTP does not tell upper case.
_ATTRIBUTE: Final = re.compile(rb"ce-[a-z0-9]+")
# RFC 9110, section 5.6.4.
_QUOTED: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)
_MOST_FAULTS: Final = 100


def may_be_event(specversions: tuple[bytes, ...], content_type: bytes | None) -> bool:
    """
    Whether it is worth it to read the headers of an event: nearly no request is one.

    :param specversions: the values of ``ce-specversion``.
    """
    return bool(specversions) or (
        content_type is not None and content_type[: len(_STRUCTURED)].lower() == _STRUCTURED
    )


def read_event_headers(
    fields: Iterable[tuple[bytes, bytes]], content_type: bytes | None, faults: list[Fault]
) -> RecordHeaders:
    """
    Find the headers of a record in those of its request, if that is a CloudEvent.

    :param fields: the names, in lower case, and the values of the header fields, in their order.
    :param content_type: the value of ``Content-Type``; ``None`` for none.
    :param faults: gets what is wrong with the event: attributes that are missing, empty, there again, or
        not UTF-8, and names that none has.
    :return: ``content-type``, if the request has it; in binary mode also each attribute, as ``ce_…``. Nothing
        if it is no CloudEvent.
    """
    media_type = b"" if content_type is None else content_type.partition(b";")[0].strip().lower()
    own = () if content_type is None else ((_CONTENT_TYPE, content_type),)
    # HTTP binding, section 3: the media type tells the mode, whatever fields there are.
    if media_type == _STRUCTURED or media_type.startswith(_STRUCTURED + b"+"):
        return own
    attributes = [field for field in fields if field[0].startswith(_HTTP_PREFIX)]
    if media_type.startswith(_BATCHED) or all(name != _SPECVERSION for name, _ in attributes):
        return ()
    found = list(_faults(attributes))
    faults += found[:_MOST_FAULTS]
    return (*own, *(_header(name, value) for name, value in attributes))


def _header(name: bytes, value: bytes) -> tuple[str, bytes]:
    return _KAFKA_PREFIX + name[len(_HTTP_PREFIX) :].decode("ascii"), _decoded(value)


def _faults(attributes: list[tuple[bytes, bytes]]) -> Iterator[Fault]:
    counts = Counter(name for name, _ in attributes)
    for name in _REQUIRED:
        if name not in counts:
            yield _fault(name, "is missing; a CloudEvent has to have it")
    for name, count in counts.items():
        if count > 1:
            yield _fault(name, f"is there {count} times; a CloudEvent has each attribute once")
        if name == _DATACONTENTTYPE:
            yield _fault(name, "may not be there; that is what Content-Type is for")
        elif not _ATTRIBUTE.fullmatch(name):
            yield _fault(name, "is no attribute of a CloudEvent: their names have letters and digits only")
    for name, value in attributes:
        decoded = _decoded(value)
        if not decoded and name in _REQUIRED:
            yield _fault(name, "is empty; a CloudEvent has to have it")
        try:
            decoded.decode("utf-8")
        except UnicodeDecodeError:
            yield _fault(name, "is not UTF-8 when its percent-encoding is undone")


def _fault(name: bytes, wrong: str) -> Fault:
    # The name of a field is a token (RFC 9110, section 5.6.2), and no token has a slash.
    text = name.decode("ascii")
    return Fault(f"/{text.replace('~', '~0')}", f"{text} {wrong}.")


def _decoded(value: bytes) -> bytes:
    """Undo the encoding of an attribute's value (HTTP binding, section 3.1.3.2)."""
    quoted = _QUOTED.fullmatch(value)
    return unquote_to_bytes(value if quoted is None else _ESCAPED.sub(rb"\1", quoted[1]))
