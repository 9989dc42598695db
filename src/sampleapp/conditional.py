"""Whether a caller has the current representation already (RFC 9110, section 13.1.2)."""

from __future__ import annotations

import re

__all__ = ["none_match_fails"]

_ENTITY_TAG = re.compile(rb'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')


def none_match_fails(if_none_match: bytes, etag: bytes) -> bool:
    """
    Whether ``If-None-Match`` names the current representation, so that it need not be sent again.

    Tags are compared weakly, as the header is defined. What is not a tag is passed over: the worst that
    comes of it is that the representation is sent once more.

    :param if_none_match: the value of the header, its lines joined with commas.
    :param etag: the entity tag of the current representation, with its quotes and without ``W/``.
    """
    if if_none_match == etag:
        return True
    return if_none_match.strip() == b"*" or etag in _ENTITY_TAG.findall(if_none_match)
