"""Connecting to a broker for the tests of connections: endpoints, names, certificates."""

from __future__ import annotations

from contextlib import asynccontextmanager
from urllib.parse import quote

import pytest
from twisted.internet import reactor
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.protocol import Factory, Protocol
from twisted.python.failure import Failure
from zope.interface import directlyProvides, providedBy

from sampleapp.brokers.kafka.config import parse
from sampleapp.brokers.kafka.connections.diagnostics import ConnectionFailed, address
from sampleapp.brokers.kafka.connections.endpoints import make_endpoint_factory
from sampleapp.brokers.kafka.connections.security import CurrentSecurity
from sampleapp.brokers.kafka.protocol import ApiVersionsRequest
from tests.support.brokers import eventually, within
from tests.support.secrets import secret

SECRET = secret("s3cr3t-Xyzzy", "a password")
USER = "somebody"
ENVIRON = {"SAMPLEAPP_KAFKA_USERNAME": USER, "SAMPLEAPP_KAFKA_PASSWORD": SECRET}
METADATA = 3
VERSIONS_REQUEST = ApiVersionsRequest(software_name="sampleapp", software_version="1")


class Inner(Protocol):
    """The protocol that a connection is for: it remembers what happens to it."""

    api_versions = None
    session_lifetime_ms = None

    def connectionMade(self):
        self.known = self.api_versions
        self.events = []
        self.lost = []

    def dataReceived(self, data):
        self.events.append(data)

    def connectionLost(self, reason):
        self.lost.append(reason)

    @property
    def received(self):
        return b"".join(self.events)


class Names:
    """Resolves every name to what the test says, or never. Its method is called as Twisted calls it."""

    def __init__(self, *addresses, answering=True):
        self.addresses = addresses
        self.answering = answering

    def resolveHostName(self, receiver, name, portNumber):  # noqa: N803 -- as above
        receiver.resolutionBegan(None)
        if self.answering:
            for host in self.addresses:
                kind = IPv6Address if ":" in host else IPv4Address
                receiver.addressResolved(kind("TCP", host, portNumber))
            receiver.resolutionComplete()


class WithNames:
    """The reactor, with other names."""

    def __init__(self, names):
        self.nameResolver = names
        directlyProvides(self, providedBy(reactor))

    def __getattr__(self, name):
        return getattr(reactor, name)


class Connecting:
    """One way to connect to a port."""

    def __init__(self, port, url="kafka://", *, host="127.0.0.1", timeout_s=20, names=None, clock=None):
        options = url.partition("://")
        config = parse(f"{options[0]}://{address(host, port)}{options[2]}")
        self.security = CurrentSecurity(config, environ=ENVIRON, clock=clock or reactor)
        make = make_endpoint_factory(
            security=self.security,
            client_id="sampleapp-test",
            timeout_s=timeout_s,
        )
        self.host = host
        self.port = port
        self.endpoint = make(reactor if names is None else WithNames(names), host, port)

    def connect(self, protocol=Inner):
        factory = protocol if isinstance(protocol, Factory) else Factory.forProtocol(protocol)
        return self.endpoint.connect(factory)

    async def reason(self):
        """Why it failed; no credential is in it and, in public, no address."""
        with pytest.raises(ConnectionFailed) as caught:
            await within(self.connect())
        reason = caught.value.reason
        assert str(caught.value) == reason.sentence
        assert address(self.host, self.port) in reason.sentence
        for public in (str(self.port), self.host, USER, SECRET):
            assert public not in reason.public
        error = caught.value
        while error is not None:
            shown = f"{error!r}{error}{Failure(error).getTraceback()}"
            assert SECRET not in shown
            assert USER not in shown
            error = error.__cause__ or error.__context__
        return reason


@asynccontextmanager
async def connected(port, url="kafka://", **options):
    connecting = Connecting(port, url, **options)
    inner = await within(connecting.connect())
    try:
        yield inner
    finally:
        inner.transport.abortConnection()
        await eventually(lambda: inner.lost)


def trusting(authority, *more):
    return "kafka+tls://?" + "&".join([f"ca={quote(str(authority.certificate))}", *more])


def as_client(issued):
    return f"certificate={quote(str(issued.certificate))}", f"key={quote(str(issued.key))}"
