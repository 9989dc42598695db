"""
HTTP requests: those that are right, in every form that is legal, and those that are damaged.

They are made by functions of a source of chance, so that ten thousand of them cost a second; the strategies
of Hypothesis are at the end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NamedTuple

from hypothesis import strategies as st

_TOKEN = b"abcxyzABCXYZ019!#$%&'*+-.^_`|~"
# Field values are what RFC 9110 (section 5.5) calls field-vchar, and obs-text.
_VALUE = b"abc XYZ09\t!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~\x80\x97\xff"

METHODS = (b"GET", b"POST", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"PATCH")
# Twisted's own server, and h11, take every token; so does this service, which then answers 405.
ODD_METHODS = (b"get", b"Post", b"BREW", b"X-a", b"PROPFIND", b"M-SEARCH", b"TRACE", b"LINK", b"PRI", b"!")

TARGETS = (
    *(
        b"/",
        b"/messages",
        b"/nothing",
        b"/%6Dessages",
        b"/messages?x=1",
        b"/?",
        b"/?a=b&c",
        b"//",
        b"/a/../b",
    ),
    *(b"/%ff", b"/%", b"/%zz", b"/a;b=c", b"/messages/", b"http://localhost/messages", b"HTTP://a:80/?q"),
    *(b"http://a", b"https://[::1]/messages", b"*", b"/a'b", b"/~a|b", b'/"', b"/[]", b"/{}", b"/\\"),
)
BAD_TARGETS = (
    b"messages",
    b"a:80",
    b"ftp://a/",
    b"/a b",
    b"/\x7f",
    b"/\xff",
    b"/\t",
    b"/#a",
    b"/a\x00b",
    b"?",
    b"",
)

HOSTS = (b"localhost", b"localhost:8080", b"127.0.0.1", b"[::1]:80", b"", b"a_b.c-d.", b"LOCALHOST")
BAD_HOSTS = (b"a..b", b"a b", b"a,b", b"a/b", b"u@a", b"a:b", b"[::1", b"a\x80", b"a" * 64, b"%41")


class Request(NamedTuple):
    """One request as it is sent."""

    data: bytes
    method: str
    """What a client believes to have asked, which decides how it reads the answer."""
    damage: str | None = None
    """What is wrong with it, if anything is."""


class _Parts:
    """A request in parts that can be damaged one at a time."""

    def __init__(self, chance, *, method=None, target=None):
        self.chance = chance
        self.method = method or chance.choice((*METHODS, *ODD_METHODS[: chance.randint(0, len(ODD_METHODS))]))
        self.target = target or chance.choice(TARGETS)
        self.version = b"HTTP/1.1"
        self.fields = [(b"Host", chance.choice(HOSTS))]
        self.body = b""
        self.content = b""

    def add(self, name: bytes, value: bytes) -> None:
        self.fields.insert(self.chance.randint(0, len(self.fields)), (name, value))

    def lines(self) -> list[bytes]:
        fields = [b"%b: %b" % field for field in self.fields]
        return [b" ".join((self.method, self.target, self.version)), *fields]

    def encoded(self) -> bytes:
        return b"\r\n".join(self.lines()) + b"\r\n\r\n" + self.body


def _some(chance, alphabet: bytes, most: int, least: int = 0) -> bytes:
    return bytes(chance.choice(alphabet) for _ in range(chance.randint(least, most)))


def any_case(chance, name: bytes) -> bytes:
    way = chance.randint(0, 3)
    if way == 3:
        return bytes(chance.choice((each, each ^ 0x20)) if chr(each).isalpha() else each for each in name)
    return (name, name.lower(), name.upper())[way]


def _message(chance) -> bytes:
    content = "".join(
        chance.choice(("a", '"', "\\", "é", "\0", "\U0001f600")) for _ in range(chance.randint(0, 6))
    )
    return json.dumps({"topic": "t", "content": content}, ensure_ascii=chance.randint(0, 1) == 0).encode()


def _content(chance) -> bytes:
    way = chance.randint(0, 3)
    if way == 0:
        return _message(chance)
    if way == 1:
        return b""
    if way == 2:
        return chance.choice((b"{", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"0\r\n\r\n", b"\r\n", b"x" * 300))
    return _some(chance, bytes(range(256)), 40)


_QUOTED = (b'"b"', b'""', b'"b\\"c"', b'"\\\\"', b'"a;b=c, \t\x97"')


def _extensions(chance) -> bytes:
    made = b""
    for _ in range(chance.choice((0, 0, 0, 1, 2))):
        # RFC 9112, section 7.1.1: white space may stand around both signs, though nobody should send it.
        made += chance.choice((b";",) * 12 + (b" ;", b"; ", b"\t;\t")) + _some(chance, _TOKEN, 4, 1)
        if chance.randint(0, 1):
            made += chance.choice((b"=",) * 9 + (b" = ",)) + chance.choice((b"b",) * 9 + _QUOTED)
    return made


def _chunks(chance, content: bytes) -> bytes:
    made = b""
    while content:
        size = chance.randint(1, len(content))
        digits = chance.choice((b"%x", b"%X", b"%04x")) % size
        made += b"%b%b\r\n%b\r\n" % (digits, _extensions(chance), content[:size])
        content = content[size:]
    return made + chance.choice((b"0", b"00", b"000000")) + _extensions(chance) + b"\r\n"


def _trailers(chance) -> bytes:
    return b"".join(
        b"%b: %b\r\n" % (_some(chance, _TOKEN, 8, 1), _field_value(chance))
        for _ in range(chance.choice((0, 0, 0, 1, 3)))
    )


def _field_value(chance) -> bytes:
    return _some(chance, _VALUE, 12).strip(b" \t")


def _add_odd_fields(chance, parts: _Parts) -> None:
    for _ in range(chance.choice((0, 1, 2, 5))):
        name = chance.choice(
            (b"Accept", b"If-None-Match", b"X-" + _some(chance, _TOKEN, 8), b"Cookie", b"Date")
        )
        space = chance.choice((b"", b" ", b"\t ", b"   "))
        parts.add(name, space + _field_value(chance) + chance.choice((b"", b" ", b"\t")))


def _add_body(chance, parts: _Parts, *, way: int | None = None) -> None:
    way = chance.randint(0, 2) if way is None else way
    if way == 0:
        if parts.method == b"POST":
            # It would need a length.
            parts.method = b"PUT"
        return
    parts.content = _content(chance)
    if chance.randint(0, 1):
        parts.method, parts.target, parts.content = b"POST", b"/messages", _message(chance)
        parts.add(any_case(chance, b"Content-Type"), b"application/json")
    elif chance.randint(0, 3):
        kind = chance.choice((b"application/json", b"application/json; charset=utf-8", b"text/plain"))
        parts.add(any_case(chance, b"Content-Type"), kind)
    if way == 1:
        digits = chance.choice((b"%d", b"%d", b"%04d")) % len(parts.content)
        parts.add(any_case(chance, b"Content-Length"), digits)
        parts.body = parts.content
    else:
        coding = chance.choice((b"chunked", b"chunked", b"Chunked"))
        parts.add(any_case(chance, b"Transfer-Encoding"), coding)
        parts.body = _chunks(chance, parts.content) + _trailers(chance) + b"\r\n"


_CONNECTIONS = (
    b"keep-alive",
    b"Keep-Alive",
    b"foo",
    b"keep-alive, foo",
    b"close",
    b"Close",
    b"foo,\tclose",
    b"TE",
)


def _right_parts(chance, *, body: int | None = None, may_close: bool = True) -> _Parts:
    parts = _Parts(chance)
    _add_body(chance, parts, way=body)
    _add_odd_fields(chance, parts)
    if may_close and parts.body and chance.randint(0, 3) == 3:
        # Who rejects it by its head alone may close the connection: the client need not send the body.
        parts.add(any_case(chance, b"Expect"), any_case(chance, b"100-continue"))
    if chance.randint(0, 3) == 3:
        count = len(_CONNECTIONS) if may_close else 4
        parts.add(any_case(chance, b"Connection"), _CONNECTIONS[chance.randint(0, count - 1)])
    if chance.randint(0, 4) == 4:
        # White space around a value is no part of it (RFC 9112, section 5.1).
        place = chance.randint(0, len(parts.fields) - 1)
        name, value = parts.fields[place]
        parts.fields[place] = (
            name,
            chance.choice((b"", b"\t ")) + value + chance.choice((b" ", b"\t", b" \t ")),
        )
    if parts.target == b"*":
        parts.method = b"OPTIONS"
    chunked = any(name.lower() == b"transfer-encoding" for name, _ in parts.fields)
    if may_close and not chunked and chance.randint(0, 9) == 9:
        parts.version = b"HTTP/1.0"
        if chance.randint(0, 1):
            parts.fields = [field for field in parts.fields if field[0] != b"Host"]
    return parts


def right_request(chance, *, may_close: bool = True) -> Request:
    """
    A request that RFC 9112 allows.

    :param may_close: whether it may ask, in whatever way, that the connection ends after it.
    """
    parts = _right_parts(chance, may_close=may_close)
    # An empty line before a request is to be passed over (RFC 9112, section 2.2).
    empty = chance.choice((b"",) * 49 + (b"\r\n",))
    return Request(empty + parts.encoded(), parts.method.decode())


def expecting_request(chance) -> Request:
    """A message whose body is to come when the server says so."""
    parts = _Parts(chance, method=b"POST", target=b"/messages")
    parts.add(b"Content-Type", b"application/json")
    parts.add(b"Expect", b"100-continue")
    parts.body = _message(chance)
    parts.add(b"Content-Length", b"%d" % len(parts.body))
    return Request(parts.encoded(), "POST")


# What a damage does: it is given the parts, and returns the whole request.
_Damage = Callable[[object, _Parts], bytes]
_DAMAGES: dict[str, tuple[int | None, _Damage]] = {}


def _damage(name: str, *, body: int | None = None):
    """:param body: 0 if the request has to have no body, 1 for Content-Length, 2 for chunks."""

    def register(damage: _Damage) -> _Damage:
        _DAMAGES[name] = (body, damage)
        return damage

    return register


def _with_line(chance, parts: _Parts, change: Callable[[bytes], bytes], *, first: int = 0) -> bytes:
    lines = parts.lines()
    number = chance.randint(first, len(lines) - 1)
    lines[number] = change(lines[number])
    return b"\r\n".join(lines) + b"\r\n\r\n" + parts.body


def _replaced(chance, parts: _Parts, name: bytes, value: bytes | None) -> bytes:
    parts.fields = [field for field in parts.fields if field[0].lower() != name.lower()]
    if value is not None:
        parts.add(name, value)
    return parts.encoded()


def _inserted(chance, data: bytes, piece: bytes) -> bytes:
    place = chance.randint(0, len(data))
    return data[:place] + piece + data[place:]


@_damage("bare LF")
def _bare_lf(chance, parts):
    lines = parts.lines()
    ends = [chance.choice((b"\n", b"\r\n")) for _ in lines]
    ends[chance.randint(0, len(ends) - 1)] = b"\n"
    head = b"".join(line + end for line, end in zip(lines, ends, strict=True))
    return head + chance.choice((b"\r\n", b"\n")) + parts.body


@_damage("bare CR")
def _bare_cr(chance, parts):
    return _with_line(chance, parts, lambda line: _inserted(chance, line, b"\r"))


@_damage("NUL")
def _nul(chance, parts):
    return _with_line(chance, parts, lambda line: _inserted(chance, line, b"\x00"))


@_damage("control character")
def _control(chance, parts):
    piece = bytes([chance.choice((*range(1, 9), 0x0B, 0x0C, *range(14, 32), 0x7F))])
    return _with_line(chance, parts, lambda line: _inserted(chance, line, piece))


@_damage("obs-fold")
def _obs_fold(chance, parts):
    lines = parts.lines()
    lines.insert(chance.randint(1, len(lines)), chance.choice((b" b", b"\tb: c", b" ", b" Host: b")))
    return b"\r\n".join(lines) + b"\r\n\r\n" + parts.body


@_damage("space before colon")
def _space_before_colon(chance, parts):
    return _with_line(
        chance, parts, lambda line: line.replace(b":", chance.choice((b" :", b"\t:")), 1), first=1
    )


@_damage("no colon")
def _no_colon(chance, parts):
    return _with_line(chance, parts, lambda line: line.replace(b":", b""), first=1)


@_damage("no field name")
def _no_name(chance, parts):
    return _with_line(chance, parts, lambda line: b":" + line.partition(b":")[2], first=1)


@_damage("bad field name")
def _bad_name(chance, parts):
    piece = chance.choice((b"(", b"\x80", b"@", b'"', b"/", b"[", b"{", b" ", b"\t"))
    return _with_line(chance, parts, lambda line: piece + line, first=1)


@_damage("two spaces")
def _two_spaces(chance, parts):
    line = chance.choice((b"%b  %b %b", b"%b %b  %b", b" %b %b %b", b"%b %b %b ", b"%b\t%b %b", b"%b %b\t%b"))
    lines = [line % (parts.method, parts.target, parts.version), *parts.lines()[1:]]
    return b"\r\n".join(lines) + b"\r\n\r\n" + parts.body


@_damage("bad version")
def _bad_version(chance, parts):
    parts.version = chance.choice(
        (
            b"HTTP/2.0",
            b"HTTP/1.2",
            b"HTTP/0.9",
            b"HTTP/1.10",
            b"HTTP/1.",
            b"http/1.1",
            b"HTTP/11",
            b"HTTP/1,1",
            b"",
        )
    )
    return parts.encoded()


@_damage("bad target")
def _bad_target(chance, parts):
    parts.target = chance.choice(BAD_TARGETS)
    return parts.encoded()


@_damage("bad method")
def _bad_method(chance, parts):
    parts.method = chance.choice((b"G(T", b"", b"G\x80T", b"GET/", b"G@T"))
    return parts.encoded()


@_damage("no host")
def _no_host(chance, parts):
    parts.version = b"HTTP/1.1"
    return _replaced(chance, parts, b"Host", None)


@_damage("two hosts")
def _two_hosts(chance, parts):
    parts.fields = [(b"Host", b"a"), *parts.fields]
    parts.add(b"host", b"a")
    return parts.encoded()


@_damage("bad host")
def _bad_host(chance, parts):
    return _replaced(chance, parts, b"Host", chance.choice(BAD_HOSTS))


@_damage("two lengths", body=1)
def _two_lengths(chance, parts):
    length = len(parts.body)
    other = chance.choice((length, length + 1, 0))
    if chance.randint(0, 1):
        return _replaced(chance, parts, b"Content-Length", b"%d, %d" % (length, other))
    parts.add(b"Content-Length", b"%d" % other)
    return parts.encoded()


@_damage("bad length", body=1)
def _bad_length(chance, parts):
    bad = (
        b"+1",
        b"-1",
        b"0x1",
        b"1_0",
        b"1.0",
        b"1e1",
        b"",
        b"a",
        b"1 1",
        b"\xb2",
        b"9" * 19,
        b"9" * 30,
        b"9" * 5000,
    )
    return _replaced(chance, parts, b"Content-Length", chance.choice(bad))


@_damage("length and chunks", body=2)
def _length_and_chunks(chance, parts):
    parts.add(b"Content-Length", b"%d" % chance.choice((len(parts.body), 0, 3)))
    return parts.encoded()


@_damage("bad coding", body=2)
def _bad_coding(chance, parts):
    bad = (
        *(
            b"identity",
            b"gzip",
            b"gzip, chunked",
            b"chunked, gzip",
            b"chunked, chunked",
            b"chunked,",
            b",chunked",
        ),
        *(
            b"xchunked",
            b"chunked;q=1",
            b'"chunked"',
            b"\x0bchunked",
            b"chunked\xa0",
            b"",
            b"chunked x",
            b"chun\tked",
        ),
    )
    return _replaced(chance, parts, b"Transfer-Encoding", chance.choice(bad))


@_damage("two codings", body=2)
def _two_codings(chance, parts):
    parts.add(b"Transfer-Encoding", chance.choice((b"chunked", b"identity", b"gzip", b"")))
    return parts.encoded()


@_damage("chunks in HTTP/1.0", body=2)
def _chunks_in_1_0(chance, parts):
    parts.version = b"HTTP/1.0"
    return parts.encoded()


@_damage("bad chunk size", body=2)
def _bad_chunk_size(chance, parts):
    bad = (
        *(b"g", b"", b"-1", b"+1", b"0x1", b" 1", b"1 ", b"1\t", b"1_0", b"f" * 15, b"f" * 16, b"f" * 17),
        *(
            b"0" * 30 + b"1",
            b"\xb2",
            b"1,2",
            b"1\x00",
            b"1;\x00",
            b"1;a\x7f",
            b"1;a=\n",
            b"1;",
            b"1;=a",
            b'1;a="b',
        ),
    )
    parts.body = chance.choice(bad) + b"\r\nx\r\n" + parts.body
    return parts.encoded()


@_damage("bad end of a chunk", body=2)
def _bad_chunk_end(chance, parts):
    start = chance.choice(
        (b"1\r\nx", b"1\nx\r\n", b"1\r\nx\n", b"1\r\nx\r", b"1\r\nxy\r\n", b"1\rx\r\n", b"2\r\nx\r\n")
    )
    parts.body = start + parts.body
    return parts.encoded()


@_damage("bad trailer", body=2)
def _bad_trailer(chance, parts):
    bad = (
        *(
            b"no colon\r\n",
            b"T : x\r\n",
            b"T: \x00\r\n",
            b"T: x\n\r\n",
            b" folded\r\n",
            b": x\r\n",
            b"T: x\ry\r\n",
        ),
        *(b"GET / HTTP/1.1\r\n", b"T: x\n\nGET / HTTP/1.1\r\nHost: l\r\n", b"T: \x7f\r\n", b"T\x80: x\r\n"),
    )
    parts.body = _chunks(chance, parts.content) + chance.choice(bad) + b"\r\n"
    return parts.encoded()


@_damage("long trailer", body=2)
def _long_trailer(chance, parts):
    parts.body = _chunks(chance, parts.content) + b"T: " + b"x" * 40_000 + b"\r\n\r\n"
    return parts.encoded()


@_damage("long head")
def _long_head(chance, parts):
    way = chance.randint(0, 4)
    if way == 0:
        parts.target = b"/" + b"a" * 40_000
    elif way == 1:
        parts.add(b"X", b"a" * 40_000)
    elif way == 2:
        parts.add(b"X" * 5000, b"a")
    elif way == 3:
        parts.fields += [(b"X", b"")] * 3000
    else:
        parts.method = b"A" * 40_000
    return parts.encoded()


@_damage("another protocol")
def _another_protocol(chance, parts):
    return chance.choice(
        (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x5a" * 40,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
            b"SSH-2.0-OpenSSH_9.2\r\n",
            b"GET /\r\n\r\n",
            b"*1\r\n$4\r\nPING\r\n",
            b"\x00\x00\x00\x23\x00\x12\x00\x03",
            b"\r\n\r\n\r\n\r\n",
        )
    )


@_damage("bad expectation", body=1)
def _bad_expectation(chance, parts):
    return _replaced(chance, parts, b"Expect", chance.choice((b"miracles", b"100-continue, x", b"")))


@_damage("truncated")
def _truncated(chance, parts):
    data = parts.encoded()
    return data[: chance.randint(1, len(data) - 1)]


DAMAGES = tuple(_DAMAGES)
"""What may be wrong with a request."""


def damaged_request(chance, *, damage: str | None = None) -> Request:
    """
    A request with one thing that is wrong with it, most of which RFC 9112 forbids.

    :param damage: one of `DAMAGES`.
    """
    damage = damage or chance.choice(DAMAGES)
    body, change = _DAMAGES[damage]
    parts = _right_parts(chance, body=body, may_close=False)
    return Request(change(chance, parts), parts.method.decode("latin-1"), damage)


def mutated(chance, data: bytes) -> bytes:
    """The same bytes with a few changes that follow no plan."""
    for _ in range(chance.randint(1, 4)):
        if not data:
            return data
        start = chance.randint(0, len(data) - 1)
        end = min(len(data), start + chance.randint(1, 8))
        way = chance.randint(0, 5)
        if way == 0:
            data = data[:start] + data[end:]
        elif way == 1:
            data = data[:start] + bytes([chance.randint(0, 255)]) + data[start + 1 :]
        elif way == 2:
            data = data[:start] + chance.choice(_PIECES) + data[start:]
        elif way == 3:
            data = data[:end] + data[start:]
        elif way == 4:
            data = data.replace(*chance.choice(_REPLACEMENTS), chance.randint(1, 3))
        else:
            data = data[:start] + bytes([data[start] ^ (1 << chance.randint(0, 7))]) + data[start + 1 :]
    return data


_PIECES = (
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"\x00",
        b" ",
        b"\t",
        b":",
        b";",
        b"=",
        b'"',
        b"\r\n\r\n",
        b"0\r\n\r\n",
        b"\x80",
        b",",
    ),
    *(
        b"Content-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"Host: b\r\n",
        b"chunked",
    ),
    *(
        b"Expect: 100-continue\r\n",
        b"Upgrade: h2c\r\n",
        b"GET / HTTP/1.1\r\nHost: c\r\n\r\n",
        b"HTTP/1.1",
        b"00000",
    ),
)
_REPLACEMENTS = (
    (b"\r\n", b"\n"),
    (b"\r\n", b"\r"),
    (b" ", b"  "),
    (b": ", b" : "),
    (b"1", b"0"),
    (b"a", b"A"),
)


def stream(chance) -> bytes:
    """What a client may send on one connection: a few requests; the last may be damaged in any way."""
    requests = [
        right_request(chance, may_close=chance.randint(0, 4) == 4).data for _ in range(chance.randint(0, 2))
    ]
    way = chance.randint(0, 3)
    if way == 0:
        requests.append(right_request(chance).data)
    elif way in (1, 2):
        requests.append(damaged_request(chance).data)
    data = b"".join(requests)
    return mutated(chance, data) if way == 3 else data


# One draw for a whole request: a hundred draws of Hypothesis cost more than what is tested with it. What
# fails is shrunk to the fewest requests and segments.
_chances = st.randoms(use_true_random=True)

right_requests = _chances.map(right_request)
"""Requests that RFC 9112 allows."""

expecting_requests = _chances.map(expecting_request)
"""Messages whose body is to come when the server says so."""

lasting_requests = _chances.map(lambda chance: right_request(chance, may_close=False))
"""Those after which the connection stays."""

damaged_requests = _chances.map(damaged_request)
"""Requests with one thing that is wrong with them."""


@st.composite
def pipelines(draw):
    """One to four requests, of which the last may be damaged."""
    requests = draw(st.lists(lasting_requests, max_size=3))
    return [*requests, draw(st.one_of(right_requests, expecting_requests, damaged_requests))]


@st.composite
def segments(draw, data):
    """The data in segments, cut anywhere, and gladly where something ends."""
    places = [st.integers(0, len(data))]
    for pattern in (rb"\r\n\r\n", rb"\r\n|\r|[\x00-\xff](?=[A-Z]+ )"):
        ends = [match.end() for match in re.finditer(pattern, data)][:200]
        places += [st.sampled_from(ends)] * bool(ends)
    # Few cuts leave whole what has to come at once to matter.
    return cut(data, draw(st.lists(st.one_of(places), max_size=draw(st.sampled_from([2, 8])))))


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The data in segments, cut at these places."""
    places = sorted(places)
    ends = zip([0, *places], [*places, None], strict=True)
    return [data[start:end] for start, end in ends if data[start:end]]
