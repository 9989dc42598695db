"""
One sentence for the operator for each way in which connecting to a broker fails, and what to check.

Kafka's documentation does not say how a broker reacts to unexpected bytes; this was found in its source and
by trying.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct
from twisted.internet.error import (
    ConnectError,
    ConnectionRefusedError,  # noqa: A004 -- Twisted's, which is not the built-in one
    DNSLookupError,
    TimeoutError,  # noqa: A004 -- as above
)

from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import REQUIRED, Api, negotiate
from sampleapp.outgoing.verified_tls import CertificateNotTrusted, WrongHost, openssl_reasons


class FailureReason(Struct, frozen=True):
    """One reason why a broker cannot be used."""

    sentence: str
    """For the operator: names the host and the port, and what to check. Never holds a credential."""
    public: str
    """For any caller: has no address and no name of a file."""
    lasting: bool
    """True if retrying cannot help until an operator changes something."""
    incompatible: bool = False
    """True if the broker is too old, or too new, for this service."""
    is_rejection: bool = False
    """True if one side rejected the other's credentials or certificate: reloading the files may help."""


class ConnectionFailed(Exception):
    """A connection to a broker could not be made ready for use."""

    def __init__(self, reason: FailureReason) -> None:
        """:param reason: the reason."""
        super().__init__(reason.sentence)
        self.reason = reason


class Peer(Struct, frozen=True, kw_only=True):
    """The peer of a connection and its security settings, for sentences about it."""

    host: str
    port: int
    tls: bool = False
    own_ca: bool = False
    """True if ca= gives the trusted authorities."""
    client_certificate: bool = False
    mechanism: str | None = None
    """The mechanism of SASL; ``None`` without SASL."""

    @property
    def at(self) -> str:
        """The address as people write it."""
        return address(self.host, self.port)


def address(host: str, port: int) -> str:
    """
    Return an address as people write it, with an IPv6 address in brackets (RFC 3986, section 3.2.2).

    A host that is not printable is escaped: a broker may advertise one.
    """
    shown = host if host.isprintable() else ascii(host)
    return f"[{shown}]:{port}" if ":" in host else f"{shown}:{port}"


UNREACHABLE: Final = "Kafka cannot be reached."
NO_RESPONSE: Final = "Kafka does not answer."
NOT_KAFKA: Final = "The server at the address of Kafka is not Kafka."
INCOMPATIBLE: Final = "This service does not support the version of Kafka."
_INSECURE: Final = "A secure connection to Kafka could not be established."

# The names of alerts about a client's certificate (RFC 8446, section 6.2), in OpenSSL's spelling.
_CERTIFICATE_ALERTS: Final = (
    "bad certificate",
    "unsupported certificate",
    "certificate revoked",
    "certificate expired",
    "certificate unknown",
    "unknown ca",
    "certificate required",
    "access denied",
    "decrypt error",
)
# OpenSSL's errors for bytes that are not TLS records.
_NOT_TLS: Final = (
    "wrong version number",
    "packet length too long",
    "record layer failure",
    "http request",
    "bad record type",
    "unexpected message",
    "invalid record type",
)
# OpenSSL's error for a record that the keys cannot decrypt. Kafka 2.8 and 3.0 on Java 17 send such an alert
# when they reject a client certificate over TLS 1.3.
_UNDECRYPTABLE: Final = "decryption failed or bad record mac"


def in_words(things: Iterable[str]) -> str:
    """Join a list as part of a sentence: ``a, b and c``."""
    *most, last = things
    return f"{', '.join(most)} and {last}" if most else last


def not_connected(peer: Peer, error: Exception) -> FailureReason:
    """No TCP connection could be made."""
    at = peer.at
    if isinstance(error, TimeoutError):
        return slow_to_connect(peer)
    if isinstance(error, ConnectionRefusedError):
        sentence = f"{at} refused the connection: check the host and the port, and that the broker runs."
    elif isinstance(error, DNSLookupError | ValueError):
        # A ValueError is an invalid name (IDNA), which a broker may well advertise.
        sentence = f"The host name of {at} cannot be resolved: check how it is written, and the DNS."
    else:
        number = error.osError if isinstance(error, ConnectError) else None
        reason = os.strerror(number) if isinstance(number, int) else "no reason is known"
        sentence = f"{at} cannot be reached ({reason}): check the address, and the network to it."
    return _temporary(sentence, UNREACHABLE)


def slow_to_connect(peer: Peer) -> FailureReason:
    """Neither a connection nor a refusal came in time."""
    return _temporary(
        f"{peer.at} did not accept a connection in time: check the address, the DNS, and firewalls.",
        UNREACHABLE,
    )


def silent(peer: Peer) -> FailureReason:
    """The first request on the connection was not answered in time."""
    check = "check that this is the port of a Kafka listener, and that the broker is not overloaded"
    if not peer.tls:
        check += "; if it is a TLS port, use kafka+tls://"
    return _temporary(f"{peer.at} accepted the connection but did not answer in time: {check}.", NO_RESPONSE)


def closed(peer: Peer, received: bytes) -> FailureReason:
    """
    The broker closed the connection instead of answering the first request.

    A TLS listener does this with plain text, mostly after an alert (Kafka's `SslTransportLayer`); a Kafka
    older than 0.10 does it with a request that it does not know.

    :param received: the bytes before the end, which were not a response.
    """
    if received:
        return not_kafka(peer, received)
    if not peer.tls:
        check = "if it is a TLS port, use kafka+tls://"
    elif peer.client_certificate:
        check = "check that the broker trusts the client certificate"
    else:
        check = "if it requires a client certificate, give certificate= and key="
    # Not lasting: a broker that is stopping closes connections, too.
    return FailureReason(
        sentence=(
            f"{peer.at} closed the connection without an answer: {check}. Kafka older than 0.10 also does "
            "this, and is not supported."
        ),
        public=NO_RESPONSE,
        lasting=False,
        is_rejection=peer.client_certificate,
    )


