"""HTTP as a careful server speaks it: methods, refusals, limits, connections."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from klein import Klein
from twisted.logger import capturedLogs
from twisted.web.resource import Resource

from sampleapp.web.routing import RouteTable
from tests.support import strategies
from tests.support.in_memory import InMemoryService, MemoryTransport, PromptBroker, request_bytes

JSON = [(b"Content-Type", b"application/json")]
MESSAGE = b'{"topic":"t","content":"c"}'


@pytest.fixture
def service():
    return InMemoryService(broker=PromptBroker(), max_body=1000)


def raw(service, data):
    connection = service.connect()
    connection.send(data)
    return connection


def assert_problem(response, status):
    assert response.status == status
    assert response.headers[b"content-type"] == b"application/problem+json"
    problem = json.loads(response.body)
    assert problem["status"] == status
    assert set(problem) >= {"type", "title", "status", "detail"}


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/", b"GET, HEAD, OPTIONS"),
        ("DELETE", "/", b"GET, HEAD, OPTIONS"),
        ("BREW", "/", b"GET, HEAD, OPTIONS"),
        ("get", "/", b"GET, HEAD, OPTIONS"),
        ("GET", "/messages", b"POST, OPTIONS"),
        ("HEAD", "/messages", b"POST, OPTIONS"),
        ("PUT", "/messages", b"POST, OPTIONS"),
    ],
)
def test_a_wrong_method_is_refused_with_those_that_are_right(service, method, path, allow):
    response = service.request(method, path)
    assert response.status == 405
    assert response.headers[b"allow"] == allow
    if method != "HEAD":
        assert_problem(response, 405)


@pytest.mark.parametrize(("path", "allow"), [("/", b"GET, HEAD, OPTIONS"), ("/messages", b"POST, OPTIONS")])
def test_options_tells_the_methods_of_a_path(service, path, allow):
    response = service.request("OPTIONS", path)
    assert (response.status, response.headers[b"allow"], response.body) == (204, allow, b"")


def test_options_of_the_whole_server_is_answered(service):
    assert service.request("OPTIONS", "*").status == 204
    assert_problem(service.request("GET", "*"), 400)


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/%2Fmessages",
        "/messages/",
        "/messages/1",
        "//",
        "//messages",
        "/Messages",
        "/a/../messages",
        "/%00",
        "/%2e",
        "/.",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_an_unknown_path_is_not_found(service, path, method):
    assert_problem(service.request(method, path, JSON, MESSAGE), 404)
    assert service.broker.records == []


@pytest.mark.parametrize(
    "target", ["Xmessages", "messages", "x/", "ftp://localhost/messages", "localhost:443"]
)
def test_a_target_that_is_no_path_is_a_bad_request(service, target):
    assert_problem(service.request("POST", target, JSON, MESSAGE), 400)
    assert_problem(service.request("CONNECT", target), 400)
    assert service.broker.records == []


def test_a_path_may_be_percent_encoded(service):
    assert service.request("POST", "/%6Dessages", JSON, MESSAGE).status == 200


def test_a_path_that_is_not_utf_8_is_a_bad_request(service):
    assert_problem(service.request("GET", "/%ff"), 400)


def test_a_whole_url_may_be_the_target(service):
    assert service.request("GET", "http://localhost:8080/").body == b"[]"
    assert service.request("GET", "HTTP://localhost:8080").body == b"[]"
    assert service.request("POST", "http://localhost:8080/messages", JSON, MESSAGE).status == 200


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
        b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
        b"POST /messages HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n1",
        b"POST /messages HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n1",
        b"POST /messages HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /messages HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST /messages HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /messages HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused_with_a_document_and_the_connection_ends(service, data):
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
def test_a_header_over_the_limit_is_refused(service, data):
    (response,) = raw(service, data).responses(["GET"])
    assert_problem(response, 431)


def test_http_1_0_is_served_and_the_connection_ends(service):
    connection = raw(service, b"GET / HTTP/1.0\r\n\r\n")
    (response,) = connection.responses(["GET"])
    assert (response.status, response.body) == (200, b"[]")
    assert response.headers[b"connection"] == b"close"
    assert connection.is_lost


def test_the_client_may_ask_that_the_connection_ends(service):
    connection = raw(service, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    (response,) = connection.responses(["GET"])
    assert response.headers[b"connection"] == b"close"
    assert connection.is_lost


def test_a_declared_body_over_the_limit_is_refused_before_any_of_it_is_read(service):
    connection = raw(service, request_bytes("POST", "/messages", JSON)[:-2] + b"Content-Length: 1001\r\n\r\n")
    (response,) = connection.responses(["POST"])
    assert_problem(response, 413)
    assert "1000 bytes" in json.loads(response.body)["detail"]
    assert connection.is_closed_for_reading


def test_a_client_that_waits_to_be_told_to_go_on_is_told_or_refused(service):
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


def test_another_expectation_cannot_be_met(service):
    (response,) = raw(service, request_bytes("GET", headers=[(b"Expect", b"miracles")])).responses(["GET"])
    assert_problem(response, 417)


def chunked(body, size):
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


CHUNKED = request_bytes("POST", "/messages", [*JSON, (b"Transfer-Encoding", b"chunked")])


def test_a_chunked_body_is_refused_when_it_passes_the_limit_and_no_more_is_kept(service):
    connection = raw(service, CHUNKED)
    piece = b"64\r\n%b\r\n" % (b"x" * 100)
    for _ in range(10):
        connection.send(piece)
    assert connection.sent == b""
    connection.send(piece)
    (response,) = connection.responses(["POST"])
    assert_problem(response, 413)
    assert connection.is_closed_for_reading
    request = connection.channel.requests[0]
    connection.send(*[piece] * 100)
    assert request.content.getvalue() == b""
    assert len(connection.responses(["POST"])) == 1


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_body_of_just_the_limit_is_taken_in_whatever_way_it_comes(service, size):
    content = b"x" * (1000 - len(b'{"topic":"t","content":""}'))
    body = b'{"topic":"t","content":"%b"}' % content
    assert len(body) == 1000
    assert service.post(body).status == 200
    (response,) = raw(service, CHUNKED + chunked(body, size)).responses(["POST"])
    assert response.status == 200
    assert [record.value for record in service.broker.records] == [content, content]


def test_a_refused_client_is_let_finish_for_a_while_so_that_it_can_read_the_answer(service):
    connection = raw(service, request_bytes("POST", "/messages", JSON, b"x" * 2000))
    assert connection.transport.half_closed
    assert not connection.transport.aborted
    service.clock.advance(5)
    assert connection.transport.aborted


def test_a_refused_client_cannot_go_on_sending_for_ever(service):
    connection = raw(service, CHUNKED + b"FFFFFFFF\r\n" + b"x" * 2000)
    for _ in range(7):
        service.clock.advance(4)
        connection.send(b"x" * 100_000)
        assert not connection.transport.aborted
    service.clock.advance(2)
    assert connection.transport.aborted


def test_a_refusal_is_the_only_answer_also_to_a_body_that_is_malformed_as_well(service):
    connection = raw(service, CHUNKED + b"7D0\r\n" + b"x" * 2000 + b"\r\nzz\r\n")
    (response,) = connection.responses(["POST"])
    assert_problem(response, 413)


class NarrowTransport(MemoryTransport):
    """The server's end of a connection whose client reads only when it is told to."""

    limit = 4096
    is_full = False

    def write(self, data):
        super().write(data)
        if not self.is_full and len(self.value()) > self.limit:
            self.is_full = True
            self.producer.pauseProducing()

    def let_client_read(self):
        data = self.value()
        self.clear()
        self.is_full = False
        if self.producer is not None:
            self.producer.resumeProducing()
        return data


