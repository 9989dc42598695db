"""
The TLS and SASL settings of connections to a cluster, loaded from their files.

They are loaded again when certificates, passwords or tokens are replaced.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL import SSL
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.config import KafkaConfig
from sampleapp.brokers.kafka.connections.diagnostics import Peer
from sampleapp.brokers.kafka.connections.sasl_mechanisms import (
    Credentials,
    SaslSteps,
    Token,
    mechanism_steps,
    oauthbearer,
)
from sampleapp.concurrency.failures import LogLimit
from sampleapp.errors import StartUpError
from sampleapp.files import changeable_by_all, is_readable_by_all, shown_path
from sampleapp.outgoing.verified_tls import VerifiedConnections, client_context
from sampleapp.tls import require_callbacks

_MAX_BYTES: Final = 1024 * 1024

USERNAME_VARIABLE: Final = "SAMPLEAPP_KAFKA_USERNAME"
PASSWORD_VARIABLE: Final = "SAMPLEAPP_KAFKA_PASSWORD"  # noqa: S105 -- its name, not its value

_FORM: Final = "it needs the two lines username=NAME and password=PASSWORD"


# RFC 6750, section 2.1.
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")


class FileReader:
    """
    Reads the files that the options of the broker's URL name.

    It remembers the files that it has warned of, and a digest of each file's content, to detect a change.
    """

    _log = Logger()

    def __init__(self) -> None:
        self._warned: set[Path] = set()
        self._digests: dict[Path, bytes] = {}

    def read(self, path: Path, *, option: str, secret: bool) -> bytes:
        """
        Read one file.

        :param option: the option that names the file, for messages.
        :param secret: true to warn if every user of this machine may read the file.
        :raise StartUpError: it cannot be read, is too large or not a regular file, or every user may
            change it; the message names it and says why.
        """
        named = f"The file {shown_path(path)}, given with {option}="
        try:
            # Opening a pipe would block, and a device may never end.
            if not path.is_file():
                what = "is not a regular file" if path.exists() else "does not exist"
                raise StartUpError(f"{named}, {what}: give the path of one.")
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                content = file.read(_MAX_BYTES + 1)
            fault = changeable_by_all(path, mode)
        except OSError as error:
            raise StartUpError(f"{named}, cannot be read: {error.strerror}.") from error
        if fault is not None:
            raise StartUpError(f"{named}, is not safe to use: {fault}.")
        if len(content) > _MAX_BYTES:
            raise StartUpError(
                f"{named}, is larger than {_MAX_BYTES} bytes: give the path of the right file."
            )
        if secret:
            self._warn_if_open_to_all(path, option=option, mode=mode)
        self._digests[path] = hashlib.sha256(content).digest()
        return content

    def digests(self) -> Mapping[Path, bytes]:
        """Return a digest of each file's content when it was last read."""
        return dict(self._digests)

    def _warn_if_open_to_all(self, path: Path, *, option: str, mode: int) -> None:
        if not is_readable_by_all(mode):
            self._warned.discard(path)
        elif path not in self._warned:
            self._warned.add(path)
            self._log.warn(
                "The file {path}, given with {option}=, holds a secret, and every user of this machine may "
                "read it: remove that permission (chmod o= {path}).",
                path=str(path),
                option=option,
            )


def load_token(path: Path, *, files: FileReader) -> Token:
    """
    Read the token for OAUTHBEARER.

    :raise StartUpError: it is missing or invalid; the message has nothing of it.
    """
    content = files.read(path, option="token_file", secret=True).strip()
    if _TOKEN.fullmatch(content) is None:
        raise StartUpError(
            f"The file {path}, given with token_file=, {'has no token' if content else 'is empty'}: it "
            "must hold one token and nothing else, of letters, digits and the characters - . _ ~ + / =."
        )
    return Token(content.decode())


def load_credentials(path: Path | None, *, environ: Mapping[str, str], files: FileReader) -> Credentials:
    """
    Read the user name and the password.

    :param path: the file that holds them; ``None`` to take them from the environment.
    :raise StartUpError: they are missing or invalid; the message has nothing of them.
    """
    if path is not None:
        return _from_file(path, files)
    username, password = environ.get(USERNAME_VARIABLE), environ.get(PASSWORD_VARIABLE)
    if not username or not password:
        raise StartUpError(
            "The broker's URL has sasl=, but there are no credentials: give credentials=FILE with the two "
            f"lines username=NAME and password=PASSWORD, or set {USERNAME_VARIABLE} and {PASSWORD_VARIABLE}."
        )
    for name, value in ((USERNAME_VARIABLE, username), (PASSWORD_VARIABLE, password)):
        if not _encodable(value):
            raise StartUpError(f"The value of {name} is not UTF-8: set it again.")
    return Credentials(username=username, password=password)


