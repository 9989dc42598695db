"""No cycle stays when a connection, stream, request, page or batch ends: nothing waits for the collector."""

from __future__ import annotations

import gc
import gzip
from collections import Counter
from copy import copy
from functools import partial

import pytest
from incremental import Version
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock

import twisted
from sampleapp.errors import BrokerUnavailable, LeaseLost, RecordTooLarge, UnknownIds, UnknownTopic
from sampleapp.model import Acknowledged, RecordMetadata
from tests.support.callers import FULL, by, caller
from tests.support.certificates import Authority
from tests.support.in_memory import InMemoryService, ManualBroker, request_bytes
from tests.support.record_pages import PATH, PageService
from tests.support.simulated_socket import Link
from tests.support.tls_in_memory import Client, Server, client_context
from tests.support.work import WorkService, lease_of, leased
from tests.web.http import JSON, MESSAGE, NDJSON, chunked
from tests.web.server.test_connections import NarrowTransport

TIMES = 100
STREAM = (b"Accept", b"text/event-stream")
V2 = [(b"Content-Type", b"application/vnd.kafka.json.v2+json")]
GZIP = (b"Content-Encoding", b"gzip")
CHUNKED = (b"Transfer-Encoding", b"chunked")
HOOK = '[hooks.h]\ntopic = "t"\nscheme = "github"\nsecret_files = ["s"]\n'


