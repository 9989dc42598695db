"""
The command line of ``twistd sampleapp``, and the environment variables for options that are not on it.

Both give texts for the options in `sampleapp.service.options`, so that an option is parsed and rejected in
one way.
"""

from __future__ import annotations

import getopt
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, ClassVar, Final

from twisted.python.usage import Options as TwistedOptions
from twisted.python.usage import UsageError

from sampleapp import __version__
from sampleapp.service.config import DEFAULTS
from sampleapp.service.options import EXAMPLE_ENDPOINT, GROUPS, OPTIONS, PREFIX, Option, config_of

# The words of `getopt`, and so of Twisted.
_UNKNOWN_OPTION: Final = re.compile(r"option (?P<name>\S+) not recognized")
_PORT_OPTIONS: Final = ("--port", "-p")
_OPTION_IN_TEXT: Final = re.compile(r"(?<![\w-])--(?P<name>[a-z][a-z-]*[a-z])(?![\w-])")

_SHOWN_AT_ONCE: Final = frozenset({"help", "version"})
"""Options that end the process before the rest of the command line is parsed."""
_ALWAYS_IN_SUMMARY: Final = frozenset({"listen", "broker"})
_WIDTH: Final = 80
_HELP_COLUMN: Final = 30

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
        "SAMPLEAPP_CLIENT_CERTIFICATE",
        "SAMPLEAPP_CLIENT_KEY",
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


class CommandLine(TwistedOptions):
    """The options of ``twistd sampleapp``, from its command line and from environment variables."""

    command = "twistd -n --pidfile= sampleapp"
    """The command that starts the service, for the examples."""
    synopsis = "[options]"
    longdesc = (
        "An HTTP gateway to Apache Kafka: publish messages with POST, get the response once they are stored, "
        "and read topics as pages or event streams. Without options, it listens on port 8080 of this machine "
        "only, and keeps its records in sampleapp.sqlite3 in the working directory."
    )

    # Options that are shown at once have methods.
    optFlags: ClassVar[list[list[Any]]] = [  # noqa: N815 -- Twisted's name
        [each.name, each.short, each.help]
        for each in OPTIONS
        if each.kind is None and each.name not in _SHOWN_AT_ONCE
    ]
    optParameters: ClassVar[list[list[Any]]] = [  # noqa: N815 -- Twisted's name
        [each.name, each.short, each.default, each.help] for each in OPTIONS if each.kind is not None
    ]

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """:param environ: the environment variables, for options that are not on the command line."""
        super().__init__()
        self._environ = environ
        self._given: dict[str, list[str]] = {}
        self._from_environment: set[str] = set()
        self.config = DEFAULTS
        """The options as values, once they are parsed."""

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
        parts = [textwrap.fill(self.longdesc, width)]
        for title, group in GROUPS.items():
            lines = [line for option in group for line in _help_lines(option, width=width)]
            parts.append("\n".join([f"{title}:", *lines]))
        variables = "\n".join(f"  {option.variable}" for option in self.declared)
        return "\n" + "\n\n".join(parts) + "\n" + _EXAMPLES.format(command=self.command, variables=variables)

    def parseOptions(self, options: Sequence[str] | None = None) -> None:  # noqa: N802 -- Twisted's name
        """
        Parse the arguments after ``twistd sampleapp``, and environment variables for options not among them.

        :raise UsageError: an argument or a variable is invalid; says what would be valid.
        """
        arguments = list(sys.argv[1:] if options is None else options)
        try:
            self._collect(arguments)
            super().parseOptions(arguments)
        except UsageError as error:
            raise UsageError(self.with_origins(f"{error}{self._hint(str(error))}")) from error

    def _collect(self, arguments: list[str]) -> None:
        """Collect the texts that the command line and the environment give for each option."""
        try:
            parsed, _ = getopt.getopt(arguments, self.shortOpt, self.longOpt)
        except getopt.error:
            # Twisted will raise it as a UsageError.
            return
        for name, text in parsed:
            self._given.setdefault(self.synonyms[name.lstrip("-")], []).append(text)
        if self._given.keys() & _SHOWN_AT_ONCE:
            return
        for option in self.declared:
            if option.name not in self._given and (texts := _from_variable(option, self._environ)):
                self._given[option.name] = texts
                self._from_environment.add(option.name)

    @property
    def declared(self) -> list[Option]:
        """The options that environment variables can set, in the order of their names."""
        return sorted((each for each in OPTIONS if each.setting), key=lambda option: option.name)

    @property
    def unknown_variables(self) -> list[tuple[str, str]]:
        """The variables that look like options and are not; each with the end of a sentence about it."""
        known = {option.variable for option in self.declared} | _NOT_OPTIONS
        suffixes = [variable.removeprefix(PREFIX) for variable in known]
        found = []
        for variable, value in sorted(self._environ.items()):
            if not variable.startswith(PREFIX) or variable in known or is_made_by_kubernetes(variable, value):
                continue
            close = get_close_matches(variable.removeprefix(PREFIX).upper(), suffixes, n=1)
            hint = f"; did you mean {PREFIX}{close[0]}?" if close else "."
            if variable == "SAMPLEAPP_PORT":
                hint = f"; give the port with SAMPLEAPP_LISTEN, such as {EXAMPLE_ENDPOINT}."
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
        lines = [
            f"--{option.name} {option.default} (by default)"
            for option in OPTIONS
            if option.name in _ALWAYS_IN_SUMMARY - self._given.keys()
        ]
        for option in self.declared:
            origin = f" ({option.variable})" if option.name in self._from_environment else ""
            lines += [
                f"--{option.name}{' ' if text else ''}{text}{origin}"
                for text in self._given.get(option.name, ())
            ]
        return "\n".join(lines)

    def _hint(self, sentence: str) -> str:
        match = _UNKNOWN_OPTION.fullmatch(sentence)
        if match is None:
            return ""
        if match["name"] in _PORT_OPTIONS:
            return f"; give the port with --listen, such as --listen {EXAMPLE_ENDPOINT}"
        names = [option.name for option in OPTIONS]
        close = get_close_matches(match["name"].lstrip("-"), names, n=1)
        return f"; did you mean --{close[0]}?" if close else ""

    def postOptions(self) -> None:  # noqa: N802 -- Twisted's name
        """
        Convert the options to the configuration.

        :raise UsageError: one of them is invalid.
        """
        self.config = config_of(self._given)


