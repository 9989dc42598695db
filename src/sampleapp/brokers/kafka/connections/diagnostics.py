"""
What a failed connection means, in one sentence for the operator.

Everything here was looked up in, or seen from, Kafka itself: what a broker does with bytes that it does
not expect is not in its documentation.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Final

from OpenSSL import SSL
from twisted.internet.error import (
    ConnectError,
    ConnectionRefusedError,  # noqa: A004 -- Twisted's, which is not the built-in one
    DNSLookupError,
    TimeoutError,  # noqa: A004 -- as above
)

from sampleapp.brokers.kafka.connections.failure_reason import FailureReason, Peer
from sampleapp.brokers.kafka.connections.security import CertificateRejected, WrongHost
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import REQUIRED, Api, negotiate

__all__ = [
    "INCOMPATIBLE",
    "NOT_KAFKA",
    "NOT_LEARNT",
    "NO_ANSWER",
    "UNREACHABLE",
    "closed",
    "closed_while_securing",
    "gone",
    "in_words",
    "not_connected",
    "not_kafka",
    "not_usable",
    "refused_versions",
    "silent",
    "silent_while_securing",
    "slow_to_connect",
    "tls_failed",
]

UNREACHABLE = "Kafka cannot be reached."
NO_ANSWER = "Kafka does not answer."
NOT_KAFKA = "What answers at the address of Kafka is not Kafka."
INCOMPATIBLE = "Kafka has another version than this service needs."
_INSECURE: Final = "The connection to Kafka cannot be made secure."

# OpenSSL's X509_V_ERR_…, of x509_vfy.h.
_NOT_YET_VALID: Final = 9
_HAS_EXPIRED: Final = 10
_UNTRUSTED: Final = frozenset({2, 18, 19, 20, 21, 24, 27, 28})
# What the alerts about a client's certificate are called (RFC 8446, section 6.2), as OpenSSL spells them.
_ABOUT_CERTIFICATE: Final = (
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
# What OpenSSL says of bytes that are not TLS records.
_NOT_TLS: Final = (
    "wrong version number",
    "packet length too long",
    "record layer failure",
    "http request",
    "bad record type",
    "unexpected message",
    "invalid record type",
)
# What OpenSSL says of a record that does not fit the keys. With such an alert Kafka 2.8 and 3.0, on Java 17,
# refuse client certificates with TLS 1.3.
_CANNOT_BE_READ: Final = "decryption failed or bad record mac"
_SHOWN_NAMES: Final = 5

NOT_LEARNT: Final = FailureReason(
    sentence="What the broker says of the cluster could not be used; see the log.",
    public="What the broker says of the cluster could not be used.",
    lasting=False,
)


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
        is_refusal=peer.client_certificate,
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


def tls_failed(peer: Peer, reason: BaseException | None) -> FailureReason | None:
    """
    Why TLS failed, in its handshake or later; ``None`` if it was not TLS that failed.

    With TLS 1.3 a broker refuses a client certificate only after the handshake is over for the client.

    :param reason: with which the connection was lost.
    """
    if isinstance(reason, CertificateRejected):
        return _tls_failure(_rejected_certificate(peer, reason))
    if isinstance(reason, WrongHost):
        # Nothing that we have would make a difference.
        return _tls_failure(_wrong_host(peer, reason), is_refusal=False)
    if not isinstance(reason, SSL.Error):
        return None
    words = _words(reason)
    if not words:
        return None
    if _CANNOT_BE_READ in words:
        return _tls_failure(_refused_illegibly(peer))
    return _tls_failure(_refused_handshake(peer, words[-1]))


def closed_while_securing(peer: Peer) -> FailureReason:
    """
    The connection was closed before the TLS handshake was over, without an alert.

    So does a plain-text listener of Kafka's, which reads the length of a request in the first bytes.
    """
    return FailureReason(
        sentence=(
            f"{peer.at} closed the connection during the TLS handshake: if it is a plain-text port, use "
            "kafka:// for it."
        ),
        public=NO_ANSWER,
        lasting=False,
    )


def silent_while_securing(peer: Peer) -> FailureReason:
    """There is a connection, but the TLS handshake was not over in time."""
    return FailureReason(
        sentence=(
            f"{peer.at} accepted the connection but did not answer the TLS handshake in time: check that "
            "this is the port of a TLS listener of Kafka, and that the broker is not overloaded."
        ),
        public=NO_ANSWER,
        lasting=False,
    )


def gone(node_id: int | None) -> FailureReason:
    """
    A broker is not in the cluster.

    :param node_id: ``None`` for all of them: the client is closed.
    """
    who = "The client" if node_id is None else f"Broker {node_id}"
    return FailureReason(
        sentence=f"{who} is no more.", public="The broker is not in the cluster now.", lasting=False
    )


def _lacks(api: Api, spoken: tuple[int, int] | None) -> str:
    if spoken is None:
        return f"does not take {api.name} requests: give a listener of a broker, not of a KRaft controller"
    lowest, highest = spoken
    if highest < api.lowest:
        return f"speaks {api.name} only up to version {highest}: Kafka 0.11 or newer is needed"
    return f"speaks {api.name} only from version {lowest} on: a newer version of this service is needed"


def _tls_failure(sentence: str, *, is_refusal: bool = True) -> FailureReason:
    return FailureReason(sentence=sentence, public=_INSECURE, lasting=True, is_refusal=is_refusal)


def _rejected_certificate(peer: Peer, rejected: CertificateRejected) -> str:
    whose = "The certificate" if rejected.depth == 0 else "A certificate in the chain"
    if rejected.error == _HAS_EXPIRED:
        return f"{whose} of {peer.at} has expired: renew it, or set this machine's clock."
    if rejected.error == _NOT_YET_VALID:
        return f"{whose} of {peer.at} is not valid yet: check its dates, and this machine's clock."
    if rejected.error not in _UNTRUSTED:
        return (
            f"{whose} of {peer.at} cannot be used (OpenSSL's verification error {rejected.error}): check "
            "what it was issued for."
        )
    if peer.own_ca:
        check = "check that the file given with ca= has the authority that signed it"
    else:
        check = "give the authority's certificate with ca="
    return f"The certificate of {peer.at} is not signed by a trusted authority: {check}."


def _wrong_host(peer: Peer, wrong: WrongHost) -> str:
    if not wrong.names:
        return (
            f"The certificate of {peer.at} names no host: it needs {peer.host} as a subject alternative "
            "name, a common name is not enough."
        )
    if wrong.fault is not None:
        return (
            f"The certificate of {peer.at} has a name that is not allowed ({_printable(wrong.fault)}): give "
            "the broker another certificate."
        )
    names = list(map(_printable, wrong.names[:_SHOWN_NAMES]))
    if len(wrong.names) > _SHOWN_NAMES:
        names.append("others")
    return (
        f"The certificate of {peer.at} is for {in_words(names)}, not for {peer.host}: connect to a name that "
        "it has, or give the broker a certificate that has this one."
    )


def _refused_handshake(peer: Peer, said: str) -> str:
    alert = said.partition("alert ")[2]
    if alert in _ABOUT_CERTIFICATE:
        if not peer.client_certificate:
            return f"{peer.at} requires a client certificate: give certificate= and key=."
        return (
            f"{peer.at} refused the client certificate ({alert}): check that the broker trusts its "
            "authority, and that it has not expired."
        )
    if alert in {"handshake failure", "protocol version", "insufficient security"} or "unsupported" in said:
        return (
            f"{peer.at} and this service found no way to speak TLS ({said}): check that the broker has TLS "
            "1.2 or newer and usual ciphers, and whether it requires a client certificate."
        )
    if not alert and any(words in said for words in _NOT_TLS):
        return (
            f"{peer.at} does not speak TLS: use kafka:// for this port, or give the port of a TLS listener."
        )
    return f"TLS with {peer.at} failed ({said}): check the TLS settings of the broker."


def _refused_illegibly(peer: Peer) -> str:
    said = f"{peer.at} sent something after the TLS handshake that cannot be decrypted, as Kafka does when it"
    if peer.client_certificate:
        return (
            f"{said} refuses the client certificate: check that it trusts its authority, and that it has not "
            "expired."
        )
    return f"{said} requires a client certificate: give certificate= and key=."


def _words(error: SSL.Error) -> list[str]:
    """What OpenSSL has in its queue of errors; empty if it says nothing."""
    queue = error.args[0] if error.args else None
    if not isinstance(queue, list | tuple):
        return []
    return [_printable(str(each[-1] if isinstance(each, tuple) else each).lower()) for each in queue]


def _printable(text: str) -> str:
    return text if text.isprintable() else ascii(text)