def objects_left(act, times=20):
    """Do something several times without the collector; return what only it would free, by its type."""
    # Once before, for what is made at the first time and kept.
    act()
    gc.collect()
    gc.disable()
    try:
        for _ in range(times):
            act()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = Counter(type(each).__qualname__ for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.enable()
        gc.garbage.clear()
    gc.collect()
    return +found


class ForgetfulBroker(ManualBroker):
    """A broker that stores, or rejects, each record at once, and keeps none."""

    clock = None
    """Set to reject records some milliseconds later."""

    def __init__(self, error=None):
        super().__init__()
        self.error = error

    def publish(self, record):
        return self.reject() or succeed(RecordMetadata(topic=record.topic, partition=0, offset=0))

    def publish_many(self, records):
        return self.reject() or succeed(
            [RecordMetadata(topic=each.topic, partition=0, offset=0) for each in records]
        )

    def reject(self):
        if self.error is None:
            return None
        rejected = Deferred()
        if self.clock is None:
            rejected.errback(self.error("It failed."))
        else:
            self.clock.callLater(0.003, rejected.errback, self.error("It failed."))
        return rejected


def exchange(service, *request, status, transport=None):
    """Make a request on a connection that ends after it, and check its status."""
    connection = service.connect() if transport is None else service.connect(transport)
    connection.send(request_bytes(*request))
    for _ in range(12):
        service.clock.advance(0.001)
        connection.settle()
    assert connection.sent[9:12] == b"%d" % status
    if not connection.is_lost:
        connection.lose()


def end_in_the_middle(service, data):
    connection = service.connect()
    connection.send(data)
    connection.lose()


@pytest.mark.parametrize(
    ("status", "request_"),
    [
        (200, ("GET", "/")),
        (200, ("HEAD", "/")),
        (200, ("GET", "/topics")),
        (200, ("GET", "/openapi.json")),
        (200, ("POST", "/messages", JSON, MESSAGE)),
        (200, ("POST", "/topics/t?key=k", [], bytes(1000))),
        (200, ("POST", "/topics/t", [GZIP], gzip.compress(bytes(500_000)))),
        (200, ("DELETE", "/topics/t?key=k")),
        (200, ("POST", "/messages", NDJSON, (MESSAGE + b"\n") * 2)),
        (200, ("POST", "/messages", NDJSON, (MESSAGE + b"\n") * 2000)),
        (200, ("POST", "/topics/t", V2, b'{"records":[{"value":1}]}')),
        (400, ("POST", "/messages", JSON, b"{")),
        (400, ("POST", "/topics/t", [GZIP], b"no gzip")),
        (401, ("POST", "/hooks/h", [(b"X-Hub-Signature-256", b"sha256=" + b"0" * 64)], b"{}")),
        (413, ("POST", "/topics/t", [], bytes(2_000_000))),
        (415, ("POST", "/messages", [], MESSAGE)),
        (422, ("POST", "/messages", JSON, b"{}")),
        (422, ("POST", "/messages", NDJSON, MESSAGE + b"\n{}")),
        (422, ("POST", "/topics/t", V2, b'{"records":[{"no":1}]}')),
    ],
)
def test_a_request_leaves_nothing(status, request_):
    callers = HOOK if request_[1].startswith("/hooks/") else None
    service = InMemoryService(broker=ForgetfulBroker(), callers=callers, secrets={"h": [b"s"]})
    assert objects_left(partial(exchange, service, *request_, status=status)) == {}


@pytest.mark.parametrize(
    ("status", "error"), [(503, BrokerUnavailable), (413, RecordTooLarge), (500, ZeroDivisionError)]
)
@pytest.mark.parametrize(
    "request_",
    [
        ("POST", "/messages", JSON, MESSAGE),
        ("POST", "/messages", NDJSON, (MESSAGE + b"\n") * 2000),
        ("POST", "/topics/t", V2, b'{"records":[{"value":1}]}'),
    ],
)
@pytest.mark.parametrize("is_later", [False, True])
def test_a_request_that_the_broker_rejects_leaves_nothing(
    status, error, request_, is_later, no_failure_is_lost
):
    service = InMemoryService(broker=ForgetfulBroker(error))
    service.broker.clock = service.clock if is_later else None

    def ask():
        exchange(service, *request_, status=status)
        no_failure_is_lost.clear()

    assert objects_left(ask) == {}


def work(service, *, answer=None, end=None, action="pull", body=None):
    """Make a request of a worker, whose connection ends with it."""
    connection = service.begin(action, body)
    if answer is not None:
        service.answer(answer)
    if end is not None:
        end(connection)
    service.clock.pump([0] * 3)
    if not connection.is_lost:
        connection.lose()
    service.broker.asked.clear()
    service.broker.cancelled.clear()


@pytest.mark.parametrize(
    "do",
    [
        partial(work, answer=lease_of()),
        partial(work, answer=lease_of(*[leased(each, value=bytes(200_000)) for each in range(4)])),
        partial(
            work,
            answer=lease_of(*[leased(each, value=bytes(200_000)) for each in range(4)]),
            end=lambda connection: connection.lose(),
        ),
        partial(work, body={"wait": 20}, end=lambda connection: connection.lose()),
        partial(work, body={"wait": 20}, end=lambda connection: connection.channel.readConnectionLost()),
        partial(work, body={"wait": 1000}),
        partial(
            work,
            action="ack",
            body={"lease": "bGVhc2U"},
            answer=Acknowledged(accepted=1, released=0, rejected=0),
        ),
        partial(work, action="ack", body={"lease": "x"}),
        partial(work, action="extend", body=[]),
    ],
)
def test_a_request_of_a_worker_leaves_nothing(do):
    service = WorkService()
    assert objects_left(partial(do, service)) == {}


@pytest.mark.parametrize("error", [LeaseLost("It has ended."), UnknownIds([(0, 1)])])
def test_a_result_that_the_broker_rejects_leaves_nothing(error):
    service = WorkService()

    def act():
        body = {"lease": "bGVhc2U", "accept": ["0-1"]}
        work(service, action="ack", body=body, answer=copy(error))

    assert objects_left(act) == {}


@pytest.mark.parametrize(("method", "target"), [("GET", "/unknown"), ("PUT", "/messages")])
def test_an_unknown_path_or_method_leaves_nothing_but_functions_of_werkzeug(method, target):
    service = InMemoryService(broker=ForgetfulBroker())
    left = objects_left(partial(exchange, service, method, target, status=404 if method == "GET" else 405))
    # Its matcher is a function that calls itself. They hold nothing of the request but its path.
    assert set(left) <= {"cell", "function", "set", "tuple"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET / HT",
        request_bytes("POST", "/topics/t", [(b"Content-Length", b"100000")]) + bytes(1000),
        request_bytes("POST", "/topics/t", [CHUNKED]) + chunked(bytes(1000), 100)[:-5],
        request_bytes("POST", "/messages", NDJSON, (MESSAGE + b"\n") * 2000),
    ],
)
def test_a_connection_that_ends_in_the_middle_leaves_nothing(data):
    service = InMemoryService(broker=ForgetfulBroker())

    def end():
        end_in_the_middle(service, data)
        for _ in range(12):
            service.clock.advance(0.001)

    assert objects_left(end) == {}