def not_kafka(peer: Peer, received: bytes) -> FailureReason:
    """
    The received bytes cannot be a response of Kafka.

    :param received: the first of them.
    """
    # A TLS record: a handshake (0x16) or an alert (0x15) of version 3.x (RFC 8446, section 5.1).
    if received[:2] in {b"\x15\x03", b"\x16\x03"} and not peer.tls:
        return FailureReason(
            sentence=f"{peer.at} speaks TLS: use kafka+tls:// for this port.",
            public=NO_RESPONSE,
            lasting=True,
        )
    if received.startswith(b"HTTP/"):
        sentence = f"{peer.at} answers in HTTP, so it is not a Kafka listener: check the host and the port."
    else:
        sentence = f"{peer.at} does not answer in Kafka's protocol: check the host and the port."
    return FailureReason(sentence=sentence, public=NOT_KAFKA, lasting=True)


def rejected_versions(peer: Peer, error: int) -> FailureReason:
    """The broker answered ApiVersions with an error."""
    return FailureReason(
        sentence=(
            f"{peer.at} did not list the API versions that it supports ({ErrorCode.name_of(error)}): this "
            "service needs Kafka 2.1 or newer, and a listener for clients."
        ),
        public=INCOMPATIBLE,
        lasting=True,
        incompatible=True,
    )


def not_usable(peer: Peer, ranges: Mapping[int, tuple[int, int]]) -> FailureReason | None:
    """
    Return the first required request that the broker does not support; ``None`` if it supports all.

    :param ranges: the lowest and the highest version of each API, by API key.
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


def tls_failed(peer: Peer, reason: BaseException | None) -> FailureReason | None:
    """
    Return why TLS failed, in its handshake or later; ``None`` if the failure has another cause.

    With TLS 1.3 a broker rejects a client certificate after the client's side of the handshake has ended.

    :param reason: the exception with which the connection was lost.
    """
    if isinstance(reason, CertificateNotTrusted):
        # With a certificate for another host, reloading our own files cannot help.
        return _tls_failure(_not_trusted(peer, reason), is_rejection=not isinstance(reason, WrongHost))
    words = [word.lower() for word in openssl_reasons(reason)]
    if not words:
        return None
    if _UNDECRYPTABLE in words:
        return _tls_failure(_undecryptable(peer))
    return _tls_failure(_handshake_failed(peer, words[-1]))


def closed_while_securing(peer: Peer) -> FailureReason:
    """
    The broker closed the connection during the TLS handshake, without an alert.

    A plain-text listener of Kafka does this: it reads the first bytes as the length of a request.
    """
    return _temporary(
        f"{peer.at} closed the connection during the TLS handshake: if it is a plain-text port, use kafka:// "
        "for it.",
        NO_RESPONSE,
    )


def silent_while_securing(peer: Peer) -> FailureReason:
    """The TLS handshake did not end in time."""
    return _temporary(
        f"{peer.at} accepted the connection but did not answer the TLS handshake in time: check that this is "
        "the port of a TLS listener of Kafka, and that the broker is not overloaded.",
        NO_RESPONSE,
    )


def _temporary(sentence: str, public: str) -> FailureReason:
    return FailureReason(sentence=sentence, public=public, lasting=False)


def _lacks(api: Api, spoken: tuple[int, int] | None) -> str:
    if spoken is None:
        return f"does not support {api.name} requests: give a listener of a broker, not of a KRaft controller"
    lowest, highest = spoken
    if highest < api.lowest:
        return f"supports {api.name} only up to version {highest}: this service needs Kafka 2.1 or newer"
    return f"supports {api.name} only from version {lowest} on: upgrade this service"


def _tls_failure(sentence: str, *, is_rejection: bool = True) -> FailureReason:
    return FailureReason(sentence=sentence, public=_INSECURE, lasting=True, is_rejection=is_rejection)


def _not_trusted(peer: Peer, problem: CertificateNotTrusted) -> str:
    if peer.own_ca:
        authority = "check that the file given with ca= has the authority that signed it"
    else:
        authority = "give the authority's certificate with ca="
    reason = problem.reason(of=f"of {peer.at}", authority=authority)
    return f"{reason[0].upper()}{reason[1:]}."


def _handshake_failed(peer: Peer, said: str) -> str:
    alert = said.partition("alert ")[2]
    if alert in _CERTIFICATE_ALERTS:
        if not peer.client_certificate:
            return f"{peer.at} requires a client certificate: give certificate= and key=."
        return (
            f"{peer.at} rejected the client certificate ({alert}): check that the broker trusts its "
            "authority, and that it has not expired."
        )
    if alert in {"handshake failure", "protocol version", "insufficient security"} or "unsupported" in said:
        return (
            f"{peer.at} and this service have no TLS version or cipher in common ({said}): check that the "
            "broker has TLS 1.2 or newer and usual ciphers, and whether it requires a client certificate."
        )
    if not alert and any(words in said for words in _NOT_TLS):
        return (
            f"{peer.at} does not speak TLS: use kafka:// for this port, or give the port of a TLS listener."
        )
    return f"TLS with {peer.at} failed ({said}): check the TLS settings of the broker."


def _undecryptable(peer: Peer) -> str:
    said = f"{peer.at} sent data after the TLS handshake that cannot be decrypted, as Kafka does when it"
    if peer.client_certificate:
        return (
            f"{said} rejects the client certificate: check that it trusts its authority, and that it has not "
            "expired."
        )
    return f"{said} requires a client certificate: give certificate= and key=."
