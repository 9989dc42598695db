"""The configuration of the service, as values."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from sampleapp.access.caller import TopicPatterns
from sampleapp.logs import LogSettings
from sampleapp.web.server import Limits


class Config(Struct, frozen=True, kw_only=True):
    """The configuration of the service. With the defaults it serves only this machine, without a broker."""

    listen: tuple[str, ...] = ("tcp:8080:interface=127.0.0.1",)
    """Twisted's descriptions of the server endpoints."""
    admin: str | None = None
    """The description of the operators' endpoint; ``None`` for no such endpoint."""
    callers: str = ""
    """The path of the callers file; if empty, every client may do everything."""
    is_open_to_everybody: bool = False
    """True if a service without a callers file may be reachable from other machines."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of the sites whose pages may use the service."""
    allowed_webhook_origins: tuple[str, ...] = ()
    """Names of the senders of webhooks that may deliver CloudEvents, in lower case."""
    allowed_hosts: tuple[str, ...] = ()
    """Hosts that requests without credentials may name, besides localhost and loopback addresses."""
    has_hsts: bool = True
    """True if answers over TLS tell browsers to use only TLS."""
    broker: str = "sqlite:sampleapp.sqlite3"
    """The broker's URL."""
    readings_topic: str = "readings"
    idempotent_topics: TopicPatterns = TopicPatterns()
    """The topics on Kafka whose records may have idempotency keys."""
    idempotency_window_s: float = 86_400.0
    """How long SQLite and memory remember a key, in seconds."""
    idempotency_rate: int = 20
    """The average rate of records on Kafka with a key, per second."""
    work_lease_s: float = 30.0
    """How long a lease of SQLite and memory lasts, in seconds."""
    work_attempts: int = 5
    """How often SQLite and memory give a message to a group of workers."""
    record_headers: tuple[str, ...] = ()
    """
    The header fields of requests that become headers of records, besides ``Content-Type``.

    Each as `sampleapp.messages.headers.check_recorded_name` returns it.
    """
    record_queries: tuple[str, ...] = ()
    """
    The parameters of queries that become headers of records.

    Each as `sampleapp.messages.headers.check_recorded_parameter` returns it.
    """
    has_record_content_type: bool = True
    """True if ``Content-Type`` becomes a header of the record."""
    records_caller: bool = False
    """True if the name of the caller becomes a header of each record."""
    schemas: str = ""
    """The path of the directory with the schemas of topics; if empty, there are none."""
    limits: Limits = Limits()
    drain_timeout_s: float = 10.0
    """How long a stopping service waits for requests in flight, in seconds."""
    drain_delay_s: float = 0.0
    """How long a stopping service reports that it is not ready before it closes its ports, in seconds."""
    log: LogSettings = LogSettings()


DEFAULTS: Final = Config()
