"""OpenSSL's settings for a server, why it rejects certificates of clients, and a check at the start."""

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
from sampleapp.tls.certificates import Certificates


def require_callbacks() -> None:
    """
    Check that OpenSSL can call Python, for which pyOpenSSL generates machine code at run time.

    If it cannot, every connection would fail.

    :raise StartUpError: the process may not make memory executable.
    """
    try:
        SSL.Context(SSL.TLS_METHOD).set_info_callback(lambda *_: None)
    except MemoryError as error:
        raise StartUpError(
            "TLS cannot be used in a process that may not make memory executable: under systemd, set "
            "MemoryDenyWriteExecute=no."
        ) from error


OnRejected = Callable[[SSL.Connection, str, "crypto.X509 | None"], None]
"""Called with the failing connection, the reason, and the rejected certificate, if there is one."""

_VERSIONS: Final = {"TLSv1.2": SSL.TLS1_2_VERSION, "TLSv1.3": SSL.TLS1_3_VERSION}
# For TLS 1.2: Mozilla's intermediate list without finite-field Diffie-Hellman. TLS 1.3 has good ones only.
_CIPHERS: Final = b"ECDHE+AESGCM:ECDHE+CHACHA20"

_ALERT_HANDSHAKE_FAILURE: Final = 40
_ALERT_CERTIFICATE_REQUIRED: Final = 116
"""RFC 8446, section 6.2; older versions of TLS send `_ALERT_HANDSHAKE_FAILURE` instead."""
_ASKED: Final = b"SSLv3/TLS write server done"
"""The state before TLS 1.3 in which a server waits for the client's certificate."""

_MOST_INTERMEDIATES: Final = 8
"""As for servers. OpenSSL verifies up to 100, and its work is done in one turn of the reactor."""

# X509_V_ERR_… of OpenSSL's x509_vfy.h.
_NO_ISSUER: Final = "no authority in the file of clientCA= has signed it"
_REASONS: Final = {
    7: "its signature is wrong",
    9: "it is not valid yet",
    10: "it has expired",
    18: "it is self-signed",
    19: _NO_ISSUER,
    20: _NO_ISSUER,
    21: _NO_ISSUER,
    22: f"it has more than {_MOST_INTERMEDIATES} authorities between itself and a trusted one",
    24: "its issuer is not an authority",
    25: "its chain is longer than its authority allows",
    26: "it is not issued for clients (extended key usage)",
    30: _NO_ISSUER,
    66: "its key is too weak",
    67: "the key of its authority is too weak",
    68: "its signature's algorithm is too weak",
    79: "its issuer is not an authority",
}


@implementer(IVerifiesClients)
class _VerifiesClients:
    """Marks a context that verifies clients; OpenSSL does the work (`SSL.VERIFY_PEER`)."""


def server_context(
    certificates: Certificates,
    *,
    minimum: str,
    requires_client: bool,
    protocols: Sequence[bytes],
    on_rejected: OnRejected,
) -> SSL.Context:
    """
    Make the context that all connections of a server share.

    Sessions cannot be resumed, neither from tickets nor from a cache, so that each client's certificate is
    verified on each connection. A session would outlive that certificate and its authority.

    :param minimum: the oldest version of TLS, from `sampleapp.tls.https_arguments.MINIMUM_VERSIONS`.
    :param requires_client: true to reject a client without a certificate; needs client authorities.
    :param protocols: the protocols for ALPN (RFC 7301), the best first.
    :param on_rejected: called for each client whose certificate is rejected, or missing but required.
    :raise StartUpError: OpenSSL rejects the key or the certificates.
    """
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(_VERSIONS[minimum])
    context.set_cipher_list(_CIPHERS)
    # Renegotiation costs a server more than a client, and could change the certificate.
    context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION | SSL.OP_NO_TICKET)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_session_id(os.urandom(16))
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)
    if protocols:
        context.set_alpn_select_callback(_choice(tuple(protocols)))
    try:
        context.use_certificate(certificates.chain[0])
        context.use_privatekey(certificates.key)
        for certificate in certificates.chain[1:]:
            context.add_extra_chain_cert(certificate)
        context.check_privatekey()
        if certificates.client_authorities:
            _verify_clients(context, certificates, requires_client=requires_client, on_rejected=on_rejected)
    except (SSL.Error, crypto.Error) as error:
        raise StartUpError(
            "OpenSSL rejected the private key and the certificates: they may be too weak for its security "
            f"level ({_reason(error)})."
        ) from error
    return context


def _choice(protocols: tuple[bytes, ...]) -> Callable[[SSL.Connection, list[bytes]], bytes]:
    def choose(_: SSL.Connection, offered: list[bytes]) -> bytes:
        for protocol in protocols:
            if protocol in offered:
                return protocol
        # pyOpenSSL sends the alert no_application_protocol (RFC 7301, section 3.2), and raises this error
        # again, in the form of OpenSSL's own errors.
        raise SSL.Error([("SSL routines", "", "no application protocol")])

    return choose


def _verify_clients(
    context: SSL.Context, certificates: Certificates, *, requires_client: bool, on_rejected: OnRejected
) -> None:
    store = context.get_cert_store()
    if store is None:
        raise StartUpError("OpenSSL cannot store the authorities of clientCA=.")
    # Every certificate in the file is trusted, including an intermediate authority without its root.
    store.set_flags(X509StoreFlags.PARTIAL_CHAIN)
    for authority in certificates.client_authorities:
        store.add_cert(crypto.X509.from_cryptography(authority))
        # A client with several certificates chooses one by these names.
        context.add_client_ca(authority)

    def verify(connection: SSL.Connection, certificate: crypto.X509, error: int, _: int, ok: int) -> bool:
        # An exception would be lost in OpenSSL, and the client rejected.
        if not ok:
            on_rejected(connection, _REASONS.get(error, f"OpenSSL's error {error}"), certificate)
        return bool(ok)

    mode = SSL.VERIFY_PEER
    if requires_client:
        mode |= SSL.VERIFY_FAIL_IF_NO_PEER_CERT
        context.set_info_callback(_report_missing(on_rejected))
    context.set_verify(mode, verify)
    context.set_verify_depth(_MOST_INTERMEDIATES)
    context.set_app_data(_VerifiesClients())


def _report_missing(on_rejected: OnRejected) -> Callable[[SSL.Connection, int, int], None]:
    """
    Report missing certificates, for which OpenSSL has an alert but no error.

    TLS 1.2 has the same alert for a client without a common cipher, but before it asks for a certificate.
    """
    asked: WeakSet[SSL.Connection] = WeakSet()

    def on_info(connection: SSL.Connection, where: int, value: int) -> None:
        if where == SSL.SSL_CB_ACCEPT_LOOP and connection.get_state_string() == _ASKED:
            asked.add(connection)
        elif where == SSL.SSL_CB_WRITE_ALERT and (
            value & 0xFF == _ALERT_CERTIFICATE_REQUIRED
            or (value & 0xFF == _ALERT_HANDSHAKE_FAILURE and connection in asked)
        ):
            on_rejected(connection, "no certificate was sent, and this endpoint requires one", None)

    return on_info


def _reason(error: SSL.Error | crypto.Error) -> str:
    """Return the last reason in OpenSSL's queue of errors."""
    queue = error.args[0] if error.args else ()
    return str(queue[-1][-1]) if queue else "without a reason"
