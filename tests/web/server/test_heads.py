"""Request heads: what is not HTTP, hosts that cannot be, and limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.web.errors import MalformedRequest
from sampleapp.web.server.fields import FieldParser
from sampleapp.web.server.head import parse_head
from tests.support.in_memory import request_bytes
from tests.web.http import JSON, MESSAGE, assert_problem, chunked, raw


@pytest.mark.parametrize(
    "host",
    [
        b"a..b",
        b"a" * 64,
        b"a b",
        b"a/b",
        b"a@b",
        b"a:b",
        b"[::1",
        b"\xff",
        b"a,b",
        b"[::1]:80:1",
        b"[1..2]",
        b"[%b]" % (b"a" * 70),
    ],
)
def test_a_host_that_cannot_be_one_is_a_bad_request(service, host):
    for target in (b"/", b"/nothing"):
        connection = raw(service, b"GET %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (target, host))
        (response,) = connection.responses(["GET"])
        assert_problem(response, 400)


@pytest.mark.parametrize(
    "host",
    [b"", b"localhost", b"example.org.", b"127.0.0.1:8080", b"[::1]:8080", b"a_b.c-d", b"a" * 63 + b":1"],
)
def test_a_host_that_can_be_one_is_fine(service, host):
    for target, status in ((b"/", 200), (b"/nothing", 404)):
        connection = raw(service, b"GET %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (target, host))
        (response,) = connection.responses(["GET"])
        assert response.status == status


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"POST /messages HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: identity\r\n\r\n{}",
        b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX : y\r\n\r\n",
        # Names that a lenient llhttp reads past: another parser could take them for the real ones.
        b"POST /messages HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"POST /messages HTTP/1.1\r\nHost: a\r\nContent-Length  : 37\r\n\r\n",
        b"POST /messages HTTP/1.1\r\nHost: a\r\nContent-Length 5: 37\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection : close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX:\rContent-Length: 37\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: \x0f\nContent-Length: 37\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\x0f\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
        b"POST /messages HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n1",
        b"POST /messages HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n1",
        b"POST /messages HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /messages HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST /messages HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /messages HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_data_that_is_not_http_is_rejected_with_a_document_and_the_connection_ends(service, data):
    connection = raw(service, data + b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    (response,) = connection.responses(["GET"])
    assert_problem(response, 400)
    assert response.headers[b"connection"] == b"close"
    assert connection.is_closed_for_reading
    assert service.broker.records == []


@pytest.mark.parametrize(
    "data",
    [
        b"GET /" + b"a" * 20_000,
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 20_000,
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n" * 1000 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X:\r\n" * 1000 + b"\r\n",
    ],
)
def test_a_header_over_the_limit_is_rejected(service, data):
    (response,) = raw(service, data).responses(["GET"])
    assert_problem(response, 431)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"HEAD / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
        (b"HEAD / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n", 400),
        (b"HEAD / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n", 413),
        (b"HEAD / HTTP/1.1\r\nHost: a\r\nContent-Encoding: br\r\nContent-Length: 0\r\n\r\n", 415),
        (b"HEAD / HTTP/1.1\r\nHost: a\r\nExpect: miracles\r\n\r\n", 417),
        (b"HEAD / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 20_000, 431),
        (b"HEAD / HTTP/1.1\r\nHost: a\r\n", 408),
    ],
)
def test_a_rejection_of_head_has_no_body_either(service, data, status):
    whole = raw(service, data)
    first, *others = (data[start : start + 5] for start in range(0, len(data), 5))
    cut = raw(service, first)
    cut.send(*others)
    for _ in range(11):
        service.clock.advance(1)
    for connection in (whole, cut):
        (response,) = connection.responses(["HEAD"])
        assert (response.status, response.body) == (status, b"")
        assert int(response.headers[b"content-length"]) > 0


def test_another_expectation_cannot_be_met(service):
    (response,) = raw(service, request_bytes("GET", headers=[(b"Expect", b"miracles")])).responses(["GET"])
    assert_problem(response, 417)


def test_a_field_name_of_any_length_is_not_kept(service):
    (response,) = raw(service, request_bytes("GET", headers=[(b"X" * 5000, b"")])).responses(["GET"])
    assert_problem(response, 431)


@pytest.mark.parametrize("octet", [octet for octet in (*range(32), 127) if octet not in b"\t\r\n"])
@pytest.mark.parametrize("name", [b"Content-Type", b"ce-id", b"X"])
def test_a_control_character_in_a_field_is_rejected_wherever_it_stands(service, name, octet):
    for value in (b"%ca", b"a%cb", b"a%c"):
        lines = b"Host: a\r\nContent-Length: 0\r\n%b: %b\r\n\r\n" % (name, value % octet)
        (response,) = raw(service, b"POST /topics/t HTTP/1.1\r\n" + lines).responses(["POST"])
        assert_problem(response, 400)
    assert service.broker.records == []


@pytest.mark.parametrize("before", [b"", b" ", b"\t", b"\t \t"])
@pytest.mark.parametrize("after", [b"", b" ", b"\t", b" \t", b"\t ", b" \t \t"])
@pytest.mark.parametrize(
    ("framing", "body"),
    [
        ((b"Content-Length", b"%d" % len(MESSAGE)), MESSAGE),
        ((b"Transfer-Encoding", b"chunked"), chunked(MESSAGE, 10)),
    ],
    ids=["length", "chunked"],
)
def test_white_space_around_a_value_is_no_part_of_it(service, before, after, framing, body):
    fields = [
        (b"Host", b"localhost:8080"),
        framing,
        *JSON,
        (b"Content-Encoding", b"identity"),
        (b"Expect", b"100-continue"),
        (b"Connection", b"close"),
        (b"TE", b"trailers"),
    ]
    lines = b"".join(b"%b:%b%b%b\r\n" % (name, before, value, after) for name, value in fields)
    data = b"POST /messages HTTP/1.1\r\n%b\r\n" % lines
    at_once = raw(service, data + body)
    in_pieces = service.connect()
    in_pieces.send(*(bytes([octet]) for octet in data), body)
    for connection in (at_once, in_pieces):
        (response,) = connection.responses(["POST"])
        assert (response.status, response.headers[b"connection"]) == (200, b"close")
    assert b"HTTP/1.1 100 Continue\r\n" in in_pieces.sent


@pytest.mark.parametrize("blank", [b" ", b"\t", b" \t", b"\t "])
@pytest.mark.parametrize(
    "line", [b"%b\r\n", b"%bX: y\r\n", b"X%b: y\r\n", b"X%by: z\r\n", b"Transfer-Encoding: chun%bked\r\n"]
)
@pytest.mark.parametrize("before", [b"", b"Host: a\r\n"])
def test_white_space_elsewhere_is_rejected_with_the_same_words_whole_or_in_pieces(
    service, blank, line, before
):
    data = b"GET / HTTP/1.1\r\n%b%bAccept: a\r\n\r\n" % (before, line % blank)
    rejections = []
    for size in (len(data), 1, 2, 3):
        connection = service.connect()
        connection.send(*(data[start : start + size] for start in range(0, len(data), size)))
        (response,) = connection.responses(["GET"])
        assert_problem(response, 400)
        rejections.append(response.body)
    assert rejections == [rejections[0]] * 4


@pytest.mark.parametrize(
    "target",
    [
        *(b"http:///", b"http://", b"http://:80/", b"http://?a", b"http://user@localhost/", b"http://a..b/"),
        *(b"http://a,b/", b"http://%61/", b"http://[::1/", b"http://[a]/", b"http://a:x/", b"http://a\\b/"),
    ],
)
def test_a_url_as_a_target_names_a_host(service, target):
    (response,) = raw(service, b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % target).responses(["GET"])
    assert_problem(response, 400)


@pytest.mark.parametrize("hosts", [[], [b"a", b"a"], [b"a b"]])
def test_a_request_for_a_url_has_one_host_as_any_other(service, hosts):
    fields = b"".join(b"Host: %b\r\n" % host for host in hosts)
    (response,) = raw(service, b"GET http://a/ HTTP/1.1\r\n%b\r\n" % fields).responses(["GET"])
    assert_problem(response, 400)


def test_the_host_of_a_target_counts_instead_of_the_field():
    for target, host in [
        (b"http://b:8080/x?y", b"b:8080"),
        (b"HTTPS://[::1]", b"[::1]"),
        (b"/x", b"a"),
        (b"*", b"a"),
    ]:
        head = parse_head(b"OPTIONS %b HTTP/1.1\r\nHost: a\r\n\r\n" % target)
        assert head.fields.all(b"Host") == (host,)
    head = parse_head(b"GET http://b/ HTTP/1.0\r\n\r\n")
    assert head.fields.all(b"Host") == (b"b",)


def head_with(*lines):
    return b"POST /messages HTTP/1.1\r\nHost: a\r\n%b\r\n" % b"".join(b"%b\r\n" % line for line in lines)


@given(
    st.lists(
        st.sampled_from(
            [
                b"Idempotency-Key: a",
                b"IDEMPOTENCY-key:b \t",
                b"X-Y: c",
                b"X-Idempotency-Key: d",
                b"Idempotency-Key:",
                b"Idempotency-Key: \xff",
                b"Idempotency-Key: e\tf",
            ]
        ),
        max_size=4,
    )
)
def test_heads_that_are_alike_but_for_their_key_are_told_apart(lines):
    for _ in range(2):
        found: dict[bytes, tuple[bytes, ...]] = {}
        for line in lines:
            name, _, value = line.partition(b":")
            found[name.lower()] = (*found.get(name.lower(), ()), value.strip(b" \t"))
        fields = parse_head(head_with(*lines)).fields
        assert {name: fields.all(name) for name in fields.names()} == {b"host": (b"a",), **found}


@pytest.mark.parametrize(
    "line", [b"Idempotency-Key: a\x00", b"Idempotency-Key: a\r\n b", b"Idempotency-Key : a"]
)
def test_a_key_that_the_grammar_does_not_allow_is_rejected_after_one_that_it_allows(line):
    parse_head(head_with(b"Idempotency-Key: a"))
    with pytest.raises(MalformedRequest):
        parse_head(head_with(line))


def test_a_head_is_parsed_once_for_all_keys(monkeypatch):
    parse_head(head_with(b"Idempotency-Key: 1", b"X-Alike: all"))
    monkeypatch.setattr(FieldParser, "feed", None)
    assert parse_head(head_with(b"Idempotency-Key: 2", b"X-Alike: all")).fields.all(b"idempotency-key") == (
        b"2",
    )
