"""Requests with an idempotency key, which the client repeats by itself."""

from __future__ import annotations

import json

import pytest
import pytest_twisted
import treq.testing
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet import reactor
from twisted.internet.defer import Deferred, fail
from twisted.internet.error import ConnectionLost
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.web.client import ResponseFailed
from twisted.web.resource import Resource

from sampleapp.client import (
    Client,
    Message,
    PartlyPublished,
    ProblemError,
    RequestCancelled,
    ResponseLost,
    TooManyRequests,
)
from sampleapp.messages.idempotency_key import parse_idempotency_key
from sampleapp.model import RecordMetadata, ReplayedRecord
from tests.support.client_servers import NDJSON, PROBLEM, V1, listening, problem

PLACE = {"topic": "t", "partition": 0, "offset": 7}
METADATA = RecordMetadata(topic="t", partition=0, offset=7)


def answer(status, document=PLACE, *, media_type=V1, **fields):
    body = json.dumps(document).encode() if status == 200 else document
    return status, media_type if status == 200 else PROBLEM, body, fields


def rejection(status, **fields):
    return answer(status, problem(status), **fields)


class Script(Resource):
    """Gives one answer after the other."""

    isLeaf = True

    def __init__(self, *answers):
        super().__init__()
        self.answers = list(answers)
        self.requests = []

    def render(self, request):
        self.requests.append(
            (
                request.method,
                request.uri,
                request.requestHeaders.getRawHeaders(b"idempotency-key"),
                request.content.read(),
            )
        )
        status, media_type, body, fields = self.answers.pop(0)
        request.setResponseCode(status)
        request.setHeader("content-type", media_type)
        for name, value in fields.items():
            request.setHeader(name.replace("_", "-"), value)
        return body


class Service:
    def __init__(self, *answers, repeat_for_s=60.0):
        self.script = Script(*answers)
        self.clock = Clock()
        self.client = Client(
            base_url="http://service.example",
            reactor=self.clock,
            agent=treq.testing.RequestTraversalAgent(self.script),
            repeat_for_s=repeat_for_s,
        )

    async def result_of(self, request, *, seconds=120):
        results = []
        request.addBoth(results.append)
        for _ in range(seconds * 10):
            if results:
                break
            self.clock.advance(0.1)
        (result,) = results
        return result


REQUESTS = {
    "one": lambda client, **key: client.publish(topic="t", content="c", **key),
    "raw": lambda client, **key: client.publish_raw(topic="t", body=b"c", **key),
    "delete": lambda client, **key: client.delete(topic="t", key="k", **key),
}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("status", [500, 502, 503, 504])
@pytest_twisted.ensureDeferred
async def test_a_request_with_a_key_is_repeated_until_it_succeeds(request_, status):
    service = Service(rejection(status), rejection(status), answer(200))
    metadata = await service.result_of(request_(service.client, idempotency_key="k"))
    assert metadata == METADATA
    first, *others = service.script.requests
    assert len(others) == 2
    assert others == [first, first]
    assert first[2] == [b'"k"']


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
@pytest_twisted.ensureDeferred
async def test_a_request_without_a_key_is_not_repeated(request_):
    service = Service(rejection(503), answer(200))
    failure = await service.result_of(request_(service.client))
    assert failure.check(ProblemError)
    assert [request[2] for request in service.script.requests] == [None]


@pytest_twisted.ensureDeferred
async def test_the_result_says_that_an_earlier_request_had_published_the_record():
    service = Service(rejection(504), answer(200, idempotent_replayed="true"))
    metadata = await service.result_of(service.client.publish(topic="t", content="c", idempotency_key="k"))
    assert type(metadata) is ReplayedRecord
    assert metadata.offset == METADATA.offset


@pytest.mark.parametrize("status", [400, 401, 403, 413, 422, 429, 501])
@pytest_twisted.ensureDeferred
async def test_a_rejection_is_not_repeated(status):
    service = Service(rejection(status), answer(200))
    failure = await service.result_of(
        service.client.publish(topic="t", content="c", idempotency_key="k"), seconds=1
    )
    assert failure.check(TooManyRequests if status == 429 else ProblemError)
    assert len(service.script.requests) == 1


@pytest_twisted.ensureDeferred
async def test_repeating_ends_with_the_last_error_after_the_time_that_the_client_was_given():
    service = Service(*[rejection(503)] * 50, repeat_for_s=10)
    failure = await service.result_of(service.client.publish(topic="t", content="c", idempotency_key="k"))
    assert failure.check(ProblemError)
    assert service.clock.seconds() <= 11
    assert 4 <= len(service.script.requests) <= 10


@pytest.mark.parametrize("last", [503, 422, 429])
@pytest_twisted.ensureDeferred
async def test_the_last_error_is_in_doubt_if_an_earlier_attempt_was(last):
    service = Service(rejection(504), *[rejection(last)] * 50, repeat_for_s=10)
    failure = await service.result_of(service.client.publish(topic="t", content="c", idempotency_key="k"))
    assert (failure.value.problem.status, failure.value.possibly_published) == (last, True)
    service = Service(*[rejection(last)] * 50, repeat_for_s=10)
    failure = await service.result_of(service.client.publish(topic="t", content="c", idempotency_key="k"))
    assert (failure.value.problem.status, failure.value.possibly_published) == (last, False)


