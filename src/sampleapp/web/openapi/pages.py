"""
The documentation: ``/openapi.json``, ``/docs`` and the page that shows the readings.

``/docs`` has the service's own pages, and Swagger UI, which ``release/swagger_ui.py`` renews. The name of
each file, except the pages, contains a digest of its content. So a browser loads a file only once, and never
uses an old one.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from importlib.metadata import metadata
from pathlib import Path
from typing import Final

from msgspec import Struct
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from sampleapp import DISTRIBUTION, __version__
from sampleapp.concurrency.slices import Run
from sampleapp.concurrency.waiting import Semaphore
from sampleapp.web.descriptions import Features
from sampleapp.web.errors import PathNotFound
from sampleapp.web.negotiation import none_match_fails
from sampleapp.web.responses import Headers, Response, SharedBody, json_line
from sampleapp.web.routing import RouteTable
from sampleapp.web.server import Request

PAGE: Final = ""
"""The name of the documentation itself."""
READINGS_PAGE: Final = "readings"
"""The name of the page that shows the readings."""

_HERE: Final = Path(__file__).with_name("page")
_SWAGGER_UI: Final = Path(__file__).with_name("swagger_ui")
_PAGES: Final = {PAGE: _HERE / "docs.html", READINGS_PAGE: _HERE / "readings.html"}

_JAVASCRIPT: Final = b"text/javascript; charset=utf-8"
_CSS: Final = b"text/css; charset=utf-8"
_SVG: Final = b"image/svg+xml"
_HTML: Final = b"text/html; charset=utf-8"

# The link to a file in a page.
_LINK: Final = re.compile(r'(?<=[/"]docs/)[a-z-]+\.[a-z]+(?=")')


class File(Struct, frozen=True):
    """The type and content of a file."""

    content_type: bytes
    body: bytes


def read_files() -> Mapping[str, File]:
    """
    Read all files, nearly two megabytes.

    :return: each file by the last part of its path; the pages by `PAGE` and `READINGS_PAGE`.
    :raise OSError: a file cannot be read.
    """
    files: dict[str, File] = {}
    names: dict[str, str] = {}
    for name, path, content_type in _sources():
        body = path.read_bytes()
        stem, _, suffix = name.partition(".")
        digest = urlsafe_b64encode(sha256(body).digest())[:12].decode("ascii")
        names[name] = f"{stem}.{digest}.{suffix}"
        files[names[name]] = File(content_type, body)
    for name, path in _PAGES.items():
        page = _LINK.sub(lambda link: names[link[0]], path.read_text(encoding="utf-8"))
        files[name] = File(_HTML, page.encode("utf-8"))
    return files


def _sources() -> Iterator[tuple[str, Path, bytes]]:
    """Yield the name of each file in the page, its path and its media type."""
    yield "swagger-ui.js", _SWAGGER_UI / "swagger-ui-bundle.js", _JAVASCRIPT
    yield "swagger-ui.css", _SWAGGER_UI / "swagger-ui.css", _CSS
    yield "docs.js", _HERE / "docs.js", _JAVASCRIPT
    yield "docs.css", _HERE / "docs.css", _CSS
    yield "readings.js", _HERE / "readings.js", _JAVASCRIPT
    yield "readings.css", _HERE / "readings.css", _CSS
    yield "icon.svg", _HERE / "icon.svg", _SVG


_KEPT_S: Final = 60.0
"""The files, nearly two megabytes, are cached for this time after the last request, in seconds."""

_FOR_EVER: Final = b"public, max-age=31536000, immutable"

# Scripts and styles are loaded from this service only, and never inline. The page cannot be framed, connects
# only to this service, and sends no Referer. "data:" is for the pictures in Swagger UI's style sheet.
GUARDS: Final[Headers] = (
    (
        b"Content-Security-Policy",
        (
            b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
            b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
    ),
    (b"X-Frame-Options", b"DENY"),
    (b"Referrer-Policy", b"no-referrer"),
    (b"Cross-Origin-Opener-Policy", b"same-origin"),
    (b"Cross-Origin-Resource-Policy", b"same-origin"),
)
"""The header fields that protect a page from other sites."""


class Documentation:
    """Serves the documentation of the service's routes."""

    def __init__(self, *, run: Run, clock: IReactorTime) -> None:
        """
        :param run: reads the files, and generates the OpenAPI document, without blocking.
        :param clock: expires the cached files.
        """
        self._shown: RouteTable | None = None
        self._features = Features()
        self._run = run
        self._clock = clock
        self._openapi: _Unchanging | None = None
        self._files: Mapping[str, _Unchanging] | None = None
        self._making = Semaphore(1)
        self._forgetting: IDelayedCall | None = None

    def show(self, table: RouteTable, features: Features) -> None:
        """
        Set the interface to describe.

        :param table: all routes of the service, including these.
        """
        self._shown = table
        self._features = features

    async def openapi(self, request: Request) -> Response:
        """
        Answer with the OpenAPI document.

        :raise PathNotFound: nothing is described here.
        """
        if self._shown is None:
            raise PathNotFound
        await self._making.acquire()
        try:
            if self._openapi is None:
                self._openapi = await self._run(partial(self._made_openapi, self._shown))
            return self._openapi.respond(request)
        finally:
            self._making.release()

    def _made_openapi(self, table: RouteTable) -> _Unchanging:
        # Imported late, since most processes never need it.
        from sampleapp.web.openapi.document import openapi_document

        document = openapi_document(
            table.apps, version=__version__, manual=_manual(), features=self._features
        )
        return _Unchanging(json_line(document), b"application/json")

    async def file(self, request: Request, name: str) -> Response:
        """
        Answer with a page, or a file of one.

        :raise PathNotFound: there is no such file.
        """
        files = await self._all_files()
        if name not in files:
            raise PathNotFound
        return files[name].respond(request)

    async def _all_files(self) -> Mapping[str, _Unchanging]:
        await self._making.acquire()
        try:
            if self._files is None:
                read = await self._run(read_files)
                self._files = {
                    name: _Unchanging(
                        file.body,
                        file.content_type,
                        cache_control=b"no-cache" if name in _PAGES else _FOR_EVER,
                        more=GUARDS,
                    )
                    for name, file in read.items()
                }
        finally:
            self._making.release()
        self._forget_later()
        return self._files

    def _forget_later(self) -> None:
        if self._forgetting is None:
            self._forgetting = self._clock.callLater(_KEPT_S, self._forget)
        else:
            self._forgetting.reset(_KEPT_S)

    def _forget(self) -> None:
        self._files = self._forgetting = None


def _manual() -> str | None:
    """Return the URL of the manual that the distribution was built with; ``None`` without one."""
    urls = dict(each.split(", ", 1) for each in metadata(DISTRIBUTION).get_all("Project-URL") or ())
    return urls.get("Documentation")


class _Unchanging:
    """A resource that never changes while the service runs."""

    def __init__(
        self, body: bytes, content_type: bytes, *, cache_control: bytes = b"no-cache", more: Headers = ()
    ) -> None:
        self._etag = b'"%b"' % sha256(body).hexdigest()[:32].encode("ascii")
        headers = ((b"ETag", self._etag), (b"Cache-Control", cache_control), *more)
        self._whole = Response(
            HTTPStatus.OK, ((b"Content-Type", content_type), *headers), SharedBody((body,))
        )
        self._not_modified = Response(HTTPStatus.NOT_MODIFIED, headers)

    def respond(self, request: Request) -> Response:
        """Answer with the resource, or 304 if the client's copy is current."""
        tags = request.fields.joined(b"If-None-Match")
        is_fresh = tags is not None and none_match_fails(tags, self._etag)
        return self._not_modified if is_fresh else self._whole
