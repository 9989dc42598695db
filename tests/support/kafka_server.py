"""
A broker for the tests of connections: real sockets, and the few requests that come first.

It encodes and decodes by hand, so that a mistake of ours in the protocol is not made twice.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import struct
from contextlib import asynccontextmanager

from OpenSSL import SSL
from twisted.internet import reactor
from twisted.internet.endpoints import TCP4ServerEndpoint, TCP6ServerEndpoint, wrapServerTLS
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.protocol import Protocol, ServerFactory
from zope.interface import implementer

from tests.support.brokers import within

SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36

MAX_REQUEST_BYTES = 100 * 1024 * 1024

TODAY = {0: (0, 11), 1: (4, 17), 2: (1, 10), 3: (0, 13), 17: (0, 1), 18: (0, 4), 22: (0, 5), 36: (0, 2)}
"""What a broker of Kafka 4 speaks, as far as we ask."""


def string(text):
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def compact_strings(data):
    """The strings of a flexible version, up to its tagged fields, of which there are none."""
    found = []
    while data != b"\0":
        length = data[0]
        found.append(data[1:length].decode())
        data = data[length:]
    return found


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
            (length,) = struct.unpack_from(">i", self.buffer)
            if length > MAX_REQUEST_BYTES:
                # As Kafka does; a TLS record, read as a length, is one of 369 MB.
                self.transport.loseConnection()
                return
            if len(self.buffer) < 4 + length:
                return
            frame, self.buffer = self.buffer[4 : 4 + length], self.buffer[4 + length :]
            key, version, correlation_id, client = struct.unpack_from(">hhih", frame)
            self.factory.requests.append((key, version, frame[10 : 10 + client]))
            self.asked(key, version, correlation_id, frame[10 + client :])

    def connectionLost(self, reason):
        self.factory.lost.append(self)

    def asked(self, key, version, correlation_id, body):
        answer = None
        if key in self.factory.silent_on:
            return
        if key in self.factory.closing_on or (key, version) in self.factory.closing_on:
            pass
        elif key == API_VERSIONS:
            answer = self.versions(version, body)
        elif key == SASL_HANDSHAKE and self.factory.mechanisms is not None:
            answer = self.handshake(body[2:].decode())
        elif key == SASL_HANDSHAKE:
            answer = struct.pack(">hi", 34, 0)
        elif key == SASL_AUTHENTICATE and self.mechanism is not None:
            answer = self.authenticate(version, body[4:])
        if answer is None:
            self.transport.loseConnection()
            return
        frame = struct.pack(">ii", 4 + len(answer), correlation_id) + answer
        self.factory.write(self.transport, frame + self.factory.behind.get(key, b""))

    def versions(self, version, body):
        ranges = self.factory.ranges
        if version > ranges.get(API_VERSIONS, (0, 4))[1]:
            # In the first version; which ones it knows, it says since Kafka 2.4 (KIP-511).
            known = {API_VERSIONS: ranges[API_VERSIONS]} if self.factory.says_known_versions else {}
            return struct.pack(">hi", 35, len(known)) + b"".join(
                struct.pack(">hhh", key, *ends) for key, ends in known.items()
            )
        flexible = version >= 3
        if flexible:
            no_tags, self.factory.software = body[:1], compact_strings(body[1:])
            assert no_tags == b"\0"
        error = struct.pack(">h", self.factory.versions_error)
        count = bytes([len(ranges) + 1]) if flexible else struct.pack(">i", len(ranges))
        tags = b"\0" if flexible else b""
        elements = [struct.pack(">hhh", key, *ends) + tags for key, ends in ranges.items()]
        throttle = struct.pack(">i", 0) if version >= 1 else b""
        return error + count + b"".join(elements) + throttle + tags

    def handshake(self, mechanism):
        offered = self.factory.mechanisms
        if mechanism in offered:
            self.mechanism = mechanism
        return struct.pack(">hi", 0 if mechanism in offered else 33, len(offered)) + b"".join(
            map(string, offered)
        )

    def authenticate(self, version, token):
        if self.mechanism == "PLAIN":
            _, username, password = token.decode().split("\0")
            good = self.factory.users.get(username) == password
            error, answer = (0, b"") if good else (58, b"")
        elif self.mechanism == "OAUTHBEARER":
            error, answer = self.bearer(token)
        else:
            if self.scram is None:
                self.scram = ScramServer(self.factory, self.mechanism)
            error, answer = self.scram.next(token)
        if not error and not answer:
            self.factory.authenticated.append(token)
        message = string(self.factory.rejection) if error else struct.pack(">h", -1)
        lifetime = struct.pack(">q", self.factory.lifetime_ms) if version else b""
        return struct.pack(">h", error) + message + struct.pack(">i", len(answer)) + answer + lifetime

    def bearer(self, token):
        """OAUTHBEARER (RFC 7628, section 3), as `OAuthBearerSaslServer` of Kafka does it."""
        if token == b"\x01":
            return 58, b""
        header, *pairs, end, nothing = token.split(b"\x01")
        assert (header, end, nothing) == (b"n,,", b"", b""), token
        said = dict(pair.split(b"=", 1) for pair in pairs)
        if said[b"auth"].removeprefix(b"Bearer ").decode() in self.factory.tokens:
            return 0, b""
        return 0, self.factory.challenge


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
            return 0, self.first.encode()
        final, _, proof = token.decode().rpartition(",p=")
        if self.username not in self.broker.users:
            return 58, b""
        password = self.broker.users[self.username].encode()
        salted = hashlib.pbkdf2_hmac(self.hash, password, self.broker.salt, self.broker.iterations)
        message = f"{self.bare},{self.first},{final}".encode()
        stored = hashlib.new(self.hash, self.mac(salted, b"Client Key")).digest()
        signature = self.mac(stored, message)
        key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        if hashlib.new(self.hash, key).digest() != stored:
            return 58, b""
        proof = self.mac(self.mac(salted, b"Server Key"), message)
        return 0, self.broker.final or b"v=" + base64.b64encode(proof)


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
