"""
The documents of REST Proxy's API v2: their media types, their JSON as types, and partitions in its paths.

A media type is ``application/vnd.kafka[.FORMAT].VERSION+json``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from sampleapp.errors import UnknownPartition
from sampleapp.messages.rest_proxy_bodies import MOST_RECORDS, EmbeddedFormat
from sampleapp.web.negotiation import most_preferred

RESPONSE: Final = b"application/vnd.kafka.v2+json"
"""The type of responses, unless the client accepts only another name of it."""

PLAIN: Final = b"application/json"
"""The type of responses to clients that are not of REST Proxy; their errors are problem documents."""

# Clients also name a type of requests or of older versions (Karapace takes all in karapace/rapu.py), or JSON.
_RESPONSES: Final = (
    *(
        f"application/vnd.kafka{embedded}{version}+json".encode("ascii")
        for version in (".v2", "", ".v1")
        for embedded in ("", ".binary", ".json", ".avro", ".jsonschema", ".protobuf")
    ),
    PLAIN,
)
_OF_REST_PROXY: Final = b"application/vnd.kafka"


def request_type(embedded: EmbeddedFormat) -> str:
    """Return the media type of requests with records in a format."""
    return f"application/vnd.kafka.{embedded.value}.v2+json"


_EMBEDDED: Final = {request_type(each).encode("ascii"): each for each in EmbeddedFormat}


@lru_cache(maxsize=256)
def embedded_format(content_type: bytes) -> EmbeddedFormat | None:
    """Return the format that a ``Content-Type`` names; ``None`` if the service does not read it."""
    return _EMBEDDED.get(content_type.partition(b";")[0].strip().lower())


def is_of_rest_proxy(field: bytes) -> bool:
    """Return whether a ``Content-Type`` or ``Accept`` names a type of REST Proxy, of any format."""
    return _OF_REST_PROXY in field.lower()


@lru_cache(maxsize=256)
def response_type(accept: bytes | None) -> bytes | None:
    """
    Choose the name of the media type of a response.

    :param accept: the value of the header, its lines joined with commas; ``None`` without one.
    :return: ``None`` if the client accepts none of the names.
    """
    return most_preferred(_RESPONSES, accept=accept)


_PARTITION_NUMBER: Final = re.compile("[0-9]{1,10}")


def partition_number(partition: str) -> int:
    """
    Parse the number of a partition in a path.

    :raise UnknownPartition: no partition can have this number.
    """
    if _PARTITION_NUMBER.fullmatch(partition) is None:
        raise UnknownPartition("A partition has a number from 0 to 2147483647, as in /topics/t/partitions/0.")
    return int(partition)


class ErrorObject(Struct):
    """An error as REST Proxy answers it."""

    error_code: int
    message: str


class PartitionOffset(Struct, gc=False):
    """The outcome of one record: its partition and offset, or an error."""

    partition: int | None
    offset: int | None
    error_code: int | None = None
    error: str | None = None


# Some generators of clients have no type for a value that is always null.
_SchemaId = Annotated[int | None, Meta(description="Always null: schemas are not supported.")]


class ProduceResponse(Struct):
    """The outcome of each record, in order."""

    offsets: list[PartitionOffset]
    key_schema_id: _SchemaId = None
    value_schema_id: _SchemaId = None


class Published(Struct):
    """One record: its topic, partition and offset. Several: the outcome of each."""

    topic: str | UnsetType = UNSET
    partition: int | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    offsets: list[PartitionOffset] | UnsetType = UNSET


PUBLISHED: Final = Annotated[
    Published,
    Meta(
        extra_json_schema={
            "if": {"required": ["offsets"]},
            "else": {"required": ["topic", "partition", "offset"]},
        }
    ),
]
"""
Any response of ``POST /topics/{topic}`` as ``application/json``.

It is one class, since some generators of clients see only the first media type of a response, and some make
of ``anyOf`` an object that needs the members of all.
"""

_PartitionNumber = Annotated[int, Meta(description="The partition for the record.", ge=0, le=2**31 - 1)]
_Base64 = Annotated[
    str,
    Meta(
        description="Bytes in base64 with padding (RFC 4648, section 4); it may have line breaks.",
        pattern=r"^[\r\n]*(?:[A-Za-z0-9+/]{4}[\r\n]*)*(?:[A-Za-z0-9+/]{3}=[\r\n]*|[A-Za-z0-9+/]{2}==[\r\n]*)?$",
        extra_json_schema={"contentEncoding": "base64"},
    ),
]
_TEXT: Final = "The record's {} is this JSON as it is written, without white space between its tokens."


class JSONRecord(Struct, forbid_unknown_fields=True):
    """A record whose key and value are JSON; null and absent members mean the same."""

    key: Annotated[Any, Meta(description=_TEXT.format("key"))] = None
    value: Annotated[Any, Meta(description=_TEXT.format("value"))] = None
    partition: _PartitionNumber | None = None


class BinaryRecord(Struct, forbid_unknown_fields=True):
    """A record whose key and value are any bytes; null and absent members mean the same."""

    key: _Base64 | None = None
    value: _Base64 | None = None
    partition: _PartitionNumber | None = None


class JSONProduceRequest(Struct, forbid_unknown_fields=True):
    """Records whose keys and values are JSON."""

    records: Annotated[list[JSONRecord], Meta(min_length=1, max_length=MOST_RECORDS)]


class BinaryProduceRequest(Struct, forbid_unknown_fields=True):
    """Records whose keys and values are any bytes, in base64."""

    records: Annotated[list[BinaryRecord], Meta(min_length=1, max_length=MOST_RECORDS)]


class Replica(Struct):
    """One copy of a partition."""

    broker: Annotated[int, Meta(description="The id of the broker that has this replica.")]
    leader: bool
    in_sync: Annotated[bool, Meta(description="True if the replica is in sync with the leader.")]


class Partition(Struct):
    """One partition of a topic."""

    partition: int
    leader: Annotated[int, Meta(description="The id of the broker that leads it; -1 without a leader.")]
    replicas: list[Replica]


class Topic(Struct):
    """One topic."""

    name: str
    configs: Annotated[
        dict[str, str], Meta(description="Always empty: the service does not read the topic's settings.")
    ]
    partitions: list[Partition]
