"""What a failed TLS handshake means, in one sentence for the operator."""

from __future__ import annotations

from typing import Final

from OpenSSL import SSL

from sampleapp.brokers.kafka.connections.diagnostics import NO_ANSWER, Peer, in_words
from sampleapp.brokers.kafka.connections.failure_reason import FailureReason
from sampleapp.brokers.kafka.connections.verification import CertificateRejected, WrongHost

__all__ = ["closed_while_securing", "silent_while_securing", "tls_failed"]

_PUBLIC: Final = "The connection to Kafka cannot be made secure."

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
_SHOWN_NAMES: Final = 5


def tls_failed(peer: Peer, reason: BaseException | None) -> FailureReason | None:
    """
    Why TLS failed, in its handshake or later; ``None`` if it was not TLS that failed.

    With TLS 1.3 a broker refuses a client certificate only after the handshake is over for the client.

    :param reason: with which the connection was lost.
    """
    if isinstance(reason, CertificateRejected):
        return _lasting(_rejected(peer, reason))
    if isinstance(reason, WrongHost):
        return _lasting(_wrong_host(peer, reason))
    if not isinstance(reason, SSL.Error):
        return None
    said = _words(reason)
    if not said:
        return None
    return _lasting(_refused(peer, said))


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


def _lasting(sentence: str) -> FailureReason:
    return FailureReason(sentence=sentence, public=_PUBLIC, lasting=True)


def _rejected(peer: Peer, rejected: CertificateRejected) -> str:
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


def _refused(peer: Peer, said: str) -> str:
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


def _words(error: SSL.Error) -> str:
    """What OpenSSL says, of all that it has in its queue the last; empty if it says nothing."""
    queue = error.args[0] if error.args else None
    if not isinstance(queue, list | tuple) or not queue:
        return ""
    last = queue[-1]
    return _printable(str(last[-1] if isinstance(last, tuple) else last).lower())


def _printable(text: str) -> str:
    return text if text.isprintable() else ascii(text)
