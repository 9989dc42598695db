"""
Tokens: random texts that callers send with ``Authorization: Bearer`` (RFC 6750).

The callers file has only their SHA-256, so a reader of the file cannot use them. Unlike for a password, a
plain hash is enough: 2**256 possible tokens are too many to try.
"""

from __future__ import annotations

import re
import secrets
from hashlib import sha256
from typing import Final

__all__ = ["PREFIX", "digest_of", "new_token", "parse_digest"]

PREFIX: Final = "sampleapp_"
"""The beginning of each token, so that a token published by mistake can be found."""
_RANDOM_BYTES: Final = 32
_DIGEST: Final = re.compile(r"[0-9A-Fa-f]{64}")


def new_token() -> str:
    """Return a new token with 256 random bits."""
    return PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def digest_of(token: bytes) -> bytes:
    """Return the SHA-256 of a token's text, 32 bytes."""
    return sha256(token).digest()


def parse_digest(text: str) -> bytes:
    """
    Parse 64 hexadecimal digits.

    :raise ValueError: the text is something else. The message does not repeat it, since it may be a token.
    """
    if _DIGEST.fullmatch(text) is None:
        raise ValueError("not 64 hexadecimal digits")
    return bytes.fromhex(text)
