"""
The handshake on a new connection: one request at a time, before afkak's protocol takes the connection over.

`HandshakeProtocol` is the protocol of the connection. It carries ApiVersions and, if configured, SASL inside
Kafka's own requests (KIP-43, KIP-152), and then hands the connection over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IAddress, IHandshakeListener, IProtocol
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from sampleapp.brokers.kafka.connections.diagnostics import (
    INCOMPATIBLE,
    NO_RESPONSE,
    ConnectionFailed,
    FailureReason,
    Peer,
    in_words,
)
from sampleapp.brokers.kafka.connections.sasl_mechanisms import (
    SaslError,
    SaslRejected,
    SaslSteps,
    ServerUnproven,
)
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import (
    ProtocolError,
    Request,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    SaslMechanisms,
    negotiate,
    request_frame,
)

MAX_RESPONSE_BYTES: Final = 1024 * 1024
"""The longest answer that is accepted. The longest real one, to ApiVersions, has some hundred bytes."""

_LENGTH: Final = 4
_CORRELATION_ID: Final = 4
_SHOWN: Final = 64

R = TypeVar("R")


class ConnectionClosed(Exception):
    """The connection was closed while a response was expected."""

    def __init__(self, reason: BaseException | None, received: bytes) -> None:
        """
        :param reason: the exception of Twisted or OpenSSL.
        :param received: the first bytes that came instead of a response.
        """
        super().__init__(reason)
        self.reason = reason
        self.received = received


class NotKafka(Exception):
    """The received bytes are not a response in Kafka's protocol."""

    def __init__(self, received: bytes) -> None:
        """:param received: the first of them."""
        super().__init__("not an answer in Kafka's protocol")
        self.received = received


@implementer(IHandshakeListener)
class HandshakeProtocol(Protocol):
    """
    The protocol of a connection until it is handed over; afterwards it only passes calls on.

    A TLS transport has no public way to change its protocol, and one more call for each chunk of data costs
    next to nothing.
    """

    transport: Any  # ITransport, the declared type, has none of the methods of TCP.

    def __init__(self, client_id: bytes) -> None:
        """:param client_id: the name of this service for the brokers."""
        self._client_id = client_id
        self._buffer = bytearray()
        self._inner: IProtocol | None = None
        self._correlation_id = 0
        self._response: Deferred[bytes] | None = None
        self._secured = False
        self._securing: Deferred[None] | None = None
        self._over: Failure | None = None

    # --- for the handshake ---------------------------------------------------------------------------------

    def secured(self) -> Deferred[None]:
        """
        Wait for the end of the TLS handshake.

        :return: fires with ``None``, or fails with `ConnectionClosed`. May be cancelled.
        """
        if self._secured:
            return succeed(None)
        if self._over is not None:
            return fail(self._over)
        self._securing = Deferred(self._forget)
        return self._securing

    async def ask(self, request: Request[R], *, version: int) -> R:
        """
        Send one request, and wait for its response; one at a time.

        :raise ConnectionClosed: there will be no response.
        :raise NotKafka: the response is not in Kafka's protocol.
        """
        self._correlation_id += 1
        frame = request_frame(
            request, version=version, correlation_id=self._correlation_id, client_id=self._client_id
        )
        response = await self._exchange(frame)
        try:
            return request.decode(version, response)
        except ProtocolError as error:
            raise NotKafka(response[:_SHOWN]) from error

    def hand_over(self, inner: IProtocol) -> None:
        """Hand the connection, and everything received from now on, over to another protocol."""
        self._inner = inner
        inner.makeConnection(self.transport)

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abortConnection()

    # --- for the transport ---------------------------------------------------------------------------------

    def connectionMade(self) -> None:  # noqa: D102, N802 -- Twisted's
        # Requests and answers are small, and each waits for the other. Without keep-alive, a peer that has
        # vanished (a virtual machine, a cable) would not be noticed on an idle connection.
        self.transport.setTcpNoDelay(True)
        self.transport.setTcpKeepAlive(True)

    def handshakeCompleted(self) -> None:  # noqa: D102, N802 -- Twisted's
        self._secured = True
        waiter, self._securing = self._securing, None
        if waiter is not None:
            waiter.callback(None)

    def dataReceived(self, data: bytes) -> None:  # noqa: D102, N802 -- Twisted's
        if self._inner is not None:
            self._inner.dataReceived(data)
            return
        if self._over is not None:
            return
        self._buffer += data
        self._take_response()
        self._pass_on_the_rest()

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: D102, N802 -- Twisted's
        if self._inner is not None:
            self._inner.connectionLost(reason)
        else:
            self._end(ConnectionClosed(reason.value, bytes(self._buffer[:_SHOWN])))

    # --- private -------------------------------------------------------------------------------------------

    def _exchange(self, frame: bytes) -> Deferred[bytes]:
        if self._over is not None:
            return fail(self._over)
        self._response = Deferred(self._forget)
        self.transport.write(len(frame).to_bytes(_LENGTH, "big") + frame)
        return self._response

    def _pass_on_the_rest(self) -> None:
        """
        Give the bytes after the last response to the protocol that the connection was handed to.

        As on any connection, the Deferred of `connect` has fired before the first data arrives.
        """
        if self._inner is not None and self._buffer:
            rest, self._buffer = bytes(self._buffer), bytearray()
            self._inner.dataReceived(rest)

    def _forget(self, _: Deferred[R]) -> None:
        self._response = self._securing = None

    def _take_response(self) -> None:
        """Take the response out of the buffer once it is complete."""
        if len(self._buffer) < _LENGTH:
            return
        length = int.from_bytes(self._buffer[:_LENGTH], "big")
        # Bytes of another protocol, such as "HTTP", are far too great as a length.
        if not _CORRELATION_ID <= length <= MAX_RESPONSE_BYTES:
            self._end(NotKafka(bytes(self._buffer[:_SHOWN])))
            return
        end = _LENGTH + length
        if len(self._buffer) < end:
            return
        frame = bytes(self._buffer[_LENGTH:end])
        waiter, self._response = self._response, None
        if waiter is None or int.from_bytes(frame[:_CORRELATION_ID], "big") != self._correlation_id:
            self._end(NotKafka(bytes(self._buffer[:_SHOWN])), waiter)
            return
        del self._buffer[:end]
        waiter.callback(frame[_CORRELATION_ID:])

    def _end(self, error: Exception, waiter: Deferred[bytes] | None = None) -> None:
        if self._over is not None:
            return
        self._over = Failure(error)
        waiters = (waiter, self._response, self._securing)
        self._response = self._securing = None
        for each in waiters:
            if each is not None:
                each.errback(self._over)


