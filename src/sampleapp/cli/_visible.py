"""Escaping of control characters, which a terminal would execute."""

from __future__ import annotations

import re

__all__ = ["escaped_json", "visible"]

# C0 and C1 controls and DEL (ECMA-48); line and paragraph separators; controls for the direction of text
# (UAX #9, section 2), which can make "evil.txt" look like "txt.live"; lone surrogates.
_CONTROLS = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_IN_TEXT = re.compile(f"[{_CONTROLS}]")
# In JSON, the C0 controls can occur only in strings, which have them escaped already.
_IN_JSON = re.compile(f"(?![\x00-\x1f])[{_CONTROLS}]")


def visible(text: str) -> str:
    r"""
    Replace control characters by escapes, such as ``\x1b`` or ``\u202e``; tabs and line feeds stay.

    :param text: any text, perhaps from an attacker.
    """
    return _IN_TEXT.sub(_python_escape, text)


def escaped_json(document: bytes) -> bytes:
    """
    Replace control characters in a line of JSON by JSON's escapes, so that its value stays the same.

    :param document: the line, in UTF-8.
    """
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", document.decode("utf-8")).encode("utf-8")


def _python_escape(found: re.Match[str]) -> str:
    return found[0] if found[0] in "\n\t" else ascii(found[0])[1:-1]
