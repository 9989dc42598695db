"""Characters that a terminal would obey instead of showing them."""

from __future__ import annotations

import re

__all__ = ["escaped_json", "visible"]

# C0 and C1 controls and DEL (ECMA-48); the separators that end a line; what changes the direction of text
# (UAX #9, section 2), with which "evil.txt" can be made to look like "txt.live"; lone surrogates.
_OBEYED = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_IN_TEXT = re.compile(f"[{_OBEYED}]")
# A line of JSON has escaped the C0 controls already, in its strings, where alone they can be.
_IN_JSON = re.compile(f"(?![\x00-\x1f])[{_OBEYED}]")


def visible(text: str) -> str:
    r"""
    Write control characters as escapes, as in ``\x1b`` or ``\u202e``; tabs and line feeds stay.

    :param text: which may have come from anybody.
    """
    return _IN_TEXT.sub(_python_escape, text)


def escaped_json(document: bytes) -> bytes:
    """
    Write control characters in a line of JSON as JSON's own escapes, so that its value stays the same.

    :param document: in UTF-8.
    """
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", document.decode("utf-8")).encode("utf-8")


def _python_escape(found: re.Match[str]) -> str:
    return found[0] if found[0] in "\n\t" else ascii(found[0])[1:-1]