class HandshakeFactory(Factory):
    """Makes a `HandshakeProtocol` for each attempt, without a line in the log."""

    noisy = False

    def __init__(self, client_id: bytes) -> None:
        """:param client_id: the name of this service for the brokers."""
        self._client_id = client_id

    def buildProtocol(self, addr: IAddress | None) -> HandshakeProtocol:  # noqa: ARG002, D102, N802 -- Twisted's
        return HandshakeProtocol(self._client_id)


_PUBLIC: Final = "Kafka did not authenticate this service."


async def authenticate(
    connection: HandshakeProtocol,
    *,
    peer: Peer,
    mechanism: str,
    steps: SaslSteps,
    ranges: Mapping[int, tuple[int, int]],
) -> int:
    """
    Authenticate, and check that the broker knows the password, too, if the mechanism allows it (SCRAM).

    :param ranges: the lowest and the highest version of each API that the broker supports, by API key.
    :return: milliseconds after which the broker will close the connection (KIP-368), 0 for never.
    :raise ConnectionFailed: the broker refuses, or violates the mechanism.
    """
    handshake = negotiate(SaslHandshakeRequest.api, ranges)
    version = negotiate(SaslAuthenticateRequest.api, ranges)
    if handshake is None or version is None:
        raise ConnectionFailed(_too_old(peer))
    offered = await connection.ask(SaslHandshakeRequest(mechanism=mechanism), version=handshake)
    if offered.error:
        raise ConnectionFailed(_not_offered(peer, mechanism, offered))
    lifetime_ms = 0
    token = _next(steps, None, peer, mechanism)
    while token is not None:
        response = await connection.ask(SaslAuthenticateRequest(token=token), version=version)
        if response.error:
            raise ConnectionFailed(_rejected(peer, mechanism, response.error, status=_status(steps)))
        lifetime_ms = response.session_lifetime_ms
        token = _next(steps, response.token, peer, mechanism)
    return lifetime_ms


