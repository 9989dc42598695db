"""
Options from environment variables: ``SAMPLEAPP_MAX_BODY=1000`` for ``--max-body 1000``.

Variables are converted to command-line arguments, so that an option is parsed and refused in one way.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Final

from sampleapp.service.option import PREFIX, Option

__all__ = ["InvalidVariable", "arguments_of", "is_made_by_kubernetes", "unknown_variables"]

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


class InvalidVariable(ValueError):
    """A variable has an invalid value. The message says what would be valid."""


def arguments_of(option: Option, environ: Mapping[str, str]) -> list[str]:
    """
    Convert an option's variable to command-line arguments.

    :return: empty if the variable is not set. An empty variable counts as not set: templates leave out a
        value in this way.
    :raise InvalidVariable: a flag is neither on nor off, or values are separated by commas.
    """
    text = environ.get(option.variable, "")
    if not text.strip():
        return []
    if option.is_repeatable:
        if "," in text:
            raise InvalidVariable(
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
    raise InvalidVariable(
        f"{option.variable} takes 1, true, yes or on; or 0, false, no or off to leave --{option.name} out; "
        f"not {text!r}."
    )


def is_made_by_kubernetes(variable: str, value: str) -> bool:
    """Return whether Kubernetes sets this variable for a Service, in each pod of its namespace."""
    if _OF_KUBERNETES.fullmatch(variable):
        return True
    return variable.endswith("_PORT") and _PORT_OF_KUBERNETES.fullmatch(value) is not None


def unknown_variables(options: Collection[Option], environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
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
