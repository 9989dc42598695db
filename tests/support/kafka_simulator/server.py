"""A broker that listens on a real socket, and answers the requests that come first on a connection."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from contextlib import asynccontextmanager

from OpenSSL import SSL
from twisted.internet import reactor
from twisted.internet.endpoints import TCP4ServerEndpoint, TCP6ServerEndpoint, wrapServerTLS
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.protocol import Protocol, ServerFactory
from zope.interface import implementer

from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import ApiVersions, SaslAuthenticated, SaslMechanisms
from tests.support.brokers import within
from tests.support.kafka_simulator.wire import Frame

SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36

MAX_REQUEST_BYTES = 100 * 1024 * 1024

TODAY = {0: (0, 11), 1: (4, 17), 2: (1, 10), 3: (0, 13), 17: (0, 1), 18: (0, 4), 22: (0, 5), 36: (0, 2)}
"""What a broker of Kafka 4 speaks, as far as we ask."""


class Broker(Protocol):
    """A broker's side of a connection; the factory says how it behaves."""

    def connectionMade(self):
        self.buffer = b""
        self.scram = None
        self.mechanism = None
        self.factory.connections.append(self)

    def dataReceived(self, data):
        self.buffer += data
        while len(self.buffer) >= 4:
            length = int.from_bytes(self.buffer[:4], "big", signed=True)
            if length > MAX_REQUEST_BYTES:
                # As Kafka does; a TLS record, read as a length, is one of 369 MB.
                self.transport.loseConnection()
                return
            if len(self.buffer) < 4 + length:
                return
            frame, self.buffer = Frame(self.buffer[4 : 4 + length]), self.buffer[4 + length :]
            self.factory.requests.append((frame.key, frame.version, frame.client_id))
            if frame.key not in self.factory.silent_on:
                self.respond(frame)

    def connectionLost(self, reason):
        self.factory.lost.append(self)

    def respond(self, frame):
        response = None
        if {frame.key, (frame.key, frame.version)}.isdisjoint(self.factory.closing_on):
            response = self.response_to(frame)
        if response is None:
            self.transport.loseConnection()
        else:
            self.factory.write(self.transport, response + self.factory.behind.get(frame.key, b""))

    def response_to(self, frame):
        """The bytes of the response; ``None`` to close the connection."""
        if frame.key == API_VERSIONS:
            return self.versions(frame)
        if frame.key == SASL_HANDSHAKE:
            return frame.response(self.handshake(frame.entity.mechanism))
        if frame.key == SASL_AUTHENTICATE and self.mechanism is not None:
            return frame.response(self.authenticate(frame.entity.auth_bytes))
        return None

    def versions(self, frame):
        ranges = self.factory.ranges
        if frame.version > ranges.get(API_VERSIONS, (0, 4))[1]:
            # In the first version; which ones it knows, it says since Kafka 2.4 (KIP-511).
            known = {API_VERSIONS: ranges[API_VERSIONS]} if self.factory.says_known_versions else {}
            return frame.response(ApiVersions(ErrorCode.UNSUPPORTED_VERSION, known), version=0)
        if frame.version >= 3:
            self.factory.software = [frame.entity.client_software_name, frame.entity.client_software_version]
        return frame.response(ApiVersions(self.factory.versions_error, ranges))

    def handshake(self, mechanism):
        offered = self.factory.mechanisms
        if offered is None:
            return SaslMechanisms(ErrorCode.ILLEGAL_SASL_STATE, ())
        if mechanism not in offered:
            return SaslMechanisms(ErrorCode.UNSUPPORTED_SASL_MECHANISM, tuple(offered))
        self.mechanism = mechanism
        return SaslMechanisms(0, tuple(offered))

    def authenticate(self, token):
        if self.mechanism == "PLAIN":
            _, username, password = token.decode().split("\0")
            is_right, answer = self.factory.users.get(username) == password, b""
        elif self.mechanism == "OAUTHBEARER":
            is_right, answer = self.bearer(token)
        else:
            if self.scram is None:
                self.scram = ScramServer(self.factory, self.mechanism)
            is_right, answer = self.scram.next(token)
        if is_right and not answer:
            self.factory.authenticated.append(token)
        return SaslAuthenticated(
            0 if is_right else ErrorCode.SASL_AUTHENTICATION_FAILED,
            None if is_right else self.factory.rejection,
            answer,
            self.factory.lifetime_ms,
        )

    def bearer(self, token):
        """OAUTHBEARER (RFC 7628, section 3), as `OAuthBearerSaslServer` of Kafka does it."""
        if token == b"\x01":
            return False, b""
        header, *pairs, end, nothing = token.split(b"\x01")
        assert (header, end, nothing) == (b"n,,", b"", b""), token
        said = dict(pair.split(b"=", 1) for pair in pairs)
        if said[b"auth"].removeprefix(b"Bearer ").decode() in self.factory.tokens:
            return True, b""
        return True, self.factory.challenge


