"""Request bodies: their limit, in whatever way they come, and clients that are rejected."""

from __future__ import annotations

import json

import pytest

from tests.support.in_memory import request_bytes
from tests.web.http import CHUNKED, JSON, MESSAGE, assert_problem, chunked, raw


def test_a_declared_body_over_the_limit_is_rejected_before_any_of_it_is_read(service):
    connection = raw(service, request_bytes("POST", "/messages", [*JSON, (b"Content-Length", b"1001")]))
    (response,) = connection.responses(["POST"])
    assert_problem(response, 413)
    assert "1000 bytes" in json.loads(response.body)["detail"]
    assert connection.is_closed_for_reading


def test_a_client_that_waits_to_be_told_to_go_on_is_told_or_rejected(service):
    expect = [*JSON, (b"Expect", b"100-continue")]
    right = request_bytes("POST", "/messages", expect, MESSAGE).removesuffix(MESSAGE)
    connection = raw(service, right)
    assert connection.sent == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.send(MESSAGE)
    (response,) = connection.responses(["POST"])
    assert response.status == 200

    wrong = request_bytes("POST", "/messages", expect, b"x" * 1001).removesuffix(b"x" * 1001)
    connection = raw(service, wrong)
    assert connection.sent.startswith(b"HTTP/1.1 413")
    assert b"100 Continue" not in connection.sent


def test_a_chunked_body_is_rejected_when_it_passes_the_limit(service):
    connection = raw(service, CHUNKED)
    piece = b"64\r\n%b\r\n" % (b"x" * 100)
    for _ in range(10):
        connection.send(piece)
    assert connection.sent == b""
    connection.send(piece)
    (response,) = connection.responses(["POST"])
    assert_problem(response, 413)
    assert connection.is_closed_for_reading
    connection.send(*[piece] * 100)
    assert len(connection.responses(["POST"])) == 1


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_body_of_just_the_limit_is_taken_in_whatever_way_it_comes(service, size):
    content = b"x" * (1000 - len(b'{"topic":"t","content":""}'))
    body = b'{"topic":"t","content":"%b"}' % content
    assert len(body) == 1000
    assert service.post(body).status == 200
    connection = raw(service, CHUNKED + chunked(body, size))
    # Many small chunks are parsed in several turns of the reactor.
    service.clock.pump([0] * 3)
    (response,) = connection.responses(["POST"])
    assert response.status == 200
    assert [record.value for record in service.broker.records] == [content, content]


def test_a_rejected_client_is_let_finish_for_a_while_so_that_it_can_read_the_answer(service):
    connection = raw(service, request_bytes("POST", "/messages", JSON, b"x" * 2000))
    assert connection.transport.half_closed
    assert not connection.transport.aborted
    service.clock.advance(5)
    assert connection.transport.aborted


def test_a_rejected_client_cannot_go_on_sending_for_ever(service):
    connection = raw(service, CHUNKED + b"FFFFFFFF\r\n" + b"x" * 2000)
    for _ in range(7):
        service.clock.advance(4)
        connection.send(b"x" * 100_000)
        assert not connection.transport.aborted
    service.clock.advance(2)
    assert connection.transport.aborted


def test_a_rejection_is_the_only_answer_also_to_a_body_that_is_malformed_as_well(service):
    connection = raw(service, CHUNKED + b"7D0\r\n" + b"x" * 2000 + b"\r\nzz\r\n")
    (response,) = connection.responses(["POST"])
    assert_problem(response, 413)


def test_a_content_length_of_very_many_digits_is_too_large(service):
    data = request_bytes("POST", "/messages", [(b"Content-Length", b"9" * 5000), *JSON])
    connection = raw(service, request_bytes("GET") + data)
    ok, rejected = connection.responses(["GET", "POST"])
    assert ok.status == 200
    assert_problem(rejected, 413)


@pytest.mark.parametrize(
    "field", [b"Content-Length: 2", b"Transfer-Encoding:chunked", b"Expect: 100-Continue"]
)
def test_white_space_after_a_value_is_no_part_of_it(service, field):
    body = b"" if field.startswith(b"Expect") else b"2\r\n[]\r\n0\r\n\r\n" if b"chunked" in field else b"[]"
    data = b"POST /messages HTTP/1.1\r\nHost: a \t\r\n%b  \r\n\r\n%b" % (field, body)
    for response in raw(service, data + data).responses(["POST", "POST"]):
        assert_problem(response, 415)


def test_a_content_length_may_have_any_number_of_leading_zeros(service):
    data = b"POST /messages HTTP/1.1\r\nHost: a\r\nContent-Length: %b2\r\n\r\n[]" % (b"0" * 5000)
    for response in raw(service, data + data).responses(["POST", "POST"]):
        assert_problem(response, 415)
