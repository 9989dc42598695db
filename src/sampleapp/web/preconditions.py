"""``If-Match`` and ``If-None-Match`` (RFC 9110, section 13.1)."""

from __future__ import annotations

__all__ = ["match_fails", "none_match_fails"]


def match_fails(if_match: bytes, etag: bytes) -> bool:
    """
    Return whether ``If-Match`` does not name the current representation, so that the response is 412.

    It is defined with the strong comparison (RFC 9110, section 13.1.1): a weak tag never matches.

    :param if_match: the value of the header, its lines joined with commas.
    :param etag: the entity tag of the current representation, with its quotes, without ``W/`` and commas.
    """
    elements = _elements(if_match)
    return elements != [b"*"] and etag not in elements


def none_match_fails(if_none_match: bytes, etag: bytes) -> bool:
    """
    Return whether ``If-None-Match`` names the current representation, so that the response is 304.

    It is defined with the weak comparison (RFC 9110, section 13.1.2). Text that is not a tag is skipped, and
    so is a tag with a comma, which only other servers make: the representation is then sent again.

    :param if_none_match: the value of the header, its lines joined with commas.
    :param etag: the entity tag of the current representation, with its quotes, without ``W/`` and commas.
    """
    if if_none_match == etag:
        return True
    elements = _elements(if_none_match)
    return elements == [b"*"] or any(element.removeprefix(b"W/") == etag for element in elements)


def _elements(tags: bytes) -> list[bytes]:
    return [element.strip(b" \t") for element in tags.split(b",")]