def test_a_client_that_does_not_read_its_answers_gets_no_further_ones_prepared(service):
    for n in range(100):
        service.read(b"%d" % n, b"1.5")
    size = len(service.request("GET").body)
    connection = service.connect(NarrowTransport)
    requests = 100
    connection.send(request_bytes("GET") * requests)
    received = b""
    while data := connection.transport.value():
        assert len(data) <= NarrowTransport.limit + 2 * size
        assert connection.transport.producerState == ("paused" if len(data) > 4096 else "producing")
        received += connection.transport.let_client_read()
    assert received.count(b"HTTP/1.1 200 OK") == requests
    # It was not the end: what comes now is answered as well.
    connection.send(request_bytes("GET"))
    assert connection.transport.value().count(b"HTTP/1.1 200 OK") == 1


def test_a_client_may_close_its_side_and_read_its_answers_afterwards():
    service = InMemoryService()
    connection = service.connect()
    connection.send(
        request_bytes("GET") + request_bytes("POST", "/messages", JSON, MESSAGE) + request_bytes("GET")
    )
    connection.channel.readConnectionLost()
    connection.settle()
    assert not connection.is_lost
    service.broker.acknowledge()
    connection.settle()
    assert connection.is_lost
    assert [response.status for response in connection.responses(["GET", "POST", "GET"])] == [200] * 3


def test_a_client_that_closes_its_side_before_its_request_is_whole_is_not_waited_for(service):
    connection = raw(service, request_bytes("POST", "/messages", JSON, MESSAGE)[:-5])
    connection.channel.readConnectionLost()
    connection.settle()
    assert connection.is_lost
    assert service.broker.records == []