def closed_while_authenticating(peer: Peer) -> FailureReason:
    """The broker closed the connection instead of answering."""
    return FailureReason(
        sentence=(
            f"{peer.at} closed the connection during SASL with {peer.mechanism}: check that SASL is enabled "
            "on this listener, and read the log of the broker."
        ),
        public=_PUBLIC,
        lasting=False,
    )


def silent_while_authenticating(peer: Peer) -> FailureReason:
    """The broker did not answer in time."""
    return FailureReason(
        sentence=(
            f"{peer.at} did not finish SASL with {peer.mechanism} in time: check that the broker is not "
            "overloaded, and that it can reach the server with which it verifies credentials."
        ),
        public=NO_RESPONSE,
        lasting=False,
    )


def _next(steps: SaslSteps, response: bytes | None, peer: Peer, mechanism: str) -> bytes | None:
    """Return the next message to send; ``None`` when both sides are satisfied."""
    try:
        return next(steps) if response is None else steps.send(response)
    except StopIteration:
        return None
    except SaslRejected as error:
        rejected = _rejected(peer, mechanism, ErrorCode.SASL_AUTHENTICATION_FAILED, status=error.status)
        raise ConnectionFailed(rejected) from error
    except ServerUnproven as error:
        raise ConnectionFailed(
            _lasting(
                f"{peer.at} did not prove that it knows the password for {mechanism}: it may not be the "
                "broker; check the address, and proxies in between.",
                is_rejection=True,
            )
        ) from error
    except SaslError as error:
        raise ConnectionFailed(
            _lasting(f"{peer.at} violates {mechanism} ({error}): check that it is a Kafka broker.")
        ) from error


def _status(steps: SaslSteps) -> str | None:
    """Return the status of OAuth with which the server rejected, if it gave a known one."""
    try:
        steps.throw(SaslRejected("it rejected them"))
    except SaslRejected as error:
        return error.status
    except (SaslError, StopIteration):
        return None
    return None


def _lasting(sentence: str, *, is_rejection: bool = False) -> FailureReason:
    return FailureReason(sentence=sentence, public=_PUBLIC, lasting=True, is_rejection=is_rejection)


def _too_old(peer: Peer) -> FailureReason:
    return FailureReason(
        sentence=(
            f"{peer.at} does not support SaslAuthenticate requests: this service needs Kafka 2.1 or newer."
        ),
        public=INCOMPATIBLE,
        lasting=True,
        incompatible=True,
    )


def _not_offered(peer: Peer, mechanism: str, offered: SaslMechanisms) -> FailureReason:
    if offered.error == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        # They come from the broker, and may not be printable.
        names = [name if name.isprintable() else ascii(name) for name in sorted(offered.mechanisms)]
        return _lasting(
            f"{peer.at} does not offer {mechanism}: it offers {in_words(names) if names else 'nothing'}; set "
            f"sasl= to an offered mechanism, or enable {mechanism} on the broker."
        )
    if offered.error == ErrorCode.ILLEGAL_SASL_STATE:
        # A PLAINTEXT or SSL listener answers the request with this error.
        return _lasting(
            f"{peer.at} has no SASL on this listener: leave out sasl=, or give the port of a SASL listener."
        )
    return _rejected(peer, mechanism, offered.error)


def _rejected(peer: Peer, mechanism: str, error: int, *, status: str | None = None) -> FailureReason:
    # The broker's message is not repeated: a custom callback may have put anything there.
    if error != ErrorCode.SASL_AUTHENTICATION_FAILED:
        sentence = f"rejected SASL with {mechanism} ({ErrorCode.name_of(error)}): read the log of the broker."
    elif mechanism == "OAUTHBEARER":
        why = f" ({status})" if status else ""
        sentence = (
            f"rejected the token for {mechanism}{why}: check that the token in the file of token_file= has "
            "not expired, and has the issuer, audience and scope that the broker expects."
        )
    else:
        sentence = (
            f"rejected the credentials for {mechanism}: check the user name and the password, and that the "
            f"broker has this user for {mechanism}."
        )
    return _lasting(f"{peer.at} {sentence}", is_rejection=True)
