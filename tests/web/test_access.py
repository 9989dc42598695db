"""Access control, both on the service's own connections and in twisted.web."""

from __future__ import annotations

import base64
import gzip
import json
from hashlib import sha256

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.web.server import Site

from tests.support import strategies
from tests.support.callers import FULL, bearer, by, caller, token_of
from tests.support.examples import examples
from tests.support.in_memory import Connection, InMemoryService, ManualBroker, PromptBroker, request_bytes
from tests.web.http import JSON, MESSAGE, assert_problem, chunked, raw
from tests.web.test_twisted_web import BODIES, CONTENT_TYPES, METHODS, TARGETS, BothWays

PLAIN = b'Bearer realm="sampleapp"'
INVALID = b'Bearer realm="sampleapp", error="invalid_token"'
AMBIGUOUS = b'Bearer realm="sampleapp", error="invalid_request"'

CALLERS = "".join(
    [
        FULL,
        caller("reader", "read = true"),
        caller("publisher", 'publish = ["t", "sensors.*"]'),
        caller("nobody"),
    ]
)


@pytest.fixture(scope="module")
def both():
    return BothWays(callers=CALLERS)


def get(service, *headers, target="/", method="GET"):
    return service.request(method, target, headers)


def post(service, *headers, topic="t"):
    body = json.dumps({"topic": topic, "content": "c"}).encode()
    return service.request("POST", "/messages", [*JSON, *headers], body)


@pytest.mark.parametrize("method", METHODS)
def test_without_credentials_nobody_learns_what_there_is(both, method):
    for target in TARGETS:
        for headers in ([], JSON, [(b"Content-Encoding", b"gzip")]):
            answer = both.send(request_bytes(method, target, headers, b"{}"), method)
            assert answer.status == 401
            assert answer.headers[b"www-authenticate"] == PLAIN
    assert [service.broker.records for service in both.services] == [[], []]


def test_a_caller_may_do_what_is_granted_and_nothing_else():
    service = InMemoryService(broker=PromptBroker(), callers=CALLERS)
    expected = {"full": (200, 200), "reader": (200, 403), "publisher": (403, 200), "nobody": (403, 403)}
    for name, (reading, publishing) in expected.items():
        assert get(service, by(name)).status == reading
        assert get(service, by(name), method="HEAD").status == reading
        assert post(service, by(name)).status == publishing
        assert get(service, by(name), target="/nothing").status == 404
        assert get(service, by(name), method="PUT").status == 405
        assert get(service, by(name), method="OPTIONS").status == 204
    assert len(service.broker.records) == 2


def test_a_topic_that_is_not_granted_is_rejected_without_a_question_to_the_broker(both):
    for topic, status in (("sensors.hall", 200), ("T", 403), ("nowhere", 403), ("sensors", 403), ("", 422)):
        body = json.dumps({"topic": topic, "content": "c"}).encode()
        answer = both.send(request_bytes("POST", "/messages", [*JSON, by("publisher")], body), "POST")
        assert answer.status == status
        if status == 403:
            assert_problem(answer, 403)
            assert json.loads(answer.body)["detail"] == f"This caller may not publish to the topic {topic}."
            assert b"www-authenticate" not in answer.headers


def basic(user, password):
    return b"Authorization", b"Basic " + base64.b64encode(f"{user}:{password}".encode())


WRONG = [
    ([(b"Authorization", b"")], PLAIN),
    ([(b"Authorization", b"Digest dTpw")], PLAIN),
    ([(b"Authorization", b"Basicx")], PLAIN),
    ([(b"Authorization", b"Basic")], INVALID),
    ([(b"Authorization", b"Basic dTpw")], INVALID),
    ([basic("u", token_of("full") + "x")], INVALID),
    ([basic(token_of("full"), "")], INVALID),
    ([(b"Authorization", f"Basic u:{token_of('full')}".encode())], INVALID),
    ([(b"Authorization", b"Bearerx")], PLAIN),
    ([(b"Authorization", token_of("full").encode())], PLAIN),
    ([(b"Authorization", b"Bearer")], INVALID),
    ([(b"Authorization", b"Bearer a b")], INVALID),
    ([(b"Authorization", b'Bearer token="x"')], INVALID),
    ([bearer(token_of("full") + "x")], INVALID),
    ([bearer(token_of("full")[:-1])], INVALID),
    ([bearer(token_of("full").upper())], INVALID),
    ([bearer(f"{token_of('full')}, Bearer {token_of('full')}")], INVALID),
    ([by("full"), by("full")], AMBIGUOUS),
    ([by("full"), (b"authorization", b"Basic dTpw")], AMBIGUOUS),
    ([basic("u", token_of("full")), basic("u", token_of("full"))], AMBIGUOUS),
]