def test_a_client_that_closes_its_side_gets_what_it_has_not_read_yet(service):
    for n in range(100):
        service.read(b"%d" % n, b"1.5")
    connection = service.connect(NarrowTransport)
    connection.send(request_bytes("GET") * 20)
    connection.channel.readConnectionLost()
    received = b""
    while connection.transport.value():
        received += connection.transport.let_client_read()
    connection.settle()
    assert connection.is_lost
    assert received.count(b"HTTP/1.1 200 OK") == 20


@pytest.mark.parametrize("close", [b"close", b"Close", b"close, foo", b"keep-alive,close", b"foo,\tclose"])
def test_a_client_may_ask_for_the_end_of_the_connection_in_every_way(service, close):
    for headers in ([(b"Connection", close)], [(b"Connection", b"foo"), (b"Connection", close)]):
        connection = raw(service, request_bytes("GET", headers=headers))
        (response,) = connection.responses(["GET"])
        assert response.headers[b"connection"] == b"close"
        assert connection.is_lost
        connection = raw(service, request_bytes("GET", "/nothing", headers=headers))
        (response,) = connection.responses(["GET"])
        assert response.headers[b"connection"] == b"close"
        assert connection.is_lost
    (response,) = raw(service, request_bytes("GET", headers=[(b"Connection", b"closed")])).responses(["GET"])
    assert b"connection" not in response.headers


def test_a_client_that_never_reads_the_last_answer_does_not_keep_the_connection(service):
    connection = service.connect()
    # As a real transport does while there is something left to send.
    connection.transport.loseConnection = lambda: None
    connection.send(request_bytes("GET", headers=[(b"Connection", b"close")]))
    assert not connection.transport.aborted
    service.clock.advance(61)
    assert connection.transport.aborted


def test_a_content_length_of_more_digits_than_anybody_counts_is_too_much(service):
    data = b"POST /messages HTTP/1.1\r\nHost: a\r\nContent-Length: %b\r\n\r\n" % (b"9" * 5000)
    connection = raw(service, request_bytes("GET") + data)
    ok, refused = connection.responses(["GET", "POST"])
    assert ok.status == 200
    assert_problem(refused, 413)


def test_a_field_name_of_any_length_is_not_kept(service):
    (response,) = raw(service, request_bytes("GET", headers=[(b"X" * 5000, b"")])).responses(["GET"])
    assert_problem(response, 431)


def test_an_idle_connection_is_closed_after_a_minute(service):
    connection = service.connect()
    service.clock.advance(61)
    connection.settle()
    assert connection.is_lost


class Exchange:
    """Requests that are sent, and what has to come back for each."""

    def __init__(self, requests):
        self.data = b"".join(data for data, _, _ in requests)
        self.methods = [method for _, method, _ in requests]
        self.statuses = [status for _, _, status in requests]


def _exchange(method, target, status, headers=(), body=None):
    return request_bytes(method, target, headers, body), method, status


good_requests = st.one_of(
    st.sampled_from(
        [
            _exchange("GET", "/", 200),
            _exchange("GET", "/", 200, [(b"Accept", b"application/vnd.sampleApp.v2+json")]),
            _exchange("HEAD", "/", 200),
            _exchange("OPTIONS", "/", 204),
            _exchange("GET", "/nothing", 404),
            _exchange("PUT", "/messages", 405, (), b"ignored"),
            _exchange("POST", "/messages", 415, (), MESSAGE),
            _exchange("POST", "/messages", 400, JSON, b"{"),
        ]
    ),
    st.tuples(strategies.texts, st.booleans(), st.integers(1, 50)).map(
        lambda drawn: _posting(*drawn),
    ),
)


def _posting(content, in_chunks, size):
    body = json.dumps({"topic": "t", "content": content}).encode()
    data = CHUNKED + chunked(body, size) if in_chunks else request_bytes("POST", "/messages", JSON, body)
    return data, "POST", 200


def without_dates(data):
    return re.sub(rb"\r\nDate: [^\r]*", b"", data)


@settings(max_examples=60)
@given(st.lists(good_requests, min_size=1, max_size=5).map(Exchange), st.data())
def test_requests_are_answered_alike_whole_byte_by_byte_and_cut_anywhere(exchange, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(exchange.data)), max_size=8)))
    ways = [
        [exchange.data],
        [exchange.data[n : n + 1] for n in range(len(exchange.data))],
        [exchange.data[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)],
    ]
    answers, records = [], []
    for pieces in ways:
        service = InMemoryService(broker=PromptBroker())
        service.read(b"a", b"1")
        connection = service.connect()
        connection.send(*[piece for piece in pieces if piece])
        answers.append(without_dates(connection.sent))
        records.append([record.value for record in service.broker.records])
        assert exchange.statuses == [response.status for response in connection.responses(exchange.methods)]
    assert answers[0] == answers[1] == answers[2]
    assert records[0] == records[1] == records[2]


