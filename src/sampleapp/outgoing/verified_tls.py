"""
TLS as a client: a server is accepted only with a certificate for the requested host name.

All outgoing TLS connections use this module. Twisted's `optionsForClientTLS`, the default of its `Agent` and
of treq, accepts a certificate without a subject alternative name, or with a malformed one, for every host: it
only logs an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias
from weakref import ref

from cryptography import x509
from OpenSSL import SSL, crypto
from OpenSSL.crypto import X509StoreFlags
from service_identity import CertificateError
from service_identity.hazmat import DNS_ID, DNSPattern
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.python.failure import Failure
from zope.interface import implementer

if TYPE_CHECKING:
    from twisted.protocols.tls import TLSMemoryBIOProtocol


_Address: TypeAlias = IPv4Address | IPv6Address

# OpenSSL's X509_V_ERR_…, of x509_vfy.h.
_NOT_YET_VALID: Final = 9
_HAS_EXPIRED: Final = 10
_UNTRUSTED: Final = frozenset({2, 18, 19, 20, 21, 24, 27, 28})
_CHAIN_TOO_LONG: Final = 22
_SHOWN_NAMES: Final = 5
_LONGEST_NAME: Final = 253
"""Of a host (RFC 1035, section 2.3.4)."""
_NAME: Final = re.compile(r"[A-Za-z0-9._*-]+")
_MOST_INTERMEDIATES: Final = 8
"""As Mbed TLS. OpenSSL verifies up to 100, and its work is done in one turn of the reactor."""


class CertificateNotTrusted(Exception):
    """A server's certificate was not accepted, so nothing was sent to the server."""

    def reason(self, *, of: str, authority: str) -> str:
        """
        Return the reason and a remedy as a clause without a full stop.

        :param of: the owner of the certificate, such as ``of localhost:8443``.
        :param authority: the remedy if no trusted authority has signed the certificate.
        """
        raise NotImplementedError


class CertificateRejected(CertificateNotTrusted):
    """OpenSSL does not trust a certificate in the server's chain."""

    def __init__(self, *, error: int, depth: int) -> None:
        """
        :param error: OpenSSL's number of the error (``X509_V_ERR_…`` in ``x509_vfy.h``).
        :param depth: the position in the chain: 0 for the server's own certificate, then its issuers.
        """
        super().__init__(f"error {error} at depth {depth}")
        self.error = error
        self.depth = depth

    def reason(self, *, of: str, authority: str) -> str:
        """See `CertificateNotTrusted.reason`."""
        which = "the certificate" if self.depth == 0 else "a certificate in the chain"
        if self.error == _HAS_EXPIRED:
            return f"{which} {of} has expired: renew it, or set this machine's clock"
        if self.error == _NOT_YET_VALID:
            return f"{which} {of} is not valid yet: check its dates, and this machine's clock"
        if self.error == _CHAIN_TOO_LONG:
            return (
                f"the certificate {of} has more than {_MOST_INTERMEDIATES} authorities between itself and a "
                "trusted one: have it issued by another"
            )
        if self.error not in _UNTRUSTED:
            return (
                f"{which} {of} cannot be used (OpenSSL's verification error {self.error}): check what it was "
                "issued for"
            )
        return f"the certificate {of} is not signed by a trusted authority: {authority}"


class WrongHost(CertificateNotTrusted):
    """A trusted authority has signed the certificate, but not for this host."""

    def __init__(self, host: str, *, names: Sequence[str] = (), fault: str | None = None) -> None:
        """
        :param host: the requested name or address.
        :param names: the host names and addresses in the certificate.
        :param fault: another fault of the certificate, as a predicate such as "cannot be read".
        """
        super().__init__("the certificate is not for this host")
        self.host = host
        self.names = tuple(names)
        self.fault = fault

    def reason(self, *, of: str, authority: str) -> str:  # noqa: ARG002 -- see the base class
        """See `CertificateNotTrusted.reason`."""
        kind = "DNS" if _address(self.host) is None else "IP"
        host = _printable(self.host)
        needed = f"it needs {kind}:{host} as a subject alternative name"
        if self.fault is not None:
            return f"the certificate {of} {_printable(self.fault)}: {needed}"
        if not self.names:
            return f"the certificate {of} names no host: {needed}; a common name is not enough"
        names = [_printable(name[:_LONGEST_NAME]) for name in self.names[:_SHOWN_NAMES]]
        if len(self.names) > _SHOWN_NAMES:
            names.append("and others")
        return (
            f"the certificate {of} is for {', '.join(names)}, not for {host}: connect to a name that it "
            "has, or give the server a certificate that has this one"
        )


