"""
In what this service differs from two other servers that are right as well, and why it does.

Whatever is not in the list is a fault, of one of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from tests.support.http_parsers import (
    Rejected,
    Seen,
    Waiting,
    seen_by_h11,
    seen_by_service,
    seen_by_twisted,
    starts_by_h11,
)

MAX_BODY = 1024 * 1024


class Kind(NamedTuple):
    """One kind of difference: who does what with which bytes."""

    name: str
    reason: str
    of: tuple[str, ...]
    """Who differs: ``h11``, ``twisted``."""
    ours: tuple[type, ...]
    """What this service makes of it."""
    theirs: tuple[type, ...]
    applies: Callable[[bytes, str], bool]
    """Whether it is that: by the bytes from that request on, and the status of our rejection, or ``""``."""


class Difference(NamedTuple):
    """Where the answers to the same bytes part."""

    other: str
    ours: Seen | Rejected | Waiting
    theirs: Seen | Rejected | Waiting
    kind: Kind | None
    """``None`` if it is in no list."""


def differences(data: bytes) -> list[Difference]:
    """Send the same bytes to all servers, and return in what they differ."""
    ours = seen_by_service(data)
    found = []
    for other, theirs in (("h11", seen_by_h11(data)), ("twisted", seen_by_twisted(data))):
        for number, (one, another) in enumerate(zip(ours, theirs, strict=False)):
            if one == another and isinstance(one, Seen):
                continue
            if isinstance(one, Seen) or type(one) is not type(another):
                kind = _kind(other, one, another, _rest(data, number)) or _kind(
                    other, one, another, data[_start(data, number) :]
                )
                found.append(Difference(other, one, another, kind))
            break
    return found


def _rest(data: bytes, number: int) -> bytes:
    starts = starts_by_h11(data)
    return data[starts[number] :] if number < len(starts) else data


def _start(data: bytes, number: int) -> int:
    # The shortest beginning of the data in which this service sees so many requests.
    least, most = 0, len(data)
    while least < most:
        middle = (least + most) // 2
        seen = sum(isinstance(event, Seen) for event in seen_by_service(data[:middle]))
        least, most = (least, middle) if seen >= number else (middle + 1, most)
    return least


def _kind(other, ours, theirs, rest: bytes) -> Kind | None:
    status = ours.reason if isinstance(ours, Rejected) else ""
    for kind in KINDS:
        fits = other in kind.of and isinstance(ours, kind.ours) and isinstance(theirs, kind.theirs)
        if fits and kind.applies(rest, status):
            return kind
    return None


_HEAD = re.compile(rb"(?:.*?)(?:\r?\n\r?\n|\Z)", re.DOTALL)
_FIELD = re.compile(rb"^([^:\r\n]*):[ \t]*(.*?)[ \t]*\r?$", re.MULTILINE)
_HOST = re.compile(rb"(?:\[[0-9a-f:.]*\]|(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{0,63})(?::[0-9]*)?", re.IGNORECASE)
_CONTROL = re.compile(rb"[\x01-\x08\x0b\x0c\x0e-\x1f\x7f\x85]")


def _head(rest: bytes) -> bytes:
    return _HEAD.match(rest.lstrip(b"\r\n"))[0]


def _line(rest: bytes) -> bytes:
    return _head(rest).partition(b"\n")[0].rstrip(b"\r")


def _values(rest: bytes, name: bytes) -> list[bytes]:
    return [value for each, value in _FIELD.findall(_head(rest)) if each.lower() == name]


def _after_head(rest: bytes) -> bytes:
    return rest.lstrip(b"\r\n")[len(_head(rest)) :]


def _is_chunked(rest: bytes) -> bool:
    return bool(_values(rest, b"transfer-encoding"))


def _has(pattern: bytes) -> Callable[[bytes, str], bool]:
    found = re.compile(pattern, re.DOTALL).search
    return lambda rest, status: found(_head(rest)) is not None


def _chunks_have(pattern: bytes) -> Callable[[bytes, str], bool]:
    found = re.compile(pattern, re.DOTALL | re.MULTILINE).search
    return lambda rest, status: _is_chunked(rest) and found(_after_head(rest)) is not None


def _target_has_another_form(rest: bytes, status: str) -> bool:
    words = _line(rest).split(b" ")
    return len(words) > 1 and not re.match(rb"/|https?://|\*$", words[1], re.IGNORECASE)


def _host_of_target_is_none(rest: bytes, status: str) -> bool:
    url = re.match(rb"[^ ]+ https?://([^/?# ]*)", _line(rest), re.IGNORECASE)
    return url is not None and (not url[1] or not _HOST.fullmatch(url[1]) or b"[" in url[1])


def _host_is_none(rest: bytes, status: str) -> bool:
    values = _values(rest, b"host")
    return len(values) != 1 or not _HOST.fullmatch(values[0]) or b"[" in values[0]


def _is_too_large(rest: bytes, status: str) -> bool:
    sizes = [
        int(value)
        for value in _values(rest, b"content-length")[:1]
        if value[:9].isdigit() and len(value) < 99
    ]
    if _is_chunked(rest):
        sizes += [int(size, 16) for size in re.findall(rb"^([0-9a-fA-F]+)", _after_head(rest), re.MULTILINE)]
    return status == "413" and (not sizes or max(sizes) > MAX_BODY)


def _is_too_long(rest: bytes, status: str) -> bool:
    return status == "431" and (
        len(_head(rest)) > 16_384
        or _head(rest).count(b"\n") > 500
        or any(len(name) > 256 for name, _ in _FIELD.findall(_head(rest)))
        or len(_after_head(rest)) > 16_384
    )


def _is_unframed(rest: bytes) -> bool:
    return not _is_chunked(rest) and not _values(rest, b"content-length")


def _would_lose_its_body(rest: bytes, status: str) -> bool:
    closes = _line(rest).endswith(b"HTTP/1.0") or b"close" in b",".join(_values(rest, b"connection")).lower()
    if status != "400" or not closes:
        return False
    body = _after_head(rest)
    if _is_chunked(rest):
        return re.search(rb"(?:\A|\n)0+[^\n]*\n(?:[^\r\n][^\n]*\n)*\r?\n[\r\n]*[^\r\n]", body) is not None
    lengths = _values(rest, b"content-length")
    return bool(body[int(lengths[0]) if lengths and lengths[0].isdigit() else 0 :].strip(b"\r\n"))


def _is_another_expectation(rest: bytes, status: str) -> bool:
    return status == "417" and [value.lower() for value in _values(rest, b"expect")] != [b"100-continue"]


def _is_rejected_when_whole(rest: bytes, status: str) -> bool:
    # What h11 and Twisted find out at the end of the head, or of a line, is told here as soon as it is known.
    rest = rest.lstrip(b"\r\n")
    if re.search(rb"\n\r?\n", rest):
        return False
    return any(isinstance(event, Rejected) for event in seen_by_h11(rest + b"\r\n\r\n")) or any(
        kind.applies(rest, status) for kind in KINDS if kind.ours == (Rejected,) and kind.name != "told early"
    )


def _trailer_is_none(rest: bytes, status: str) -> bool:
    found = re.search(
        rb"^0+(?:[ \t]*;[^\r\n]*)?\r\n(.*?)(?:\r\n\r\n|\Z)", _after_head(rest), re.DOTALL | re.MULTILINE
    )
    lines = found[1].split(b"\r\n") if found else []
    return _is_chunked(rest) and any(
        not re.fullmatch(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\x00]*", line) for line in lines
    )


_BOTH = ("h11", "twisted")
_H11 = ("h11",)
_TWISTED = ("twisted",)

KINDS = (
    Kind(
        "bare LF",
        "RFC 9112, section 2.2, allows either; where two parsers differ, they see different requests",
        *(_BOTH, (Rejected,), (Seen, Waiting)),
        _has(rb"(?<!\r)\n"),
    ),
    Kind(
        "bare CR",
        "RFC 9112, section 2.2: it is invalid, or becomes a space; Twisted before 26.10 leaves it in values",
        *(_TWISTED, (Rejected,), (Seen, Waiting)),
        _has(rb"\r(?!\n)"),
    ),
    Kind(
        "folded line",
        "RFC 9112, section 5.2: a server rejects it, or replaces it by spaces",
        *(_BOTH, (Rejected,), (Seen, Waiting)),
        _has(rb"\n[ \t]"),
    ),
    Kind(
        "host",
        "RFC 9112, section 3.2: no Host, two of them, or an invalid one is 400; Twisted does not look, "
        "and h11 only counts. IPv6 addresses are left to the tests of hosts",
        *(_BOTH, (Rejected,), (Seen, Waiting)),
        _host_is_none,
    ),
    Kind(
        "version",
        "RFC 9110, section 2.5: only versions 1.0 and 1.1 are what this service speaks",
        *(_H11, (Rejected,), (Seen, Waiting)),
        lambda rest, status: re.search(rb" HTTP/1\.[01]$", _line(rest)) is None,
    ),
    Kind(
        "form of the target",
        "RFC 9112, section 3.2: a path, a URL of http or https, or an asterisk",
        *(_BOTH, (Rejected,), (Seen, Waiting)),
        _target_has_another_form,
    ),
    Kind(
        "host of the target",
        "RFC 9110, section 4.2: a URL of http or https has the name or address of a host",
        *(_BOTH, (Rejected,), (Seen, Waiting)),
        _host_of_target_is_none,
    ),
    Kind(
        "octets of the target",
        "RFC 9112, section 3.2: a target holds no control characters, and only ASCII",
        *(_TWISTED, (Rejected,), (Seen, Waiting)),
        lambda rest, status: re.search(rb"[^\x20-\x7e]", _line(rest)) is not None,
    ),
    Kind(
        "two framings",
        "RFC 9112, section 6.1: Transfer-Encoding with Content-Length, or in HTTP/1.0, may be an attack",
        *(_BOTH, (Rejected,), (Seen, Waiting)),
        lambda rest, status: (
            _is_chunked(rest) and bool(_values(rest, b"content-length") or _line(rest).endswith(b"HTTP/1.0"))
        ),
    ),
    Kind(
        "coding",
        "RFC 9112, section 7: there is no identity; Twisted reads it as none",
        *(_TWISTED, (Rejected,), (Seen, Waiting)),
        lambda rest, status: b"identity" in b",".join(_values(rest, b"transfer-encoding")).lower(),
    ),
    Kind(
        "lengths",
        "RFC 9112, section 6.3: several equal values of Content-Length may be rejected",
        *(_H11, (Rejected,), (Seen, Waiting)),
        lambda rest, status: len(re.split(rb",", b",".join(_values(rest, b"content-length")))) > 1,
    ),
    Kind(
        "too large",
        "RFC 9110, section 15.5.14: the others have no limit, and wait for the body",
        *(_BOTH, (Rejected,), (Waiting, Rejected, Seen)),
        _is_too_large,
    ),
    Kind(
        "too long",
        "RFC 6585, section 5: the limits of the others are higher",
        *(_BOTH, (Rejected,), (Waiting, Rejected, Seen)),
        _is_too_long,
    ),
    Kind(
        "no length",
        "RFC 9110, section 15.5.12: a body that is not framed would be lost, and its request succeed",
        *(_BOTH, (Rejected,), (Seen, Waiting)),
        lambda rest, status: (
            status == "411" and rest.lstrip(b"\r\n").startswith(b"POST ") and _is_unframed(rest)
        ),
    ),
    Kind(
        "bytes after the last request",
        "RFC 9112, section 9.6: what follows it is not read; they may be a part of its body",
        *(_BOTH, (Rejected,), (Seen, Waiting)),
        _would_lose_its_body,
    ),
    Kind(
        "expectation",
        "RFC 9110, section 10.1.1: a server may answer 417 to what it does not know",
        *(_BOTH, (Rejected,), (Seen, Waiting)),
        _is_another_expectation,
    ),
    Kind(
        "chunk extension",
        "RFC 9112, section 7.1.1: h11 and Twisted take what the grammar does not",
        *(_BOTH, (Rejected,), (Seen, Waiting)),
        _chunks_have(rb"^[0-9a-fA-F]+[ \t]*(;|[ \t]+\r?$)"),
    ),
    Kind(
        "trailer",
        "RFC 9112, section 7.1.2: Twisted does not look at trailers, and h11 takes LF alone as their end",
        *(_BOTH, (Rejected,), (Seen, Waiting)),
        _trailer_is_none,
    ),
    Kind(
        "white space before a chunk extension",
        "RFC 9112, section 7.1.1: it is to be read, and h11 does not",
        *(_H11, (Seen, Waiting), (Rejected,)),
        _chunks_have(rb"^[0-9a-fA-F]+[ \t]+;"),
    ),
    Kind(
        "leading zeros of a chunk's size",
        "RFC 9112, section 7.1: there may be any number of digits; h11 takes 20",
        *(_H11, (Seen, Waiting), (Rejected,)),
        _chunks_have(rb"^0{20}"),
    ),
    Kind(
        "white space or quotation marks in a chunk extension",
        "RFC 9112, section 7.1.1: they are to be read, and Twisted does not",
        *(_TWISTED, (Seen, Waiting), (Rejected,)),
        _chunks_have(rb'^[0-9a-fA-F]+[ \t]*;[^\r\n]*(?:[ \t"]|[ \t]*;)|^[0-9a-fA-F]+[ \t]+;'),
    ),
    Kind(
        "empty line before the request",
        "RFC 9112, section 2.2: at least one is to be passed over; h11 does not, and Twisted only one",
        *(_BOTH, (Seen, Waiting), (Rejected,)),
        lambda rest, status: rest.startswith(b"\r\n"),
    ),
    Kind(
        "control character in a field",
        "RFC 9110, section 5.5: such a value is not valid; the others keep what Python does not take for "
        "white space, or the end of a line",
        *(_BOTH, (Rejected,), (Seen, Waiting)),
        lambda rest, status: any(_CONTROL.search(value) for _, value in _FIELD.findall(rest)),
    ),
    Kind(
        "close among other options",
        "RFC 9110, section 7.6.1: Connection is a list; Twisted sees close only when it is alone",
        *(_TWISTED, (Waiting,), (Seen, Rejected)),
        lambda rest, status: True,
    ),
    Kind(
        "first octet",
        "RFC 9112, section 3: h11 looks at it, and this service at the line when that is whole, or "
        "has a control character",
        *(_H11, (Waiting,), (Rejected,)),
        lambda rest, status: b"\n" not in rest and rest[:1] <= b"\x20",
    ),
    Kind(
        "told early",
        "RFC 9112, section 2.2: what cannot become a request is rejected at once; nobody waits in vain",
        *(_BOTH, (Rejected,), (Waiting,)),
        _is_rejected_when_whole,
    ),
)
"""Every kind of difference that may be."""
