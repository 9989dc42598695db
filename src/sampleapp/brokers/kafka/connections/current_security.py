"""What new connections are secured with, while others replace certificates, passwords and tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.config import KafkaConfig
from sampleapp.brokers.kafka.connections.failure_reason import Peer
from sampleapp.brokers.kafka.connections.files import FileReader, load_token
from sampleapp.brokers.kafka.connections.security import Security
from sampleapp.brokers.shared.log_limit import LogLimit
from sampleapp.errors import StartUpError

__all__ = ["REFUSAL_INTERVAL_S", "CurrentSecurity"]

REFUSAL_INTERVAL_S: Final = 60.0
"""At least so long after files were read because of a refusal, a refusal has them read again, in seconds."""

_FILES: Final = "files"


class CurrentSecurity:
    """
    TLS and SASL as they are now: read again when somebody says so, and when a broker refuses what was read.

    Connections that are open keep what they were made with. Files that are wrong change nothing.
    """

    _log = Logger()

    def __init__(self, config: KafkaConfig, *, environ: Mapping[str, str], clock: IReactorTime) -> None:
        """
        Read the files that the configuration names, and the credentials.

        :param environ: the environment, where credentials may be.
        :param clock: says when a refusal may have the files read again.
        :raise StartUpError: one is missing or not what it has to be; the message names it and says why.
        """
        self._config = config
        self._environ = environ
        self._clock = clock
        self._files = FileReader()
        self._limit = LogLimit(clock)
        self._security = Security.load(config, environ=environ, files=self._files)
        self._contents = self._files.contents()
        self._refused_at_s: float | None = None
        if config.sasl in {"PLAIN", "OAUTHBEARER"} and not config.tls:
            self._log.warn(
                "The {what} for Kafka goes over the network as it is: use kafka+tls://{otherwise}.",
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
        """A broker, with what a sentence about a connection to it needs to know."""
        return self._security.peer(host, port)

    def for_new_connection(self) -> Security:
        """
        Return what to secure one more connection with.

        A token is read anew each time: it is valid for minutes, and whoever writes its file tells nobody. If
        it cannot be read, that is logged, and the last one is used.
        """
        if self._config.token_file is not None:
            self._read_token(self._config.token_file)
        return self._security

    def reload(self) -> None:
        """
        Read everything again.

        :raise StartUpError: something is missing or not what it has to be; nothing has changed then.
        """
        self._security = Security.load(self._config, environ=self._environ, files=self._files)
        self._contents = self._files.contents()

    def has_changed_since(self, refused: Security) -> bool:
        """
        A connection was refused: see whether there is something else to try, perhaps by reading again.

        For the latter at least `REFUSAL_INTERVAL_S` have to be over since the last time that a refusal did
        it: a broker that refuses everything must not keep the service reading. A file that is wrong is
        logged.

        :param refused: what the connection was secured with.
        :return: whether another attempt would be made with anything else.
        """
        if self._security is not refused:
            return True
        now_s = self._clock.seconds()
        if self._refused_at_s is not None and now_s - self._refused_at_s < REFUSAL_INTERVAL_S:
            return False
        self._refused_at_s = now_s
        before = self._contents
        try:
            self.reload()
        except StartUpError as error:
            self._not_read(error)
            return False
        self._limit.forget(_FILES)
        if self._contents == before:
            return False
        self._log.info("Kafka's credentials or certificates were read again after a refusal: they are new.")
        return True

    def _read_token(self, path: Path) -> None:
        try:
            token = load_token(path, files=self._files)
        except StartUpError as error:
            self._not_read(error)
            return
        self._limit.forget(_FILES)
        digest = self._files.contents()[path]
        if digest != self._contents[path]:
            self._contents = {**self._contents, path: digest}
            self._security = self._security.with_token(token)

    def _not_read(self, error: StartUpError) -> None:
        if self._limit.is_news(_FILES, str(error)):
            self._log.warn("{reason} What was read before stays in use.", reason=str(error))