def client_context(*, authorities: Path | None = None) -> SSL.Context:
    """
    Make OpenSSL's settings for connections to servers: TLS 1.2 or newer, and the authorities to trust.

    :param authorities: a PEM file. Each certificate in it is trusted, even an intermediate authority
        without its root. ``None`` for the authorities of this machine, or those of ``SSL_CERT_FILE``; reading
        those takes about 5 ms.
    :raise OpenSSL.SSL.Error: the file cannot be used.
    """
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION)
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)
    context.set_verify_depth(_MOST_INTERMEDIATES)
    if authorities is None:
        context.set_default_verify_paths()
        return context
    context.load_verify_locations(os.fsencode(authorities))
    store = context.get_cert_store()
    if store is not None:
        # As Java treats a trust store.
        store.set_flags(X509StoreFlags.PARTIAL_CHAIN)
    return context


@implementer(IOpenSSLClientConnectionCreator)
class VerifiedConnections:
    """
    Makes connections to one host, and ends those with a certificate that is not for that host.

    The protocol of such a connection gets a `CertificateNotTrusted` in ``connectionLost``. Nothing is logged.
    """

    def __init__(self, context: SSL.Context, host: str) -> None:
        """
        :param context: from `client_context`; it may have a client certificate.
        :param host: a name, or an IP address without brackets.
        """
        self._context = context
        self._host = host.removesuffix(".")
        self._address = _address(self._host)

    def clientConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:  # noqa: N802, N803, D102 -- Twisted's
        connection = SSL.Connection(self._context, None)
        if self._address is None:
            # SNI does not allow an address (RFC 6066, section 3).
            connection.set_tlsext_host_name(_ascii(self._host).encode("ascii"))
        # Weak: the protocol refers to the connection, which refers to its callback.
        protocol = ref(tlsProtocol)

        def verify(_: SSL.Connection, certificate: crypto.X509, error: int, depth: int, ok: int) -> bool:
            # Called for each certificate, from the authority's down to the server's own, and again after
            # each error. An exception would be lost in OpenSSL.
            problem = self._problem(certificate, error=error, depth=depth, ok=bool(ok))
            if problem is None:
                return True
            connecting = protocol()
            if connecting is not None:
                connecting.failVerification(Failure(problem))
            return False

        connection.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, verify)
        return connection

    def _problem(
        self, certificate: crypto.X509, *, error: int, depth: int, ok: bool
    ) -> CertificateNotTrusted | None:
        if not ok:
            return CertificateRejected(error=error, depth=depth)
        if depth:
            return None
        try:
            return self._wrong_host(certificate.to_cryptography())
        except Exception as strange:  # noqa: BLE001 -- a malformed certificate is not trusted
            problem = WrongHost(self._host, fault="cannot be read")
            problem.__cause__ = strange
            return problem

    def _wrong_host(self, certificate: x509.Certificate) -> WrongHost | None:
        names, addresses = _names(certificate)
        fault = None
        if self._address is not None:
            if self._address in addresses:
                return None
            if self._host in names:
                fault = f"has {self._host} as a DNS name, which is not allowed"
        elif names:
            wanted = DNS_ID(_ascii(self._host))
            for name in names:
                if not _NAME.fullmatch(name):
                    # The library would remove white space at both ends.
                    fault = f"has a name that is not allowed ({name!r})"
                    continue
                try:
                    if wanted.verify(DNSPattern.from_bytes(name.encode("ascii"))):
                        return None
                except CertificateError as error:
                    # This name matches no host, but another name may match.
                    fault = f"has a name that is not allowed ({str(error).rstrip('.')})"
        return WrongHost(self._host, names=[*names, *map(str, addresses)], fault=fault)


def openssl_reasons(error: BaseException | None) -> list[str]:
    """Return the reasons in OpenSSL's queue of errors, as one line each; empty if there are none."""
    queue = error.args[0] if isinstance(error, SSL.Error) and error.args else None
    if not isinstance(queue, list | tuple):
        return []
    return [_printable(str(each[-1] if isinstance(each, tuple) else each)) for each in queue]


def _names(certificate: x509.Certificate) -> tuple[list[str], list[_Address]]:
    """Return the host names and addresses; other types of names are for other protocols (RFC 9525)."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return [], []
    addresses = names.get_values_for_type(x509.IPAddress)
    return (
        names.get_values_for_type(x509.DNSName),
        [each for each in addresses if isinstance(each, IPv4Address | IPv6Address)],
    )


def _address(host: str) -> _Address | None:
    try:
        # A zone (RFC 6874) is local to this machine, and never in a certificate.
        return ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _ascii(host: str) -> str:
    return host if host.isascii() else host.encode("idna").decode("ascii")


def _printable(text: str) -> str:
    return text if text.isprintable() else ascii(text)
