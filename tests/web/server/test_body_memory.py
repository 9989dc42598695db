"""The memory for bodies is given back whatever happens, and is never more than the limit."""

from __future__ import annotations

import gzip
import hmac
import json
import random
import sys

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from twisted.internet.defer import Deferred

from sampleapp.errors import BrokerUnavailable
from sampleapp.model import RecordMetadata
from sampleapp.web.errors import BodyMemoryOfCallerFull
from sampleapp.web.server import BodyMemory
from sampleapp.web.server.body import MemoryReservation
from tests.support.callers import by, caller
from tests.support.examples import examples
from tests.support.in_memory import InMemoryService, ManualBroker, PromptBroker, request_bytes
from tests.web.http import JSON, MESSAGE, NDJSON, assert_problem, chunked
from tests.web.publish.test_batches import ServiceInTurns
from tests.web.server.test_connections import NarrowTransport

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

KIB = 1024
LIMIT = 1024 * KIB
LINE = b'{"topic":"t","content":"%b"}\n' % (b"c" * 60)
V2 = [(b"Content-Type", b"application/vnd.kafka.json.v2+json")]
CHUNKED = (b"Transfer-Encoding", b"chunked")


def head_of(length, *headers):
    return request_bytes("POST", "/topics/t", [*headers, (b"Content-Length", b"%d" % length)])


def service_with(**limits):
    return InMemoryService(
        **{"broker": ManualBroker(), "max_body_memory": LIMIT, "max_body": LIMIT, **limits}
    )


def reserved(service):
    return service.site.body_memory.reserved


def assert_rejected(connection):
    (answer,) = connection.responses(["POST"])
    assert_problem(answer, 503)
    assert 1 <= int(answer.headers[b"retry-after"]) <= 5
    assert b"body-memory-full" in answer.body
    return answer


def begin(service, length, *headers):
    """Send a body but for its last byte."""
    connection = service.connect()
    connection.send(head_of(length, *headers))
    connection.send(bytes(length - 1))
    return connection