def _help_lines(option: Option, *, width: int) -> Iterator[str]:
    """Format an option's entry in ``--help``, in lines of at most ``width`` characters."""
    short = f"-{option.short}, " if option.short else "    "
    head = f"  {short}--{option.name}" + (f" {option.kind.name}" if option.kind else "")
    text = option.help + (" May be given more than once." if option.collect else "")
    if option.kind:
        text += f" [default:\N{NO-BREAK SPACE}{option.default or 'none'}]"
    if len(head) > _HELP_COLUMN - 2:
        yield head
        head = ""
    # Broken at hyphens, the name of an option could not be searched for.
    for line in textwrap.wrap(text, width - _HELP_COLUMN, break_on_hyphens=False):
        yield f"{head:<{_HELP_COLUMN}}{line}".replace("\N{NO-BREAK SPACE}", " ")
        head = ""


def _from_variable(option: Option, environ: Mapping[str, str]) -> list[str]:
    """
    Return the texts that an option's variable gives: ``SAMPLEAPP_MAX_BODY=1000`` for ``--max-body 1000``.

    :return: empty if the variable is not set. An empty variable counts as not set: templates leave out a
        value in this way.
    :raise UsageError: a flag is neither on nor off, or values are separated by commas.
    """
    text = environ.get(option.variable, "")
    if not text.strip():
        return []
    if option.collect:
        if "," in text:
            raise UsageError(
                f"{option.variable} takes values separated by spaces or line breaks, without commas; give a "
                f"value that has a comma in it with --{option.name}."
            )
        return text.split()
    if option.kind:
        return [text]
    word = text.strip().lower()
    if word in _TRUE:
        return [""]
    if word in _FALSE:
        return []
    raise UsageError(
        f"{option.variable} takes 1, true, yes or on; or 0, false, no or off to leave --{option.name} out; "
        f"not {text!r}."
    )


def is_made_by_kubernetes(variable: str, value: str) -> bool:
    """Return whether Kubernetes sets this variable for a Service, in each pod of its namespace."""
    if _OF_KUBERNETES.fullmatch(variable):
        return True
    return variable.endswith("_PORT") and _PORT_OF_KUBERNETES.fullmatch(value) is not None