@pytest.mark.parametrize(("headers", "challenge"), WRONG)
def test_wrong_credentials_are_told_apart_as_rfc_6750_says(both, headers, challenge):
    for data in (request_bytes("GET", "/", headers), request_bytes("GET", "/nothing", headers)):
        answer = both.send(data)
        assert_problem(answer, 401)
        assert answer.headers[b"www-authenticate"] == challenge
        assert token_of("full").encode() not in answer.body


@pytest.mark.parametrize("value", [b"Bearer %b", b"bearer %b", b"BEARER  %b", b"Bearer %b \t"])
def test_the_scheme_has_no_case(both, value):
    value %= token_of("full").encode()
    assert both.send(request_bytes("GET", "/", [(b"Authorization", value)])).status == 200


def test_a_wrong_password_is_answered_as_a_wrong_token(both):
    wrong = [bearer("x" + token_of("full")), basic("full", "x" + token_of("full"))]
    answers = [both.send(request_bytes("GET", "/nothing", [field])) for field in wrong]
    assert answers[0].body == answers[1].body


def test_a_user_and_a_password_have_the_rights_and_the_rates_of_the_caller_of_the_token():
    rates = 'publish = ["t"]', "requests_per_second = 0.001", "requests_burst = 3"
    service = InMemoryService(broker=PromptBroker(), callers=caller("device", *rates))
    field = basic("anything", token_of("device"))
    assert_problem(get(service, field), 403)
    assert post(service, field).status == 200
    assert post(service, by("device")).status == 200
    # One rate for both forms of the token.
    assert_problem(post(service, basic("x", token_of("device"))), 429)
    assert len(service.broker.records) == 2


@pytest.mark.parametrize(
    "page",
    [
        [(b"Origin", b"https://evil.example")],
        [(b"Sec-Fetch-Site", b"cross-site")],
        [(b"Sec-Fetch-Site", b"same-site"), (b"Origin", b"null")],
    ],
)
def test_a_password_that_a_browser_has_kept_is_of_no_use_to_pages_of_other_sites(page):
    service = InMemoryService(
        broker=PromptBroker(), callers=CALLERS, allowed_origins=("https://good.example",)
    )
    field = basic("u", token_of("full"))
    for method in ("POST", "DELETE"):
        assert_problem(service.request(method, "/topics/t?key=k", [field, *page], b""), 403)
    answers = [get(service, field, *page), get(service, field, (b"Origin", b"https://good.example"))]
    assert [answer.status for answer in answers] == [200, 200]
    assert all(b"access-control-allow-credentials" not in answer.headers for answer in answers)
    assert b"access-control-allow-origin" not in answers[0].headers
    # Browsers ask for a user name and a password only where Basic is named.
    assert get(service).headers[b"www-authenticate"] == PLAIN
    assert service.broker.records == []


@examples(300)
@given(st.lists(strategies.field_bytes | st.binary(max_size=20).map(lambda b: b"Bearer " + b), max_size=3))
@example([b"Bearer \xff"])
@example([b"Bearer " + b"a" * 8000])
def test_no_bytes_in_authorization_fail_and_none_pass(both, values):
    headers = [(b"Authorization", value.translate(None, strategies.CONTROL_CHARACTERS)) for value in values]
    data = request_bytes("GET", "/", headers)
    own = both.services[0].connect()
    own.send(data)
    (answer,) = own.responses(["GET"])
    assert answer.status == 401
    other = Connection(both.servers[1])
    other.send(data)
    (answer,) = other.responses(["GET"])
    # Its own parser rejects some of them.
    assert answer.status in {400, 401}


