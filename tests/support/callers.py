"""Callers files, and the tokens in them."""

from __future__ import annotations

from hashlib import sha256

from tests.support.secrets import secret


def token_of(name: str) -> str:
    """The token of a caller; each test has the same."""
    return secret(f"sampleapp_token-of-{name}", "a token")


def bearer(token: str) -> tuple[bytes, bytes]:
    """The header field with a token."""
    return b"Authorization", b"Bearer " + token.encode()


def by(name: str) -> tuple[bytes, bytes]:
    """The header field with the token of a caller."""
    return bearer(token_of(name))


def caller(name: str, *lines: str, until: str | None = None) -> str:
    """The lines of one caller, whose token is `token_of` its name."""
    digest = sha256(token_of(name).encode()).hexdigest()
    end = [] if until is None else [f"until = {until}"]
    table = [f'[callers."{name}"]', *lines, f'[[callers."{name}".tokens]]', f'sha256 = "{digest}"', *end, ""]
    return "\n".join(table)


FULL = caller("full", 'publish = ["*"]', 'consume = ["*"]', "read = true", "metrics = true")
"""A caller that may do everything."""
