"""Decoding of base64 in arguments and files."""

from __future__ import annotations

import msgspec

__all__ = ["from_base64"]


def from_base64(text: str) -> bytes:
    """
    Decode base64 as the service does, apart from white space, which is ignored: tools put line ends into it.

    :param text: base64 with padding (RFC 4648, section 4).
    :raise ValueError: the text is not base64.
    """
    try:
        return msgspec.convert("".join(text.split()), bytes)
    except msgspec.ValidationError as error:
        raise ValueError("not base64 with padding (RFC 4648, section 4)") from error
