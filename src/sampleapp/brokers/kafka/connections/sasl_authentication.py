"""SASL authentication of a connection, inside Kafka's own requests (KIP-43, KIP-152)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sampleapp.brokers.kafka.connections.diagnostics import INCOMPATIBLE, NO_RESPONSE, in_words
from sampleapp.brokers.kafka.connections.failure_reason import ConnectionFailed, FailureReason, Peer
from sampleapp.brokers.kafka.connections.handshake import HandshakeProtocol
from sampleapp.brokers.kafka.connections.sasl_mechanisms import (
    SaslError,
    SaslRejected,
    SaslSteps,
    ServerUnproven,
)
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import (
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    SaslMechanisms,
    negotiate,
)

__all__ = ["authenticate", "closed_while_authenticating", "silent_while_authenticating"]

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
        sentence=f"{peer.at} does not support SaslAuthenticate requests: SASL needs Kafka 1.0 or newer.",
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
