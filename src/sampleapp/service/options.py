"""
The options of the service: each with its kind, its setting in `Config`, and its help.

They are in the groups and the order in which ``--help`` and the reference show them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace
from twisted.python.usage import UsageError

from sampleapp.access.caller import TopicPatterns, is_legal_pattern
from sampleapp.logs import LEVELS, AccessLogFormat, LogFormat
from sampleapp.messages.headers import (
    CONTENT_TYPE,
    RecordedFields,
    check_recorded_name,
    check_recorded_parameter,
)
from sampleapp.model import is_legal_topic
from sampleapp.service.config import DEFAULTS, Config
from sampleapp.web.cors import check_origin
from sampleapp.web.server import check_host_name
from sampleapp.web.webhook_origins import check_webhook_origin

PREFIX: Final = "SAMPLEAPP_"
"""The names of environment variables begin with it."""
EXAMPLE_ENDPOINT: Final = "tcp:9090:interface=127.0.0.1"
_KEPT_FOR_ADMIN: Final = 32
"""Connections reserved for --admin, however many clients of other endpoints are connected."""

_Parse: TypeAlias = Callable[[str, str], Any]
"""
Converts a text to a value. The second argument is the option's default, as an example for messages.

Raises a ValueError with the rest of a sentence that begins with the option, without its full stop.
"""


def _text(text: str, _default: str) -> str:
    return text


class Kind(NamedTuple):
    """A kind of value."""

    name: str
    """Its name in ``--help``, such as ``SECONDS``."""
    parse: _Parse = _text


class Option(Struct, frozen=True, kw_only=True):
    """One option. Its help text is understandable without those of other options."""

    name: str
    """Without the dashes: ``max-body``."""
    short: str | None = None
    """One letter."""
    kind: Kind | None = None
    """The kind of its value; ``None`` for a flag."""
    collect: Callable[[Iterable[Any]], Any] | None = None
    """Joins the values of an option that may be given more than once; ``None`` for any other."""
    setting: str = ""
    """
    The path of its setting in `Config`, such as ``limits.max_body``. A flag inverts the default.

    Empty for a flag that makes the process do something else instead of running the service.
    """
    help: str

    @property
    def variable(self) -> str:
        """The name of its environment variable: ``SAMPLEAPP_MAX_BODY`` for ``max-body``."""
        return PREFIX + self.name.upper().replace("-", "_")

    @property
    def default(self) -> str:
        """The default of its setting, as it would be written on the command line; empty for none."""
        value = attrgetter(self.setting)(DEFAULTS)
        if isinstance(value, float):
            return f"{value:g}"
        if isinstance(value, Enum):
            return str(value.value)
        if self.collect is not None:
            return " ".join(value)
        return "" if value is None else str(value)

    def parse(self, arguments: Sequence[str]) -> Any:
        """
        Convert its arguments, of which there is at least one, to the value of its setting.

        The last one counts, unless the option may be given more than once.

        :raise UsageError: an argument is invalid; says what would be valid.
        """
        if self.kind is None:
            return not attrgetter(self.setting)(DEFAULTS)
        try:
            if self.collect is None:
                return self.kind.parse(arguments[-1], self.default)
            return self.collect([self.kind.parse(argument, self.default) for argument in arguments])
        except ValueError as error:
            raise UsageError(f"--{self.name} {error}.") from error


def config_of(given: Mapping[str, Sequence[str]]) -> Config:
    """
    Convert options to the configuration.

    :param given: the arguments of each option that is set, by its name; for a flag, anything.
    :raise UsageError: an argument is invalid, or two options contradict each other; says what would be valid.
    """
    config = DEFAULTS
    for option in OPTIONS:
        if option.setting and option.name in given:
            config = _with_setting(config, option.setting, option.parse(given[option.name]))
    if config.callers and config.is_open_to_everybody:
        raise UsageError(
            "--open-to-everybody lets every client do everything, and --callers only the callers in the "
            "file; give one of them."
        )
    if not config.has_record_content_type and CONTENT_TYPE in config.record_headers:
        raise UsageError(
            "--no-record-content-type contradicts --record-header Content-Type; give one of them."
        )
    _check_recorded_parameters(config)
    if config.admin is not None:
        config = _with_setting(config, "limits.kept_for_admin", _KEPT_FOR_ADMIN)
    return config


def _check_recorded_parameters(config: Config) -> None:
    """:raise UsageError: a header of records would come from two parts of a request."""
    fields = RecordedFields(config.record_headers, has_content_type=config.has_record_content_type)
    before: dict[str, str] = {}
    for name in config.record_queries:
        lower = name.lower()
        if lower in before:
            raise UsageError(
                f"--record-query {name} contradicts --record-query {before[lower]}: both would become the "
                f"header {lower} of a record; give one of them."
            )
        if fields.has(lower.encode("ascii")):
            raise UsageError(
                f"--record-query {name} contradicts --record-header, which keeps the header {lower} of "
                "requests: a record has one header of this name; give one of them."
            )
        before[lower] = name


def _with_setting(settings: Any, path: str, value: Any) -> Any:
    name, _, rest = path.partition(".")
    return replace(settings, **{name: _with_setting(getattr(settings, name), rest, value) if rest else value})


def _unique(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _endpoint(text: str, default: str) -> str:
    if ":" not in text:
        # A number is a common mistake. Other text is not repeated, since it may be a secret.
        number = f", not {text!r}" if text.isdigit() else ""
        raise ValueError(f"takes a Twisted endpoint, such as {default or EXAMPLE_ENDPOINT}{number}")
    return text


def _topic(text: str, _default: str) -> str:
    if not is_legal_topic(text):
        raise ValueError(
            "takes the name of a topic: 1 to 249 characters out of A-Z, a-z, 0-9, '.', '_' and '-', and "
            f"neither '.' nor '..'; not {text!r}"
        )
    return text


def _topic_pattern(text: str, _default: str) -> str:
    if not is_legal_pattern(text):
        raise ValueError(
            "takes the name of a topic, or a pattern such as orders.*: 1 to 249 characters out of A-Z, a-z, "
            f"0-9, '.', '_', '-' and '*'; not {text!r}"
        )
    return text


def _file(text: str, _default: str) -> str:
    if not text or "\0" in text:
        raise ValueError("takes the path of a file, which is not empty and has no NUL in it")
    return text


def _one_of(values: Mapping[str, Any]) -> _Parse:
    def parse(text: str, _default: str) -> Any:
        if text not in values:
            *most, last = values
            raise ValueError(f"takes {', '.join(most)} or {last}, not {text!r}")
        return values[text]

    return parse


def _whole(number: str, *, may_be_zero: bool = False) -> _Parse:
    def parse(text: str, default: str) -> int:
        if not re.fullmatch(r"0*[1-9][0-9]{0,17}" + ("|0+" if may_be_zero else ""), text):
            least = ", 0 or more" if may_be_zero else " above zero"
            raise ValueError(f"takes {number}{least}, such as {default}, not {text!r}")
        return int(text)

    return parse


def _seconds(*, may_be_zero: bool = False) -> _Parse:
    def parse(text: str, _default: str) -> float:
        # float() would take spaces, underscores, and digits of every script.
        is_number = re.fullmatch(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", text)
        seconds = float(text) if is_number else math.nan
        if not math.isfinite(seconds) or (seconds == 0 and not may_be_zero):
            least = "that is not negative" if may_be_zero else "above zero"
            raise ValueError(f"takes a number of seconds {least}, such as 10 or 2.5, not {text!r}")
        return seconds

    return parse


_BYTES: Final = Kind("BYTES", _whole("a whole number of bytes"))
_ENDPOINT: Final = Kind("ENDPOINT", _endpoint)
_FILE: Final = Kind("FILE", _file)
_NUMBER: Final = Kind("NUMBER", _whole("a whole number"))
_NUMBER_OR_ZERO: Final = Kind("NUMBER", _whole("a whole number", may_be_zero=True))
_SECONDS: Final = Kind("SECONDS", _seconds())
_SECONDS_OR_ZERO: Final = Kind("SECONDS", _seconds(may_be_zero=True))

GROUPS: Final[Mapping[str, tuple[Option, ...]]] = {
    "Listening": (
        Option(
            name="listen",
            short="l",
            kind=_ENDPOINT,
            collect=tuple,
            setting="listen",
            help="Twisted endpoint to listen on: tcp:PORT, tcp:PORT:interface=ADDRESS, "
            "https:PORT:privateKey=FILE:certKey=FILE, unix:PATH, and so on.",
        ),
        Option(
            name="admin",
            kind=_ENDPOINT,
            setting="admin",
            help="Twisted endpoint for operators, without credentials: /live, /ready, /metrics, /docs.",
        ),
        Option(
            name="no-hsts",
            setting="has_hsts",
            help="Leave out Strict-Transport-Security, which tells browsers to use only TLS.",
        ),
    ),
    "Brokers": (
        Option(
            name="broker",
            short="b",
            kind=Kind("URL"),
            setting="broker",
            help="Storage of the records: sqlite:PATH, kafka://HOST:PORT, or memory: (lost when the "
            "service ends).",
        ),
        Option(
            name="readings-topic",
            short="r",
            kind=Kind("TOPIC", _topic),
            setting="readings_topic",
            help="Topic of the readings: a record's key is the id, its value the text of a number.",
        ),
        Option(
            name="idempotent-topic",
            kind=Kind("PATTERN", _topic_pattern),
            collect=TopicPatterns,
            setting="idempotent_topics",
            help="Topic on Kafka for which requests may have Idempotency-Key, or a pattern with * for "
            "any characters. With SQLite and memory, requests for each topic may have it.",
        ),
        Option(
            name="idempotency-window",
            kind=_SECONDS,
            setting="idempotency_window_s",
            help="Time for which SQLite and memory remember an Idempotency-Key. Kafka's brokers have "
            "producer.id.expiration.ms instead.",
        ),
        Option(
            name="idempotency-rate",
            kind=Kind("NUMBER", _whole("a whole number of records a second")),
            setting="idempotency_rate",
            help="Average records per second with an Idempotency-Key that are published to Kafka, whose "
            "brokers keep each in memory; after 5000 at once, one more gets 429.",
        ),
        Option(
            name="work-lease",
            kind=_SECONDS,
            setting="work_lease_s",
            help="Time in which a worker must acknowledge or extend a lease on messages, with SQLite and "
            "memory. Kafka's groups have share.record.lock.duration.ms instead.",
        ),
        Option(
            name="work-attempts",
            kind=Kind("NUMBER", _whole("a whole number")),
            setting="work_attempts",
            help="Maximum times that SQLite and memory give a message to the workers of a group, until one "
            "accepts it. Kafka's groups have share.delivery.count.limit instead.",
        ),
    ),
    "Records": (
        Option(
            name="record-header",
            kind=Kind("NAME", lambda text, _: check_recorded_name(text)),
            collect=_unique,
            setting="record_headers",
            help="Header of requests to /topics/{topic} and of hooks that becomes a header of the "
            "record, or the beginning of names, such as X-GitHub-*. Content-Type is kept without this "
            "option.",
        ),
        Option(
            name="no-record-content-type",
            setting="has_record_content_type",
            help="Do not keep the Content-Type of such requests as a header of the record.",
        ),
        Option(
            name="record-query",
            kind=Kind("NAME", lambda text, _: check_recorded_parameter(text)),
            collect=_unique,
            setting="record_queries",
            help="Parameter in the query of POST /topics/{topic} and of hooks that becomes a header of the "
            "record, with its name in lower case. Others get 422.",
        ),
        Option(
            name="record-caller",
            setting="records_caller",
            help="Add the caller's name to each record, as the header sampleapp-caller. Needs --callers.",
        ),
        Option(
            name="schemas",
            kind=Kind("DIRECTORY", _file),
            setting="schemas",
            help="Directory in which TOPIC.json is the JSON Schema of that topic's contents; content that "
            "does not match gets 422.",
        ),
    ),
    "Access": (
        Option(
            name="callers",
            kind=_FILE,
            setting="callers",
            help="TOML file with the callers and their rights. Without it, every client on this machine "
            "may do everything.",
        ),
        Option(
            name="open-to-everybody",
            setting="is_open_to_everybody",
            help="Without --callers, let clients on other machines do everything, too.",
        ),
        Option(
            name="allow-host",
            kind=Kind("HOST", lambda text, _: check_host_name(text)),
            collect=_unique,
            setting="allowed_hosts",
            help="Name or address of the service that requests without credentials may have in Host, "
            "besides localhost and loopback addresses.",
        ),
        Option(
            name="allow-origin",
            kind=Kind("ORIGIN", lambda text, _: check_origin(text)),
            collect=_unique,
            setting="allowed_origins",
            help="Origin of a site whose pages may use the service from a browser (CORS), such as "
            "https://example.org.",
        ),
        Option(
            name="allow-webhook-origin",
            kind=Kind("NAME", lambda text, _: check_webhook_origin(text)),
            collect=_unique,
            setting="allowed_webhook_origins",
            help="Name of a sender of CloudEvents that asks for permission with WebHook-Request-Origin, "
            "such as eventgrid.azure.net.",
        ),
    ),
    "Limits": (
        Option(
            name="max-body",
            kind=_BYTES,
            setting="limits.max_body",
            help="Maximum length of the body of a request with one message; a longer one gets 413.",
        ),
        Option(
            name="max-batch-body",
            kind=_BYTES,
            setting="limits.max_batch_body",
            help="Maximum length of the body of a request with many messages, each of up to "
            "--max-body bytes; a longer one gets 413.",
        ),
        Option(
            name="max-body-memory",
            kind=_BYTES,
            setting="limits.max_body_memory",
            help="Maximum memory for request bodies that have arrived, their unpublished records, and "
            "unread pages; a request that needs more gets 503, a caller above half 429.",
        ),
        Option(
            name="max-connections",
            kind=_NUMBER,
            setting="limits.max_connections",
            help="Maximum open connections; fewer if the process may not open as many files.",
        ),
        Option(
            name="max-waiting",
            kind=_NUMBER,
            setting="limits.max_waiting",
            help="Maximum requests waiting for the broker at one time; one more gets 503.",
        ),
        Option(
            name="max-streams",
            kind=_NUMBER_OR_ZERO,
            setting="limits.max_streams",
            help="Maximum open streams, and maximum pages waiting for a record; one more gets 503. 0 "
            "permits none.",
        ),
        Option(
            name="max-streams-per-caller",
            kind=_NUMBER_OR_ZERO,
            setting="limits.max_streams_per_caller",
            help="Maximum open streams, and maximum waiting pages, of each caller in the callers file "
            "without max_streams; one more gets 429.",
        ),
        Option(
            name="max-followed-topics",
            kind=_NUMBER,
            setting="limits.max_followed_topics",
            help="Maximum topics that streams and waiting pages read at one time; one more gets 503.",
        ),
        Option(
            name="max-leases",
            kind=_NUMBER,
            setting="limits.max_leases",
            help="Maximum leases that workers may have from this service at one time; one more pull gets "
            "503. On Kafka, pulls that may get one count as well.",
        ),
        Option(
            name="header-timeout",
            kind=_SECONDS,
            setting="limits.header_timeout_s",
            help="Maximum time for the header of a request, from its first byte, then 408; and for a TLS "
            "handshake.",
        ),
        Option(
            name="min-body-rate",
            kind=Kind("BYTES", _whole("a whole number of bytes a second")),
            setting="limits.body_rate",
            help="Minimum bytes per second of a request's body, on average; a slower one gets 408.",
        ),
        Option(
            name="body-grace",
            kind=_SECONDS_OR_ZERO,
            setting="limits.body_grace_s",
            help="Time after its header in which a body may stay below --min-body-rate.",
        ),
        Option(
            name="body-idle-timeout",
            kind=_SECONDS,
            setting="limits.body_idle_timeout_s",
            help="Maximum pause in sending a body, however fast it was before; then 408.",
        ),
        Option(
            name="idle-timeout",
            kind=_SECONDS,
            setting="limits.idle_timeout_s",
            help="Maximum time for which a connection stays open without a request.",
        ),
        Option(
            name="send-timeout",
            kind=_SECONDS,
            setting="limits.send_timeout_s",
            help="Maximum time in which a client reads nothing of a response or a stream; then its "
            "connection is cut.",
        ),
    ),
    "Logging": (
        Option(
            name="log-format",
            kind=Kind("FORMAT", _one_of({each.value: each for each in LogFormat})),
            setting="log.format",
            help="Format of the log: text, or json for one object per line.",
        ),
        Option(
            name="log-level",
            kind=Kind("LEVEL", _one_of({level: level for level in LEVELS})),
            setting="log.level",
            help=f"Lowest level of the events in the log: {', '.join(LEVELS[:-1])} or {LEVELS[-1]}.",
        ),
        Option(
            name="access-log",
            kind=_FILE,
            setting="log.access_log",
            help="File that gets a line for each request; - is standard output.",
        ),
        Option(
            name="access-log-format",
            kind=Kind("FORMAT", _one_of({each.value: each for each in AccessLogFormat})),
            setting="log.access_log_format",
            help="Format of the access log: combined (Apache's, with more fields) or json.",
        ),
    ),
    "Stopping": (
        Option(
            name="drain-delay",
            kind=_SECONDS_OR_ZERO,
            setting="drain_delay_s",
            help="Time for which a stopping service still serves requests, while /ready answers 503, "
            "before it closes its ports.",
        ),
        Option(
            name="drain-timeout",
            kind=_SECONDS_OR_ZERO,
            setting="drain_timeout_s",
            help="Maximum time for which a stopping service waits for requests in flight; streams end in "
            "the first half of it.",
        ),
    ),
    "Information": (
        Option(
            name="check",
            help="Check the configuration, and exit. Opens no port and does not connect to Kafka.",
        ),
        Option(name="version", help="Show the version, and exit."),
        Option(name="help", short="h", help="Show this help, and exit."),
    ),
}

OPTIONS: Final = tuple(option for group in GROUPS.values() for option in group)
