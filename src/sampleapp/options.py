"""The command line of ``twistd sampleapp``, parsed into values."""

from __future__ import annotations

import getopt
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, ClassVar, Final

from msgspec import Struct
from twisted.python.usage import Options as TwistedOptions
from twisted.python.usage import UsageError

from sampleapp import __version__
from sampleapp.environment import Arity, Declared, EnvironmentMistake, from_environment, surplus
from sampleapp.logs import LEVELS, AccessLogFormat, LogFormat, LogSettings
from sampleapp.messages import is_legal_topic
from sampleapp.web.cors import NotAnOrigin, check_origin
from sampleapp.web.server import Limits

__all__ = ["Config", "Options"]

_DEFAULT_LISTEN: Final = "tcp:8080:interface=127.0.0.1"
_EXAMPLE_ADMIN: Final = "tcp:9090:interface=127.0.0.1"
_KEPT_FOR_ADMIN: Final = 32
"""So many connections may be open to it, whatever clients of the other endpoints do."""

# How `getopt`, and so Twisted, says it.
_UNKNOWN_OPTION: Final = re.compile(r"option (?P<name>\S+) not recognized")
_PORT_OPTIONS: Final = ("--port", "-p")
_OPTION: Final = re.compile(r"--(?P<name>[a-z][a-z-]*[a-z])(?![\w-])")

_ACTIONS: Final = frozenset({"help", "version", "check"})
"""Options that say what to do now, rather than what the service is to be: no variable does."""
_SHOWN: Final = frozenset({"help", "version"})
"""Those that end everything where they stand."""


class Config(Struct, frozen=True, kw_only=True):
    """What the service is to be. The defaults serve this machine only, and need no broker."""

    listen: tuple[str, ...] = (_DEFAULT_LISTEN,)
    """Descriptions of server endpoints, in Twisted's language for them."""
    admin: str | None = None
    """The one that is for operators only, if there is one."""
    callers: str = ""
    """The path of the file that says who may call, and what; empty: anybody may do anything."""
    is_open_to_everybody: bool = False
    """Whether that is so even where other machines can reach the service."""
    allowed_origins: tuple[str, ...] = ()
    """Of the sites whose pages may use the service."""
    broker: str = "sqlite:sampleapp.sqlite3"
    """The broker's URL."""
    readings_topic: str = "readings"
    limits: Limits = Limits()
    """What a client may cost."""
    drain_timeout_s: float = 10.0
    """How long a stopping service waits for the requests that are in flight, in seconds."""
    drain_delay_s: float = 0.0
    """How long a service that is to stop says that it is not ready before it begins to, in seconds."""
    log: LogSettings = LogSettings()


_DEFAULTS: Final = Config()
_LIMITS: Final = _DEFAULTS.limits

_EXAMPLES: Final = """
Try it:

  {command}
  curl -H 'Content-Type: application/json' \\
       -d '{{"topic": "readings", "key": "kitchen", "content": "21.5"}}' \\
       http://127.0.0.1:8080/messages
  curl http://127.0.0.1:8080/
  curl -H 'Accept: application/vnd.sampleApp.v2+json' http://127.0.0.1:8080/

With TLS beside plain HTTP, and the records in a directory of their own. (Without interface=, an endpoint
is open to the whole network; then --callers FILE has to say who may call.)

  {command} \\
      --listen tcp:8080:interface=127.0.0.1 \\
      --listen https:8443:interface=127.0.0.1:privateKey=key.pem:certKey=certificate.pem \\
      --broker sqlite:/var/lib/sampleapp/records.sqlite3

On Apache Kafka, with TLS and a password (the reference has all options of such a URL):

  {command} --broker \\
      'kafka+tls://kafka1:9093?sasl=SCRAM-SHA-512&credentials=/etc/sampleapp/kafka-credentials'
"""

_VARIABLES: Final = """\
Each of these options may be given by a variable of the environment instead. What may be given more than once
is separated by white space there; a flag is 1 or 0. The command line wins.
"""


