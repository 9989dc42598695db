"""Bodies that come compressed: they arrive as they were, or are rejected, within the limit."""

from __future__ import annotations

import gzip
import json
import random
import sys
import traceback
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.web.server import Site

from sampleapp.decompression import GzipDecompressor
from sampleapp.web import HTTPServer, Limits, RouteTable, response_to_failure
from sampleapp.web.errors import BodyMemoryFull, problem_response
from sampleapp.web.responses import json_response
from sampleapp.web.routing import AccessPolicy, App
from sampleapp.web.server.content_coding import CodedBody
from tests.support.callers import by, caller
from tests.support.examples import examples
from tests.support.in_memory import Connection, InMemoryService, PromptBroker, request_bytes
from tests.support.requests import cut
from tests.web.http import JSON, MESSAGE, assert_problem, chunked, raw

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LIMIT = 100_000
SMALL = 100
MIB = 1024 * 1024
TURN_S = 1 / 1024


def only_small(request):
    request.max_body = SMALL


class Bodies:
    """Keeps the bodies that its handlers are given."""

    app = App()
    access = AccessPolicy()

    def __init__(self):
        self.seen = []

    @app.route("/bodies", methods=["POST", "GET", "DELETE"])
    def body(self, request):
        self.seen.append(request.body)
        return json_response(len(request.body))

    @app.route("/small", methods=["POST"], check_head=only_small)
    def small(self, request):
        self.seen.append(request.body)
        return json_response(len(request.body))


class TurnClock(Clock):
    """A clock that makes calls without delay in the next turn, as a reactor does, and not in the same one."""

    def callLater(self, when, *args, **kwargs):
        return super().callLater(max(when, TURN_S), *args, **kwargs)


class Service:
    """Something that takes bodies, on the service's own connections or in a site of twisted.web."""

    def __init__(self, way="own", **limits):
        self.clock = TurnClock()
        self.bodies = Bodies()
        limits = {"max_body": LIMIT, **limits}
        if way == "own":
            table = RouteTable(self.bodies.app)
            self.site = HTTPServer(
                table.dispatch,
                reject=problem_response,
                response_to=response_to_failure,
                reactor=self.clock,
                limits=Limits(**limits),
            )
        else:
            resource = self.bodies.app.resource(max_body=limits["max_body"])
            self.site = Site(resource, reactor=self.clock)

    def connect(self):
        return Connection(self.site)

    def turn(self, turns=1):
        for _ in range(turns):
            self.clock.advance(TURN_S)

    def send(self, data, *, method="POST", turns=2000):
        """Send one request, in one segment or in several, and return the answer to it."""
        connection = self.connect()
        connection.send(*([data] if isinstance(data, bytes) else data))
        for _ in range(turns):
            if connection.sent.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n"):
                break
            self.turn()
        (response,) = connection.responses([method])
        return response

    def post(self, body, coding=b"gzip", *, path="/bodies"):
        return self.send(request_bytes("POST", path, [(b"Content-Encoding", coding)], body))


@pytest.fixture(params=["own", "twisted.web"])
def service(request):
    return Service(request.param)


def zstd_frame(data, *, options=None, knows_size=True):
    compressor = zstd.ZstdCompressor(options=options)
    if knows_size:
        compressor.set_pledged_input_size(len(data))
    return compressor.compress(data) + compressor.flush()


def window(log, data=b"x"):
    """A frame of zstd that asks for a window of that size."""
    return zstd_frame(data, options={zstd.CompressionParameter.window_log: log}, knows_size=False)


@st.composite
def gzip_members(draw, data):
    level, memory = draw(st.integers(0, 9)), draw(st.integers(1, 9))
    window_log, strategy = draw(st.integers(25, 31)), draw(st.integers(0, 4))
    compressor = zlib.compressobj(level, zlib.DEFLATED, window_log, memory, strategy)
    return compressor.compress(data) + compressor.flush()


