"""Bearer tokens (RFC 6750), as a client sends them."""

from __future__ import annotations

import re

__all__ = ["check_token"]

# RFC 6750, section 2.1: b64token. A JSON Web Token is one as well.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")


def check_token(text: str) -> str:
    """
    Return a token as it is.

    :raise ValueError: it is not a token. The message does not repeat it: most of it may be a secret.
    """
    if _TOKEN.fullmatch(text) is None:
        raise ValueError(
            "a token has one or more characters out of A-Z, a-z, 0-9 and -._~+/, perhaps with = at its end"
        )
    return text
