"""``/openapi.json`` and ``/docs``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from http import HTTPStatus
from typing import Final, TypeAlias

import msgspec
from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from sampleapp import __version__
from sampleapp.access import Right
from sampleapp.conditional import none_match_fails
from sampleapp.web.answers import Answer, Headers
from sampleapp.web.descriptions import (
    CACHE_CONTROL,
    ETAG,
    IF_NONE_MATCH,
    Content,
    Description,
    Field,
    Parameter,
    Success,
)
from sampleapp.web.documentation.files import PAGE, File, read_files
from sampleapp.web.request_errors import PathNotFound
from sampleapp.web.routing import Routes, RouteTable
from sampleapp.web.server import Request

__all__ = ["Documentation", "ReadFiles"]

ReadFiles: TypeAlias = Callable[[Callable[[], Mapping[str, File]]], "Deferred[Mapping[str, File]]"]
"""Calls a function that reads files where it blocks nobody, such as in a thread."""

_KEPT_S: Final = 60.0
"""How long the files, of nearly two megabytes, are kept after they were last asked for."""

_NOT_CHANGED: Final = "`If-None-Match` has the tag of the current one: you have it already."

# Scripts and styles come from this service alone, none of them inline; the page is in no other page, sends
# its requests nowhere else, and tells nobody where it is. Swagger UI has its pictures in its style sheet.
_GUARDS: Final[Headers] = (
    (
        b"Content-Security-Policy",
        (
            b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
            b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
    ),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"X-Frame-Options", b"DENY"),
    (b"Referrer-Policy", b"no-referrer"),
    (b"Cross-Origin-Opener-Policy", b"same-origin"),
    (b"Cross-Origin-Resource-Policy", b"same-origin"),
)

_GUARD_FIELDS: Final = tuple(
    Field(
        name=name.decode("ascii"), meaning="Keeps other sites out of the page.", example=value.decode("ascii")
    )
    for name, value in _GUARDS
)

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
        Success(meaning=_NOT_CHANGED, status=HTTPStatus.NOT_MODIFIED, fields=(ETAG, CACHE_CONTROL)),
    ),
)

_DOCS: Final = Description(
    tag="Documentation",
    summary="The interface, for people",
    text="A page for a browser, with a form to try a message. Nothing of it is loaded from elsewhere.",
    parameters=(IF_NONE_MATCH,),
    successes=(
        Success(
            meaning="The page.",
            contents=(Content(media_type="text/html", kind={"type": "string"}),),
            fields=(ETAG, CACHE_CONTROL, *_GUARD_FIELDS),
        ),
        Success(
            meaning=_NOT_CHANGED,
            status=HTTPStatus.NOT_MODIFIED,
            fields=(ETAG, CACHE_CONTROL, *_GUARD_FIELDS),
        ),
    ),
)

_FILE: Final = Description(
    tag="Documentation",
    summary="What the page for people is made of",
    parameters=(
        Parameter(name="file", place="path", meaning="A name that the page holds. It changes with the file."),
        IF_NONE_MATCH,
    ),
    successes=(
        Success(
            meaning="The file, which never changes under this name.",
            contents=(
                Content(media_type="text/javascript", kind={"type": "string"}),
                Content(media_type="text/css", kind={"type": "string"}),
                Content(media_type="image/svg+xml", kind={"type": "string"}),
            ),
            fields=(ETAG, CACHE_CONTROL, *_GUARD_FIELDS),
        ),
        Success(
            meaning=_NOT_CHANGED,
            status=HTTPStatus.NOT_MODIFIED,
            fields=(ETAG, CACHE_CONTROL, *_GUARD_FIELDS),
        ),
    ),
    refusals=(PathNotFound,),
)


class Documentation:
    """Shows the routes of the service."""

    routes = Routes()

    def __init__(self, *, read: ReadFiles, clock: IReactorTime) -> None:
        """
        :param read: what to read files with.
        :param clock: tells when they have not been asked for in a while.
        """
        self._shown: RouteTable | None = None
        self._takes_certificates = False
        self._is_for_other_sites = False
        self._read = read
        self._clock = clock
        self._openapi: _Unchanging | None = None
        self._files: Mapping[str, _Unchanging] | None = None
        self._reading = DeferredLock()
        self._forgetting: IDelayedCall | None = None

    def show(
        self, table: RouteTable, *, takes_certificates: bool = False, is_for_other_sites: bool = False
    ) -> None:
        """
        Describe an interface.

        :param table: all that is served, these routes included.
        :param takes_certificates: whether a client certificate may say who calls.
        :param is_for_other_sites: whether pages of other sites may use it from a browser.
        """
        self._shown = table
        self._takes_certificates = takes_certificates
        self._is_for_other_sites = is_for_other_sites

    @routes.route("/openapi.json", "GET", "HEAD", right=Right.NONE, description=_OPENAPI)
    def openapi(self, request: Request) -> Answer:
        """Serve the description for programs."""
        if self._shown is None:
            raise PathNotFound
        if self._openapi is None:
            # What makes it is needed once, and by few.
            from sampleapp.web.openapi import openapi_document

            document = openapi_document(
                self._shown.routes,
                version=__version__,
                is_guarded=self._shown.is_guarded,
                takes_certificates=self._takes_certificates,
                is_for_other_sites=self._is_for_other_sites,
            )
            self._openapi = _Unchanging(msgspec.json.encode(document), b"application/json")
        return self._openapi.answer(request)

    @routes.route("/docs", "GET", "HEAD", right=Right.NONE, description=_DOCS)
    def page(self, request: Request) -> Deferred[Answer]:
        """Serve the page for people."""
        return Deferred.fromCoroutine(self._answer(request, PAGE))

    @routes.route("/docs/<file>", "GET", "HEAD", right=Right.NONE, description=_FILE)
    def file(self, request: Request, *, file: str) -> Deferred[Answer]:
        """
        Serve what the page loads.

        :raise PathNotFound: there is no such file; by the Deferred.
        """
        return Deferred.fromCoroutine(self._answer(request, file))

    async def _answer(self, request: Request, name: str) -> Answer:
        files = await self._all_files()
        if name not in files:
            raise PathNotFound
        return files[name].answer(request)

    async def _all_files(self) -> Mapping[str, _Unchanging]:
        await self._reading.acquire()
        try:
            if self._files is None:
                read = await self._read(read_files)
                self._files = {
                    name: _Unchanging(
                        file.body,
                        file.content_type,
                        cache_control=b"no-cache" if name == PAGE else b"public, max-age=31536000, immutable",
                        more=_GUARDS,
                    )
                    for name, file in read.items()
                }
        finally:
            self._reading.release()
        self._forget_later()
        return self._files

    def _forget_later(self) -> None:
        if self._forgetting is None:
            self._forgetting = self._clock.callLater(_KEPT_S, self._forget)
        else:
            self._forgetting.reset(_KEPT_S)

    def _forget(self) -> None:
        self._files = self._forgetting = None


class _Unchanging:
    """What stays the same as long as the service runs."""

    def __init__(
        self, body: bytes, content_type: bytes, *, cache_control: bytes = b"no-cache", more: Headers = ()
    ) -> None:
        self._etag = b'"%b"' % sha256(body).hexdigest()[:32].encode("ascii")
        headers = ((b"ETag", self._etag), (b"Cache-Control", cache_control), *more)
        self._whole = Answer(HTTPStatus.OK, ((b"Content-Type", content_type), *headers), body)
        self._not_modified = Answer(HTTPStatus.NOT_MODIFIED, headers)

    def answer(self, request: Request) -> Answer:
        """Answer with it, or that the caller has it already."""
        tags = request.fields.joined(b"If-None-Match")
        is_fresh = tags is not None and none_match_fails(tags, self._etag)
        return self._not_modified if is_fresh else self._whole