class ScramServer:
    """A server's side of SCRAM (RFC 5802, section 3)."""

    def __init__(self, broker, mechanism):
        self.broker = broker
        self.hash = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
        self.first = None

    def mac(self, key, message):
        return hmac.digest(key, message, self.hash)

    def next(self, token):
        if self.first is None:
            self.bare = token.removeprefix(b"n,,").decode()
            name, nonce = self.bare.split(",")
            self.username = name.removeprefix("n=").replace("=2C", ",").replace("=3D", "=")
            self.first = (
                f"{nonce}{self.broker.nonce},s={base64.b64encode(self.broker.salt).decode()},"
                f"i={self.broker.iterations}"
            )
            return True, self.first.encode()
        final, _, proof = token.decode().rpartition(",p=")
        if self.username not in self.broker.users:
            return False, b""
        password = self.broker.users[self.username].encode()
        salted = hashlib.pbkdf2_hmac(self.hash, password, self.broker.salt, self.broker.iterations)
        message = f"{self.bare},{self.first},{final}".encode()
        stored = hashlib.new(self.hash, self.mac(salted, b"Client Key")).digest()
        signature = self.mac(stored, message)
        key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        if hashlib.new(self.hash, key).digest() != stored:
            return False, b""
        proof = self.mac(self.mac(salted, b"Server Key"), message)
        return True, self.broker.final or b"v=" + base64.b64encode(proof)


class FakeBroker(ServerFactory):
    """What the broker does, and what it was asked: tuples of API key, version and client id."""

    protocol = Broker
    noisy = False

    def __init__(
        self,
        *,
        ranges=TODAY,
        versions_error=0,
        says_known_versions=True,
        mechanisms=None,
        users=None,
        tokens=(),
        challenge=b'{"status":"invalid_token"}',
        rejection="Authentication failed: Invalid username or password",
        iterations=4096,
        nonce="server",
        final=None,
        lifetime_ms=0,
        behind=None,
        piece=None,
        silent_on=(),
        closing_on=(),
    ):
        """
        :param says_known_versions: whether, asked in a version that it does not know, it says which it knows.
        :param mechanisms: of SASL; ``None`` for a listener without.
        :param tokens: those that OAUTHBEARER takes; `challenge` is the error answer for others.
        :param final: said as SCRAM's last message, whatever is right.
        :param behind: bytes that come right behind the answer, by API key.
        :param silent_on: API keys that it does not answer.
        :param closing_on: API keys, or pairs of one and a version, that it closes the connection on.
        :param piece: how many bytes at most to write at once.
        """
        self.ranges = ranges
        self.versions_error = versions_error
        self.says_known_versions = says_known_versions
        self.software = None
        self.mechanisms = mechanisms
        self.users = users or {}
        self.tokens = tokens
        self.challenge = challenge
        self.authenticated = []
        self.rejection = rejection
        self.iterations = iterations
        self.nonce = nonce
        self.salt = os.urandom(16)
        self.final = final
        self.lifetime_ms = lifetime_ms
        self.behind = behind or {}
        self.piece = piece
        self.silent_on = silent_on
        self.closing_on = closing_on
        self.requests = []
        self.connections = []
        self.lost = []

    def write(self, transport, data):
        if self.piece is None:
            transport.write(data)
        elif data:
            transport.write(data[: self.piece])
            # Each piece is a segment of its own, as it is written in a turn of its own.
            reactor.callLater(0, self.write, transport, data[self.piece :])


class Silent(Protocol):
    """Takes everything, and says nothing."""

    def connectionMade(self):
        self.factory.connections.append(self)

    def connectionLost(self, reason):
        self.factory.lost.append(self)


class Closing(Protocol):
    """Closes the connection on the first bytes."""

    def dataReceived(self, data):
        self.transport.loseConnection()


class Saying(Protocol):
    """Says something on the first bytes, and then perhaps closes the connection."""

    def dataReceived(self, data):
        self.transport.write(self.factory.words)
        if self.factory.closing:
            self.transport.loseConnection()


def serving(protocol):
    """A factory for one of the simple servers."""
    factory = ServerFactory.forProtocol(protocol)
    factory.noisy = False
    factory.connections = []
    factory.lost = []
    return factory


def saying(words, *, closing=False):
    factory = serving(Saying)
    factory.words = words
    factory.closing = closing
    return factory


@implementer(IOpenSSLServerConnectionCreator)
class ServerTLS:
    """A server's side of TLS, with what tests have to choose."""

    def __init__(self, issued, *, client_ca=None, newest=None):
        """
        :param client_ca: file of the authority that a client's certificate is required from.
        :param newest: the newest version of TLS.
        """
        self.context = SSL.Context(SSL.TLS_METHOD)
        self.context.use_certificate_chain_file(str(issued.certificate))
        self.context.use_privatekey_file(str(issued.key))
        if newest is not None:
            self.context.set_max_proto_version(newest)
        if client_ca is not None:
            self.context.load_verify_locations(str(client_ca))
            self.context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT)

    def serverConnectionForTLS(self, protocol):
        return SSL.Connection(self.context, None)


@asynccontextmanager
async def listening(factory, *, tls=None, interface="127.0.0.1"):
    """Serve on a free port of a loopback address, which is what is given."""
    endpoint = (TCP6ServerEndpoint if ":" in interface else TCP4ServerEndpoint)(
        reactor, 0, interface=interface
    )
    if tls is not None:
        endpoint = wrapServerTLS(tls, endpoint, clock=reactor)
    port = await within(endpoint.listen(factory))
    try:
        yield port.getHost().port
    finally:
        await within(port.stopListening())
