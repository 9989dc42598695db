"""One option of the service, and its entry in ``--help``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

__all__ = ["PREFIX", "Option", "OptionGroup"]

PREFIX: Final = "SAMPLEAPP_"
"""The names of environment variables begin with it."""
_HELP_COLUMN: Final = 30


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
