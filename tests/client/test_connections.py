"""Connections: made, kept, closed, lost, and what does not speak HTTP or TLS."""

from __future__ import annotations

import pytest
import pytest_twisted
import treq.testing
from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.endpoints import SSL4ServerEndpoint, TCP6ServerEndpoint
from twisted.internet.error import CannotListenError, ConnectError, ConnectionDone
from twisted.internet.protocol import Factory
from twisted.internet.ssl import DefaultOpenSSLContextFactory
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.web.client import Agent, ResponseFailed
from twisted.web.resource import Resource
from twisted.web.server import Site

from sampleapp.client import (
    Client,
    RequestCancelled,
    RequestTimedOut,
    ResponseLost,
    ServiceUnreachable,
    TLSFailed,
)
from sampleapp.outgoing.https import TLSPolicy
from tests.support.certificates import Authority
from tests.support.client_servers import (
    Arrivals,
    ContractResource,
    HangingUp,
    Listener,
    SilentResource,
    listening,
    talker,
)


@pytest_twisted.ensureDeferred
async def test_a_rejected_connection_is_an_unreachable_service_and_nothing_was_published():
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
async def test_nothing_waits_for_a_handshake_that_is_over(tmp_path, monkeypatch):
    authority = Authority(tmp_path)
    issued = authority.server()
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    context = DefaultOpenSSLContextFactory(str(issued.key), str(issued.certificate))
    endpoint = SSL4ServerEndpoint(reactor, 0, context, interface="127.0.0.1")
    port = await endpoint.listen(Site(ContractResource()))
    url = f"https://127.0.0.1:{port.getHost().port}"
    clock = Clock()
    agent = Agent(reactor, contextFactory=TLSPolicy(reactor=clock, timeout_s=5.0))
    try:
        assert await Client(base_url=url, reactor=reactor, agent=agent).readings() == [21.5, -5.0]
        assert clock.getDelayedCalls() == []
        monkeypatch.delenv("SSL_CERT_FILE")
        agent = Agent(reactor, contextFactory=TLSPolicy(reactor=clock, timeout_s=5.0))
        with pytest.raises(TLSFailed, match=r"is not signed by a trusted authority: .* SSL_CERT_FILE"):
            await Client(base_url=url, reactor=reactor, agent=agent).readings()
        assert clock.getDelayedCalls() == []
    finally:
        await port.stopListening()


@pytest_twisted.ensureDeferred
async def test_nothing_waits_for_a_handshake_whose_connection_was_lost():
    factory = Factory.forProtocol(Listener)
    factory.heard = Deferred()
    port, url = await listening(factory)
    clock = Clock()
    agent = Agent(reactor, contextFactory=TLSPolicy(reactor=clock, timeout_s=5.0))
    try:
        asked = Client(base_url=url.replace("http:", "https:"), reactor=reactor, agent=agent).readings()
        await factory.heard
        assert len(clock.getDelayedCalls()) == 1
        asked.cancel()
        with pytest.raises(CancelledError):
            await asked
    finally:
        await port.stopListening()
    assert clock.getDelayedCalls() == []


@pytest_twisted.ensureDeferred
async def test_an_answer_without_tls_is_told_in_words_and_not_as_openssl_has_them():
    port, url = await listening(talker(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    try:
        with pytest.raises(TLSFailed, match="does not speak TLS") as caught:
            await Client(base_url=url.replace("http:", "https:"), reactor=reactor).readings()
    finally:
        await port.stopListening()
    assert "SSL routines" not in str(caught.value)


@pytest.mark.parametrize("is_trusted", [False, True])
@pytest_twisted.ensureDeferred
async def test_plain_http_to_a_port_for_tls_is_told_apart_and_nothing_was_published(
    tmp_path, monkeypatch, is_trusted
):
    authority = Authority(tmp_path)
    issued = authority.server()
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    context = DefaultOpenSSLContextFactory(str(issued.key), str(issued.certificate))
    service = ContractResource()
    port = await SSL4ServerEndpoint(reactor, 0, context, interface="127.0.0.1").listen(Site(service))
    client = Client(base_url=f"http://127.0.0.1:{port.getHost().port}", reactor=reactor)
    try:
        with pytest.raises(TLSFailed, match=r"speaks TLS: use https://.* Nothing was published\.$") as caught:
            await client.publish(topic="t", content="c")
        await client.close()
    finally:
        await port.stopListening()
    assert (caught.value.retriable, caught.value.possibly_published) == (False, False)
    assert service.records == []


@pytest_twisted.ensureDeferred
async def test_a_server_that_has_answered_over_plain_http_is_not_asked_for_tls():
    factory = Factory.forProtocol(HangingUp)
    factory.requests = []
    port, url = await listening(factory)
    client = Client(base_url=url, reactor=reactor)
    try:
        await client.publish(topic="t", content="c")
        with pytest.raises(ResponseLost):
            await client.publish(topic="t", content="c")
        await client.close()
    finally:
        await port.stopListening()
    assert factory.requests == [b"POST /messages"] * 2


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
async def test_a_tombstone_is_not_sent_a_second_time_when_the_connection_that_was_kept_is_closed():
    factory = Factory.forProtocol(HangingUp)
    factory.requests = []
    port, url = await listening(factory)
    client = Client(base_url=url, reactor=reactor)
    try:
        await client.delete(topic="t", key="1")
        with pytest.raises(ResponseLost):
            await client.delete(topic="t", key="2")
        await client.close()
    finally:
        await port.stopListening()
    assert factory.requests == [b"DELETE /topics/t?key=1", b"DELETE /topics/t?key=2"]


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


class Connecting:
    """An agent that does not connect until it is told to, and then never gets an answer."""

    def request(self, _method, _uri, _headers=None, body=None):
        self.body = body
        return Deferred()


def cancelled(agent, **options):
    ends = []
    client = Client(base_url="http://localhost", reactor=Clock(), agent=agent, **options)
    publishing = client.publish(topic="t", content="c", idempotency_key="k")
    publishing.addErrback(ends.append)
    return publishing, ends


def test_a_cancelled_request_tells_whether_it_may_have_been_published():
    agent = Connecting()
    publishing, ends = cancelled(agent)
    publishing.cancel()
    assert ends[0].check(RequestCancelled)
    assert not ends[0].value.possibly_published
    publishing, ends = cancelled(agent)
    agent.body.startProducing(StringTransport())
    publishing.cancel()
    assert ends[0].value.possibly_published


def test_a_request_that_was_never_sent_in_time_was_not_published():
    agent, clock, ends = Connecting(), Clock(), []
    client = Client(base_url="http://localhost", reactor=clock, agent=agent, timeout_s=5.0)
    client.publish(topic="t", content="c").addErrback(ends.append)
    clock.advance(5)
    assert ends[0].check(RequestTimedOut)
    assert not ends[0].value.possibly_published


def test_a_request_that_is_cancelled_between_two_attempts_is_in_doubt_if_one_of_them_was():
    for error, doubt in [
        (ConnectError(), False),
        (ResponseFailed([Failure(ConnectionDone())]), True),
    ]:
        clock, ends, told = Clock(), [], []
        agent = Connecting()
        agent.request = lambda *_, error=error, **__: fail(error)
        client = Client(base_url="http://localhost", reactor=clock, agent=agent, on_repeat=told.append)
        publishing = client.publish(topic="t", content="c", idempotency_key="k")
        publishing.addErrback(ends.append)
        clock.advance(1)
        publishing.cancel()
        assert ends[0].check(RequestCancelled)
        assert ends[0].value.possibly_published is doubt
        assert len(told) == 2
