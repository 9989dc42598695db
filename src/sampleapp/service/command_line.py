"""
The command line of ``twistd sampleapp`` and its environment variables, parsed into values.

Variables are converted to command-line arguments, so that an option is parsed and refused in one way.
"""

from __future__ import annotations

import getopt
import math
import os
import re
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, ClassVar, Final

from twisted.python.usage import Options as TwistedOptions
from twisted.python.usage import UsageError

from sampleapp import __version__
from sampleapp.access.patterns import TopicPatterns, is_legal_pattern
from sampleapp.logs import LEVELS, AccessLogFormat, LogFormat, LogSettings
from sampleapp.messages.request_headers import CONTENT_TYPE, NotRecordable, check_recorded_name
from sampleapp.model import is_legal_topic
from sampleapp.service.config import DEFAULTS, Config
from sampleapp.service.options import GROUPS, PREFIX, Option
from sampleapp.web.cors import NotAnOrigin, check_origin
from sampleapp.web.server import Limits, NotAHost, check_host_name

__all__ = ["Options", "is_made_by_kubernetes"]

_OPTIONS: Final = tuple(option for group in GROUPS for option in group.options)
_DEFAULT_LISTEN: Final = DEFAULTS.listen[0]
_EXAMPLE_ADMIN: Final = "tcp:9090:interface=127.0.0.1"
_KEPT_FOR_ADMIN: Final = 32
"""Connections reserved for --admin, however many clients of other endpoints are connected."""

# The words of `getopt`, and so of Twisted.
_UNKNOWN_OPTION: Final = re.compile(r"option (?P<name>\S+) not recognized")
_PORT_OPTIONS: Final = ("--port", "-p")
_OPTION_IN_TEXT: Final = re.compile(r"(?<![\w-])--(?P<name>[a-z][a-z-]*[a-z])(?![\w-])")

_SHOWN_AT_ONCE: Final = frozenset({"help", "version"})
"""Options that end the process before the rest of the command line is parsed."""
_HAVE_METHODS: Final = _SHOWN_AT_ONCE | {option.name for option in _OPTIONS if option.is_repeatable}
_WIDTH: Final = 80

_EXAMPLES: Final = """
Examples:

  {command}
  curl -H 'Content-Type: application/json' \\
       -d '{{"topic": "readings", "key": "kitchen", "content": "21.5"}}' \\
       http://127.0.0.1:8080/messages
  curl http://127.0.0.1:8080/
  curl -H 'Accept: application/vnd.sampleApp.v2+json' http://127.0.0.1:8080/

Plain HTTP and TLS, with the records in another directory. (Without interface=,
an endpoint is open to the network, and --callers FILE is required.)

  {command} \\
      --listen tcp:8080:interface=127.0.0.1 \\
      --listen https:8443:interface=127.0.0.1:privateKey=key.pem:certKey=certificate.pem \\
      --broker sqlite:/var/lib/sampleapp/records.sqlite3

Apache Kafka, with TLS and a password:

  {command} --broker \\
      'kafka+tls://kafka1:9093?sasl=SCRAM-SHA-512&credentials=/etc/sampleapp/kafka-credentials'

Environment variables:

Each of these sets an option that is not on the command line. Several values of
one option are separated by spaces. A flag is set by 1, true, yes or on, and not
set by 0, false, no or off.

{variables}"""

_NOT_OPTIONS: Final = frozenset(
    {
        # Of the commands, and of the Kafka broker.
        "SAMPLEAPP_URL",
        "SAMPLEAPP_TOKEN",
        "SAMPLEAPP_TOKEN_FILE",
        "SAMPLEAPP_KAFKA_USERNAME",
        "SAMPLEAPP_KAFKA_PASSWORD",
    }
)
_OF_KUBERNETES: Final = re.compile(
    r"SAMPLEAPP(?:_\w{1,63})?_"
    r"(?:SERVICE_(?:HOST|PORT)|SERVICE_PORT_\w{1,63}|PORT_[0-9]{1,5}_(?:TCP|UDP|SCTP)(?:_\w{1,63})?)"
)
"""
Variables in each pod for a Service whose name is sampleapp, or begins with it (Kubernetes, "Service").

Names of services and ports have at most 63 characters (RFC 1123, section 2.1; RFC 6335, section 5.1).
"""
_PORT_OF_KUBERNETES: Final = re.compile(r"(?:tcp|udp|sctp)://\S+")
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})


