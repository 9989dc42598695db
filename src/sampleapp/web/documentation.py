"""What the interface says of itself, to programs and to people."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from http import HTTPStatus
from typing import Final

import msgspec

from sampleapp import __version__
from sampleapp.access import Right
from sampleapp.conditional import none_match_fails
from sampleapp.web.answers import Answer
from sampleapp.web.descriptions import CACHE_CONTROL, ETAG, IF_NONE_MATCH, Content, Description, Success
from sampleapp.web.routing import Routes
from sampleapp.web.server import Request

__all__ = ["Documentation"]

_OPENAPI: Final = Description(
    tag="Documentation",
    summary="This description of the interface, for programs",
    parameters=(IF_NONE_MATCH,),
    successes=(
        Success(
            meaning="An OpenAPI document, version 3.1.",
            contents=(
                Content(
                    media_type="application/json",
                    kind={
                        "type": "object",
                        "required": ["openapi", "info", "paths"],
                        "properties": {"openapi": {"type": "string", "pattern": "^3\\.1\\."}},
                    },
                ),
            ),
            fields=(ETAG, CACHE_CONTROL),
        ),
        Success(
            meaning="`If-None-Match` has the tag of the current document: you have it already.",
            status=HTTPStatus.NOT_MODIFIED,
            fields=(ETAG, CACHE_CONTROL),
        ),
    ),
)


class Documentation:
    """Shows the routes of the service."""

    routes = Routes()

    def __init__(self, parts: Sequence[Routes]) -> None:
        """:param parts: what it shows, beside its own routes."""
        self._parts = (*parts, self.routes)
        self._openapi: _Unchanging | None = None

    @routes.route("/openapi.json", "GET", "HEAD", right=Right.NONE, description=_OPENAPI)
    def openapi(self, request: Request) -> Answer:
        """Serve the description for programs."""
        if self._openapi is None:
            # What makes it is needed once, and by few.
            from sampleapp.web.openapi import openapi_document

            document = openapi_document(self._parts, version=__version__)
            self._openapi = _Unchanging(msgspec.json.encode(document), b"application/json")
        return self._openapi.answer(request)


class _Unchanging:
    """What stays the same as long as the service runs."""

    def __init__(self, body: bytes, content_type: bytes) -> None:
        self._etag = b'"%b"' % sha256(body).hexdigest()[:32].encode("ascii")
        validators = ((b"ETag", self._etag), (b"Cache-Control", b"no-cache"))
        self._whole = Answer(HTTPStatus.OK, ((b"Content-Type", content_type), *validators), body)
        self._not_modified = Answer(HTTPStatus.NOT_MODIFIED, validators)

    def answer(self, request: Request) -> Answer:
        tags = request.fields.joined(b"If-None-Match")
        is_fresh = tags is not None and none_match_fails(tags, self._etag)
        return self._not_modified if is_fresh else self._whole
