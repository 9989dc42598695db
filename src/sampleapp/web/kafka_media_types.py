"""The media types of REST Proxy's API v2: ``application/vnd.kafka[.FORMAT].VERSION+json``."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from sampleapp.messages.rest_proxy_bodies import EmbeddedFormat
from sampleapp.web.negotiation import most_preferred

__all__ = ["ANSWER", "answer_type", "embedded_format", "is_of_rest_proxy", "request_type"]

ANSWER: Final = b"application/vnd.kafka.v2+json"
"""The type of answers, unless the client accepts only another name of it."""

# Older clients name a type without a version, or plain JSON.
_ANSWERS: Final = (ANSWER, b"application/vnd.kafka+json", b"application/json")
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
def answer_type(accept: bytes | None) -> bytes | None:
    """
    Choose the name of the media type of an answer.

    :param accept: the value of the header, its lines joined with commas; ``None`` without one.
    :return: ``None`` if the client accepts none of the names.
    """
    return most_preferred(_ANSWERS, accept=accept)
