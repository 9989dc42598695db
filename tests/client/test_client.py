"""The client, against servers that answer as the contract says, and against every other kind."""

from __future__ import annotations

import json

import pytest
import pytest_twisted
import treq.testing
from hypothesis import given
from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import TCP4ServerEndpoint, TCP6ServerEndpoint
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.web.client import Agent
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site

from sampleapp.client import (
    AnswerLost,
    Client,
    ClientError,
    ProblemError,
    RequestTimedOut,
    ServiceUnreachable,
    TLSFailed,
    UnexpectedAnswer,
    parse_base_url,
)
from sampleapp.client._tls import TLSPolicy
from sampleapp.errors import Fault, InvalidMessage
from sampleapp.model import Reading, RecordMetadata
from tests.support import strategies

V1 = "application/json"
V2 = "application/vnd.sampleApp.v2+json"
PROBLEM = "application/problem+json"


class ContractResource(Resource):
    """The service as its contract describes it, with a topic that is a list."""

    isLeaf = True

    def __init__(self):
        super().__init__()
        self.readings = [("kitchen", 21.5), ("cellar", -5.0)]
        self.records = []
        self.requests = []

    def render_GET(self, request):
        accept = request.getHeader("accept")
        self.requests.append((request.path, accept, request.getHeader("if-none-match")))
        if accept == V2:
            body = json.dumps([{"id": name, "value": value} for name, value in self.readings])
        else:
            body = json.dumps([value for _, value in self.readings])
        request.setHeader("content-type", V2 if accept == V2 else V1)
        # setETag answers If-None-Match, and says so by a true value.
        return b"" if request.setETag(f'"{hash(body)}"'.encode()) else body.encode()

    def render_POST(self, request):
        assert request.path == b"/messages"
        assert request.getHeader("content-type") == V1
        message = json.loads(request.content.read())
        self.records.append(message)
        answer = {"topic": message["topic"], "partition": 0, "offset": len(self.records) - 1}
        request.setHeader("content-type", V1)
        return json.dumps(answer).encode()


class CannedResource(Resource):
    """One answer to every request."""

    isLeaf = True

    def __init__(self, status, content_type, body, headers=()):
        super().__init__()
        self.status, self.content_type, self.body, self.headers = status, content_type, body, headers

    def render(self, request):
        request.setResponseCode(self.status)
        request.setHeader("content-type", self.content_type)
        for name, value in self.headers:
            request.setHeader(name, value)
        return self.body


class SilentResource(Resource):
    """Takes requests, and perhaps begins an answer, but never ends one."""

    isLeaf = True

    def __init__(self, beginning=b""):
        super().__init__()
        self.beginning = beginning
        self.asked = Deferred()
        self.gone = Deferred()

    def render(self, request):
        request.notifyFinish().addErrback(lambda _: self.gone.callback(None))
        if self.beginning:
            request.write(self.beginning)
        self.asked.callback(None)
        return NOT_DONE_YET


class Arrivals:
    """An agent that tells when the headers of an answer have arrived, and its body is being read."""

    def __init__(self):
        self.agent = Agent(reactor)
        self.arrived = Deferred()

    def request(self, *args, **kwargs):
        def announce(response):
            # Afterwards, not now: this callback is called before the one that begins to read the body.
            reactor.callLater(0, self.arrived.callback, None)
            return response

        return self.agent.request(*args, **kwargs).addCallback(announce)


def in_memory(resource):
    """A client whose requests go straight into a resource."""
    return Client(
        base_url="http://service.example",
        reactor=Clock(),
        agent=treq.testing.RequestTraversalAgent(resource),
    )


def canned(status, content_type, body, headers=()):
    return in_memory(CannedResource(status, content_type, body, headers))


def problem(status, **members):
    document = {"type": "about:blank", "title": "Title", "status": status, "detail": "Detail.", **members}
    return json.dumps(document).encode()


async def listening(factory):
    port = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(factory)
    return port, f"http://127.0.0.1:{port.getHost().port}/"


@pytest_twisted.ensureDeferred
async def test_readings_of_version_1_are_the_values_in_their_order():
    assert await in_memory(ContractResource()).readings() == [21.5, -5.0]


@pytest_twisted.ensureDeferred
async def test_readings_of_version_2_are_values_with_their_ids():
    expected = [Reading("kitchen", 21.5), Reading("cellar", -5.0)]
    assert await in_memory(ContractResource()).readings(version=2) == expected