@st.composite
def zstd_frames(draw, data):
    options = {
        zstd.CompressionParameter.compression_level: draw(st.sampled_from([-5, 1, 3, 12])),
        zstd.CompressionParameter.checksum_flag: draw(st.integers(0, 1)),
        zstd.CompressionParameter.content_size_flag: draw(st.integers(0, 1)),
    }
    frame = zstd_frame(data, options=options, knows_size=draw(st.booleans()))
    skipped = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc" if draw(st.integers(0, 4)) == 4 else b""
    return skipped + frame


CONTENTS = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda data, times: data * times, st.binary(max_size=20), st.integers(0, LIMIT // 20)),
    st.randoms(use_true_random=True).map(lambda chance: chance.randbytes(chance.randint(0, LIMIT))),
)


@st.composite
def coded(draw):
    """Some content, and a body that is it in some coding, in one or several members or frames."""
    content = draw(CONTENTS)
    name, code = draw(
        st.sampled_from(
            [
                (b"gzip", gzip_members),
                (b"x-gzip", gzip_members),
                (b"GZip", gzip_members),
                (b"zstd", zstd_frames),
                (b"ZSTD", zstd_frames),
            ]
        )
    )
    places = draw(st.lists(st.integers(0, len(content)), max_size=4))
    parts = cut(content, places) or [b""]
    return content, name, b"".join(draw(code(part)) for part in parts)


@examples(60)
@given(coded(), st.sampled_from(["own", "twisted.web"]), st.data())
def test_any_body_in_any_coding_and_any_segments_arrives_as_it_was(body, way, data):
    content, name, body = body
    field = (b"Content-Encoding", name)
    if data.draw(st.booleans()):
        request = request_bytes("POST", "/bodies", [field], body)
    else:
        size = data.draw(st.integers(1, 2 * len(body)))
        head = request_bytes("POST", "/bodies", [field, (b"Transfer-Encoding", b"chunked")])
        request = head + chunked(body, max(size, len(body) // 50))
    places = data.draw(st.lists(st.integers(0, len(request)), max_size=8))
    service = Service(way, max_body=2 * LIMIT)
    assert service.send(cut(request, places)).status == 200
    assert service.bodies.seen == [content]


def test_a_body_with_the_coding_identity_or_none_arrives_unchanged(service):
    for coding in (b"identity", b"Identity", b"", b"identity, identity", b" , "):
        assert service.post(b"text", coding).status == 200
    assert service.bodies.seen == [b"text"] * 5


@pytest.mark.parametrize(
    "fields",
    [
        [b"br"],
        [b"deflate"],
        [b"compress"],
        [b"gzip2"],
        [b"gzip;q=1"],
        [b"aws-chunked"],
        [b"\xff"],
        [b"gzip, gzip"],
        [b"gzip,zstd"],
        [b"gzip", b"gzip"],
        [b"identity", b"gzip"],
        [b"gzip, identity"],
        [b"x" * 200],
    ],
)
def test_every_other_coding_and_several_are_rejected_with_those_that_are_taken(service, fields):
    headers = [(b"Content-Encoding", field) for field in fields]
    response = service.send(request_bytes("POST", "/bodies", headers, gzip.compress(gzip.compress(b"text"))))
    assert_problem(response, 415)
    assert response.headers[b"accept-encoding"] == b"gzip, zstd"
    detail = json.loads(response.body)["detail"]
    assert "gzip or zstd" in detail
    assert len(detail) < 300
    assert service.bodies.seen == []


GZIP, ZSTD = (
    gzip.compress(b"some text, some text", mtime=0),
    zstd_frame(b"some text, some text", options={zstd.CompressionParameter.checksum_flag: 1}),
)


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        *((b"gzip", GZIP[:length]) for length in range(len(GZIP))),
        *((b"zstd", ZSTD[:length]) for length in range(len(ZSTD))),
        (b"gzip", GZIP + GZIP[:-1]),
        (b"zstd", ZSTD + ZSTD[:-1]),
        (b"gzip", GZIP + b"x"),
        (b"gzip", GZIP + bytes(8)),
        (b"zstd", ZSTD + b"x"),
        (b"zstd", ZSTD + bytes(8)),
        (b"gzip", ZSTD),
        (b"zstd", GZIP),
        (b"gzip", zlib.compress(b"text")),
        (b"gzip", b"some text, some text"),
        # The checksum, and the length in the trailer of gzip.
        (b"gzip", GZIP[:-5] + bytes([GZIP[-5] ^ 1]) + GZIP[-4:]),
        (b"gzip", GZIP[:-1] + b"\x01"),
        (b"zstd", ZSTD[:-1] + bytes([ZSTD[-1] ^ 1])),
        (b"zstd", window(24)),
        (b"zstd", window(27)),
    ],
)
def test_a_body_that_is_cut_short_or_damaged_or_continues_after_its_end_is_rejected(service, coding, body):
    response = service.post(body, coding)
    assert_problem(response, 400)
    problem = json.loads(response.body)
    assert problem["type"] == "urn:sampleapp:problem:undecodable-body"
    assert coding.decode() in problem["detail"]
    assert service.bodies.seen == []


