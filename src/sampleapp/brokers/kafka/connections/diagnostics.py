"""
What a failed connection means, in one sentence for the operator.

Everything here was looked up in, or seen from, Kafka itself: what a broker does with bytes that it does
not expect is not in its documentation.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from msgspec import Struct
from twisted.internet.error import (
    ConnectError,
    ConnectionRefusedError,  # noqa: A004 -- Twisted's, which is not the built-in one
    DNSLookupError,
    TimeoutError,  # noqa: A004 -- as above
)

from sampleapp.brokers.kafka.connections.failure_reason import FailureReason, address
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import REQUIRED, Api, negotiate

__all__ = [
    "NOT_KAFKA",
    "NO_ANSWER",
    "UNREACHABLE",
    "Peer",
    "closed",
    "in_words",
    "not_connected",
    "not_kafka",
    "not_usable",
    "refused_versions",
    "silent",
    "slow_to_connect",
]

UNREACHABLE = "Kafka cannot be reached."
NO_ANSWER = "Kafka does not answer."
NOT_KAFKA = "What answers at the address of Kafka is not Kafka."
INCOMPATIBLE = "Kafka has another version than this service needs."


class Peer(Struct, frozen=True, kw_only=True):
    """Who is connected to, and how: what a sentence about it needs."""

    host: str
    port: int
    tls: bool = False
    own_ca: bool = False
    """Whether the trusted authorities were given as a file."""
    client_certificate: bool = False
    mechanism: str | None = None
    """Of SASL."""

    @property
    def at(self) -> str:
        """The address, as people write it."""
        return address(self.host, self.port)


def in_words(things: Iterable[str]) -> str:
    """A list as a part of a sentence."""
    *most, last = things
    return f"{', '.join(most)} and {last}" if most else last


def not_connected(peer: Peer, error: Exception) -> FailureReason:
    """There is no connection at all."""
    at = peer.at
    if isinstance(error, TimeoutError):
        return slow_to_connect(peer)
    if isinstance(error, ConnectionRefusedError):
        sentence = f"{at} refused the connection: check the host and the port, and that the broker runs."
    elif isinstance(error, DNSLookupError | ValueError):
        # A ValueError is a name that cannot be one (IDNA), which a broker may well advertise.
        sentence = f"The host name of {at} cannot be resolved: check how it is written, and the DNS."
    else:
        number = error.osError if isinstance(error, ConnectError) else None
        reason = os.strerror(number) if isinstance(number, int) else "no reason is known"
        sentence = f"{at} cannot be reached ({reason}): check the address, and the network to it."
    return FailureReason(sentence=sentence, public=UNREACHABLE, lasting=False)


def slow_to_connect(peer: Peer) -> FailureReason:
    """Neither a connection nor a refusal came in time."""
    return FailureReason(
        sentence=f"{peer.at} did not accept a connection in time: check the address, the DNS, and firewalls.",
        public=UNREACHABLE,
        lasting=False,
    )


def silent(peer: Peer) -> FailureReason:
    """There is a connection, but no answer to the first question came in time."""
    check = "check that this is the port of a Kafka listener, and that the broker is not overloaded"
    if not peer.tls:
        check += "; if it is a TLS port, use kafka+tls://"
    return FailureReason(
        sentence=f"{peer.at} accepted the connection but did not answer in time: {check}.",
        public=NO_ANSWER,
        lasting=False,
    )


def closed(peer: Peer, received: bytes) -> FailureReason:
    """
    The connection was closed instead of the first question being answered.

    A TLS listener closes it on plain text, mostly after an alert (Kafka's `SslTransportLayer`); so does a
    Kafka before 0.10 on a request that it does not know.

    :param received: what came before that, which was not an answer.
    """
    if received:
        return not_kafka(peer, received)
    if not peer.tls:
        check = "if it is a TLS port, use kafka+tls://; Kafka older than 0.10 does the same"
    elif peer.client_certificate:
        check = "check that the broker trusts the client certificate; Kafka older than 0.10 does the same"
    else:
        check = (
            "if it requires a client certificate, give certificate= and key=; "
            "Kafka older than 0.10 does the same"
        )
    # It may as well be a broker that is just stopping.
    return FailureReason(
        sentence=f"{peer.at} closed the connection without an answer: {check}.",
        public=NO_ANSWER,
        lasting=False,
    )


def not_kafka(peer: Peer, received: bytes) -> FailureReason:
    """
    What came cannot be an answer of Kafka's.

    :param received: the first bytes of it.
    """
    # A TLS record: a handshake (0x16) or an alert (0x15) of version 3.x (RFC 8446, section 5.1).
    if received[:2] in {b"\x15\x03", b"\x16\x03"} and not peer.tls:
        return FailureReason(
            sentence=f"{peer.at} speaks TLS: use kafka+tls:// for this port.", public=NO_ANSWER, lasting=True
        )
    if received.startswith(b"HTTP/"):
        sentence = f"{peer.at} answers in HTTP, so it is not a port of Kafka: check the host and the port."
    else:
        sentence = f"{peer.at} does not answer in Kafka's protocol: check the host and the port."
    return FailureReason(sentence=sentence, public=NOT_KAFKA, lasting=True)


def refused_versions(peer: Peer, error: int) -> FailureReason:
    """ApiVersions was answered with an error."""
    return FailureReason(
        sentence=(
            f"{peer.at} does not say which versions it speaks ({ErrorCode.name_of(error)}): Kafka 0.11 or "
            "newer is needed, and a listener for clients."
        ),
        public=INCOMPATIBLE,
        lasting=True,
        incompatible=True,
    )


def not_usable(peer: Peer, ranges: Mapping[int, tuple[int, int]]) -> FailureReason | None:
    """
    What is missing of the requests that nothing works without; ``None`` if nothing is.

    :param ranges: lowest and highest version by API key.
    """
    for api in REQUIRED:
        if negotiate(api, ranges) is None:
            return FailureReason(
                sentence=f"{peer.at} {_lacks(api, ranges.get(api.key))}.",
                public=INCOMPATIBLE,
                lasting=True,
                incompatible=True,
            )
    return None


def _lacks(api: Api, spoken: tuple[int, int] | None) -> str:
    if spoken is None:
        return f"does not take {api.name} requests: give a listener of a broker, not of a KRaft controller"
    lowest, highest = spoken
    if highest < api.lowest:
        return f"speaks {api.name} only up to version {highest}: Kafka 0.11 or newer is needed"
    return f"speaks {api.name} only from version {lowest} on: a newer version of this service is needed"
