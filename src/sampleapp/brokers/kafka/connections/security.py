"""What a connection to the cluster is secured with: loaded once, before anything is connected to."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import ref

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL import SSL, crypto
from OpenSSL.crypto import X509StoreFlags
from service_identity import VerificationError
from service_identity.cryptography import verify_certificate_hostname, verify_certificate_ip_address
from service_identity.exceptions import CertificateError
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from sampleapp.brokers.kafka.config import KafkaConfig
from sampleapp.brokers.kafka.connections.failure_reason import Peer
from sampleapp.brokers.kafka.connections.files import FileReader, load_credentials, load_token
from sampleapp.brokers.kafka.connections.sasl import SaslSteps, Token, mechanism_steps, oauthbearer
from sampleapp.errors import StartUpError

if TYPE_CHECKING:
    from twisted.protocols.tls import TLSMemoryBIOProtocol

__all__ = ["CertificateRejected", "Security", "VerifiedConnections", "WrongHost"]


class Security:
    """TLS and SASL, as the files have it that were read. Nothing secret shows in any representation of it."""

    def __init__(
        self,
        *,
        config: KafkaConfig,
        context: SSL.Context | None,
        begin_sasl: Callable[[], SaslSteps] | None,
    ) -> None:
        """Use `load`."""
        self._config = config
        self._context = context
        self._begin_sasl = begin_sasl

    @classmethod
    def load(cls, config: KafkaConfig, *, environ: Mapping[str, str], files: FileReader) -> Security:
        """
        Read the files that the configuration names, and the credentials.

        :param environ: the environment, where credentials may be.
        :param files: reads them.
        :raise StartUpError: one is missing or not what it has to be; the message names it and says why.
        """
        context = _context(config, files) if config.tls else None
        begin_sasl = None
        if config.sasl == "OAUTHBEARER" and config.token_file is not None:
            begin_sasl = _with_token(config, load_token(config.token_file, files=files))
        elif config.sasl is not None:
            credentials = load_credentials(config.credentials, environ=environ, files=files)
            begin_sasl = mechanism_steps(config.sasl, credentials)
        return cls(config=config, context=context, begin_sasl=begin_sasl)

    def with_token(self, token: Token) -> Security:
        """Return the same, but for the token."""
        return Security(
            config=self._config, context=self._context, begin_sasl=_with_token(self._config, token)
        )

    def tls_for(self, host: str) -> IOpenSSLClientConnectionCreator | None:
        """
        What makes TLS connections to a host; ``None`` without TLS.

        The certificate's chain and the host are always verified, before anything is sent.
        """
        return None if self._context is None else VerifiedConnections(self._context, host)

    def mechanism(self) -> str | None:
        """The SASL mechanism; ``None`` without SASL."""
        return self._config.sasl

    def sasl_steps(self) -> SaslSteps:
        """
        Begin to authenticate on one connection.

        :raise RuntimeError: there is no mechanism.
        """
        if self._begin_sasl is None:
            raise RuntimeError("SASL is not configured")
        return self._begin_sasl()

    def peer(self, host: str, port: int) -> Peer:
        """A broker, with what a sentence about a connection to it needs to know."""
        return Peer(
            host=host,
            port=port,
            tls=self._config.tls,
            own_ca=self._config.ca is not None,
            client_certificate=self._config.certificate is not None,
            mechanism=self._config.sasl,
        )


def _with_token(config: KafkaConfig, token: Token) -> Callable[[], SaslSteps]:
    return lambda: oauthbearer(token, config.extensions)


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


def _context(config: KafkaConfig, files: FileReader) -> SSL.Context:
    """
    What all connections share. OpenSSL reads the files itself, after it was seen that they are right.

    Its own messages about them are of no help, and Twisted's `CertificateOptions` passes on certificates
    in a form that pyOpenSSL has deprecated.
    """
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION)
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)
    try:
        if config.ca is None:
            context.set_default_verify_paths()
        else:
            _certificates(config.ca, option="ca", files=files)
            context.load_verify_locations(os.fsencode(config.ca))
        if config.certificate is not None and config.key is not None:
            _require_usable(config.certificate, config.key, files)
            context.use_certificate_chain_file(os.fsencode(config.certificate))
            context.use_privatekey_file(os.fsencode(config.key))
            context.check_privatekey()
    except SSL.Error as error:
        raise StartUpError(
            "OpenSSL does not take the files given with ca=, certificate= and key=: they may be too weak for "
            f"its security level ({error})."
        ) from error
    _require_callbacks(context)
    store = context.get_cert_store()
    if config.ca is not None and store is not None:
        # Whatever is in the file is trusted, also an intermediate authority without its root: as Java
        # does with a trust store.
        store.set_flags(X509StoreFlags.PARTIAL_CHAIN)
    return context


def _require_callbacks(context: SSL.Context) -> None:
    """Find out now whether OpenSSL may call back, for which pyOpenSSL makes code at run time."""
    try:
        SSL.Connection(context, None).set_verify(SSL.VERIFY_PEER, lambda *_: True)
    except MemoryError as error:
        raise StartUpError(
            "TLS to Kafka cannot be used in a process that may not make memory executable: under systemd, "
            "set MemoryDenyWriteExecute=no."
        ) from error


def _require_usable(certificate: Path, key: Path, files: FileReader) -> None:
    own = _certificates(certificate, option="certificate", files=files)[0]
    named = f"The file {key}, given with key="
    pem = files.read(key, option="key", secret=True)
    # Nothing here is chained: what is said about a key is as little for a log as the key.
    try:
        public = load_pem_private_key(pem, password=None).public_key()
    except TypeError:
        raise StartUpError(f"{named}, is encrypted: decrypt it, for example with openssl pkey.") from None
    except (ValueError, UnsupportedAlgorithm):
        raise StartUpError(
            f"{named}, has no private key in PEM: it begins with -----BEGIN PRIVATE KEY-----."
        ) from None
    if public != own.public_key():
        raise StartUpError(
            f"{named}, does not belong to the first certificate in {certificate}, given with certificate=: "
            "the client's own certificate comes first there."
        )


def _certificates(path: Path, *, option: str, files: FileReader) -> Sequence[x509.Certificate]:
    pem = files.read(path, option=option, secret=False)
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise StartUpError(
            f"The file {path}, given with {option}=, has no certificates in PEM, or a damaged one: they "
            "begin with -----BEGIN CERTIFICATE-----."
        ) from error


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return [
        *extension.value.get_values_for_type(x509.DNSName),
        *map(str, extension.value.get_values_for_type(x509.IPAddress)),
    ]
