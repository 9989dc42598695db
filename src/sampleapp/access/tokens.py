"""
Tokens: random texts that callers send with ``Authorization: Bearer`` (RFC 6750).

The service knows only their SHA-256, so whoever reads the file of callers can call nothing with it. A plain
hash is enough, other than for a password: nobody can try out the 2**256 tokens that there may be.
"""

from __future__ import annotations

import re
import secrets
from hashlib import sha256
from typing import Final

__all__ = ["PREFIX", "digest_of", "new_token", "parse_digest"]

PREFIX: Final = "sampleapp_"
"""What a token begins with, so that one that was published by mistake can be found."""
_RANDOM_BYTES: Final = 32
_DIGEST: Final = re.compile(r"[0-9A-Fa-f]{64}")


def new_token() -> str:
    """Return a token of 256 random bits, which nobody has."""
    return PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def digest_of(token: bytes) -> bytes:
    """Return what the service knows of a token: SHA-256 of its text, 32 bytes."""
    return sha256(token).digest()


def parse_digest(text: str) -> bytes:
    """
    Read 64 hexadecimal digits.

    :raise ValueError: it is something else. What it is, is not repeated: it may be a token.
    """
    if _DIGEST.fullmatch(text) is None:
        raise ValueError("not 64 hexadecimal digits")
    return bytes.fromhex(text)
