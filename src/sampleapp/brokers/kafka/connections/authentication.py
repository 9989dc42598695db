"""Authenticating on a connection with SASL, inside Kafka's own requests (KIP-43, KIP-152)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sampleapp.brokers.kafka.connections.diagnostics import INCOMPATIBLE, NO_ANSWER, in_words
from sampleapp.brokers.kafka.connections.failure_reason import ConnectionFailed, FailureReason, Peer
from sampleapp.brokers.kafka.connections.handshake import Gate
from sampleapp.brokers.kafka.connections.sasl import SaslError, SaslRefused, SaslSteps, ServerUnproven
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import (
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    SaslMechanisms,
    negotiate,
)

__all__ = ["authenticate", "closed_while_authenticating", "silent_while_authenticating"]

_PUBLIC: Final = "Kafka does not let this service in."


async def authenticate(
    gate: Gate, *, peer: Peer, mechanism: str, steps: SaslSteps, ranges: Mapping[int, tuple[int, int]]
) -> int:
    """
    Authenticate, and see to it that the broker knows the password, too, if the mechanism allows that.

    :param ranges: the lowest and highest version that the broker speaks, by API key.
    :return: milliseconds after which the broker will close the connection (KIP-368), 0 for never.
    :raise ConnectionFailed: the broker refuses, or does not keep to the mechanism.
    """
    handshake = negotiate(SaslHandshakeRequest.api, ranges)
    version = negotiate(SaslAuthenticateRequest.api, ranges)
    if handshake is None or version is None:
        raise ConnectionFailed(_too_old(peer))
    offered = await gate.ask(SaslHandshakeRequest(mechanism=mechanism), version=handshake)
    if offered.error:
        raise ConnectionFailed(_not_offered(peer, mechanism, offered))
    lifetime_ms = 0
    token = _next(steps, None, peer, mechanism)
    while token is not None:
        answer = await gate.ask(SaslAuthenticateRequest(token=token), version=version)
        if answer.error:
            raise ConnectionFailed(_refused(peer, mechanism, answer.error, status=_status(steps)))
        lifetime_ms = answer.session_lifetime_ms
        token = _next(steps, answer.token, peer, mechanism)
    return lifetime_ms


def closed_while_authenticating(peer: Peer) -> FailureReason:
    """The broker closed the connection instead of answering."""
    return FailureReason(
        sentence=(
            f"{peer.at} closed the connection during SASL with {peer.mechanism}: check that the listener has "
            "SASL on, and the log of the broker."
        ),
        public=_PUBLIC,
        lasting=False,
    )


def silent_while_authenticating(peer: Peer) -> FailureReason:
    """The broker did not answer in time."""
    return FailureReason(
        sentence=(
            f"{peer.at} did not finish SASL with {peer.mechanism} in time: check that the broker is not "
            "overloaded, and can reach what it verifies credentials with."
        ),
        public=NO_ANSWER,
        lasting=False,
    )


def _next(steps: SaslSteps, answer: bytes | None, peer: Peer, mechanism: str) -> bytes | None:
    """What to send next; ``None`` when both sides are satisfied."""
    try:
        return next(steps) if answer is None else steps.send(answer)
    except StopIteration:
        return None
    except SaslRefused as error:
        refused = _refused(peer, mechanism, ErrorCode.SASL_AUTHENTICATION_FAILED, status=error.status)
        raise ConnectionFailed(refused) from error
    except ServerUnproven as error:
        raise ConnectionFailed(
            _lasting(
                f"{peer.at} does not know the password for {mechanism} itself: it may only pretend to be "
                "the broker; check the address, and what stands between.",
                is_refusal=True,
            )
        ) from error
    except SaslError as error:
        raise ConnectionFailed(
            _lasting(f"{peer.at} does not keep to {mechanism} ({error}): check what answers there.")
        ) from error


def _status(steps: SaslSteps) -> str | None:
    """What the server had said of why it refuses, in words that are known."""
    try:
        steps.throw(SaslRefused("it refused them"))
    except SaslRefused as error:
        return error.status
    except (SaslError, StopIteration):
        return None
    return None


def _lasting(sentence: str, *, is_refusal: bool = False) -> FailureReason:
    return FailureReason(sentence=sentence, public=_PUBLIC, lasting=True, is_refusal=is_refusal)


def _too_old(peer: Peer) -> FailureReason:
    return FailureReason(
        sentence=f"{peer.at} has no SaslAuthenticate requests: SASL needs Kafka 1.0 or newer.",
        public=INCOMPATIBLE,
        lasting=True,
        incompatible=True,
    )


def _not_offered(peer: Peer, mechanism: str, offered: SaslMechanisms) -> FailureReason:
    if offered.error == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        # Names of the broker's configuration, and so not to be printed as they come.
        names = [name if name.isprintable() else ascii(name) for name in sorted(offered.mechanisms)]
        return _lasting(
            f"{peer.at} does not offer {mechanism}: it offers {in_words(names) if names else 'nothing'}; use "
            "sasl= with what is offered there, or switch this mechanism on at the broker."
        )
    if offered.error == ErrorCode.ILLEGAL_SASL_STATE:
        # A PLAINTEXT or SSL listener takes the request, to say no.
        return _lasting(
            f"{peer.at} does not do SASL on this listener: leave out sasl=, or give the port of another."
        )
    return _refused(peer, mechanism, offered.error)


def _refused(peer: Peer, mechanism: str, error: int, *, status: str | None = None) -> FailureReason:
    # What the broker says of it is not repeated: a broker's own callback may have put anything there.
    if error != ErrorCode.SASL_AUTHENTICATION_FAILED:
        sentence = f"refused SASL with {mechanism} ({ErrorCode.name_of(error)}): check the log of the broker."
    elif mechanism == "OAUTHBEARER":
        why = f" ({status})" if status else ""
        sentence = (
            f"refused the token for {mechanism}{why}: check that the file given with token_file= has one "
            "that has not expired, and whose issuer, audience and scope are what the broker asks for."
        )
    else:
        sentence = (
            f"refused the credentials for {mechanism}: check the user name and the password, and that the "
            f"broker has them for {mechanism}."
        )
    return _lasting(f"{peer.at} {sentence}", is_refusal=True)
