"""What a caller says of the representation that it has (RFC 9110, section 13.1)."""

from __future__ import annotations

__all__ = ["match_fails", "none_match_fails"]


def match_fails(if_match: bytes, etag: bytes) -> bool:
    """
    Whether ``If-Match`` does not name the current representation, so that the request is not to be met.

    Tags are compared strongly, as the header is defined (RFC 9110, section 13.1.1): a weak one never matches.

    :param if_match: the value of the header, its lines joined with commas.
    :param etag: the entity tag of the current representation, with its quotes, without ``W/`` and commas.
    """
    elements = _elements(if_match)
    return elements != [b"*"] and etag not in elements


def none_match_fails(if_none_match: bytes, etag: bytes) -> bool:
    """
    Whether ``If-None-Match`` names the current representation, so that it need not be sent again.

    Tags are compared weakly, as the header is defined (RFC 9110, section 13.1.2). What is not a tag is
    skipped, and so is the tag of another server that holds a comma: the representation is then sent once
    more.

    :param if_none_match: the value of the header, its lines joined with commas.
    :param etag: the entity tag of the current representation, with its quotes, without ``W/`` and commas.
    """
    if if_none_match == etag:
        return True
    elements = _elements(if_none_match)
    return elements == [b"*"] or any(element.removeprefix(b"W/") == etag for element in elements)


def _elements(tags: bytes) -> list[bytes]:
    return [element.strip(b" \t") for element in tags.split(b",")]