class Options(TwistedOptions):
    """What ``twistd sampleapp --help`` shows, and what follows the command."""

    command = "twistd -n --pidfile= sampleapp"
    """How the service is started, in examples."""
    synopsis = "[options]"
    longdesc = (
        "An HTTP gateway to Apache Kafka: publish messages with POST, get the answer once they are stored, "
        "and read the latest values with GET. With no options it listens on port 8080 of this machine only, "
        "and keeps its records in sampleapp.sqlite3 in the working directory."
    )

    optFlags: ClassVar[list[list[Any]]] = [  # noqa: N815 -- Twisted's name
        [
            "check",
            None,
            "Say whether the service would start so, and exit. No port is opened; the broker is not asked.",
        ],
        [
            "open-to-everybody",
            None,
            "Let everybody do everything where other machines can reach the service, too.",
        ],
    ]

    # The option's name, its short form, its default as shown, its help.
    optParameters: ClassVar[list[list[Any]]] = [  # noqa: N815 -- Twisted's name
        [
            "broker",
            "b",
            _DEFAULTS.broker,
            "Where records are kept: sqlite:PATH, kafka://HOST:PORT, or memory: to lose them all at the end.",
        ],
        [
            "readings-topic",
            "r",
            _DEFAULTS.readings_topic,
            "The topic whose records are the readings: the key is the id, the value the text of a number.",
        ],
        [
            "callers",
            None,
            None,
            "The file that says who may call, and what, in TOML. Without it, everybody on this machine may.",
        ],
        [
            "max-body",
            None,
            str(_LIMITS.max_body),
            "The greatest length of a request's body, in bytes; a longer one is refused with 413.",
        ],
        [
            "max-batch-body",
            None,
            str(_LIMITS.max_batch_body),
            "The same for a body with many messages, one a line. Each may be as long as --max-body says.",
        ],
        [
            "header-timeout",
            None,
            f"{_LIMITS.header_timeout_s:g}",
            "How many seconds a header may take from its first byte on; after that, 408.",
        ],
        [
            "min-body-rate",
            None,
            str(_LIMITS.body_rate),
            "How many bytes a second a body has to come with, on average; a slower one gets 408.",
        ],
        [
            "body-grace",
            None,
            f"{_LIMITS.body_grace_s:g}",
            "How many seconds a body may come more slowly than that.",
        ],
        [
            "idle-timeout",
            None,
            f"{_LIMITS.idle_timeout_s:g}",
            "After how many seconds without a request a connection is closed.",
        ],
        [
            "send-timeout",
            None,
            f"{_LIMITS.send_timeout_s:g}",
            "After how many seconds in which a client has read nothing of its answer the connection is cut.",
        ],
        [
            "max-connections",
            None,
            str(_LIMITS.max_connections),
            "How many connections may be open at once; fewer if the process may not have so many files.",
        ],
        [
            "max-waiting",
            None,
            str(_LIMITS.max_waiting),
            "How many requests may wait for the broker at once; one more gets 503.",
        ],
        [
            "admin",
            None,
            None,
            "An endpoint for operators, who need no credentials there: /live, /ready, /metrics and /docs.",
        ],
        [
            "drain-delay",
            None,
            f"{_DEFAULTS.drain_delay_s:g}",
            "How many seconds a service that is to stop goes on as before, but says at /ready that it does.",
        ],
        [
            "drain-timeout",
            None,
            f"{_DEFAULTS.drain_timeout_s:g}",
            "How many seconds a stopping service waits for the requests that are in flight.",
        ],
        [
            "log-format",
            None,
            _DEFAULTS.log.format.value,
            "How the log is written: text, or json for one object a line.",
        ],
        [
            "log-level",
            None,
            _DEFAULTS.log.level,
            f"What is logged, and what is more important: {', '.join(LEVELS)}.",
        ],
        [
            "access-log",
            None,
            None,
            "The file that gets a line for each request, or - for standard output; none by default.",
        ],
        [
            "access-log-format",
            None,
            _DEFAULTS.log.access_log_format.value,
            "How such a line is written: combined, as Apache does, with more fields; or json.",
        ],
    ]

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """:param environ: where what the command line leaves out may be."""
        super().__init__()
        self._environ = environ
        self._listen: list[str] = []
        self._given: list[tuple[str, str]] = []
        self._from_environment: frozenset[str] = frozenset()
        self._allowed_origins: list[str] = []

    # A method of this kind that takes an argument is for an option that may be given more than once; all
    # others are in the lists above.
    def opt_listen(self, description: str) -> None:
        """:param description: one endpoint; see the help below."""
        if ":" not in description:
            raise UsageError(
                f"--listen takes a Twisted endpoint, such as {_DEFAULT_LISTEN}, not {description!r}."
            )
        self._listen.append(description)

    # Twisted shows this as it stands, line breaks and indentation included.
    opt_listen.__doc__ = (
        "Where to listen, as a Twisted endpoint: tcp:PORT, tcp:PORT:interface=ADDRESS, "
        "https:PORT:privateKey=FILE:certKey=FILE, unix:PATH, and so on. May be given more than once. "
        f"[default: {_DEFAULT_LISTEN}]"
    )
    opt_l = opt_listen

    def opt_allow_origin(self, origin: str) -> None:
        """:param origin: of a site; see the help below."""
        try:
            self._allowed_origins.append(check_origin(origin))
        except NotAnOrigin as error:
            raise UsageError(f"--allow-origin {error}.") from error

    opt_allow_origin.__doc__ = (
        "Let the pages of a site use the service from a browser (CORS): its origin, such as "
        "https://example.org. May be given more than once. [default: none]"
    )
    opt_h = TwistedOptions.opt_help

    def opt_version(self) -> None:
        """Show the version of sampleapp and exit."""
        sys.stdout.write(f"sampleapp {__version__}\n")
        raise SystemExit(0)

    def getUsage(self, width: int | None = None) -> str:  # noqa: N802 -- Twisted's name
        """Return what ``--help`` shows; the examples are kept from being wrapped."""
        variables = "".join(f"  {option.variable}\n" for option in self.declared)
        return (
            f"{super().getUsage(width).rstrip()}\n{_EXAMPLES.format(command=self.command)}\n"
            f"{_VARIABLES}\n{variables}"
        )

    def parseOptions(self, options: Sequence[str] | None = None) -> None:  # noqa: N802 -- Twisted's name
        """
        Parse what follows ``twistd sampleapp``, and what the environment says to options that do not.

        :raise UsageError: something is wrong with it; says what would be right.
        """
        arguments = list(sys.argv[1:] if options is None else options)
        try:
            # First, since options end at the first word that is none.
            super().parseOptions([*self._look_into_environment(arguments), *arguments])
        except UsageError as error:
            raise UsageError(self.explained(f"{error}{self._hint(str(error))}")) from error

    def _look_into_environment(self, arguments: list[str]) -> list[str]:
        try:
            parsed, _ = getopt.getopt(arguments, self.shortOpt, self.longOpt)
        except getopt.error:
            # Twisted meets it too, and knows what to say.
            return []
        self._given = [(self._full_name(name), value) for name, value in parsed]
        on_command_line = {name for name, _ in self._given}
        if on_command_line & _SHOWN:
            return []
        found: list[str] = []
        for option in self.declared:
            if option.name in on_command_line:
                continue
            try:
                values = from_environment(option, self._environ)
            except EnvironmentMistake as error:
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
    def declared(self) -> list[Declared]:
        """What may come from the environment, in the order of the names."""
        found = []
        for long_option in self.longOpt:
            name = long_option.rstrip("=")
            if self.synonyms[name] != name or name in _ACTIONS:
                continue
            if not long_option.endswith("="):
                arity = Arity.FLAG
            else:
                arity = Arity.ONE if name in self.defaults else Arity.MANY
            found.append(Declared(name, arity))
        return sorted(found, key=lambda option: option.name)

    @property
    def surplus_variables(self) -> list[tuple[str, str]]:
        """The variables that look as if they were options, and are none; each with the end of a sentence."""
        found = []
        for variable, meant in surplus(self.declared, self._environ):
            hint = f"; did you mean {meant}?" if meant else "."
            if variable == "SAMPLEAPP_PORT":
                hint = "; give the port with SAMPLEAPP_LISTEN, such as tcp:9090:interface=127.0.0.1."
            found.append((variable, hint))
        return found

    def explained(self, sentences: str) -> str:
        """Say where the options that sentences name come from, a line each, unless from the command line."""
        return "\n".join(map(self._explained, sentences.split("\n")))

    def _explained(self, sentence: str) -> str:
        first = _OPTION.match(sentence)
        named = {match["name"] for match in _OPTION.finditer(sentence)} & self._from_environment
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
        """What was given, and where; a line for each value, as it would stand on the command line."""
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
        names = [name.rstrip("=") for name in self.longOpt]
        close = get_close_matches(match["name"].lstrip("-"), names, n=1)
        return f"; did you mean --{close[0]}?" if close else ""

    @property
    def config(self) -> Config:
        """
        The options as values.

        :raise UsageError: one of them is not what it has to be.
        """
        topic = self["readings-topic"]
        if not is_legal_topic(topic):
            raise UsageError(
                "--readings-topic takes the name of a topic: 1 to 249 characters out of A-Z, a-z, 0-9, "
                f"'.', '_' and '-', and neither '.' nor '..'; not {topic!r}."
            )
        if self["callers"] and self["open-to-everybody"]:
            raise UsageError(
                "--open-to-everybody lets everybody do everything, and --callers only those who are in the "
                "file; give one of them."
            )
        return Config(
            callers=_file("--callers", self["callers"]),
            is_open_to_everybody=bool(self["open-to-everybody"]),
            listen=tuple(self._listen) or _DEFAULTS.listen,
            admin=self._admin(),
            allowed_origins=tuple(dict.fromkeys(self._allowed_origins)),
            broker=self["broker"],
            readings_topic=topic,
            limits=Limits(
                max_body=_whole("--max-body", self["max-body"], "a whole number of bytes", 1048576),
                max_batch_body=_whole(
                    "--max-batch-body", self["max-batch-body"], "a whole number of bytes", 16777216
                ),
                header_timeout_s=_seconds("--header-timeout", self["header-timeout"]),
                body_rate=_whole(
                    "--min-body-rate", self["min-body-rate"], "a whole number of bytes a second", 1024
                ),
                body_grace_s=_seconds("--body-grace", self["body-grace"], may_be_zero=True),
                idle_timeout_s=_seconds("--idle-timeout", self["idle-timeout"]),
                send_timeout_s=_seconds("--send-timeout", self["send-timeout"]),
                max_connections=_whole("--max-connections", self["max-connections"], "a whole number", 10000),
                max_waiting=_whole("--max-waiting", self["max-waiting"], "a whole number", 10000),
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
                f"--admin takes a Twisted endpoint, such as {_EXAMPLE_ADMIN}, not {description!r}."
            )
        return description

    def postOptions(self) -> None:  # noqa: N802 -- Twisted's name
        """Refuse at once what is not right."""
        _ = self.config


def _file(option: str, path: str | None) -> str:
    if path == "" or (path is not None and "\0" in path):
        raise UsageError(f"{option} takes the path of a file, not {path!r}.")
    return path or ""


def _one_of(option: str, text: str, words: Sequence[str]) -> str:
    if text not in words:
        raise UsageError(f"{option} takes {', '.join(words[:-1])} or {words[-1]}, not {text!r}.")
    return text


def _whole(option: str, text: str, kind: str, example: int) -> int:
    if not re.fullmatch(r"0*[1-9][0-9]{0,17}", text):
        raise UsageError(f"{option} takes {kind} above zero, such as {example}, not {text!r}.")
    return int(text)


def _seconds(option: str, text: str, *, may_be_zero: bool = False) -> float:
    # float() would take spaces, underscores, and digits of every script.
    seconds = (
        float(text) if re.fullmatch(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", text) else math.nan
    )
    if not math.isfinite(seconds) or (seconds == 0 and not may_be_zero):
        kind = "that is not negative" if may_be_zero else "above zero"
        raise UsageError(f"{option} takes a number of seconds {kind}, such as 10 or 2.5, not {text!r}.")
    return seconds