def test_a_window_of_8_mib_is_taken_as_rfc_9659_asks(service):
    assert service.post(window(23), b"zstd").status == 200
    assert service.bodies.seen == [b"x"]


def test_more_than_ten_thousand_frames_are_rejected():
    service = Service()
    frame = zstd_frame(b"")
    assert service.post(frame * 10_000, b"zstd").status == 200
    assert_problem(service.post(frame * 10_001, b"zstd"), 400)


def test_where_there_is_no_body_there_is_nothing_to_decode(service):
    assert service.send(request_bytes("DELETE", "/bodies", [(b"Content-Encoding", b"gzip")])).status == 200
    empty = request_bytes("DELETE", "/bodies", [(b"Content-Encoding", b"gzip")], b"")
    assert_problem(service.send(empty), 400)
    assert service.bodies.seen == [b""]


@pytest.mark.parametrize("coding", [b"br", b"gzip", b"gzip, gzip", b"\xff"])
@pytest.mark.parametrize(
    ("method", "target", "status"),
    [("OPTIONS", "/messages", 204), ("OPTIONS", "/nothing", 404), ("GET", "/", 200), ("HEAD", "/", 200)],
)
def test_a_request_without_a_body_is_answered_whatever_its_coding(coding, method, target, status):
    service = InMemoryService()
    data = request_bytes(method, target, [(b"Content-Encoding", coding)])
    for site in (service.site, Site(service.gateway.app.resource(), reactor=service.clock)):
        connection = Connection(site)
        connection.send(data)
        (response,) = connection.responses([method])
        assert response.status == status


@pytest.mark.parametrize("code", [gzip.compress, zstd_frame])
def test_the_limit_holds_for_the_decoded_body(service, code):
    coding = b"gzip" if code is gzip.compress else b"zstd"
    for path, limit in (("/bodies", LIMIT), ("/small", SMALL)):
        assert service.post(code(bytes(limit)), coding, path=path).status == 200
        for body in (code(bytes(limit + 1)), code(bytes(limit)) + code(b"x"), code(bytes(4 * MIB))):
            response = service.post(body, coding, path=path)
            assert_problem(response, 413)
            assert f"{limit} bytes" in json.loads(response.body)["detail"]
    assert [len(body) for body in service.bodies.seen] == [LIMIT, SMALL]


