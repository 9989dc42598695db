"""The media types of REST Proxy's API v2: ``application/vnd.kafka[.FORMAT].VERSION+json``."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from sampleapp.negotiation import most_welcome
from sampleapp.rest_proxy.produce_requests import EmbeddedFormat

__all__ = ["ANSWER", "answer_type", "embedded_format", "is_of_rest_proxy", "request_type"]

ANSWER: Final = b"application/vnd.kafka.v2+json"
"""What answers are, unless the client asks for another name of the same."""

# Clients of older versions name no version, or none of Kafka's types.
_ANSWERS: Final = (ANSWER, b"application/vnd.kafka+json", b"application/json")
_OF_REST_PROXY: Final = b"application/vnd.kafka"


def request_type(embedded: EmbeddedFormat) -> str:
    """Return the media type of requests with records of a format."""
    return f"application/vnd.kafka.{embedded.value}.v2+json"


_EMBEDDED: Final = {request_type(each).encode("ascii"): each for each in EmbeddedFormat}


@lru_cache(maxsize=256)
def embedded_format(content_type: bytes) -> EmbeddedFormat | None:
    """Return the format that a ``Content-Type`` names; ``None`` if it names none of them."""
    return _EMBEDDED.get(content_type.partition(b";")[0].strip().lower())


def is_of_rest_proxy(field: bytes) -> bool:
    """Whether a ``Content-Type``, or an ``Accept``, names a type of REST Proxy, of any format and version."""
    return _OF_REST_PROXY in field.lower()


@lru_cache(maxsize=256)
def answer_type(accept: bytes | None) -> bytes | None:
    """
    Choose the name of the type of an answer.

    :param accept: the value of the header, its lines joined with commas; ``None`` when there is none.
    :return: ``None`` if the client takes no answer that there is.
    """
    return most_welcome(_ANSWERS, accept=accept)
