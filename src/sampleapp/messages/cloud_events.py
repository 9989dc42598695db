"""
Conversion of CloudEvents over HTTP into the headers of Kafka records.

By version 1.0.2 of CloudEvents' bindings for HTTP and for Kafka. The value of the record is the body in every
mode. A batch of events has no form in Kafka, so its body is published as any other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import unquote_to_bytes

from sampleapp.errors import Fault
from sampleapp.messages.records import RecordHeaders

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

# CloudEvents, section "Attribute naming convention"; names of HTTP fields ignore case.
_ATTRIBUTE: Final = re.compile(rb"ce-[a-z0-9]+")
# RFC 9110, section 5.6.4.
_QUOTED: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)
_MOST_FAULTS: Final = 100


def may_be_event(specversions: tuple[bytes, ...], content_type: bytes | None) -> bool:
    """
    Check quickly whether a request may be a CloudEvent: nearly all requests are not.

    :param specversions: the values of ``ce-specversion``.
    """
    return bool(specversions) or (
        content_type is not None and content_type[: len(_STRUCTURED)].lower() == _STRUCTURED
    )


def read_event_headers(
    fields: Iterable[tuple[bytes, bytes]], content_type: bytes | None, faults: list[Fault]
) -> RecordHeaders:
    """
    Convert the header fields of a CloudEvent into headers of its record.

    :param fields: the names, in lower case, and the values of the header fields, in order.
    :param content_type: the value of ``Content-Type``, or ``None``.
    :param faults: gets the faults of the event: attributes that are missing, empty, repeated, or not UTF-8,
        and names that no attribute may have.
    :return: ``content-type``, if the request has it; in binary mode also each attribute, as ``ce_…``. Nothing
        if the request is not a CloudEvent.
    """
    media_type = b"" if content_type is None else content_type.partition(b";")[0].strip().lower()
    own = () if content_type is None else ((_CONTENT_TYPE, content_type),)
    # HTTP binding, section 3: the media type decides on the mode, not the other fields.
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
            yield _fault(name, "is missing; a CloudEvent must have it")
    for name, count in counts.items():
        if count > 1:
            yield _fault(name, f"is there {count} times; a CloudEvent has each attribute once")
        if name == _DATACONTENTTYPE:
            yield _fault(name, "is not allowed; use Content-Type instead")
        elif not _ATTRIBUTE.fullmatch(name):
            yield _fault(
                name, "is not an attribute of a CloudEvent: their names have letters and digits only"
            )
    for name, value in attributes:
        decoded = _decoded(value)
        if not decoded and name in _REQUIRED:
            yield _fault(name, "is empty; a CloudEvent must have a value for it")
        try:
            decoded.decode("utf-8")
        except UnicodeDecodeError:
            yield _fault(name, "is not UTF-8 after percent-decoding")


def _fault(name: bytes, wrong: str) -> Fault:
    # The name of a field is a token (RFC 9110, section 5.6.2), and no token has a slash.
    text = name.decode("ascii")
    return Fault(f"/{text.replace('~', '~0')}", f"{text} {wrong}.")


def _decoded(value: bytes) -> bytes:
    """Decode an attribute's value (HTTP binding, section 3.1.3.2)."""
    quoted = _QUOTED.fullmatch(value)
    return unquote_to_bytes(value if quoted is None else _ESCAPED.sub(rb"\1", quoted[1]))