@pytest_twisted.ensureDeferred
async def test_version_1_is_asked_for_without_an_accept_and_version_2_by_its_name_alone():
    service = ContractResource()
    client = in_memory(service)
    await client.readings(version=1)
    await client.readings(version=2)
    assert service.requests == [(b"/", None, None), (b"/", V2, None)]


def test_there_is_no_version_3():
    with pytest.raises(ValueError, match="no 3"):
        in_memory(ContractResource()).readings(version=3)


@pytest_twisted.ensureDeferred
async def test_whole_numbers_are_readings_too():
    readings = await canned(200, V1, b"[21, -0.0, 1e300]").readings()
    assert readings == [21.0, 0.0, 1e300]
    assert {type(reading) for reading in readings} == {float}


@pytest.mark.parametrize("version", [1, 2])
@pytest_twisted.ensureDeferred
async def test_an_unchanged_collection_is_answered_by_the_very_snapshot_that_was_known(version):
    service = ContractResource()
    client = in_memory(service)
    first = await client.poll(version=version)
    again = await client.poll(version=version, after=first)
    assert again is first
    assert service.requests[1][2] == first.etag.decode()


@pytest_twisted.ensureDeferred
async def test_a_changed_collection_is_answered_by_a_new_snapshot():
    service = ContractResource()
    client = in_memory(service)
    first = await client.poll(version=1)
    service.readings.append(("attic", 30.0))
    again = await client.poll(version=1, after=first)
    assert again.readings == [21.5, -5.0, 30.0]
    assert again.etag != first.etag


@pytest_twisted.ensureDeferred
async def test_without_entity_tags_every_poll_fetches_the_collection():
    client = canned(200, V1, b"[1.0]")
    first = await client.poll(version=1)
    again = await client.poll(version=1, after=first)
    assert (first.etag, again.readings, again is first) == (None, [1.0], False)


@pytest_twisted.ensureDeferred
async def test_not_modified_without_a_question_is_unexpected():
    with pytest.raises(UnexpectedAnswer):
        await canned(304, V1, b"").readings()


@pytest_twisted.ensureDeferred
async def test_a_message_without_a_key_has_no_member_key():
    service = ContractResource()
    metadata = await in_memory(service).publish(topic="t", content="c")
    assert metadata == RecordMetadata(topic="t", partition=0, offset=0)
    assert service.records == [{"topic": "t", "content": "c"}]


@pytest_twisted.ensureDeferred
async def test_the_empty_key_is_a_key():
    service = ContractResource()
    await in_memory(service).publish(topic="t", content="c", key="")
    assert service.records == [{"topic": "t", "content": "c", "key": ""}]


@given(topic=strategies.topics, key=strategies.keys, content=strategies.texts)
@pytest_twisted.ensureDeferred
async def test_any_text_arrives_unchanged(topic, key, content):
    service = ContractResource()
    metadata = await in_memory(service).publish(topic=topic, content=content, key=key)
    absent = {"topic": topic, "content": content}
    assert service.records == [absent if key is None else {**absent, "key": key}]
    assert metadata.topic == topic


@given(collection=strategies.collections)
@pytest_twisted.ensureDeferred
async def test_any_collection_arrives_unchanged_in_both_representations(collection):
    service = ContractResource()
    service.readings = list(collection.items())
    client = in_memory(service)
    assert await client.readings(version=1) == list(collection.values())
    assert await client.readings(version=2) == [Reading(*item) for item in collection.items()]


@pytest_twisted.ensureDeferred
async def test_text_that_utf8_cannot_carry_is_refused_before_anything_is_sent():
    service = ContractResource()
    with pytest.raises(InvalidMessage) as caught:
        await in_memory(service).publish(topic="t", content="\ud800", key="\udfff")
    assert [fault.pointer for fault in caught.value.faults] == ["/content", "/key"]
    assert service.records == []


@pytest_twisted.ensureDeferred
async def test_a_path_of_the_base_url_goes_before_the_paths_of_the_service():
    service = ContractResource()
    agent = treq.testing.RequestTraversalAgent(service)
    await Client(base_url="http://h/gate/way", reactor=Clock(), agent=agent).readings()
    assert service.requests == [(b"/gate/way/", None, None)]


@pytest_twisted.ensureDeferred
async def test_a_problem_is_an_error_with_the_whole_document():
    faults = [{"pointer": "/topic", "detail": "Too long."}, {"pointer": "", "detail": "Too odd."}]
    body = problem(422, type="urn:x", title="Wrong", detail="Too long.", errors=faults)
    with pytest.raises(ProblemError) as caught:
        await canned(422, f"{PROBLEM}; charset=utf-8", body).publish(topic="t", content="c")
    error = caught.value
    assert (error.problem.type, error.problem.title, error.problem.status) == ("urn:x", "Wrong", 422)
    assert error.problem.detail == "Too long."
    assert error.problem.errors == (Fault("/topic", "Too long."), Fault("", "Too odd."))
    assert str(error) == "Wrong (422): Too long. Too odd."
    assert error.retry_after_s is None