@given(st.data())
def test_a_token_with_any_other_byte_is_of_nobody(both, data):
    token = bytearray(token_of("full").encode())
    place = data.draw(st.integers(0, len(token) - 1))
    token[place] = data.draw(st.integers(33, 126).filter(lambda byte: byte != token[place]))
    answer = both.services[0].request("GET", "/", [(b"Authorization", b"Bearer %b" % token)])
    assert answer.status == 401


HEADS = {
    "one that has come in part": [*JSON, (b"Content-Length", b"100")],
    "one that is too large": [*JSON, (b"Content-Length", b"2000")],
    "one of a length that fits nowhere": [(b"Content-Length", b"9" * 30), *JSON],
    "one in chunks": [*JSON, (b"Transfer-Encoding", b"chunked")],
    "one of no type": [(b"Content-Length", b"100")],
    "one that is compressed": [*JSON, (b"Content-Length", b"100"), (b"Content-Encoding", b"gzip")],
    "one that waits": [*JSON, (b"Content-Length", b"100"), (b"Expect", b"100-continue")],
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
@pytest.mark.parametrize("target", ["/messages", "/nothing", "/"])
def test_nobody_waits_for_the_body_of_who_has_no_credentials(head, target):
    service = InMemoryService(callers=CALLERS, max_body=1000)
    connection = service.connect()
    connection.send(request_bytes("POST", target, head))
    (answer,) = connection.responses(["POST"])
    assert answer.status == 401
    assert answer.headers[b"connection"] == b"close"
    assert connection.is_closed_for_reading


def test_a_connection_stays_open_after_a_rejection_when_the_whole_request_has_come():
    service = InMemoryService(broker=PromptBroker(), callers=CALLERS)
    connection = service.connect()
    connection.send(request_bytes("POST", "/messages", JSON, MESSAGE))
    connection.send(request_bytes("POST", "/messages", [*JSON, by("full")], MESSAGE))
    assert [answer.status for answer in connection.responses(["POST", "POST"])] == [401, 200]


def test_a_token_is_valid_to_the_last_second_also_when_it_was_seen_before():
    service = InMemoryService(broker=PromptBroker(), callers=caller("t", "read = true", until="2023-11-14"))
    end_s = 1_700_006_400  # the end of that day, UTC
    assert get(service, by("t")).status == 200
    service.clock.advance(end_s - service.clock.seconds() - 0.001)
    assert get(service, by("t")).status == 200
    service.clock.advance(0.001)
    answer = get(service, by("t"))
    assert answer.status == 401
    assert answer.headers[b"www-authenticate"] == INVALID
    assert json.loads(answer.body)["detail"] == "The token is not valid any more; use a newer one."


def test_a_moment_ends_a_token_and_another_one_of_the_same_caller_goes_on():
    one = caller("t", "read = true", until="2023-11-14T22:14:00Z")
    other = f'[[callers.t.tokens]]\nsha256 = "{sha256(b"other").hexdigest()}"'
    service = InMemoryService(broker=PromptBroker(), callers=one + other)
    assert [get(service, each).status for each in (by("t"), bearer("other"))] == [200, 200]
    service.clock.advance(40)
    assert [get(service, each).status for each in (by("t"), bearer("other"))] == [401, 200]


def test_other_callers_are_taken_at_once_on_open_connections_too():
    service = InMemoryService(broker=PromptBroker(), callers=CALLERS)
    connection = service.connect()
    connection.send(request_bytes("GET", "/", [by("reader")]))
    service.use_callers(caller("reader", 'publish = ["t"]'))
    connection.send(request_bytes("GET", "/", [by("reader")]))
    connection.send(request_bytes("POST", "/messages", [*JSON, by("reader")], MESSAGE))
    connection.send(request_bytes("GET", "/", [by("full")]))
    statuses = [answer.status for answer in connection.responses(["GET", "GET", "POST", "GET"])]
    assert statuses == [200, 403, 200, 401]


def test_who_was_let_in_stays_so_until_the_answer():
    service = InMemoryService(broker=ManualBroker(), callers=CALLERS)
    connection = service.connect()
    data = request_bytes("POST", "/messages", [*JSON, by("full")], MESSAGE)
    connection.send(data[:-5])
    service.use_callers(caller("other"))
    connection.send(data[-5:])
    service.broker.acknowledge()
    (answer,) = connection.responses(["POST"])
    assert answer.status == 200


def test_the_name_of_the_caller_is_known_to_those_who_count_and_log():
    service = InMemoryService(broker=PromptBroker(), callers=CALLERS)
    told = []
    service.site.on_response = lambda exchange, answer: told.append((exchange.caller, int(answer.status)))
    for headers in ([by("reader")], [by("publisher")], [], [bearer("x")]):
        get(service, *headers)
    assert told == [("reader", 200), ("publisher", 403), ("", 401), ("", 401)]


LIMITED = caller("t", 'publish = ["t"]', "requests_per_second = 2", "requests_burst = 3", "read = true")


@pytest.mark.parametrize("is_klein", [False, True])
def test_more_requests_than_the_rate_are_rejected_until_there_is_room(is_klein):
    service = InMemoryService(broker=PromptBroker(), callers=LIMITED + FULL)
    site = Site(service.gateway.app.resource(), reactor=service.clock) if is_klein else service.site

    def status(name):
        connection = Connection(site)
        connection.send(request_bytes("POST", "/messages", [*JSON, by(name)], MESSAGE))
        (answer,) = connection.responses(["POST"])
        if answer.status == 429:
            assert_problem(answer, 429)
            assert answer.headers[b"retry-after"] == b"1"
        return answer.status

    assert [status("t") for _ in range(5)] == [200, 200, 200, 429, 429]
    assert status("full") == 200
    service.clock.advance(0.5)
    assert [status("t") for _ in range(2)] == [200, 429]
    service.clock.advance(100)
    assert [status("t") for _ in range(4)] == [200, 200, 200, 429]
    assert len(service.broker.records) == 8


@pytest.mark.parametrize(("method", "target"), [("GET", "/"), ("POST", "/messages")])
def test_a_request_over_the_rate_is_told_that_nothing_was_done_whether_it_reads_or_publishes(method, target):
    service = InMemoryService(broker=PromptBroker(), callers=LIMITED)
    for _ in range(4):
        answer = service.request(method, target, [*JSON, by("t")], MESSAGE if method == "POST" else b"")
    assert_problem(answer, 429)
    assert json.loads(answer.body)["detail"] == (
        "This caller has sent more requests than its rate allows. Nothing was done; send the request again "
        "after the seconds in Retry-After."
    )


def test_a_rejected_request_is_not_waited_for_and_publishes_nothing():
    service = InMemoryService(
        broker=PromptBroker(), callers=caller("t", 'publish = ["*"]', "bytes_per_second = 50")
    )
    head = request_bytes("POST", "/messages", [*JSON, by("t"), (b"Content-Length", b"60")])
    first, second = service.connect(), service.connect()
    first.send(head)
    second.send(head)
    assert first.sent == b""
    (answer,) = second.responses(["POST"])
    assert answer.status == 429
    # 60 bytes were charged to 50; the caller must wait until there are 50 again.
    assert answer.headers[b"retry-after"] == b"2"
    assert service.broker.records == []


def test_a_body_in_chunks_that_is_there_as_a_whole_is_counted():
    service = InMemoryService(
        broker=PromptBroker(), callers=caller("t", 'publish = ["*"]', "bytes_per_second = 20")
    )
    body = chunked(MESSAGE, 5)
    data = request_bytes("POST", "/messages", [*JSON, by("t"), (b"Transfer-Encoding", b"chunked")]) + body
    statuses = []
    for _ in range(2):
        connection = service.connect()
        connection.send(data)
        statuses.append(connection.responses(["POST"])[0].status)
    assert statuses == [200, 429]


def test_a_body_that_is_too_large_leaves_no_debt():
    service = InMemoryService(
        broker=PromptBroker(), callers=caller("t", 'publish = ["*"]', "bytes_per_second = 50"), max_body=1000
    )
    connection = service.connect()
    connection.send(request_bytes("POST", "/messages", [*JSON, by("t"), (b"Content-Length", b"999999999")]))
    assert connection.responses(["POST"])[0].status == 413
    assert post(service, by("t")).status == 200


def missing(service):
    """Return the bytes that are missing in the burst of 1,000 of a caller with one byte a second."""
    connection = service.connect()
    connection.send(request_bytes("POST", "/topics/t", [by("t"), (b"Content-Length", b"1000")]))
    if not connection.sent:
        connection.lose()
        return 0
    (answer,) = connection.responses(["POST"])
    assert answer.status == 429
    return int(answer.headers[b"retry-after"])


def test_bytes_are_charged_as_they_come_whatever_becomes_of_the_request():
    def limited(**limits):
        return InMemoryService(
            broker=PromptBroker(),
            callers=caller("t", 'publish = ["*"]', "bytes_per_second = 1", "bytes_burst = 1000") + FULL,
            **limits,
        )

    def begin(service, *headers, target="/topics/t"):
        connection = service.connect()
        connection.send(request_bytes("POST", target, [by("t"), *headers]))
        return connection

    chunks = (b"Transfer-Encoding", b"chunked")
    length = (b"Content-Length", b"5000")
    # Too large, as is known before or found out: what comes nevertheless.
    for header, first in ((length, b""), (chunks, b"1000\r\n")):
        service = limited(max_body=1000)
        connection = begin(service, header)
        connection.send(first)
        assert connection.responses(["POST"])[0].status == 413
        assert missing(service) == len(first)
        connection.send(bytes(3000))
        assert missing(service) == len(first) + 3000
        connection.lose()
        assert missing(service) == len(first) + 3000
    # Not finished: by a client that goes away, or stands still.
    for header in (length, chunks):
        for is_given_up in (False, True):
            service = limited()
            connection = begin(service, header)
            connection.send(*([b"100\r\n" + bytes(194)] if header is chunks else [bytes(199)]))
            if is_given_up:
                service.clock.pump([1] * 40)
                assert connection.responses(["POST"])[0].status == 408
            connection.lose()
            assert 199 - 40 <= missing(service) <= 199
    # Rejected for something else.
    service = limited()
    connection = begin(service, length, (b"Sec-Fetch-Site", b"cross-site"))
    assert missing(service) == 5000
    connection.send(bytes(1000))
    connection.lose()
    assert missing(service) == 1000
    # No room in memory.
    service = limited(max_body_memory=12_000)
    service.site.body_memory.add("t", 4900)
    connection = begin(service, length)
    assert connection.responses(["POST"])[0].status == 429
    connection.send(bytes(700))
    connection.lose()
    assert missing(service) == 700
    # Decoded, until it was too much.
    service = limited(max_body=100_000)
    body = gzip.compress(bytes(500_000))
    connection = raw(
        service, request_bytes("POST", "/topics/t", [by("t"), (b"Content-Encoding", b"gzip")], body)
    )
    service.clock.advance(1)
    assert connection.responses(["POST"])[0].status == 413
    assert 100_000 < missing(service) < 200_000


def test_a_body_in_chunks_is_rejected_in_the_middle_when_the_rate_is_used_up():
    service = InMemoryService(
        broker=PromptBroker(),
        callers=caller("t", 'publish = ["*"]', "bytes_per_second = 1000", "bytes_burst = 3000"),
    )
    chunked_head = request_bytes("POST", "/topics/t", [by("t"), (b"Transfer-Encoding", b"chunked")])
    connection = service.connect()
    connection.send(chunked_head + b"fffff\r\n")
    sent = 0
    while not connection.sent:
        connection.send(bytes(500))
        sent += 500
    assert sent == 3000
    (answer,) = connection.responses(["POST"])
    assert_problem(answer, 429)
    # The time for a whole burst and for the debt.
    assert answer.headers[b"retry-after"] == b"4"
    assert answer.headers[b"connection"] == b"close"
    assert service.authenticator.rejections["bytes_per_second"] == 1
    # Bytes after the rejection are not charged, so that Retry-After is right.
    connection.send(bytes(5000))
    connection.lose()
    service.clock.advance(4)
    assert service.request("POST", "/topics/t", [by("t")], bytes(3000)).status == 200
    assert [len(record.value) for record in service.broker.records] == [3000]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["length", "chunks"]),
            st.integers(1, 400),
            st.sampled_from([0.0, 0.5, 1.0]),
            st.sampled_from([0, 0.25, 1]),
        ),
        max_size=30,
    )
)
def test_in_no_stretch_of_time_more_comes_than_the_rate_a_burst_and_one_piece(requests):
    per_second, burst = 100, 300
    service = InMemoryService(
        broker=PromptBroker(),
        callers=caller("t", 'publish = ["*"]', f"bytes_per_second = {per_second}", f"bytes_burst = {burst}"),
    )
    start_s, taken = service.clock.seconds(), 0
    for kind, length, part, elapsed_s in requests:
        connection = service.connect()
        if kind == "length":
            connection.send(
                request_bytes("POST", "/topics/t", [by("t"), (b"Content-Length", b"%d" % length)])
            )
        else:
            head = request_bytes("POST", "/topics/t", [by("t"), (b"Transfer-Encoding", b"chunked")])
            connection.send(head + b"%x\r\n" % length)
        if not connection.sent:
            connection.send(bytes(int(part * length)))
            taken += int(part * length)
        connection.lose()
        assert taken <= burst + 400 + per_second * (service.clock.seconds() - start_s)
        service.clock.advance(elapsed_s)


