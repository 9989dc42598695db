"""The requests of clients of Confluent's REST Proxy, API v2: what is in them, without I/O."""

from sampleapp.rest_proxy.media_types import (
    ANSWER,
    answer_type,
    embedded_format,
    is_of_rest_proxy,
    request_type,
)
from sampleapp.rest_proxy.produce_requests import EmbeddedFormat, Unserializable, read_records

__all__ = [
    "ANSWER",
    "EmbeddedFormat",
    "Unserializable",
    "answer_type",
    "embedded_format",
    "is_of_rest_proxy",
    "read_records",
    "request_type",
]
