"""A TLS client of the standard library, and an endpoint of ours, joined in memory by Twisted's own TLS."""

from __future__ import annotations

import ssl
from contextlib import suppress
from functools import partial
from http import HTTPStatus

from twisted.internet.address import IPv4Address
from twisted.internet.defer import maybeDeferred
from twisted.internet.error import ConnectionDone
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure

from sampleapp.service.listener import Listener
from sampleapp.service.reloads import Reloads
from sampleapp.web import HTTPServer, response_to_failure
from sampleapp.web.errors import problem_response
from sampleapp.web.responses import Response
from tests.support.in_memory import MemoryTransport
from tests.support.secrets import record_output

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class _EncryptedTransport(MemoryTransport):
    """What is written to it is only kept once a client has decrypted it."""

    def write(self, data):
        StringTransport.write(self, data)


class Server:
    """An HTTP server at an endpoint; remembers the certificate of each client that has asked it something."""

    def __init__(self, description, *, now_s=0.0, **options):
        """:param options: of the `HTTPServer`."""
        self.reactor = MemoryReactorClock()
        self.reactor.rightNow = now_s
        self.reloads = Reloads(self.reactor, run=maybeDeferred)
        self.listener = listener = Listener.from_description(
            description, reactor=self.reactor, now=self.reactor.seconds
        )
        listener.add_to(self.reloads)
        self.seen, self.peers = [], []
        self.site = HTTPServer(
            lambda _: Response(HTTPStatus.OK, body=b"hello"),
            reject=problem_response,
            response_to=response_to_failure,
            reactor=self.reactor,
            on_response=self._responded,
            **options,
        )
        listener.listen(
            self.site, on_certificate_rejected=partial(self.site.count_rejection, "client-certificate")
        )
        if self.reactor.tcpServers:
            self._factory = self.reactor.tcpServers[-1][1]
        else:
            _, factory, context_factory, _, _ = self.reactor.sslServers[-1]
            self._factory = TLSMemoryBIOFactory(
                context_factory, isClient=False, wrappedFactory=factory, clock=self.reactor
            )

    def _responded(self, exchange, _):
        self.peers.append(exchange.peer)
        self.seen.append(exchange.peer.certificate())

    def accept(self):
        """The server's end of a new connection: what it is served by, and its transport."""
        transport = _EncryptedTransport(
            hostAddress=IPv4Address("TCP", "127.0.0.1", 8443),
            peerAddress=IPv4Address("TCP", "192.0.2.7", 4711),
        )
        protocol = self._factory.buildProtocol(transport.getPeer())
        protocol.makeConnection(transport)
        return protocol, transport


class Client:
    """One connection. Reading and writing raise what `ssl.SSLSocket` would raise."""

    def __init__(self, server, context, *, session=None):
        self.server = server
        self._protocol, self.transport = server.accept()
        self._is_closed = False
        self.received = b""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self._incoming, self._outgoing, server_hostname="localhost", session=session
        )
        self._until_done(self.tls.do_handshake)

    def ask(self, data=REQUEST):
        """Send a request; returns what is answered."""
        self._until_done(lambda: self.tls.write(data))
        answer = self._until_done(lambda: self.tls.read(65536))
        record_output("answers", answer)
        return answer

    def end(self):
        """Answer the end of TLS."""
        self._until_done(self.tls.unwrap)

    def close(self):
        self._protocol.connectionLost(Failure(ConnectionDone()))

    def _until_done(self, act):
        for _ in range(10):
            with suppress(ssl.SSLWantReadError):
                result = act()
                self._exchange()
                return result
            self._exchange()
        raise AssertionError("client and server wait for one another")

    def _exchange(self):
        sent = self._outgoing.read()
        if sent:
            self._protocol.dataReceived(sent)
        self.server.reactor.advance(0)
        self.received += self.transport.value()
        if not self._is_closed:
            self._incoming.write(self.transport.value())
        self.transport.clear()
        is_closed = self.transport.disconnecting or self.transport.half_closed
        if is_closed and not self._is_closed:
            self._is_closed = True
            self._incoming.write_eof()


def client_context(authority, *, certificate=None, versions=(ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)):
    """What a client trusts, and what it shows, if anything."""
    context = ssl.create_default_context(cafile=authority.certificate)
    context.minimum_version, context.maximum_version = versions
    if certificate is not None:
        context.load_cert_chain(certificate.certificate, certificate.key)
    return context
