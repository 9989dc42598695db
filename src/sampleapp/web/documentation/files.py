"""
The files of ``/docs``: a page of our own, and Swagger UI as the package offapi carries it.

Each file but the page has a name that holds a digest of what is in it, so that a browser never asks for it
twice, and never has an old one.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from msgspec import Struct

__all__ = ["PAGE", "File", "read_files"]

PAGE: Final = ""
"""The name of the page itself."""

_HERE: Final = Path(__file__).with_name("page")
_PAGE: Final = _HERE / "docs.html"

_JAVASCRIPT: Final = b"text/javascript; charset=utf-8"
_CSS: Final = b"text/css; charset=utf-8"
_SVG: Final = b"image/svg+xml"
_HTML: Final = b"text/html; charset=utf-8"

# In the page, where a file is to be loaded from.
_LINK: Final = re.compile(r'(?<=")docs/([a-z-]+\.[a-z]+)(?=")')


class File(Struct, frozen=True):
    """A file as it is served."""

    content_type: bytes
    body: bytes


def read_files() -> Mapping[str, File]:
    """
    Read all files, which are nearly two megabytes.

    :return: each by the last part of its path; the page by `PAGE`.
    :raise OSError: one cannot be read.
    """
    files: dict[str, File] = {}
    names: dict[str, str] = {}
    for name, path, content_type in _sources():
        body = path.read_bytes()
        stem, _, suffix = name.partition(".")
        digest = urlsafe_b64encode(sha256(body).digest())[:12].decode("ascii")
        names[name] = f"{stem}.{digest}.{suffix}"
        files[names[name]] = File(content_type, body)
    page = _LINK.sub(lambda link: f"docs/{names[link[1]]}", _PAGE.read_text(encoding="utf-8"))
    return {PAGE: File(_HTML, page.encode("utf-8")), **files}


def _sources() -> Iterator[tuple[str, Path, bytes]]:
    """The name of each file in the page, where it is, and of which type."""
    swagger_ui = _directory_of("offapi")
    yield "swagger-ui.js", swagger_ui / "swagger_bundle.js", _JAVASCRIPT
    yield "swagger-ui.css", swagger_ui / "swagger_style.css", _CSS
    yield "docs.js", _HERE / "docs.js", _JAVASCRIPT
    yield "docs.css", _HERE / "docs.css", _CSS
    yield "icon.svg", _HERE / "icon.svg", _SVG


def _directory_of(package: str) -> Path:
    """Find a package without importing it, which would read all that it carries, and more than is needed."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"The package {package} is not installed.")
    return Path(spec.submodule_search_locations[0])