@pytest.mark.parametrize("coding", [[], [GZIP]])
def test_a_request_without_room_leaves_nothing(coding):
    service = InMemoryService(broker=ForgetfulBroker(), max_body_memory=1 << 20)
    service.site.body_memory.add("", 1 << 20)
    body = gzip.compress(bytes(500_000)) if coding else bytes(100)
    for request_ in (
        ("POST", "/topics/t", [*coding, (b"Content-Length", b"100000")]),
        ("POST", "/topics/t", [*coding, CHUNKED], chunked(body, 100)),
        ("POST", "/messages", NDJSON, (MESSAGE + b"\n") * 1000),
    ):
        connection = partial(
            end_in_the_middle, service, request_bytes(*request_[:3]) + b"".join(request_[3:])
        )
        assert objects_left(connection) == {}


@pytest.mark.parametrize(
    ("status", "headers"), [(401, []), (401, [by("other")]), (403, [by("t")]), (200, [by("u")])]
)
def test_a_request_of_a_caller_leaves_nothing(status, headers):
    callers = caller("t", 'publish = ["a"]') + caller("u", 'publish = ["t"]')
    service = InMemoryService(broker=ForgetfulBroker(), callers=callers)
    assert objects_left(partial(exchange, service, "POST", "/topics/t", headers, b"x", status=status)) == {}


@pytest.fixture
def pages():
    service = PageService(partitions=1)
    service.topic.append(0, b"v" * 100_000, key=b"k")
    # A feed that ends is freed later, once for all streams.
    service.gateway.feeds.linger_s = 10**6
    return service


@pytest.mark.parametrize(
    ("status", "query"),
    [
        (200, ""),
        (200, "?key=k"),
        (204, "?key=other"),
        (204, "?from=latest"),
        (422, "?from=bad"),
        (404, "?partition=7"),
        (410, "?from=id0~99"),
    ],
)
def test_a_page_leaves_nothing(pages, status, query):
    assert objects_left(partial(exchange, pages, "GET", PATH + query, status=status)) == {}


def test_a_page_that_is_read_slowly_or_rejected_leaves_nothing(pages):
    slow = partial(exchange, pages, "GET", PATH, status=200, transport=NarrowTransport)
    assert objects_left(slow) == {}
    pages.site.body_memory.add("", pages.site.body_memory.limit)
    assert objects_left(partial(exchange, pages, "GET", PATH, status=503)) == {}
    pages.topic.is_reachable = False
    assert objects_left(partial(exchange, pages, "GET", PATH, status=503)) == {}


@pytest.mark.parametrize("milliseconds", [0, 1, 5, 50])
@pytest.mark.parametrize("query", ["", "?key=k", "?from=latest&wait=60"])
def test_a_page_whose_client_goes_away_leaves_nothing(pages, query, milliseconds):
    def leave():
        connection = pages.connect()
        connection.send(request_bytes("GET", PATH + query))
        for _ in range(milliseconds):
            pages.clock.advance(0.001)
        connection.lose()
        pages.run(0.01)

    assert objects_left(leave) == {}


@pytest.mark.parametrize(("end", "status"), [("time", 204), ("record", 200), ("client", 204)])
def test_a_page_that_has_waited_leaves_nothing(pages, end, status):
    def wait():
        asked = pages.ask("?from=latest&wait=1", settle_s=0)
        pages.run(0.1, step=0.01)
        if end == "record":
            # It stays in the topic.
            pages.topic.append(0, b"v")
        elif end == "client":
            asked.connection.channel.readConnectionLost()
        pages.run(1.2, step=0.01)
        assert asked.page.status == status
        asked.connection.lose()

    assert objects_left(wait) == {}


def test_a_page_whose_caller_loses_its_right_leaves_nothing():
    service = PageService(callers=FULL)

    def wait():
        asked = service.ask("?from=latest&wait=10", headers=[by("full")], settle_s=0)
        service.run(0.1, step=0.01)
        service.use_callers(caller("full"))
        service.run(3, step=0.1)
        assert asked.page.status == 403
        asked.connection.lose()
        service.use_callers(FULL)

    assert objects_left(wait) == {}


def test_a_search_that_fails_later_leaves_nothing(pages):
    for _ in range(5001):
        pages.topic.append(0, b"", key=b"o")

    def search():
        asked = pages.ask("?key=k&limit=10000", settle_s=0)
        pages.clock.advance(0.001)
        pages.topic.is_reachable = False
        pages.run(0.2, until=lambda: asked.is_answered)
        assert len(asked.page.records) == 1
        asked.connection.lose()
        pages.topic.is_reachable = True

    assert objects_left(search) == {}