@pytest.mark.parametrize(
    ("value", "expected"), [(b"7", 7), (b"Fri, 31 Dec 1999 23:59:59 GMT", None), (b"-1", None)]
)
@pytest_twisted.ensureDeferred
async def test_the_seconds_of_retry_after_are_kept(value, expected):
    with pytest.raises(ProblemError) as caught:
        await canned(503, PROBLEM, problem(503), [("retry-after", value)]).readings()
    assert caught.value.retry_after_s == expected


@pytest.mark.parametrize(
    ("status", "retriable", "possibly_published"),
    [
        (400, False, False),
        (404, False, False),
        (422, False, False),
        (429, True, False),
        (500, True, True),
        (503, True, False),
        (504, True, True),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_problem_says_what_became_of_the_message(status, retriable, possibly_published):
    with pytest.raises(ProblemError) as caught:
        await canned(status, PROBLEM, problem(status)).publish(topic="t", content="c")
    assert (caught.value.retriable, caught.value.possibly_published) == (retriable, possibly_published)


@pytest.mark.parametrize(
    ("status", "content_type", "body"),
    [
        (503, "text/html", b"<h1>Service Unavailable</h1>"),
        (503, V1, problem(503)),
        (503, PROBLEM, problem(504)),
        (503, PROBLEM, b"<h1>Service Unavailable</h1>"),
        (503, PROBLEM, b'{"title": 1}'),
        (502, "text/html", b"<h1>Bad Gateway</h1>"),
        (200, "text/html", b"<h1>Welcome to the hotel</h1>"),
        (200, V1, b""),
        (200, V1, b'{"topic": "t", "partition": 0, "off'),
        (200, V1, b'{"topic": "t", "partition": 0}'),
        (200, V1, b'{"topic": "t", "partition": "0", "offset": 1}'),
        (200, V1, b'{"topic": "\xff", "partition": 0, "offset": 1}'),
        (200, V1, b"[" * 100_000),
        (202, V1, b'{"topic": "t", "partition": 0, "offset": 1}'),
    ],
)
@pytest_twisted.ensureDeferred
async def test_what_nobody_promised_may_have_published_the_message(status, content_type, body):
    with pytest.raises(UnexpectedAnswer) as caught:
        await canned(status, content_type, body).publish(topic="t", content="c")
    assert (caught.value.status, caught.value.possibly_published) == (status, True)


@pytest.mark.parametrize(
    ("status", "headers"), [(301, [("location", b"http://elsewhere.example/")]), (404, []), (407, [])]
)
@pytest_twisted.ensureDeferred
async def test_a_refusal_in_another_form_has_published_nothing(status, headers):
    with pytest.raises(UnexpectedAnswer, match=rf"answered {status} \(text/html\)") as caught:
        await canned(status, "text/html", b"<p>", headers).publish(topic="t", content="c")
    assert caught.value.possibly_published is False


@pytest_twisted.ensureDeferred
async def test_a_redirect_is_not_followed_but_told():
    with pytest.raises(UnexpectedAnswer, match=r"refers to http://elsewhere\.example/"):
        await canned(301, "text/html", b"", [("location", b"http://elsewhere.example/")]).readings()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"{}",
        b"[1.0",
        b'["1.0"]',
        b"[true]",
        b"[null]",
        b"[NaN]",
        b"[1e999]",
        b"[1.0]]",
        b'[{"id": "kitchen", "value": 1.0}]',
    ],
)
@pytest_twisted.ensureDeferred
async def test_what_is_not_an_array_of_numbers_is_not_version_1(body):
    with pytest.raises(UnexpectedAnswer):
        await canned(200, V1, body).readings(version=1)


@pytest.mark.parametrize(
    "body",
    [
        b"[1.0]",
        b'[{"id": "kitchen"}]',
        b'[{"value": 1.0}]',
        b'[{"id": 1, "value": 1.0}]',
        b'[{"id": "kitchen", "value": "1.0"}]',
        b'[{"id": "kitchen", "value": null}]',
    ],
)
@pytest_twisted.ensureDeferred
async def test_what_is_not_an_array_of_entries_is_not_version_2(body):
    with pytest.raises(UnexpectedAnswer, match="in a version that knows this request"):
        await canned(200, V2, body).readings(version=2)


