"""Whether a caller has the current representation already (RFC 9110, section 13.1.2)."""

from __future__ import annotations

__all__ = ["none_match_fails"]


def none_match_fails(if_none_match: bytes, etag: bytes) -> bool:
    """
    Whether ``If-None-Match`` names the current representation, so that it need not be sent again.

    Tags are compared weakly, as the header is defined. What is not a tag is skipped, and so is the
    tag of another server that holds a comma: the representation is then sent once more.

    :param if_none_match: the value of the header, its lines joined with commas.
    :param etag: the entity tag of the current representation, with its quotes, without ``W/`` and commas.
    """
    if if_none_match == etag:
        return True
    elements = [element.strip(b" \t") for element in if_none_match.split(b",")]
    return elements == [b"*"] or any(element.removeprefix(b"W/") == etag for element in elements)