@pytest.mark.parametrize("frozen", [(), (0,)])
def test_a_stream_that_cannot_read_leaves_nothing(pages, frozen):
    def stream():
        connection = open_stream(pages, "?from=earliest", transport=NarrowTransport)
        for _ in range(3):
            pages.topic.append(0, b"v" * 10_000)
        if frozen:
            pages.topic.frozen = set(frozen)
        else:
            pages.topic.is_reachable = False
        for _ in range(200):
            pages.clock.advance(0.05)
            connection.settle()
        connection.lose()
        pages.clock.advance(10)
        pages.topic.frozen = set()
        pages.topic.is_reachable = True

    assert objects_left(stream, times=10) == {}


@pytest.mark.parametrize("error", [BrokerUnavailable, UnknownTopic])
@pytest.mark.parametrize("headers", [[], [(b"Sec-Fetch-Mode", b"cors")]])
def test_a_stream_that_is_rejected_leaves_nothing(pages, error, headers):
    def reject():
        reads = pages.topic.read
        pages.topic.read = lambda _: fail(error("It failed."))
        connection = pages.connect()
        connection.send(request_bytes("GET", PATH, [STREAM, *headers]))
        pages.run(0.2, until=lambda: connection.sent)
        assert connection.sent.startswith(b"HTTP/1.1 ")
        connection.lose()
        pages.topic.read = reads

    assert objects_left(reject) == {}


def open_stream(service, query="", *, target=PATH, transport=None):
    connection = service.connect() if transport is None else service.connect(transport)
    connection.send(request_bytes("GET", target + query, [STREAM]))
    for _ in range(20):
        service.clock.advance(0.01)
    assert connection.sent.startswith(b"HTTP/1.1 200")
    return connection


@pytest.mark.parametrize("transport", [None, NarrowTransport])
@pytest.mark.parametrize("query", ["", "?from=earliest", "?from=earliest&key=k", "?from=earliest&key=o"])
@pytest.mark.parametrize("end", ["lost", "finished", "cut"])
def test_a_stream_leaves_nothing(pages, query, transport, end):
    def stream():
        connection = open_stream(pages, query, transport=transport)
        pages.topic.append(0, b"v", key=b"k")
        for _ in range(20):
            pages.clock.advance(0.01)
        if end == "finished":
            connection.channel.readConnectionLost()
        elif end == "cut":
            connection.channel.abort()
        for _ in range(20):
            pages.clock.advance(0.01)
            connection.settle()
        if not connection.is_lost:
            connection.lose()

    assert objects_left(stream) == {}


def test_a_stream_of_changes_leaves_nothing():
    service = InMemoryService(broker=ForgetfulBroker())

    def stream():
        connection = open_stream(service, target="/changes")
        service.read(b"k", b"1.5")
        service.read(b"k", None)
        for _ in range(20):
            service.clock.advance(0.01)
        connection.lose()

    assert objects_left(stream) == {}


@pytest.mark.parametrize("end", ["finish", "reset"])
def test_a_connection_of_twisted_s_transport_leaves_nothing(end):
    clock = Clock()
    service = InMemoryService(broker=ForgetfulBroker())

    def connect():
        link = Link(service.site, clock)
        link.send(request_bytes("POST", "/messages", JSON, MESSAGE))
        assert link.read_all().startswith(b"HTTP/1.1 200")
        getattr(link, end)()
        link.advance(2)
        assert link.is_over

    assert objects_left(connect) == {}


@pytest.mark.skipif(
    twisted.version < Version("Twisted", 26, 10, 0), reason="Its transports with TLS refer to themselves."
)
def test_a_connection_with_tls_leaves_nothing(tmp_path):
    authority = Authority(tmp_path)
    files = authority.server()
    server = Server(f"https:8443:privateKey={files.key}:certKey={files.certificate}")
    context = client_context(authority)
    # What all of them provide is made by zope.interface once for those that are open.
    kept = Client(server, context)

    def connect():
        client = Client(server, context)
        assert b"200 OK" in client.ask()
        client.close()
        server.seen.clear()
        server.peers.clear()

    left = objects_left(connect, TIMES)
    assert set(left) <= {"Provides", "dict", "tuple"}
    assert left["Provides"] < TIMES / 10
    kept.close()
