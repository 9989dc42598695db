"""The current TLS and SASL settings, reloaded when certificates, passwords or tokens are replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.config import KafkaConfig
from sampleapp.brokers.kafka.connections.credential_files import FileReader, load_token
from sampleapp.brokers.kafka.connections.failure_reason import Peer
from sampleapp.brokers.kafka.connections.security import Security
from sampleapp.concurrency.log_limit import LogLimit
from sampleapp.errors import StartUpError

__all__ = ["REJECTION_INTERVAL_S", "CurrentSecurity"]

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