def _from_file(path: Path, files: FileReader) -> Credentials:
    content = files.read(path, option="credentials", secret=True)
    named = f"The file {path}, given with credentials=,"
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        # Not chained: that error holds the content.
        raise StartUpError(f"{named} is not UTF-8: {_FORM}.") from None
    values: dict[str, str] = {}
    # Not splitlines(), which also splits at characters that a password may have.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, _, value = line.removesuffix("\r").partition("=")
        if name not in {"username", "password"} or not value or "\0" in value:
            raise StartUpError(f"{named} is wrong in line {number}: {_FORM}, without quotation marks.")
        if name in values:
            raise StartUpError(f"{named} has a second {name}= in line {number}: {_FORM}.")
        values[name] = value
    for name in ("username", "password"):
        if name not in values:
            raise StartUpError(f"{named} has no line {name}=: {_FORM}.")
    return Credentials(**values)


def _encodable(value: str) -> bool:
    """Return whether it has a UTF-8 form; bytes of the environment that are not UTF-8 have none (PEP 383)."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


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


REJECTION_INTERVAL_S: Final = 60.0
"""Minimum time between two reloads that rejections cause, in seconds."""

_FILES: Final = "files"


class CurrentSecurity:
    """
    The TLS and SASL settings of new connections, reloaded on request, and when a broker rejects them.

    Open connections keep the settings that they were made with. Invalid files change nothing.
    """

    _log = Logger()

    def __init__(self, config: KafkaConfig, *, environ: Mapping[str, str], clock: IReactorTime) -> None:
        """
        Read the files that the configuration names, and the credentials.

        :param environ: the environment, where credentials may be.
        :param clock: the time, for `REJECTION_INTERVAL_S`.
        :raise StartUpError: a file is missing or invalid; the message names it and says why.
        """
        self._config = config
        self._environ = environ
        self._clock = clock
        self._files = FileReader()
        self._limit = LogLimit(clock)
        self._security = Security.load(config, environ=environ, files=self._files)
        self._digests = self._files.digests()
        self._rejected_at_s: float | None = None
        if config.sasl in {"PLAIN", "OAUTHBEARER"} and not config.tls:
            self._log.warn(
                "The {what} for Kafka is sent over the network unencrypted: use kafka+tls://{otherwise}.",
                what="password" if config.sasl == "PLAIN" else "token",
                otherwise=", or one of the SCRAM mechanisms" if config.sasl == "PLAIN" else "",
            )

    @property
    def paths(self) -> Sequence[Path]:
        """The files that are read, in the order of the options' names in the reference."""
        config = self._config
        named = (config.ca, config.certificate, config.key, config.credentials, config.token_file)
        return [path for path in named if path is not None]

    def peer(self, host: str, port: int) -> Peer:
        """Return a broker with the settings that sentences about a connection to it need."""
        return self._security.peer(host, port)

    def for_new_connection(self) -> Security:
        """
        Return the settings for one more connection.

        A token is read for each connection: it is valid for minutes only. If it cannot be read, that is
        logged, and the last one is used.
        """
        if self._config.token_file is not None:
            self._read_token(self._config.token_file)
        return self._security

    def reload(self) -> None:
        """
        Read everything again.

        :raise StartUpError: a file is missing or invalid; then nothing has changed.
        """
        self._security = Security.load(self._config, environ=self._environ, files=self._files)
        self._digests = self._files.digests()

    def has_changed_since(self, rejected: Security) -> bool:
        """
        Return whether the settings differ from those of a rejected connection, after a reload if they do not.

        Rejections reload at most once in `REJECTION_INTERVAL_S`: a broker that rejects everything must not
        keep the service reading files. An invalid file is logged.

        :param rejected: the settings of the refused connection.
        """
        if self._security is not rejected:
            return True
        now_s = self._clock.seconds()
        if self._rejected_at_s is not None and now_s - self._rejected_at_s < REJECTION_INTERVAL_S:
            return False
        self._rejected_at_s = now_s
        before = self._digests
        try:
            self.reload()
        except StartUpError as error:
            self._log_not_read(error)
            return False
        self._limit.forget(_FILES)
        if self._digests == before:
            return False
        self._log.info("Reloaded Kafka's credentials or certificates after a rejection: they have changed.")
        return True

    def _read_token(self, path: Path) -> None:
        try:
            token = load_token(path, files=self._files)
        except StartUpError as error:
            self._log_not_read(error)
            return
        self._limit.forget(_FILES)
        digest = self._files.digests()[path]
        if digest != self._digests[path]:
            self._digests = {**self._digests, path: digest}
            self._security = self._security.with_token(token)

    def _log_not_read(self, error: StartUpError) -> None:
        if self._limit.is_news(_FILES, str(error)):
            self._log.warn(
                "{reason} The credentials and certificates that were read before stay in use.",
                reason=str(error),
            )
