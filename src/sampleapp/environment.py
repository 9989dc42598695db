"""
Options from the environment: ``SAMPLEAPP_MAX_BODY=1000`` for ``--max-body 1000``.

What is there becomes what could have stood on the command line, so that an option is parsed, and refused,
in one way.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from enum import Enum, auto
from typing import Final

from msgspec import Struct

__all__ = [
    "Arity",
    "Declared",
    "EnvironmentMistake",
    "from_environment",
    "is_made_by_kubernetes",
    "surplus",
    "variable_of",
]

_PREFIX: Final = "SAMPLEAPP_"
_OTHERS: Final = frozenset(
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
    r"SAMPLEAPP(?:_\w+)?_(?:SERVICE_(?:HOST|PORT)|SERVICE_PORT_\w+|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_\w+)?)"
)
"""What a pod is given for a Service whose name is, or begins with, sampleapp (Kubernetes, "Service")."""
_PORT_OF_KUBERNETES: Final = re.compile(r"(?:tcp|udp|sctp)://\S+")
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})


class EnvironmentMistake(ValueError):
    """A variable is not what it has to be. The message says what would be right."""


class Arity(Enum):
    """How many values an option takes."""

    FLAG = auto()
    """None."""
    ONE = auto()
    MANY = auto()
    """One each time it is given; as a variable, separated by white space."""


class Declared(Struct, frozen=True):
    """An option that may come from the environment."""

    name: str
    """Without dashes in front: ``max-body``."""
    arity: Arity

    @property
    def variable(self) -> str:
        """The name of its variable."""
        return variable_of(self.name)


def variable_of(option: str) -> str:
    """Name the variable of an option: ``SAMPLEAPP_MAX_BODY`` for ``max-body``."""
    return _PREFIX + option.upper().replace("-", "_")


def from_environment(option: Declared, environ: Mapping[str, str]) -> list[str]:
    """
    Find what the environment says to an option, as it would stand on a command line.

    :return: empty if it says nothing. A variable without anything in it says nothing: that is how templates
        leave out what they have no value for.
    :raise EnvironmentMistake: a flag is neither on nor off.
    """
    text = environ.get(option.variable, "")
    if not text.strip():
        return []
    if option.arity is Arity.MANY:
        return [f"--{option.name}={value}" for value in text.split()]
    if option.arity is Arity.ONE:
        return [f"--{option.name}={text}"]
    word = text.strip().lower()
    if word in _TRUE:
        return [f"--{option.name}"]
    if word in _FALSE:
        return []
    raise EnvironmentMistake(
        f"{option.variable} takes 1, true, yes or on; or 0, false, no or off to leave --{option.name} out; "
        f"not {text!r}."
    )


def is_made_by_kubernetes(variable: str, value: str) -> bool:
    """Whether Kubernetes makes such a variable for a Service, in each pod of its namespace."""
    if _OF_KUBERNETES.fullmatch(variable):
        return True
    return variable.endswith("_PORT") and _PORT_OF_KUBERNETES.fullmatch(value) is not None


def surplus(options: Collection[Declared], environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """
    Find the variables that look like ours and mean nothing.

    :return: their names, each with the name that was probably meant, or an empty string.
    """
    known = {option.variable for option in options}
    suffixes = [variable.removeprefix(_PREFIX) for variable in known | _OTHERS]
    for variable, value in sorted(environ.items()):
        if not variable.startswith(_PREFIX) or variable in known or variable in _OTHERS:
            continue
        if is_made_by_kubernetes(variable, value):
            continue
        close = get_close_matches(variable.removeprefix(_PREFIX).upper(), suffixes, n=1)
        yield variable, _PREFIX + close[0] if close else ""