def test_bodies_that_are_rejected_together_come_again_at_different_times():
    service = service_with()
    begin(service, LIMIT * 3 // 4)
    pauses = set()
    for _ in range(50):
        connection = service.connect()
        connection.send(head_of(LIMIT // 2))
        pauses.add(assert_rejected(connection).headers[b"retry-after"])
    assert len(pauses) > 1


def fill(service):
    """Take all that large requests may have, but for a byte."""
    connection = begin(service, LIMIT * 7 // 8)
    assert reserved(service) == LIMIT * 7 // 8 - 1
    return connection


def test_a_body_is_counted_as_it_comes_and_until_it_is_answered():
    service = service_with()
    connection = service.connect()
    connection.send(head_of(100_000))
    assert reserved(service) == 0
    connection.send(bytes(99_000))
    assert reserved(service) == 99_000
    connection.send(bytes(1000) + request_bytes("GET", "/live"))
    assert reserved(service) == 100_000
    service.broker.acknowledge()
    assert [each.status for each in connection.responses(["POST", "GET"])] == [200, 200]
    assert reserved(service) == 0


@pytest.mark.parametrize("length", [(b"Content-Length", b"%d" % (LIMIT // 2)), CHUNKED])
def test_what_others_only_announce_keeps_nobody_out(length):
    service = service_with(broker=PromptBroker())
    announced = [service.connect() for _ in range(50)]
    for connection in announced:
        connection.send(request_bytes("POST", "/topics/t", [length]))
        connection.send(b"80000\r\n" if length is CHUNKED else b"x")
    for size in (1000, 100 * KIB, LIMIT * 3 // 4):
        connection = begin(service, size)
        connection.send(b"x")
        assert connection.responses(["POST"])[0].status == 200
    batch = service.connect()
    batch.send(request_bytes("POST", "/messages", NDJSON, LINE * 1000))
    service.clock.advance(1)
    assert batch.responses(["POST"])[0].status == 200
    assert [connection.sent for connection in announced] == [b""] * 50
    assert +service.site.rejections == {}


def test_of_bodies_that_come_together_those_that_fit_are_taken_and_no_other_waits():
    service = service_with(broker=PromptBroker())
    connections = [service.connect() for _ in range(4)]
    for connection in connections:
        connection.send(head_of(LIMIT // 2))
    for _ in range(8):
        for connection in connections:
            if not connection.sent:
                connection.send(bytes(LIMIT // 16))
    statuses = sorted(connection.responses(["POST"])[0].status for connection in connections)
    assert statuses[0] == 200
    assert set(statuses) == {200, 503}
    assert reserved(service) == 0


def test_a_large_body_takes_nothing_that_is_kept_for_small_ones_although_little_of_it_has_come():
    service = service_with()
    fill(service)
    connection = service.connect()
    connection.send(head_of(65 * KIB))
    assert_rejected(connection)


def test_one_caller_has_half_of_the_memory_and_is_told_when_that_is_full():
    names = ("one", "two")
    service = service_with(
        broker=PromptBroker(), callers="".join(caller(name, 'publish = ["*"]') for name in names)
    )
    of_one = [begin(service, LIMIT // 4, by("one")) for _ in range(2)]
    (answer,) = of_one[1].responses(["POST"])
    assert_problem(answer, 429)
    assert 1 <= int(answer.headers[b"retry-after"]) <= 5
    assert b"body-memory-of-caller-full" in answer.body
    # A small one has the eighth of its part that is kept.
    small = begin(service, 64 * KIB, by("one"))
    others = begin(service, LIMIT * 7 // 16, by("two"))
    for connection in (small, others, of_one[0]):
        connection.send(b"x")
        assert connection.responses(["POST"])[0].status == 200
    assert reserved(service) == 0


def test_a_body_that_one_caller_can_never_have_is_rejected_for_good():
    service = service_with(callers=caller("one", 'publish = ["*"]'))
    connection = service.connect()
    connection.send(head_of(LIMIT // 2, by("one")))
    (answer,) = connection.responses(["POST"])
    assert_problem(answer, 413)


HOOK = '[hooks.h]\ntopic = "t"\nscheme = "github"\nsecret_files = ["s"]\n'


def signature(body, secret=b"s"):
    return (b"X-Hub-Signature-256", b"sha256=" + hmac.digest(secret, body, "sha256").hex().encode())


def service_with_a_hook(**limits):
    callers = HOOK + caller("one", 'publish = ["*"]')
    return service_with(**{"broker": PromptBroker(), **limits}, callers=callers, secrets={"h": [b"s"]})


def hook(service, body, sent, *, secret=b"s", headers=()):
    connection = service.connect()
    headers = [*headers, signature(body, secret), (b"Content-Length", b"%d" % len(body))]
    connection.send(request_bytes("POST", "/hooks/h", headers))
    connection.send(body[:sent])
    return connection


def test_all_hooks_that_are_not_verified_have_an_eighth_and_nothing_that_is_kept_for_small_requests():
    service = service_with_a_hook()
    body = bytes(32 * KIB)
    unverified = [hook(service, body, 32 * KIB - 1, secret=b"wrong") for _ in range(20)]
    rejected = [connection for connection in unverified if connection.sent]
    assert reserved(service) <= LIMIT // 8
    assert len(rejected) == 16
    for connection in rejected:
        assert_rejected(connection)
    # Two callers' large bodies next to them, and then a small one.
    begin(service, LIMIT * 7 // 16 - KIB, by("one"))
    small = begin(service, 60 * KIB, by("one"))
    small.send(b"x")
    assert small.responses(["POST"])[0].status == 200
    for connection in unverified[:4]:
        connection.send(b"\0")
        assert connection.responses(["POST"])[0].status == 401
    assert reserved(service) == LIMIT * 7 // 16 - KIB - 1


@pytest.mark.parametrize("compress", [None, gzip.compress])
def test_a_verified_hook_no_longer_counts_among_those_that_are_not_verified(compress):
    service = service_with_a_hook(broker=ManualBroker())
    body = random.Random(1).randbytes(LIMIT // 10)
    headers = []
    if compress is not None:
        body, headers = compress(body), [(b"Content-Encoding", b"gzip")]
    hook(service, body, len(body), headers=headers)
    service.clock.advance(1)
    assert len(service.broker.records) == 1
    assert reserved(service) >= LIMIT // 10
    other = hook(service, body, len(body) - 1, headers=headers)
    assert other.sent == b""
    service.broker.acknowledge()
    assert reserved(service) == len(body) - 1


def test_a_verified_hook_for_which_its_caller_has_no_room_is_told_so():
    service = service_with_a_hook()
    service.site.body_memory.add("hook:h", LIMIT // 2)
    body = bytes(100 * KIB)
    connection = hook(service, body, len(body))
    (answer,) = connection.responses(["POST"])
    assert_problem(answer, 429)
    assert service.broker.records == []
    assert reserved(service) == LIMIT // 2


def test_what_is_kept_for_small_requests_is_not_for_hooks_that_are_not_verified():
    service = service_with_a_hook()
    service.site.body_memory.add("", LIMIT * 7 // 8)
    assert_rejected(hook(service, bytes(KIB), KIB - 1, secret=b"wrong"))
    small = begin(service, 60 * KIB, by("one"))
    assert small.sent == b""


def test_the_streams_of_one_caller_leave_half_of_their_memory_to_those_of_others():
    memory = BodyMemory(1000)
    memory.add("one", 200)
    assert [memory.has_room("one", size) for size in (50, 51)] == [True, False]
    assert memory.has_room("two", 51)
    memory.add("two", 250)
    assert [memory.has_room("three", size) for size in (50, 51)] == [True, False]


def test_bytes_of_a_stream_that_are_there_already_count_for_its_caller():
    memory = BodyMemory(1000)
    reservation = MemoryReservation(memory)
    reservation.owner = "one"
    held = reservation.hold(480)
    with pytest.raises(BodyMemoryOfCallerFull):
        reservation.resize(21)
    held.release()
    reservation.resize(21)
    assert memory.reserved == 21


def test_callers_without_memory_are_not_remembered():
    memory = BodyMemory(1000)
    for number in range(100):
        reservation = MemoryReservation(memory)
        reservation.owner = f"caller {number}"
        reservation.resize(100)
        reservation.release()
    assert not memory._of_owners  # noqa: SLF001 -- it shows nowhere else


def test_a_body_that_does_not_fit_is_rejected_before_it_comes_and_before_100_continue():
    service = service_with()
    fill(service)
    for headers in ((), [(b"Expect", b"100-continue")]):
        connection = service.connect()
        connection.send(head_of(64 * KIB + 1, *headers))
        assert_rejected(connection)
    assert service.site.rejections["max-body-memory"] == 2
    assert reserved(service) == LIMIT * 7 // 8 - 1


def test_a_body_that_is_there_already_and_does_not_fit_leaves_its_connection_open():
    service = service_with()
    first = fill(service)
    connection = service.connect()
    # The body is small, but not with the records that are made of it.
    connection.send(request_bytes("POST", "/messages", NDJSON, LINE * 500))
    service.clock.advance(1)
    assert_rejected(connection)
    first.lose()
    connection.transport.clear()
    connection.send(request_bytes("POST", "/messages", NDJSON, LINE * 500))
    service.clock.advance(1)
    while service.broker.waiting:
        service.broker.acknowledge()
    assert connection.responses(["POST"])[0].status == 200
    assert reserved(service) == 0


def test_small_requests_have_room_when_large_ones_fill_theirs():
    service = service_with(broker=PromptBroker())
    fill(service)
    assert service.post(MESSAGE).status == 200
    assert service.request("POST", "/topics/t", body=bytes(64 * KIB)).status == 200
    assert service.request("POST", "/messages", NDJSON, LINE * 100).status == 200
    body = gzip.compress(bytes(60 * KIB))
    assert service.request("POST", "/topics/t", [(b"Content-Encoding", b"gzip")], body).status == 200
    assert +service.site.rejections == {}


def test_small_requests_together_stay_below_the_limit_too():
    service = service_with()
    fill(service)
    connections = [begin(service, 60 * KIB) for _ in range(4)]
    assert [connection.sent[9:12] for connection in connections] == [b"", b"", b"503", b"503"]
    assert LIMIT - 60 * KIB < reserved(service) <= LIMIT


def test_a_body_that_can_never_fit_is_rejected_for_good():
    service = service_with()
    for data in (
        head_of(LIMIT * 7 // 8 + 1),
        request_bytes("POST", "/messages", NDJSON, LINE * 4000),
        request_bytes("POST", "/topics/t", [CHUNKED]) + chunked(bytes(LIMIT * 7 // 8 + 1), 64 * KIB),
    ):
        connection = service.connect()
        connection.send(data)
        (answer,) = connection.responses(["POST"])
        assert_problem(answer, 413)
        assert b"body-too-large" in answer.body
        connection.lose()
    assert reserved(service) == 0
    assert +service.site.rejections == {"max-body-memory": 3}


def test_chunks_are_counted_as_they_come_and_without_their_framing_once_all_are_there():
    service = service_with()
    connection = service.connect()
    connection.send(request_bytes("POST", "/topics/t", [CHUNKED]) + b"10000\r\n")
    connection.send(bytes(32 * KIB))
    assert 32 * KIB <= reserved(service) < 33 * KIB
    connection.send(bytes(32 * KIB) + b"\r\n40000\r\nx")
    second = begin(service, LIMIT * 3 // 4)
    connection.send(bytes(128 * KIB))
    assert_rejected(connection)
    assert reserved(service) == LIMIT * 3 // 4 - 1
    third = service.connect()
    third.send(request_bytes("POST", "/topics/t", [CHUNKED]), chunked(bytes(1000), 10))
    second.lose()
    assert reserved(service) == 1000


@pytest.mark.parametrize("compress", [gzip.compress, zstd.compress])
def test_a_body_is_counted_as_it_is_decoded(compress):
    coding = (b"Content-Encoding", compress.__module__.rpartition(".")[2].removeprefix("_").encode())
    for content in (b"x" * 300 * KIB, b"1\n" * 150 * KIB):
        service = service_with(max_body=400 * KIB)
        others = [begin(service, 300 * KIB) for _ in range(2)]
        connection = service.connect()
        connection.send(request_bytes("POST", "/topics/t", [coding], compress(content)))
        service.clock.advance(1)
        assert_rejected(connection)
        assert reserved(service) == 600 * KIB - 2
        for other in others:
            other.lose()
        again = service.connect()
        again.send(request_bytes("POST", "/topics/t", [coding], compress(content)))
        service.clock.advance(1)
        assert reserved(service) == len(content)
        service.broker.acknowledge()
        assert again.responses(["POST"])[0].status == 200
        assert reserved(service) == 0


def test_records_are_counted_beside_the_body_that_they_are_made_of():
    service = service_with()
    # The shortest messages that there are, and messages with many headers, are the largest for their length.
    headers = b",".join(b'"%04d":"a"' % n for n in range(1000))
    for line, least in (
        (b'{"topic":"t","content":""}\n', 300),
        (b'{"topic":"t","content":"","headers":{%b}}\n' % headers, 150_000),
    ):
        count = LIMIT // 4 // least
        connection = service.connect()
        connection.send(request_bytes("POST", "/messages", NDJSON, line * count))
        service.clock.advance(1)
        assert least * count < reserved(service)
        while service.broker.waiting:
            service.broker.acknowledge()
        assert reserved(service) == 0


def test_records_of_rest_proxy_are_counted_too():
    service = service_with()
    body = b'{"records":[%b]}' % b",".join([b"{}"] * 1000)
    connection = service.connect()
    data = request_bytes("POST", "/topics/t", V2, body)
    connection.send(data)
    assert reserved(service) == 3 * len(body) + 384 * 1000
    second = service.connect()
    second.send(data)
    third = service.connect()
    third.send(data)
    (answer,) = third.responses(["POST"])
    assert answer.status == 503
    assert 1 <= int(answer.headers[b"retry-after"]) <= 5
    assert json.loads(answer.body)["error_code"] == 503
    while service.broker.waiting:
        service.broker.acknowledge()
    assert reserved(service) == 0


def test_an_answer_that_is_read_slowly_is_counted_until_it_is_read():
    service = service_with(broker=PromptBroker())
    connection = service.connect(NarrowTransport)
    # The 1,000 lines of the answer are so long that they are sent in pieces.
    topic = b"t" * 200
    connection.send(
        request_bytes("POST", "/messages", NDJSON, b'{"topic":"%b","content":""}\n' % topic * 1000)
    )
    service.clock.advance(1)
    length = len(b'{"topic":"","partition":0,"offset":1000}\n') + len(topic)
    assert 0.9 * 1000 * length < reserved(service) < 1.1 * 1000 * length
    while connection.transport.let_client_read():
        pass
    assert reserved(service) == 0


def test_a_body_that_is_not_needed_is_not_counted():
    service = service_with()
    for path in ("/nothing", "/"):
        connection = service.connect()
        connection.send(request_bytes("POST", path, [(b"Content-Length", b"1000")]) + bytes(500))
        assert reserved(service) == 0


def test_while_a_handler_works_for_a_client_that_has_gone_its_body_is_counted():
    service = service_with()
    connection = service.connect()
    connection.send(head_of(1000))
    connection.send(bytes(1000))
    connection.lose()
    assert reserved(service) == 1000
    service.broker.acknowledge()
    assert reserved(service) == 0


def test_a_small_body_that_comes_with_its_header_is_taken_whatever_is_reserved():
    service = service_with()
    connection = service.connect()
    service.site.body_memory.reserved = LIMIT
    connection.send(request_bytes("POST", "/topics/t", (), bytes(1000)))
    service.broker.acknowledge()
    assert [response.status for response in connection.responses(["POST"])] == [200]
    assert reserved(service) == LIMIT


@pytest.mark.parametrize("coding", [(), ((b"Content-Encoding", b"gzip"),)])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
@pytest.mark.parametrize("target", ["/", "/live", "/docs", "/topics"])
def test_a_body_of_a_request_that_only_reads_takes_no_memory(method, target, coding):
    service = service_with()
    connection = service.connect()
    connection.send(request_bytes(method, target, [*coding, (b"Content-Length", b"1000")]))
    connection.send(bytes(999))
    assert reserved(service) == 0
    connection.send(bytes(1))
    (answer,) = connection.responses([method])
    # A request for topics has no body that means nothing.
    assert answer.status < 300 or (target, answer.status) == ("/topics", 422)
    chunks = service.connect()
    chunks.send(request_bytes(method, target, [CHUNKED]) + chunked(bytes(1000), 100)[:-5])
    assert reserved(service) == 0


def test_a_handler_that_fails_releases_its_memory(no_failure_is_lost):
    class FailingBroker(ManualBroker):
        def publish(self, record):
            raise MemoryError

        def publish_many(self, records):
            raise MemoryError

    service = service_with(broker=FailingBroker())
    for data in (
        request_bytes("POST", "/topics/t", (), bytes(1000)),
        request_bytes("POST", "/messages", NDJSON, LINE * 500),
        request_bytes("POST", "/messages", JSON, MESSAGE),
    ):
        connection = service.connect()
        connection.send(data)
        service.clock.advance(1)
        assert connection.responses(["POST"])[0].status == 500
    assert [failure.check(MemoryError) for failure in no_failure_is_lost] == [MemoryError] * 3
    no_failure_is_lost.clear()
    assert reserved(service) == 0


def test_an_answer_that_cannot_be_sent_releases_the_memory_of_its_request(monkeypatch, no_failure_is_lost):
    service = service_with()
    connection = service.connect()
    connection.send(request_bytes("POST", "/topics/t", (), bytes(1000)))

    def fail(*_):
        raise RuntimeError

    monkeypatch.setattr(service.site, "http_date", fail)
    service.broker.acknowledge()
    assert [failure.check(RuntimeError) for failure in no_failure_is_lost] == [RuntimeError]
    no_failure_is_lost.clear()
    connection.settle()
    assert connection.is_lost
    assert reserved(service) == 0


class Broker(ManualBroker):
    """A broker that may fail, in every way."""

    raises = False

    def publish(self, record):
        if self.raises:
            raise RuntimeError("It was to fail.")
        self.records.append(record)
        waiting = Deferred()
        self.waiting.append((waiting, record))
        return waiting

    def settle(self, *, succeeds):
        waiting, record = self.waiting.pop(0)
        if succeeds:
            waiting.callback(RecordMetadata(topic=record.topic, partition=0, offset=1))
        else:
            waiting.errback(BrokerUnavailable("The broker is away."))


class Bodies(RuleBasedStateMachine):
    """Clients that send all kinds of bodies, and what may happen to them."""

    failures = None
    """Those that are logged, which the test may not lose."""

    @initialize()
    def start(self):
        self.broker = Broker()
        self.service = ServiceInTurns(
            broker=self.broker, max_body=200 * KIB, max_batch_body=400 * KIB, max_body_memory=600 * KIB
        )
        self.connections = []
        self.left = {}
        self.sent = {}

    @property
    def memory(self):
        return self.service.site.body_memory

    @rule(
        kind=st.sampled_from(["raw", "message", "lines", "wrong lines", "headers"]),
        coding=st.sampled_from([None, gzip.compress, zstd.compress, lambda data: b"?" + data]),
        size=st.sampled_from([1, 1000, 60 * KIB, 100 * KIB, 199 * KIB, 399 * KIB]),
        is_chunked=st.booleans(),
        part=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
        reads=st.booleans(),
    )
    def send(self, *, kind, coding, size, is_chunked, part, reads):
        path, headers, body = {
            "raw": ("/topics/t", [], bytes(size)),
            "message": ("/messages", JSON, b'{"topic":"t","content":"%b"}' % (b"x" * size)),
            "lines": ("/messages", NDJSON, LINE * (size // len(LINE) + 1)),
            "wrong lines": ("/messages", NDJSON, b"1\n" * (size // 2)),
            "headers": (
                "/messages",
                NDJSON,
                b'{"topic":"t","content":"","headers":{%b}}\n'
                % b",".join(b'"%d":""' % n for n in range(200))
                * (size // 1600),
            ),
        }[kind]
        if coding is not None:
            name = {gzip.compress: b"gzip", zstd.compress: b"zstd"}.get(coding, b"gzip")
            headers, body = [*headers, (b"Content-Encoding", name)], coding(body)
        if is_chunked:
            data = request_bytes("POST", path, [*headers, CHUNKED]) + chunked(body, 10_000)
        else:
            data = request_bytes("POST", path, headers, body)
        head = data.index(b"\r\n\r\n") + 4
        cut = head + int(part * (len(data) - head))
        connection = self.service.connect(NarrowTransport if not reads else self.plain)
        self.connections.append(connection)
        connection.send(data[:cut])
        self.left[connection] = data[cut:]
        self.sent[connection] = max(0, cut - head)

    plain = NarrowTransport.__mro__[1]

    @precondition(lambda self: self.connections)
    @rule(which=st.integers(0, 100), part=st.sampled_from([0.1, 1.0]))
    def send_more(self, which, part):
        connection = self.connections[which % len(self.connections)]
        left = self.left[connection]
        cut = int(part * len(left)) + 1
        self.left[connection] = left[cut:]
        self.sent[connection] += len(left[:cut])
        connection.send(left[:cut])

    @precondition(lambda self: self.connections)
    @rule(which=st.integers(0, 100))
    def go_away(self, which):
        connection = self.connections.pop(which % len(self.connections))
        if not connection.is_lost:
            connection.lose()

    @precondition(lambda self: self.connections)
    @rule(which=st.integers(0, 100))
    def finish_sending(self, which):
        self.connections[which % len(self.connections)].channel.readConnectionLost()

    @precondition(lambda self: self.connections)
    @rule(which=st.integers(0, 100))
    def read(self, which):
        connection = self.connections[which % len(self.connections)]
        if isinstance(connection.transport, NarrowTransport):
            connection.transport.let_client_read()

    @rule(count=st.sampled_from([1, 100, 10_000]), succeeds=st.booleans())
    def answer(self, count, succeeds):
        for _ in range(min(count, len(self.broker.waiting))):
            self.broker.settle(succeeds=succeeds)

    @rule(raises=st.booleans())
    def break_broker(self, raises):
        self.broker.raises = raises

    @rule(seconds=st.sampled_from([0, 1, 1, 5, 40]))
    def pass_time(self, seconds):
        self.service.clock.advance(seconds)
        for connection in self.connections:
            connection.settle()

    @invariant()
    def never_more_than_the_limit_is_reserved(self):
        if not hasattr(self, "service"):
            return
        assert 0 <= self.memory.reserved <= self.memory.limit
        # Each body that is being received has the memory for what has come, and no more.
        coming = [each for each in self.connections if each.channel.state.name == "body"]
        assert self.memory.reserved >= sum(self.sent[each] for each in coming)
        if coming and {each.channel.state.name for each in self.connections} <= {"body", "closed"}:
            assert self.service.site.waiting or self.memory.reserved == sum(
                self.sent[each] for each in coming
            )
        if {each.channel.state.name for each in self.connections} <= {
            "idle",
            "header",
            "lingering",
            "closed",
        }:
            assert self.service.site.waiting or not self.memory.reserved
        for failure in self.failures:
            assert failure.check(RuntimeError)
        self.failures.clear()

    def teardown(self):
        if not hasattr(self, "service"):
            return
        for connection in self.connections:
            if not connection.is_lost:
                connection.lose()
        self.broker.raises = False
        for _ in range(2000):
            self.service.clock.advance(1)
            while self.broker.waiting:
                self.broker.settle(succeeds=True)
            if not self.service.clock.getDelayedCalls():
                break
        assert self.memory.reserved == 0
        assert self.service.site.waiting == 0
        self.failures.clear()


def test_all_memory_is_given_back_and_never_more_is_taken_whatever_clients_broker_and_clock_do(
    no_failure_is_lost, monkeypatch
):
    monkeypatch.setattr(Bodies, "failures", no_failure_is_lost)
    run_state_machine_as_test(Bodies, settings=examples(60, stateful_step_count=25))