@pytest_twisted.ensureDeferred
async def test_readings_are_known_by_their_body_not_by_what_their_type_claims():
    assert await canned(200, "text/html; charset=utf-16", b"[1.0]").readings() == [1.0]


@pytest_twisted.ensureDeferred
async def test_a_refused_connection_is_an_unreachable_service_and_nothing_was_published():
    port, url = await listening(Site(Resource()))
    await port.stopListening()
    with pytest.raises(ServiceUnreachable, match=r"^Nothing answers at .*: Connection refused\.$") as caught:
        await Client(base_url=url, reactor=reactor).publish(topic="t", content="c")
    assert caught.value.__cause__ is not None
    assert (caught.value.retriable, caught.value.possibly_published) == (True, False)


@pytest_twisted.ensureDeferred
async def test_a_service_at_an_ipv6_address_is_reached():
    service = ContractResource()
    try:
        port = await TCP6ServerEndpoint(reactor, 0, interface="::1").listen(Site(service))
    except CannotListenError:
        pytest.skip("this machine has no IPv6")
    client = Client(base_url=f"http://[::1]:{port.getHost().port}", reactor=reactor)
    try:
        assert await client.readings() == [21.5, -5.0]
        await client.publish(topic="t", content="c")
        await client.close()
    finally:
        await port.stopListening()
    assert service.records == [{"topic": "t", "content": "c"}]


class Listener(Protocol):
    """Waits for the end of a line, as a server of plain HTTP does."""

    def dataReceived(self, data):
        if not self.factory.heard.called:
            self.factory.heard.callback(data)


@pytest_twisted.ensureDeferred
async def test_a_server_that_does_not_speak_tls_is_told_apart_before_the_request_times_out():
    factory = Factory.forProtocol(Listener)
    factory.heard = Deferred()
    port, url = await listening(factory)
    clock = Clock()
    agent = Agent(reactor, contextFactory=TLSPolicy(reactor=clock, timeout_s=5.0))
    try:
        client = Client(base_url=url.replace("http:", "https:"), reactor=Clock(), agent=agent)
        published = client.publish(topic="t", content="c")
        await factory.heard
        clock.advance(5.0)
        with pytest.raises(TLSFailed, match=r"does not speak TLS: .* use http://") as caught:
            await published
    finally:
        await port.stopListening()
    assert (caught.value.retriable, caught.value.possibly_published) == (True, False)


@pytest_twisted.ensureDeferred
async def test_an_answer_without_tls_is_told_in_words_and_not_as_openssl_has_them():
    factory = Factory.forProtocol(Talker)
    factory.answer = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    port, url = await listening(factory)
    try:
        with pytest.raises(TLSFailed, match="does not speak TLS") as caught:
            await Client(base_url=url.replace("http:", "https:"), reactor=reactor).readings()
    finally:
        await port.stopListening()
    assert "SSL routines" not in str(caught.value)


class Talker(Protocol):
    """Answers the first bytes of anything with what its factory says, and hangs up."""

    def dataReceived(self, data):
        self.transport.write(self.factory.answer)
        self.transport.loseConnection()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", AnswerLost),
        (b"HTTP/1.1 200 OK\r\nConte", AnswerLost),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[1.0, 2.0]", AnswerLost),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n[1.0]\r\n", AnswerLost),
        (b"HTTP/1.1 200 OK\r\n\r\n[1.0, 2.", UnexpectedAnswer),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", UnexpectedAnswer),
    ],
)
@pytest_twisted.ensureDeferred
async def test_an_answer_that_is_not_whole_may_have_published_the_message(answer, error):
    factory = Factory.forProtocol(Talker)
    factory.answer = answer
    port, url = await listening(factory)
    try:
        with pytest.raises(ClientError) as caught:
            await Client(base_url=url, reactor=reactor).publish(topic="t", content="c")
    finally:
        await port.stopListening()
    assert type(caught.value) is error
    assert caught.value.__cause__ is not None
    assert caught.value.possibly_published is True


@pytest_twisted.ensureDeferred
async def test_a_body_that_ends_with_its_connection_is_whole_if_its_json_is():
    factory = Factory.forProtocol(Talker)
    factory.answer = b"HTTP/1.1 200 OK\r\n\r\n[1.0, 2.0]"
    port, url = await listening(factory)
    try:
        assert await Client(base_url=url, reactor=reactor).readings() == [1.0, 2.0]
    finally:
        await port.stopListening()