class Options(TwistedOptions):
    """The options of ``twistd sampleapp``, from its command line and from environment variables."""

    command = "twistd -n --pidfile= sampleapp"
    """The command that starts the service, for the examples."""
    synopsis = "[options]"
    longdesc = (
        "An HTTP gateway to Apache Kafka: publish messages with POST, get the answer once they are stored, "
        "and read the latest values with GET. Without options, it listens on port 8080 of this machine only, "
        "and keeps its records in sampleapp.sqlite3 in the working directory."
    )

    # Twisted parses these by itself. Repeatable options, --help and --version have methods.
    optFlags: ClassVar[list[list[Any]]] = [  # noqa: N815 -- Twisted's name
        [each.name, each.short, each.help]
        for each in _OPTIONS
        if each.is_flag and each.name not in _HAVE_METHODS
    ]
    optParameters: ClassVar[list[list[Any]]] = [  # noqa: N815 -- Twisted's name
        [each.name, each.short, each.default, each.help]
        for each in _OPTIONS
        if not each.is_flag and each.name not in _HAVE_METHODS
    ]

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """:param environ: the environment variables, for options that are not on the command line."""
        super().__init__()
        self._environ = environ
        self._listen: list[str] = []
        self._given: list[tuple[str, str]] = []
        self._from_environment: frozenset[str] = frozenset()
        self._allowed_origins: list[str] = []
        self._allowed_hosts: list[str] = []
        self._idempotent_topics: list[str] = []
        self._record_headers: list[str] = []

    def opt_listen(self, description: str) -> None:
        """Add an endpoint."""
        if ":" not in description:
            raise UsageError(
                f"--listen takes a Twisted endpoint, such as {_DEFAULT_LISTEN}{_not_number(description)}."
            )
        self._listen.append(description)

    opt_l = opt_listen

    def opt_allow_origin(self, origin: str) -> None:
        """Add the origin of a site."""
        try:
            self._allowed_origins.append(check_origin(origin))
        except NotAnOrigin as error:
            raise UsageError(f"--allow-origin {error}.") from error

    def opt_allow_host(self, host: str) -> None:
        """Add a name or an address of the service."""
        try:
            self._allowed_hosts.append(check_host_name(host))
        except NotAHost as error:
            raise UsageError(f"--allow-host {error}.") from error

    def opt_idempotent_topic(self, pattern: str) -> None:
        """Add a topic, or a pattern of topics."""
        if not is_legal_pattern(pattern):
            raise UsageError(
                "--idempotent-topic takes the name of a topic, or a pattern such as orders.*: 1 to 249 "
                f"characters out of A-Z, a-z, 0-9, '.', '_', '-' and '*'; not {pattern!r}."
            )
        self._idempotent_topics.append(pattern)

    def opt_record_header(self, name: str) -> None:
        """Add a header of requests, or the beginning of names."""
        try:
            self._record_headers.append(check_recorded_name(name))
        except NotRecordable as error:
            raise UsageError(f"--record-header {error}.") from error

    opt_h = TwistedOptions.opt_help

    def opt_version(self) -> None:
        """Show the version, and exit."""
        sys.stdout.write(f"sampleapp {__version__}\n")
        raise SystemExit(0)

    def parseArgs(self, *arguments: str) -> None:  # noqa: N802 -- Twisted's name
        """
        Accept no arguments besides options.

        :raise UsageError: there is one.
        """
        if arguments:
            raise UsageError(f"Unexpected argument {arguments[0]!r}: the service takes only options.")

    def getUsage(self, width: int | None = None) -> str:  # noqa: N802 -- Twisted's name
        """Return the text of ``--help``: the options in their groups, examples, environment variables."""
        width = width or _WIDTH
        parts = [textwrap.fill(self.longdesc, width), *(group.help(width=width) for group in GROUPS)]
        variables = "\n".join(f"  {option.variable}" for option in self.declared)
        return "\n" + "\n\n".join(parts) + "\n" + _EXAMPLES.format(command=self.command, variables=variables)

    def parseOptions(self, options: Sequence[str] | None = None) -> None:  # noqa: N802 -- Twisted's name
        """
        Parse the arguments after ``twistd sampleapp``, and environment variables for options not among them.

        :raise UsageError: an argument or a variable is invalid; says what would be valid.
        """
        arguments = list(sys.argv[1:] if options is None else options)
        try:
            # Variables come first, since options end at the first argument that is not one.
            super().parseOptions([*self._parse_environment(arguments), *arguments])
        except UsageError as error:
            raise UsageError(self.with_origins(f"{error}{self._hint(str(error))}")) from error

    def _parse_environment(self, arguments: list[str]) -> list[str]:
        try:
            parsed, _ = getopt.getopt(arguments, self.shortOpt, self.longOpt)
        except getopt.error:
            # Twisted will raise it as a UsageError.
            return []
        self._given = [(self._full_name(name), value) for name, value in parsed]
        on_command_line = {name for name, _ in self._given}
        if on_command_line & _SHOWN_AT_ONCE:
            return []
        found: list[str] = []
        for option in self.declared:
            if option.name in on_command_line:
                continue
            try:
                values = _arguments_of(option, self._environ)
            except _InvalidVariable as error:
                raise UsageError(str(error)) from error
            if values:
                self._from_environment |= {option.name}
                self._given += [(option.name, value.partition("=")[2]) for value in values]
                found += values
        return found

    def _full_name(self, option: str) -> str:
        name = option.lstrip("-")
        full: str = self.synonyms[name]
        return full

    @property
    def declared(self) -> list[Option]:
        """The options that environment variables can set, in the order of their names."""
        return sorted((each for each in _OPTIONS if not each.is_action), key=lambda option: option.name)

    @property
    def unknown_variables(self) -> list[tuple[str, str]]:
        """The variables that look like options and are not; each with the end of a sentence about it."""
        found = []
        for variable, similar in _unknown_variables(self.declared, self._environ):
            hint = f"; did you mean {similar}?" if similar else "."
            if variable == "SAMPLEAPP_PORT":
                hint = "; give the port with SAMPLEAPP_LISTEN, such as tcp:9090:interface=127.0.0.1."
            found.append((variable, hint))
        return found

    def with_origins(self, sentences: str) -> str:
        """Add, to each line, the variables that the options named in it come from, if any do."""
        return "\n".join(map(self._with_origins, sentences.split("\n")))

    def _with_origins(self, sentence: str) -> str:
        first = _OPTION_IN_TEXT.match(sentence)
        named = {match["name"] for match in _OPTION_IN_TEXT.finditer(sentence)} & self._from_environment
        variables = {option.name: option.variable for option in self.declared}
        if first is not None and first["name"] in named:
            named.discard(first["name"])
            sentence = variables[first["name"]] + sentence[first.end() :]
        if not named:
            return sentence
        origins = "; ".join(f"--{name} comes from {variables[name]}" for name in sorted(named))
        return f"{sentence} ({origins}.)"

    @property
    def summary(self) -> str:
        """The options that are set, one value per line as on the command line, with their variables."""
        config = self.config
        given = {name for name, _ in self._given}
        lines = [
            *([] if "listen" in given else [f"--listen {_DEFAULT_LISTEN} (by default)"]),
            *([] if "broker" in given else [f"--broker {config.broker} (by default)"]),
        ]
        for option in self.declared:
            origin = f" ({option.variable})" if option.name in self._from_environment else ""
            lines += [
                f"--{option.name}{' ' if value else ''}{value}{origin}"
                for name, value in self._given
                if name == option.name
            ]
        return "\n".join(lines)

    def _hint(self, sentence: str) -> str:
        match = _UNKNOWN_OPTION.fullmatch(sentence)
        if match is None:
            return ""
        if match["name"] in _PORT_OPTIONS:
            return "; give the port with --listen, such as --listen tcp:9090:interface=127.0.0.1"
        names = [option.name for option in _OPTIONS]
        close = get_close_matches(match["name"].lstrip("-"), names, n=1)
        return f"; did you mean --{close[0]}?" if close else ""

    @property
    def config(self) -> Config:
        """
        The options as values.

        :raise UsageError: one of them is invalid.
        """
        topic = self["readings-topic"]
        if not is_legal_topic(topic):
            raise UsageError(
                "--readings-topic takes the name of a topic: 1 to 249 characters out of A-Z, a-z, 0-9, "
                f"'.', '_' and '-', and neither '.' nor '..'; not {topic!r}."
            )
        if self["callers"] and self["open-to-everybody"]:
            raise UsageError(
                "--open-to-everybody lets every client do everything, and --callers only the callers in the "
                "file; give one of them."
            )
        if self["no-record-content-type"] and CONTENT_TYPE in self._record_headers:
            raise UsageError(
                "--no-record-content-type contradicts --record-header Content-Type; give one of them."
            )
        return Config(
            callers=_file("--callers", self["callers"]),
            is_open_to_everybody=bool(self["open-to-everybody"]),
            listen=tuple(self._listen) or DEFAULTS.listen,
            admin=self._admin(),
            allowed_origins=tuple(dict.fromkeys(self._allowed_origins)),
            allowed_hosts=tuple(dict.fromkeys(self._allowed_hosts)),
            has_hsts=not self["no-hsts"],
            broker=self["broker"],
            readings_topic=topic,
            idempotent_topics=TopicPatterns(dict.fromkeys(self._idempotent_topics)),
            record_headers=tuple(dict.fromkeys(self._record_headers)),
            has_record_content_type=not self["no-record-content-type"],
            idempotency_window_s=_seconds("--idempotency-window", self["idempotency-window"]),
            idempotency_rate=_whole(
                "--idempotency-rate", self["idempotency-rate"], "a whole number of records a second", 20
            ),
            limits=Limits(
                max_body=_whole("--max-body", self["max-body"], "a whole number of bytes", 1048576),
                max_batch_body=_whole(
                    "--max-batch-body", self["max-batch-body"], "a whole number of bytes", 16777216
                ),
                max_body_memory=_whole(
                    "--max-body-memory", self["max-body-memory"], "a whole number of bytes", 268435456
                ),
                header_timeout_s=_seconds("--header-timeout", self["header-timeout"]),
                body_rate=_whole(
                    "--min-body-rate", self["min-body-rate"], "a whole number of bytes a second", 1024
                ),
                body_grace_s=_seconds("--body-grace", self["body-grace"], may_be_zero=True),
                body_idle_timeout_s=_seconds("--body-idle-timeout", self["body-idle-timeout"]),
                idle_timeout_s=_seconds("--idle-timeout", self["idle-timeout"]),
                send_timeout_s=_seconds("--send-timeout", self["send-timeout"]),
                max_connections=_whole("--max-connections", self["max-connections"], "a whole number", 10000),
                max_waiting=_whole("--max-waiting", self["max-waiting"], "a whole number", 10000),
                max_streams=_whole(
                    "--max-streams", self["max-streams"], "a whole number", 10000, may_be_zero=True
                ),
                max_streams_per_caller=_whole(
                    "--max-streams-per-caller",
                    self["max-streams-per-caller"],
                    "a whole number",
                    5000,
                    may_be_zero=True,
                ),
                max_followed_topics=_whole(
                    "--max-followed-topics", self["max-followed-topics"], "a whole number", 100
                ),
                kept_for_admin=0 if self["admin"] is None else _KEPT_FOR_ADMIN,
            ),
            drain_delay_s=_seconds("--drain-delay", self["drain-delay"], may_be_zero=True),
            drain_timeout_s=_seconds("--drain-timeout", self["drain-timeout"], may_be_zero=True),
            log=LogSettings(
                format=LogFormat(
                    _one_of("--log-format", self["log-format"], [each.value for each in LogFormat])
                ),
                level=_one_of("--log-level", self["log-level"], LEVELS),
                access_log=_file("--access-log", self["access-log"]),
                access_log_format=AccessLogFormat(
                    _one_of(
                        "--access-log-format",
                        self["access-log-format"],
                        [each.value for each in AccessLogFormat],
                    )
                ),
            ),
        )

    def _admin(self) -> str | None:
        description: str | None = self["admin"]
        if description is not None and ":" not in description:
            raise UsageError(
                f"--admin takes a Twisted endpoint, such as {_EXAMPLE_ADMIN}{_not_number(description)}."
            )
        return description

    def postOptions(self) -> None:  # noqa: N802 -- Twisted's name
        """Refuse invalid values, whether or not `config` is ever read."""
        _ = self.config


