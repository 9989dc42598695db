"""OpenSSL's settings for a server, and what is said of clients whose certificates it does not take."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final
from weakref import WeakSet

from OpenSSL import SSL, crypto
from OpenSSL.crypto import X509StoreFlags
from zope.interface import implementer

from sampleapp.errors import StartUpError
from sampleapp.interfaces import IVerifiesClients
from sampleapp.tls.credentials import Credentials

__all__ = ["OnRefused", "server_context"]

OnRefused = Callable[[SSL.Connection, str, "crypto.X509 | None"], None]
"""Is told which connection fails, why, and for which of the client's certificates."""

_VERSIONS: Final = {"TLSv1.2": SSL.TLS1_2_VERSION, "TLSv1.3": SSL.TLS1_3_VERSION}
# For TLS 1.2, what Mozilla calls intermediate, without finite-field Diffie-Hellman; 1.3 has good ones only.
_CIPHERS: Final = b"ECDHE+AESGCM:ECDHE+CHACHA20"

_ALERT_HANDSHAKE_FAILURE: Final = 40
_ALERT_CERTIFICATE_REQUIRED: Final = 116
"""RFC 8446, section 6.2; before that version, the one above has to do."""
_ASKED: Final = b"SSLv3/TLS write server done"
"""The state in which a server waits for the certificate, before TLS 1.3."""

# X509_V_ERR_… of OpenSSL's x509_vfy.h.
_NO_ISSUER: Final = "it is from no authority in the file of clientCA="
_REASONS: Final = {
    7: "its signature is wrong",
    9: "it is not valid yet",
    10: "it has expired",
    18: "it is self-signed",
    19: _NO_ISSUER,
    20: _NO_ISSUER,
    21: _NO_ISSUER,
    22: "its chain is too long",
    24: "one that is no authority has signed it",
    25: "its chain is longer than its authority allows",
    26: "it is not for clients (extended key usage)",
    30: _NO_ISSUER,
    66: "its key is too weak",
    67: "the key of its authority is too weak",
    68: "its signature's algorithm is too weak",
    79: "one that is no authority has signed it",
}


@implementer(IVerifiesClients)
class _VerifiesClients:
    """Marks a context. It has nothing to do: `SSL.VERIFY_PEER` and OpenSSL do it."""


def server_context(
    credentials: Credentials,
    *,
    minimum: str,
    requires_client: bool,
    protocols: Sequence[bytes],
    on_refused: OnRefused,
) -> SSL.Context:
    """
    Make what all connections of a server share.

    There are no sessions to resume, neither from tickets nor from a cache: each client's certificate is
    verified on each connection. A session would outlive that certificate, and the authority behind it.

    :param minimum: the oldest version of TLS, from `sampleapp.tls.arguments.MINIMUM_VERSIONS`.
    :param requires_client: whether a client without a certificate is refused. That needs authorities.
    :param protocols: what may be spoken inside (ALPN, RFC 7301), the best first.
    :param on_refused: is told of each client whose certificate was not taken, or was missing.
    :raise StartUpError: OpenSSL does not take the credentials.
    """
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(_VERSIONS[minimum])
    context.set_cipher_list(_CIPHERS)
    # Beginning anew costs a server more than a client, and could bring another certificate.
    context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION | SSL.OP_NO_TICKET)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_session_id(os.urandom(16))
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)
    if protocols:
        context.set_alpn_select_callback(_choice(tuple(protocols)))
    try:
        context.use_certificate(credentials.chain[0])
        context.use_privatekey(credentials.key)
        for certificate in credentials.chain[1:]:
            context.add_extra_chain_cert(certificate)
        context.check_privatekey()
        if credentials.client_authorities:
            _verify_clients(context, credentials, requires_client=requires_client, on_refused=on_refused)
    except (SSL.Error, crypto.Error) as error:
        raise StartUpError(
            "OpenSSL does not take the private key and the certificates: they may be too weak for its "
            f"security level ({_words(error)})."
        ) from error
    return context


def _choice(protocols: tuple[bytes, ...]) -> Callable[[SSL.Connection, list[bytes]], bytes]:
    def choose(_: SSL.Connection, offered: list[bytes]) -> bytes:
        for protocol in protocols:
            if protocol in offered:
                return protocol
        # pyOpenSSL makes the alert no_application_protocol of it (RFC 7301, section 3.2), and raises it
        # again, in the form of OpenSSL's own.
        raise SSL.Error([("SSL routines", "", "no application protocol")])

    return choose


def _verify_clients(
    context: SSL.Context, credentials: Credentials, *, requires_client: bool, on_refused: OnRefused
) -> None:
    store = context.get_cert_store()
    if store is None:
        raise StartUpError("OpenSSL has no place for the authorities of clientCA=.")
    # Whatever is in the file is trusted, also an intermediate authority without its root.
    store.set_flags(X509StoreFlags.PARTIAL_CHAIN)
    for authority in credentials.client_authorities:
        store.add_cert(crypto.X509.from_cryptography(authority))
        # A client with several certificates chooses by these names.
        context.add_client_ca(authority)

    def verify(connection: SSL.Connection, certificate: crypto.X509, error: int, _: int, ok: int) -> bool:
        # Whatever is raised here would be lost in OpenSSL, and the client be refused.
        if not ok:
            on_refused(connection, _REASONS.get(error, f"OpenSSL's error {error}"), certificate)
        return bool(ok)

    mode = SSL.VERIFY_PEER
    if requires_client:
        mode |= SSL.VERIFY_FAIL_IF_NO_PEER_CERT
        context.set_info_callback(_missing(on_refused))
    context.set_verify(mode, verify)
    context.set_app_data(_VerifiesClients())


def _missing(on_refused: OnRefused) -> Callable[[SSL.Connection, int, int], None]:
    """
    Tell of certificates that were not shown; OpenSSL does so with nothing but an alert.

    TLS 1.2 has the same alert for a client that has no cipher in common, which is told before it is asked.
    """
    asked: WeakSet[SSL.Connection] = WeakSet()

    def tell(connection: SSL.Connection, where: int, value: int) -> None:
        if where == SSL.SSL_CB_ACCEPT_LOOP and connection.get_state_string() == _ASKED:
            asked.add(connection)
        elif where == SSL.SSL_CB_WRITE_ALERT and (
            value & 0xFF == _ALERT_CERTIFICATE_REQUIRED
            or (value & 0xFF == _ALERT_HANDSHAKE_FAILURE and connection in asked)
        ):
            on_refused(connection, "there is none, and this endpoint requires one", None)

    return tell


def _words(error: SSL.Error | crypto.Error) -> str:
    """Return the reason at the end of OpenSSL's queue of errors."""
    queue = error.args[0] if error.args else ()
    return str(queue[-1][-1]) if queue else "it does not say why"
