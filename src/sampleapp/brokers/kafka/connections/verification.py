"""Verifying a broker's certificate: its chain, its time, and that it is for the host connected to."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING
from weakref import ref

from cryptography import x509
from OpenSSL import SSL, crypto
from service_identity import VerificationError
from service_identity.cryptography import verify_certificate_hostname, verify_certificate_ip_address
from service_identity.exceptions import CertificateError
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

if TYPE_CHECKING:
    from twisted.protocols.tls import TLSMemoryBIOProtocol

__all__ = ["CertificateRejected", "VerifiedConnections", "WrongHost"]


class CertificateRejected(Exception):
    """A certificate in the broker's chain is not to be trusted."""

    def __init__(self, *, error: int, depth: int) -> None:
        """
        :param error: OpenSSL's number for why (``X509_V_ERR_…`` in ``x509_vfy.h``).
        :param depth: which in the chain: 0 for the broker's own, more for those that signed it.
        """
        super().__init__(f"error {error} at depth {depth}")
        self.error = error
        self.depth = depth


class WrongHost(Exception):
    """The certificate can be trusted, but it is not for this host."""

    def __init__(self, names: Sequence[str], *, fault: str | None = None) -> None:
        """
        :param names: the host names and addresses that it is for; may be empty.
        :param fault: what is wrong with one of them, so that none counts.
        """
        super().__init__("the certificate is not for this host")
        self.names = tuple(names)
        self.fault = fault


@implementer(IOpenSSLClientConnectionCreator)
class VerifiedConnections:
    """
    Makes connections to one host, of which none comes about without that host's certificate.

    Twisted's own `optionsForClientTLS` does not tell why a certificate was rejected; and one whose names
    cannot be read, or that has none, makes it log an error and accept the host.
    """

    _log = Logger()

    def __init__(self, context: SSL.Context, host: str) -> None:
        """
        :param context: trusts authorities, and may hold a client certificate.
        :param host: a name, or an IP address without brackets.
        """
        self._context = context
        self._host = host.removesuffix(".")
        try:
            ip_address(self._host)
        except ValueError:
            self._is_name = True
        else:
            self._is_name = False

    def clientConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:  # noqa: N802, N803, D102 -- Twisted's
        connection = SSL.Connection(self._context, None)
        if self._is_name:
            # An address is not allowed there (RFC 6066, section 3).
            host = self._host
            connection.set_tlsext_host_name(host.encode("ascii" if host.isascii() else "idna"))
        # Weak, since the protocol keeps the connection, which keeps what it calls.
        protocol = ref(tlsProtocol)

        def verify(_: SSL.Connection, certificate: crypto.X509, error: int, depth: int, ok: int) -> bool:
            # Called for each certificate, from the authority's down to the broker's own; and again after
            # each problem. Whatever is raised here would be lost in OpenSSL.
            problem = self._problem(certificate, error=error, depth=depth, ok=bool(ok))
            if problem is None:
                return True
            connecting = protocol()
            if connecting is not None:
                connecting.failVerification(Failure(problem))
            return False

        connection.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, verify)
        return connection

    def _problem(self, certificate: crypto.X509, *, error: int, depth: int, ok: bool) -> Exception | None:
        if not ok:
            return CertificateRejected(error=error, depth=depth)
        if depth:
            return None
        try:
            return self._wrong_host(certificate.to_cryptography())
        except Exception:  # noqa: BLE001 -- no certificate is trusted because it is strange
            self._log.failure("The certificate of {host} cannot be read", host=self._host)
            return WrongHost((), fault="it cannot be read")

    def _wrong_host(self, certificate: x509.Certificate) -> WrongHost | None:
        check = verify_certificate_hostname if self._is_name else verify_certificate_ip_address
        try:
            check(certificate, self._host)
        except VerificationError:
            return WrongHost(_names(certificate))
        except CertificateError as error:
            return WrongHost(_names(certificate), fault=str(error))
        return None


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return [
        *extension.value.get_values_for_type(x509.DNSName),
        *map(str, extension.value.get_values_for_type(x509.IPAddress)),
    ]