def _file(option: str, path: str | None) -> str:
    if path == "" or (path is not None and "\0" in path):
        raise UsageError(f"{option} takes the path of a file, which is not empty and has no NUL in it.")
    return path or ""


def _not_number(text: str) -> str:
    """Repeat a number, which is a common mistake, but nothing that may be a secret."""
    return f", not {text!r}" if text.isdigit() else ""


def _one_of(option: str, text: str, words: Sequence[str]) -> str:
    if text not in words:
        raise UsageError(f"{option} takes {', '.join(words[:-1])} or {words[-1]}, not {text!r}.")
    return text


def _whole(option: str, text: str, kind: str, example: int, *, may_be_zero: bool = False) -> int:
    if not re.fullmatch(r"0*[1-9][0-9]{0,17}" + ("|0+" if may_be_zero else ""), text):
        least = ", 0 or more" if may_be_zero else " above zero"
        raise UsageError(f"{option} takes {kind}{least}, such as {example}, not {text!r}.")
    return int(text)


def _seconds(option: str, text: str, *, may_be_zero: bool = False) -> float:
    # float() would take spaces, underscores, and digits of every script.
    seconds = (
        float(text)
        if re.fullmatch(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", text)
        else math.nan
    )
    if not math.isfinite(seconds) or (seconds == 0 and not may_be_zero):
        kind = "that is not negative" if may_be_zero else "above zero"
        raise UsageError(f"{option} takes a number of seconds {kind}, such as 10 or 2.5, not {text!r}.")
    return seconds


class _InvalidVariable(ValueError):
    """A variable has an invalid value. The message says what would be valid."""


def _arguments_of(option: Option, environ: Mapping[str, str]) -> list[str]:
    """
    Convert an option's variable to command-line arguments.

    :return: empty if the variable is not set. An empty variable counts as not set: templates leave out a
        value in this way.
    :raise _InvalidVariable: a flag is neither on nor off, or values are separated by commas.
    """
    text = environ.get(option.variable, "")
    if not text.strip():
        return []
    if option.is_repeatable:
        if "," in text:
            raise _InvalidVariable(
                f"{option.variable} takes values separated by spaces or line breaks, without commas; give a "
                f"value that has a comma in it with --{option.name}."
            )
        return [f"--{option.name}={value}" for value in text.split()]
    if not option.is_flag:
        return [f"--{option.name}={text}"]
    word = text.strip().lower()
    if word in _TRUE:
        return [f"--{option.name}"]
    if word in _FALSE:
        return []
    raise _InvalidVariable(
        f"{option.variable} takes 1, true, yes or on; or 0, false, no or off to leave --{option.name} out; "
        f"not {text!r}."
    )


def is_made_by_kubernetes(variable: str, value: str) -> bool:
    """Return whether Kubernetes sets this variable for a Service, in each pod of its namespace."""
    if _OF_KUBERNETES.fullmatch(variable):
        return True
    return variable.endswith("_PORT") and _PORT_OF_KUBERNETES.fullmatch(value) is not None


def _unknown_variables(options: Collection[Option], environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """
    Find the variables that begin with ``SAMPLEAPP_`` and have no meaning.

    :return: their names, each with the most similar valid name, or an empty string.
    """
    known = {option.variable for option in options}
    suffixes = [variable.removeprefix(PREFIX) for variable in known | _NOT_OPTIONS]
    for variable, value in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable in known or variable in _NOT_OPTIONS:
            continue
        if is_made_by_kubernetes(variable, value):
            continue
        close = get_close_matches(variable.removeprefix(PREFIX).upper(), suffixes, n=1)
        yield variable, PREFIX + close[0] if close else ""