@pytest.mark.parametrize("beginning", [b"", b"[1.0, "])
@pytest_twisted.ensureDeferred
async def test_an_answer_that_does_not_end_times_out_and_its_connection_is_closed(beginning):
    service = SilentResource(beginning)
    port, url = await listening(Site(service))
    clock = Clock()
    agent = Arrivals()
    try:
        client = Client(base_url=url, reactor=clock, agent=agent, timeout_s=5.0)
        published = client.publish(topic="t", content="c")
        await (agent.arrived if beginning else service.asked)
        clock.advance(4.9)
        assert not published.called
        clock.advance(0.2)
        with pytest.raises(RequestTimedOut, match=r"did not answer within 5 seconds\.$") as caught:
            await published
        await service.gone
    finally:
        await port.stopListening()
    assert caught.value.__cause__ is not None
    assert (caught.value.retriable, caught.value.possibly_published) == (True, True)


@pytest_twisted.ensureDeferred
async def test_an_answered_request_leaves_no_timer_behind():
    clock = Clock()
    agent = treq.testing.RequestTraversalAgent(ContractResource())
    await Client(base_url="http://h", reactor=clock, agent=agent).readings()
    assert clock.getDelayedCalls() == []


@pytest.mark.parametrize("beginning", [b"", b"[1.0, "])
@pytest_twisted.ensureDeferred
async def test_a_cancelled_request_fails_as_cancelled_and_its_connection_is_closed(beginning):
    service = SilentResource(beginning)
    port, url = await listening(Site(service))
    agent = Arrivals()
    try:
        requested = Client(base_url=url, reactor=reactor, agent=agent).readings()
        await (agent.arrived if beginning else service.asked)
        requested.cancel()
        with pytest.raises(CancelledError):
            await requested
        await service.gone
    finally:
        await port.stopListening()


@pytest_twisted.ensureDeferred
async def test_a_request_cancelled_before_it_is_connected_fails_as_cancelled():
    port, url = await listening(Site(ContractResource()))
    try:
        requested = Client(base_url=url, reactor=reactor).readings()
        requested.cancel()
        with pytest.raises(CancelledError):
            await requested
    finally:
        await port.stopListening()


@pytest_twisted.ensureDeferred
async def test_an_endless_answer_is_not_kept(monkeypatch):
    monkeypatch.setattr("sampleapp.client._exchange.MAX_BODY_BYTES", 10)
    service = SilentResource(b"[1.0, 2.0, 3.0")
    port, url = await listening(Site(service))
    try:
        with pytest.raises(UnexpectedAnswer, match="more than 10 bytes"):
            await Client(base_url=url, reactor=reactor).readings()
        await service.gone
    finally:
        await port.stopListening()


@pytest_twisted.ensureDeferred
async def test_requests_share_one_connection_until_the_client_is_closed():
    site = Site(ContractResource())
    port, url = await listening(site)
    protocols = []
    build = site.buildProtocol
    site.buildProtocol = lambda address: protocols.append(build(address)) or protocols[-1]
    client = Client(base_url=url, reactor=reactor)
    try:
        await client.readings()
        await client.publish(topic="t", content="c")
        assert len(protocols) == 1
        await client.close()
        await client.readings()
        assert len(protocols) == 2
        await client.close()
        await client.close()
    finally:
        await port.stopListening()


@pytest_twisted.ensureDeferred
async def test_to_stop_waiting_for_a_close_does_no_harm():
    port, url = await listening(Site(ContractResource()))
    client = Client(base_url=url, reactor=reactor)
    try:
        await client.readings()
        closing = client.close()
        closing.cancel()
        with pytest.raises(CancelledError):
            await closing
        await client.close()
    finally:
        await port.stopListening()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://h", "http://h/"),
        ("HTTPS://H:8443/a b", "https://h:8443/a%20b/"),
        ("http://[::1]:80//", "http://[::1]:80/"),
        ("http://ü.example/", "http://xn--tda.example/"),
    ],
)
def test_a_base_url_becomes_ascii_that_ends_with_a_slash(text, expected):
    assert parse_base_url(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h:8080",
        "//h",
        "ftp://h",
        "http://",
        "http://h:x",
        "http://h:99999",
        "http://[::1",
        "http://a b",
        "http://a..b",
        f"http://{'a' * 64}",
        "http://h/\ud800",
        "http://u@h",
        "http://h/?q",
        "http://h/#f",
    ],
)
def test_what_is_not_a_base_url_is_refused_with_a_reason(text):
    with pytest.raises(ValueError, match=r"is not a URL such as http://127\.0\.0\.1:8080/|has to end with"):
        Client(base_url=text, reactor=Clock())