def test_the_limit_holds_for_the_compressed_body(service):
    # Random octets become a little more.
    for coding, code in ((b"gzip", gzip.compress), (b"zstd", zstd_frame)):
        stored = b"".join(code(bytes([n % 256])) for n in range(LIMIT // 9))[: LIMIT + 1]
        assert len(stored) == LIMIT + 1
        assert_problem(service.post(stored, coding), 413)


def test_a_body_over_the_limit_is_counted_once_whether_or_not_it_is_compressed():
    service = Service()
    service.post(gzip.compress(bytes(LIMIT + 1)))
    assert service.site.rejections["max-body"] == 1
    service.post(bytes(LIMIT + 1))
    assert service.site.rejections["max-body"] == 2
    service.post(b"no gzip")
    assert service.site.rejections["max-body"] == 2


@pytest.mark.parametrize(
    "content",
    [bytes(16 * MIB), random.Random(1).randbytes(MIB - 20_000) + bytes(MIB)],
    ids=["a bomb", "what hardly compresses"],
)
@pytest.mark.parametrize("way", ["own", "twisted.web"])
def test_a_body_that_is_too_large_takes_little_more_memory_than_the_limit(way, content):
    service = Service(way, max_body=MIB)
    request = request_bytes("POST", "/bodies", [(b"Content-Encoding", b"gzip")], gzip.compress(content))
    pieces = [request[start : start + 65536] for start in range(0, len(request), 65536)]
    tracemalloc.start()
    try:
        status = service.send(pieces).status
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert status == 413
    # In a site of twisted.web, all that has come is kept until the answer.
    assert peak < (1.5 if way == "own" else 2.5) * MIB


def test_a_large_body_is_decoded_in_turns_in_which_others_are_answered():
    service = Service(max_body=16 * MIB)
    content = bytes(8 * MIB)
    large, other = service.connect(), service.connect()
    large.send(request_bytes("POST", "/bodies", [(b"Content-Encoding", b"gzip")], gzip.compress(content)))
    turns = 0
    while not large.sent:
        other.send(request_bytes("GET", "/bodies"))
        turns += 1
        assert len(other.responses(["GET"] * turns)) == turns
        service.turn()
    assert turns > 8 * MIB / (400 * 1024)
    assert large.responses(["POST"])[0].status == 200
    assert service.bodies.seen == [b""] * turns + [content]


def test_however_many_bodies_are_decoded_at_once_a_turn_is_not_longer():
    def turns_of(count):
        service = Service(max_body=16 * MIB)
        data = request_bytes("POST", "/bodies", [(b"Content-Encoding", b"gzip")], gzip.compress(bytes(MIB)))
        connections = [service.connect() for _ in range(count)]
        for connection in connections:
            connection.send(data)
        turns = 0
        while not all(connection.sent for connection in connections):
            service.turn()
            turns += 1
        return turns

    assert turns_of(10) >= 9 * turns_of(1)


def large_message(content="x" * 200_000):
    return gzip.compress(json.dumps({"topic": "t", "content": content}).encode())


CODED = [*JSON, (b"Content-Encoding", b"gzip")]


def test_requests_behind_one_that_is_decoded_are_answered_after_it():
    service = InMemoryService(broker=PromptBroker())
    connection = raw(
        service,
        request_bytes("POST", "/messages", CODED, large_message())
        + request_bytes("POST", "/messages", JSON, MESSAGE)
        + request_bytes("POST", "/messages", CODED, b"no gzip")
        + request_bytes("GET"),
    )
    assert connection.sent == b""
    service.clock.pump([0] * 10)
    answers = connection.responses(["POST", "POST", "POST", "GET"])
    assert [answer.status for answer in answers] == [200, 200, 400, 200]
    assert [len(record.value) for record in service.broker.records] == [200_000, 1]


def test_a_request_that_is_being_decoded_counts_as_waiting():
    service = InMemoryService(broker=PromptBroker(), max_waiting=1)
    connection = raw(service, request_bytes("POST", "/messages", CODED, large_message()))
    assert service.site.connections_by_state()["waiting"] == 1
    assert_problem(service.post(MESSAGE), 503)
    service.clock.pump([0] * 10)
    assert connection.responses(["POST"])[0].status == 200
    assert service.post(MESSAGE).status == 200


def test_a_whole_message_is_published_though_its_client_leaves_while_it_is_decoded(no_failure_is_lost):
    service = InMemoryService(broker=PromptBroker())
    raw(service, request_bytes("POST", "/messages", CODED, large_message())).lose()
    raw(service, request_bytes("POST", "/messages", CODED, gzip.compress(bytes(2 * MIB)))).lose()
    service.clock.pump([0] * 20)
    assert [len(record.value) for record in service.broker.records] == [200_000]
    assert service.site.waiting == 0
    assert no_failure_is_lost == []


def test_a_server_that_stops_answers_requests_that_are_being_decoded():
    service = InMemoryService(broker=PromptBroker())
    connection = raw(service, request_bytes("POST", "/messages", CODED, large_message()))
    stopped = []
    service.site.drain().addCallback(stopped.append)
    service.clock.pump([0] * 10)
    assert connection.responses(["POST"])[0].status == 200
    connection.settle()
    assert stopped == [None]


def test_a_request_that_can_be_rejected_by_its_head_is_rejected_before_the_body_is_sent():
    service = InMemoryService(broker=PromptBroker())
    for coding, expected in ((b"br", 415), (b"gzip", 100)):
        fields = [
            *JSON,
            (b"Content-Encoding", coding),
            (b"Expect", b"100-continue"),
            (b"Content-Length", b"9"),
        ]
        assert raw(service, request_bytes("POST", "/messages", fields)).sent.startswith(
            b"HTTP/1.1 %d " % expected
        )


def test_the_coding_is_judged_after_the_path_the_method_and_the_caller_and_before_the_length():
    guarded = InMemoryService(broker=PromptBroker(), callers=caller("c", 'publish = ["t"]'), max_body=10)
    body = (b"Content-Length", b"11")
    for method, path, headers, status in (
        ("POST", "/messages", [], 401),
        ("POST", "/nothing", [by("c")], 404),
        ("PUT", "/messages", [by("c")], 405),
        ("POST", "/messages", [by("c"), (b"Sec-Fetch-Site", b"cross-site")], 403),
        ("POST", "/messages", [by("c")], 415),
    ):
        fields = [*JSON, *headers, (b"Content-Encoding", b"br"), body]
        connection = raw(guarded, request_bytes(method, path, fields))
        assert connection.responses([method])[0].status == status


@pytest.mark.parametrize("way", ["own", "twisted.web"])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_the_rate_of_a_caller_counts_bytes_as_they_are_decoded(way, is_chunked):
    service = InMemoryService(
        broker=PromptBroker(),
        callers=caller("c", 'publish = ["t"]\nbytes_per_second = 1000\nbytes_burst = 5000'),
    )
    site = service.site if way == "own" else Site(service.gateway.app.resource(), reactor=service.clock)
    body = large_message("x" * 4000)
    headers = [*CODED, by("c")]
    data = request_bytes("POST", "/messages", headers, body)
    if is_chunked:
        data = request_bytes("POST", "/messages", [*headers, (b"Transfer-Encoding", b"chunked")])
        data += chunked(body, 100)

    def status():
        connection = Connection(site)
        connection.send(data)
        return connection.responses(["POST"])[0].status

    assert len(body) < 100
    # Each is a little more than 4000 bytes: the second one leaves a debt.
    assert [status() for _ in range(3)] == [200, 200, 429]


def test_a_rejection_does_not_keep_the_decoder_in_memory():
    def reject(size):
        if size > 100_000:
            raise BodyMemoryFull(100_000)

    body = CodedBody(b"gzip", limit=1_000_000, reserve=reject)
    body.write(gzip.compress(b"c" * 500_000))
    with pytest.raises(BodyMemoryFull) as rejection:
        body.decode(1_000_000)
    frames = [frame for frame, _ in traceback.walk_tb(rejection.value.__traceback__)]
    held = [value for frame in frames for value in frame.f_locals.values()]
    assert not [value for value in held if isinstance(value, GzipDecompressor)]