@pytest_twisted.ensureDeferred
async def test_a_client_that_was_given_no_time_does_not_repeat():
    service = Service(rejection(503), answer(200), repeat_for_s=0)
    failure = await service.result_of(
        service.client.publish(topic="t", content="c", idempotency_key="k"), seconds=1
    )
    assert failure.check(ProblemError)


@pytest_twisted.ensureDeferred
async def test_the_client_waits_as_long_as_the_service_asks():
    service = Service(rejection(503, retry_after="20"), answer(200))
    await service.result_of(service.client.publish(topic="t", content="c", idempotency_key="k"))
    assert 20 <= service.clock.seconds() < 21


@pytest_twisted.ensureDeferred
async def test_a_batch_of_which_some_records_may_be_published_later_is_repeated_as_a_whole():
    messages = [Message(topic="t", content="a"), Message(topic="t", content="b")]
    partly = json.loads(problem(504, type="urn:sampleapp:problem:partly-published"))
    partly["results"] = [PLACE, {"status": 504, "type": "about:blank", "detail": "Late."}]
    lines = b"\n".join([json.dumps(PLACE).encode()] * 2)
    service = Service((504, PROBLEM, json.dumps(partly).encode(), {}), (200, NDJSON, lines, {}))
    results = await service.result_of(service.client.publish_many(messages, idempotency_key="k"))
    assert results == [METADATA, METADATA]
    first, second = service.script.requests
    assert first == second


@pytest_twisted.ensureDeferred
async def test_a_batch_of_which_the_others_are_rejected_for_good_is_not_repeated():
    partly = json.loads(problem(422, type="urn:sampleapp:problem:partly-published"))
    partly["results"] = [PLACE, {"status": 422, "type": "about:blank", "detail": "Another record."}]
    service = Service((422, PROBLEM, json.dumps(partly).encode(), {}), answer(200))
    messages = [Message(topic="t", content="a"), Message(topic="t", content="b")]
    failure = await service.result_of(service.client.publish_many(messages, idempotency_key="k"), seconds=1)
    assert failure.check(PartlyPublished)
    assert len(service.script.requests) == 1


class _Cutting(Protocol):
    """Cuts the first connection with a request of this kind, and answers on the others."""

    cut = 0

    def dataReceived(self, data):
        if not data.startswith(b"POST"):
            # Not HTTP: the client looks whether this is a port for TLS.
            self.transport.loseConnection()
        elif not self.cut:
            type(self).cut += 1
            self.transport.abortConnection()
        else:
            body = json.dumps(PLACE).encode()
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


@pytest.mark.parametrize("key", ["k", None])
@pytest_twisted.ensureDeferred
async def test_only_a_request_with_a_key_is_repeated_after_a_connection_that_was_cut(key):
    port, url = await listening(Factory.forProtocol(type("Cutting", (_Cutting,), {})))
    client = Client(base_url=url, reactor=reactor)
    try:
        publishing = client.publish(topic="t", content="c", idempotency_key=key)
        if key is None:
            with pytest.raises(ResponseLost):
                await publishing
        else:
            assert await publishing == METADATA
    finally:
        await client.close()
        await port.stopListening()


@pytest_twisted.ensureDeferred
async def test_cancelling_ends_the_repeating():
    service = Service(rejection(503), answer(200))
    publishing = service.client.publish(topic="t", content="c", idempotency_key="k")
    publishing.addErrback(lambda _: None)
    publishing.cancel()
    service.clock.advance(60)
    assert len(service.script.requests) == 1


class LosingAgent:
    """Loses the response to the first request, and does not connect for another."""

    def __init__(self):
        self.requests = 0

    def request(self, *_, **__):
        self.requests += 1
        return fail(ResponseFailed([Failure(ConnectionLost())])) if self.requests == 1 else Deferred()


@pytest.mark.parametrize("requests", [1, 2])
def test_cancelling_tells_that_an_earlier_request_may_have_published(requests):
    clock, agent = Clock(), LosingAgent()
    client = Client(base_url="https://localhost/", reactor=clock, agent=agent)
    publishing = client.publish(topic="t", content="c", idempotency_key="k")
    if requests > 1:
        clock.advance(1)
    assert agent.requests == requests
    publishing.cancel()
    errors = []
    publishing.addErrback(lambda failure: errors.append(failure.value))
    (error,) = errors
    assert isinstance(error, RequestCancelled)
    assert error.possibly_published


@given(key=st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=255))
@pytest_twisted.ensureDeferred
async def test_any_key_arrives_unchanged(key):
    service = Service(answer(200))
    await service.result_of(service.client.publish(topic="t", content="c", idempotency_key=key))
    assert parse_idempotency_key(service.script.requests[0][2]) == key


@pytest.mark.parametrize("key", ["", " ", "x" * 256, "ä", "a\n", " a"])
@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_a_key_that_the_service_would_reject_is_rejected_before_anything_is_sent(request_, key):
    service = Service()
    with pytest.raises(ValueError, match="idempotency key"):
        request_(service.client, idempotency_key=key)
