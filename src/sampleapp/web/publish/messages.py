"""``POST /messages``: one message as JSON, or many as lines of JSON."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NoReturn

from msgspec.structs import replace
from twisted.internet.defer import Deferred

from sampleapp.messages.idempotency_key import IdempotencyScope
from sampleapp.messages.parsing import parse_message
from sampleapp.messages.records import content_pointer, record_of
from sampleapp.web.errors import UnsupportedContentType
from sampleapp.web.publish.batches import BatchPublisher
from sampleapp.web.publish.idempotency import IDEMPOTENCY_KEY, check_key
from sampleapp.web.publish.publisher import Publisher
from sampleapp.web.responses import Response
from sampleapp.web.routing import Variant
from sampleapp.web.server import Request

__all__ = ["Messages"]

_MEDIA_TYPE: Final = re.compile(rb"[ \t]*([!-+\--:<-~]+)[ \t]*(?:;.*)?", re.DOTALL)


class Messages:
    """Publishes messages, each to the topic that it names."""

    def __init__(self, publisher: Publisher, batches: BatchPublisher) -> None:
        self._publisher = publisher
        self._batches = batches
        many = Variant(self._publish_many, max_body=publisher.limits.max_batch_body)
        self._variants = {
            b"application/json": Variant(self._publish_one),
            b"application/x-ndjson": many,
            b"application/jsonl": many,
        }
        self._variants_with_key = {
            media_type: replace(variant, check_head=check_key)
            for media_type, variant in self._variants.items()
        }

    def variant_of(self, request: Request) -> Variant:
        """Choose by ``Content-Type`` between one message and many."""
        fields = request.fields
        content_types = fields.all(b"Content-Type")
        if len(content_types) != 1:
            return _UNSUPPORTED
        variants = self._variants_with_key if fields.all(IDEMPOTENCY_KEY) else self._variants
        return variants.get(_media_type(content_types[0]), _UNSUPPORTED)

    def _publish_one(self, request: Request) -> Deferred[Response]:
        message = parse_message(request.body)
        now_ms, of_request = self._publisher.now_ms(), self._publisher.headers_of(request)
        scope: IdempotencyScope | None = request.checked
        return self._publisher.publish(
            request,
            record_of(message, now_ms=now_ms, of_request=of_request)
            if scope is None
            else scope.record_of(message, 0, now_ms=now_ms, of_request=of_request),
            at=content_pointer(message),
        )

    def _publish_many(self, request: Request) -> Deferred[Response]:
        return self._batches.publish(
            request, now_ms=self._publisher.now_ms(), of_request=self._publisher.headers_of(request)
        )


@lru_cache(maxsize=256)
def _media_type(content_type: bytes) -> bytes:
    """
    Return the media type of a ``Content-Type``, in lower case and without parameters.

    JSON defines no parameters, ``charset`` included (RFC 8259, section 11): it is in UTF-8, and so are lines
    of JSON.
    """
    match = _MEDIA_TYPE.fullmatch(content_type)
    return b"" if match is None else match[1].lower()


def _reject_content_type(request: Request) -> NoReturn:
    raise UnsupportedContentType(request.fields.all(b"Content-Type"))


_UNSUPPORTED: Final = Variant(_reject_content_type, check_head=_reject_content_type)
