"""The options of the service, in the groups and the order in which ``--help`` and the reference show them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from sampleapp.logs import LEVELS
from sampleapp.service.config import DEFAULTS

__all__ = ["GROUPS", "PREFIX", "Option", "OptionGroup"]

PREFIX: Final = "SAMPLEAPP_"
"""The names of environment variables begin with it."""
_HELP_COLUMN: Final = 30
_LIMITS: Final = DEFAULTS.limits


class Option(Struct, frozen=True, kw_only=True):
    """One option. Its help text is understandable without those of other options."""

    name: str
    """Without the dashes: ``max-body``."""
    short: str | None = None
    """One letter."""
    value: str | None = None
    """The name of its value in ``--help``, such as ``SECONDS``; ``None`` for a flag."""
    default: str | None = None
    """As it would be written on the command line; ``None`` for no default."""
    is_repeatable: bool = False
    is_action: bool = False
    """True for a flag that makes the process do something else instead of running the service."""
    help: str

    @property
    def is_flag(self) -> bool:
        """True if it takes no value."""
        return self.value is None

    @property
    def variable(self) -> str:
        """The name of its environment variable: ``SAMPLEAPP_MAX_BODY`` for ``max-body``."""
        return PREFIX + self.name.upper().replace("-", "_")

    def help_lines(self, *, width: int) -> Iterator[str]:
        """Format its entry in ``--help``, in lines of at most ``width`` characters."""
        short = f"-{self.short}, " if self.short else "    "
        head = f"  {short}--{self.name}" + (f" {self.value}" if self.value else "")
        text = self.help + (" May be given more than once." if self.is_repeatable else "")
        if not self.is_flag:
            text += f" [default:\N{NO-BREAK SPACE}{self.default or 'none'}]"
        if len(head) > _HELP_COLUMN - 2:
            yield head
            head = ""
        # Broken at hyphens, the name of an option could not be searched for.
        for line in textwrap.wrap(text, width - _HELP_COLUMN, break_on_hyphens=False):
            yield f"{head:<{_HELP_COLUMN}}{line}".replace("\N{NO-BREAK SPACE}", " ")
            head = ""


class OptionGroup(Struct, frozen=True):
    """Options that belong together."""

    title: str
    options: tuple[Option, ...]

    def help(self, *, width: int) -> str:
        """Format its part of ``--help``, in lines of at most ``width`` characters."""
        lines = [line for option in self.options for line in option.help_lines(width=width)]
        return "\n".join([f"{self.title}:", *lines])


GROUPS: Final = (
    OptionGroup(
        "Listening",
        (
            Option(
                name="listen",
                short="l",
                value="ENDPOINT",
                default=" ".join(DEFAULTS.listen),
                is_repeatable=True,
                help="Twisted endpoint to listen on: tcp:PORT, tcp:PORT:interface=ADDRESS, "
                "https:PORT:privateKey=FILE:certKey=FILE, unix:PATH, and so on.",
            ),
            Option(
                name="admin",
                value="ENDPOINT",
                help="Twisted endpoint for operators, without credentials: /live, /ready, /metrics, /docs.",
            ),
            Option(
                name="no-hsts",
                help="Leave out Strict-Transport-Security, which tells browsers to use only TLS.",
            ),
        ),
    ),
    OptionGroup(
        "Brokers",
        (
            Option(
                name="broker",
                short="b",
                value="URL",
                default=DEFAULTS.broker,
                help="Storage of the records: sqlite:PATH, kafka://HOST:PORT, or memory: (lost when the "
                "service ends).",
            ),
            Option(
                name="readings-topic",
                short="r",
                value="TOPIC",
                default=DEFAULTS.readings_topic,
                help="Topic of the readings: a record's key is the id, its value the text of a number.",
            ),
            Option(
                name="idempotent-topic",
                value="PATTERN",
                is_repeatable=True,
                help="Topic on Kafka for which requests may have Idempotency-Key, or a pattern with * for "
                "any characters. With SQLite and memory, requests for each topic may have it.",
            ),
            Option(
                name="idempotency-window",
                value="SECONDS",
                default=f"{DEFAULTS.idempotency_window_s:g}",
                help="Time for which SQLite and memory remember an Idempotency-Key. Kafka's brokers have "
                "producer.id.expiration.ms instead.",
            ),
            Option(
                name="idempotency-rate",
                value="NUMBER",
                default=str(DEFAULTS.idempotency_rate),
                help="Average records per second with an Idempotency-Key that are published to Kafka, whose "
                "brokers keep each in memory; after 5000 at once, one more gets 429.",
            ),
        ),
    ),
    OptionGroup(
        "Records",
        (
            Option(
                name="record-header",
                value="NAME",
                is_repeatable=True,
                help="Header of requests to /topics/{topic} and of hooks that becomes a header of the "
                "record, or the beginning of names, such as X-GitHub-*. Content-Type is kept without this "
                "option.",
            ),
            Option(
                name="no-record-content-type",
                help="Do not keep the Content-Type of such requests as a header of the record.",
            ),
        ),
    ),
    OptionGroup(
        "Access",
        (
            Option(
                name="callers",
                value="FILE",
                help="TOML file with the callers and their rights. Without it, every client on this machine "
                "may do everything.",
            ),
            Option(
                name="open-to-everybody",
                help="Without --callers, let clients on other machines do everything, too.",
            ),
            Option(
                name="allow-host",
                value="HOST",
                is_repeatable=True,
                help="Name or address of the service that requests without credentials may have in Host, "
                "besides localhost and loopback addresses.",
            ),
            Option(
                name="allow-origin",
                value="ORIGIN",
                is_repeatable=True,
                help="Origin of a site whose pages may use the service from a browser (CORS), such as "
                "https://example.org.",
            ),
        ),
    ),
    OptionGroup(
        "Limits",
        (
            Option(
                name="max-body",
                value="BYTES",
                default=str(_LIMITS.max_body),
                help="Maximum length of the body of a request with one message; a longer one gets 413.",
            ),
            Option(
                name="max-batch-body",
                value="BYTES",
                default=str(_LIMITS.max_batch_body),
                help="Maximum length of the body of a request with many messages, each of up to "
                "--max-body bytes; a longer one gets 413.",
            ),
            Option(
                name="max-body-memory",
                value="BYTES",
                default=str(_LIMITS.max_body_memory),
                help="Maximum memory for request bodies that have arrived, their unpublished records, and "
                "unread pages; a request that needs more gets 503, a caller above half 429.",
            ),
            Option(
                name="max-connections",
                value="NUMBER",
                default=str(_LIMITS.max_connections),
                help="Maximum open connections; fewer if the process may not open as many files.",
            ),
            Option(
                name="max-waiting",
                value="NUMBER",
                default=str(_LIMITS.max_waiting),
                help="Maximum requests waiting for the broker at one time; one more gets 503.",
            ),
            Option(
                name="max-streams",
                value="NUMBER",
                default=str(_LIMITS.max_streams),
                help="Maximum open streams, and maximum pages waiting for a record; one more gets 503. 0 "
                "permits none.",
            ),
            Option(
                name="max-streams-per-caller",
                value="NUMBER",
                default=str(_LIMITS.max_streams_per_caller),
                help="Maximum open streams, and maximum waiting pages, of each caller in the callers file "
                "without max_streams; one more gets 429.",
            ),
            Option(
                name="max-followed-topics",
                value="NUMBER",
                default=str(_LIMITS.max_followed_topics),
                help="Maximum topics that streams and waiting pages read at one time; one more gets 503.",
            ),
            Option(
                name="header-timeout",
                value="SECONDS",
                default=f"{_LIMITS.header_timeout_s:g}",
                help="Maximum time for the header of a request, from its first byte, then 408; and for a TLS "
                "handshake.",
            ),
            Option(
                name="min-body-rate",
                value="BYTES",
                default=str(_LIMITS.body_rate),
                help="Minimum bytes per second of a request's body, on average; a slower one gets 408.",
            ),
            Option(
                name="body-grace",
                value="SECONDS",
                default=f"{_LIMITS.body_grace_s:g}",
                help="Time after its header in which a body may stay below --min-body-rate.",
            ),
            Option(
                name="body-idle-timeout",
                value="SECONDS",
                default=f"{_LIMITS.body_idle_timeout_s:g}",
                help="Maximum pause in sending a body, however fast it was before; then 408.",
            ),
            Option(
                name="idle-timeout",
                value="SECONDS",
                default=f"{_LIMITS.idle_timeout_s:g}",
                help="Maximum time for which a connection stays open without a request.",
            ),
            Option(
                name="send-timeout",
                value="SECONDS",
                default=f"{_LIMITS.send_timeout_s:g}",
                help="Maximum time in which a client reads nothing of an answer or a stream; then its "
                "connection is cut.",
            ),
        ),
    ),
    OptionGroup(
        "Logging",
        (
            Option(
                name="log-format",
                value="FORMAT",
                default=DEFAULTS.log.format.value,
                help="Format of the log: text, or json for one object per line.",
            ),
            Option(
                name="log-level",
                value="LEVEL",
                default=DEFAULTS.log.level,
                help=f"Lowest level of the events in the log: {', '.join(LEVELS[:-1])} or {LEVELS[-1]}.",
            ),
            Option(
                name="access-log",
                value="FILE",
                help="File that gets a line for each request; - is standard output.",
            ),
            Option(
                name="access-log-format",
                value="FORMAT",
                default=DEFAULTS.log.access_log_format.value,
                help="Format of the access log: combined (Apache's, with more fields) or json.",
            ),
        ),
    ),
    OptionGroup(
        "Stopping",
        (
            Option(
                name="drain-delay",
                value="SECONDS",
                default=f"{DEFAULTS.drain_delay_s:g}",
                help="Time for which a stopping service still serves requests, while /ready answers 503, "
                "before it closes its ports.",
            ),
            Option(
                name="drain-timeout",
                value="SECONDS",
                default=f"{DEFAULTS.drain_timeout_s:g}",
                help="Maximum time for which a stopping service waits for requests in flight; streams end in "
                "the first half of it.",
            ),
        ),
    ),
    OptionGroup(
        "Information",
        (
            Option(
                name="check",
                is_action=True,
                help="Check the configuration, and exit. Opens no port and does not connect to Kafka.",
            ),
            Option(name="version", is_action=True, help="Show the version, and exit."),
            Option(name="help", short="h", is_action=True, help="Show this help, and exit."),
        ),
    ),
)
