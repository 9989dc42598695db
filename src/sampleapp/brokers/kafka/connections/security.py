"""The TLS and SASL settings of connections to a cluster, loaded from their files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL import SSL

from sampleapp.brokers.kafka.config import KafkaConfig
from sampleapp.brokers.kafka.connections.credential_files import FileReader, load_credentials, load_token
from sampleapp.brokers.kafka.connections.failure_reason import Peer
from sampleapp.brokers.kafka.connections.sasl_mechanisms import SaslSteps, Token, mechanism_steps, oauthbearer
from sampleapp.errors import StartUpError
from sampleapp.outgoing.verified_tls import VerifiedConnections, client_context
from sampleapp.tls import require_callbacks

__all__ = ["Security"]


class Security:
    """TLS and SASL settings from one reading of the files. No representation of them shows a secret."""

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
        :raise StartUpError: a file is missing or invalid; the message names it and says why.
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
        """Return these settings with another token."""
        return Security(
            config=self._config, context=self._context, begin_sasl=_with_token(self._config, token)
        )

    def tls_for(self, host: str) -> VerifiedConnections | None:
        """
        Return the maker of TLS connections to a host; ``None`` without TLS.

        The certificate's chain and host are always verified before anything is sent.
        """
        return None if self._context is None else VerifiedConnections(self._context, host)

    def sasl_steps(self) -> SaslSteps:
        """
        Begin to authenticate on one connection.

        :raise RuntimeError: SASL is not configured.
        """
        if self._begin_sasl is None:
            raise RuntimeError("SASL is not configured")
        return self._begin_sasl()

    def peer(self, host: str, port: int) -> Peer:
        """Return a broker with the settings that sentences about a connection to it need."""
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


def _context(config: KafkaConfig, files: FileReader) -> SSL.Context:
    """
    Return the context that all connections share. The files are checked before OpenSSL reads them.

    OpenSSL's own messages about them do not help, and Twisted's `CertificateOptions` passes certificates on
    in a form that pyOpenSSL has deprecated.
    """
    require_callbacks()
    if config.ca is not None:
        _certificates(config.ca, option="ca", files=files)
    try:
        context = client_context(authorities=config.ca)
        if config.certificate is not None and config.key is not None:
            _require_usable(config.certificate, config.key, files)
            context.use_certificate_chain_file(os.fsencode(config.certificate))
            context.use_privatekey_file(os.fsencode(config.key))
            context.check_privatekey()
    except SSL.Error as error:
        raise StartUpError(
            "OpenSSL rejected the files given with ca=, certificate= and key=: they may be too weak for its "
            f"security level ({error})."
        ) from error
    return context


def _require_usable(certificate: Path, key: Path, files: FileReader) -> None:
    own = _certificates(certificate, option="certificate", files=files)[0]
    named = f"The file {key}, given with key="
    pem = files.read(key, option="key", secret=True)
    # Not chained: errors about a key do not belong in a log, as little as the key.
    try:
        public = load_pem_private_key(pem, password=None).public_key()
    except TypeError:
        raise StartUpError(f"{named}, is encrypted: decrypt it, for example with openssl pkey.") from None
    except (ValueError, UnsupportedAlgorithm):
        raise StartUpError(
            f"{named}, has no private key in PEM: give a file with a line -----BEGIN PRIVATE KEY-----."
        ) from None
    if public != own.public_key():
        raise StartUpError(
            f"{named}, does not belong to the first certificate in {certificate}, given with certificate=: "
            "put the service's own certificate first."
        )


def _certificates(path: Path, *, option: str, files: FileReader) -> Sequence[x509.Certificate]:
    pem = files.read(path, option=option, secret=False)
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise StartUpError(
            f"The file {path}, given with {option}=, has no certificates in PEM, or a damaged one: give "
            "a file with a line -----BEGIN CERTIFICATE-----."
        ) from error
