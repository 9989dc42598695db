"""
The files of ``/docs``: the service's own pages, and Swagger UI, which ``release/swagger_ui.py`` renews.

The name of each file, except the pages, contains a digest of its content. So a browser loads a file only
once, and never uses an old one.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from msgspec import Struct

__all__ = ["PAGE", "READINGS_PAGE", "File", "read_files"]

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