def test_pipelined_messages_are_answered_in_their_order_one_after_the_other():
    service = InMemoryService()
    connection = service.connect()
    posts = [request_bytes("POST", "/messages", JSON, b'{"topic":"t","content":"%d"}' % n) for n in range(3)]
    connection.send(b"".join(posts) + request_bytes("GET"))
    for n in range(3):
        assert [b"%d" % m for m in range(n + 1)] == [record.value for record in service.broker.records]
        service.broker.acknowledge()
    responses = connection.responses(["POST", "POST", "POST", "GET"])
    assert [json.loads(response.body)["offset"] for response in responses[:3]] == [0, 1, 2]


def test_the_date_is_that_of_the_answer(service):
    before = service.request("GET").headers[b"date"]
    service.clock.advance(61)
    assert before == b"Tue, 14 Nov 2023 22:13:20 GMT"
    assert service.request("GET").headers[b"date"] == b"Tue, 14 Nov 2023 22:14:21 GMT"


def test_a_client_that_leaves_disturbs_nothing_on_the_long_way_either(service):
    service = InMemoryService()
    connection = service.connect()
    connection.send(request_bytes("POST", "/%6Dessages", JSON, MESSAGE))
    connection.lose()
    (publishing,) = service.broker.waiting
    assert not publishing.called
    service.broker.acknowledge()


def test_a_refused_head_request_is_no_fault_of_the_service(service):
    for path in ("/%ff", "//", "/nothing", "/messages"):
        with capturedLogs() as events:
            assert service.request("HEAD", path).status in (400, 404, 405)
        assert events == []


def test_draining_ends_idle_connections_at_once_and_the_others_after_their_answer():
    service = InMemoryService()
    idle, busy, half, line = [service.connect() for _ in range(4)]
    idle.send(request_bytes("GET"))
    busy.send(request_bytes("POST", "/messages", JSON, MESSAGE))
    half.send(request_bytes("POST", "/messages", JSON, MESSAGE)[:40])
    line.send(b"GET /")
    drained = []
    service.site.drain().addCallback(drained.append)
    for connection in (idle, busy, half, line):
        connection.settle()
    assert [connection.is_lost for connection in (idle, busy, half, line)] == [True, False, False, False]

    service.broker.acknowledge()
    busy.settle()
    (response,) = busy.responses(["POST"])
    assert response.status == 200
    assert response.headers[b"connection"] == b"close"
    assert busy.is_lost
    assert drained == []

    half.send(request_bytes("POST", "/messages", JSON, MESSAGE)[40:])
    service.broker.acknowledge()
    half.settle()
    (response,) = half.responses(["POST"])
    assert response.status == 200
    assert response.headers[b"connection"] == b"close"
    assert drained == []

    line.send(b" HTTP/1.1\r\nHost: a\r\n\r\n")
    (response,) = line.responses(["GET"])
    assert (response.status, response.headers[b"connection"]) == (200, b"close")
    assert drained == [None]


def test_whatever_is_left_can_be_cut():
    service = InMemoryService()
    connection = service.connect()
    connection.send(request_bytes("POST", "/messages", JSON, MESSAGE))
    waiting = service.site.drain()
    service.site.abort()
    assert connection.transport.aborted
    waiting.cancel()
    waiting.addErrback(lambda failure: None)
    connection.settle()


class Broken(Resource):
    isLeaf = True

    def render(self, request):
        raise ZeroDivisionError("secret")


def test_a_fault_outside_of_every_handler_is_500_and_logged(service, no_failure_is_lost, monkeypatch):
    monkeypatch.setattr(Klein, "execute_error_handler", Broken.render)
    response = service.request("GET", "/nothing")
    assert_problem(response, 500)
    assert b"secret" not in response.body
    assert no_failure_is_lost
    no_failure_is_lost.clear()


def test_a_route_with_variables_is_refused_when_the_table_is_made():
    app = Klein()
    app.route("/topics/<name>")(lambda request, name: None)
    with pytest.raises(ValueError, match="/topics/<name> has variables"):
        RouteTable(app)


def test_no_server_header_tells_versions(service):
    for method, path in (("GET", "/"), ("GET", "/nothing"), ("OPTIONS", "*"), ("GET", "/%ff")):
        assert service.request(method, path).headers[b"server"] == b"sampleapp"