def test_other_callers_with_the_same_rates_give_nobody_more_room():
    service = InMemoryService(broker=PromptBroker(), callers=LIMITED)
    assert [post(service, by("t")).status for _ in range(4)] == [200, 200, 200, 429]
    service.use_callers(LIMITED + FULL)
    assert post(service, by("t")).status == 429
    service.use_callers(LIMITED.replace("requests_burst = 3", "requests_burst = 1"))
    assert [post(service, by("t")).status for _ in range(2)] == [200, 429]


def answers_of(service, data):
    service.give_same_request_ids()
    connection = service.connect()
    connection.send(data)
    return connection.sent


@pytest.mark.parametrize("method", METHODS)
def test_who_has_all_rights_gets_the_answers_that_everybody_gets_without_callers(method):
    services = [
        InMemoryService(broker=PromptBroker(), callers=callers, max_body=1000) for callers in (None, FULL)
    ]
    for service in services:
        service.read(b"kitchen", b"21.5")
    for target in TARGETS:
        for headers in CONTENT_TYPES:
            # Other methods have no handler that reads a body.
            for body in (*BODIES, b"x" * 1001) if method in {"POST", "PUT"} else (None, b"x" * 1001):
                data = request_bytes(method, target, [*headers, by("full")], body)
                without, with_callers = (answers_of(service, data) for service in services)
                assert without == with_callers
    assert services[0].broker.records == services[1].broker.records


@pytest.mark.parametrize("body", [None, b"{}"])
@pytest.mark.parametrize("target", ["/messages", "/nothing"])
def test_an_unknown_caller_is_told_only_that_whatever_it_expects(body, target):
    service = InMemoryService(callers=CALLERS)
    headers = [*JSON, (b"Expect", b"miracles")]
    assert_problem(service.request("POST", target, headers, body), 401)
    known = service.request("POST", target, [*headers, by("full")], body)
    assert_problem(known, 417)


def test_neither_answer_waits_for_the_body():
    service = InMemoryService(callers=CALLERS)
    for more, status in (([], 401), ([by("full")], 417)):
        headers = [*JSON, (b"Expect", b"miracles"), (b"Content-Length", b"9"), *more]
        connection = service.connect()
        connection.send(request_bytes("POST", "/messages", headers))
        assert connection.responses(["POST"])[0].status == status
        assert connection.is_closed_for_reading
