"""``sampleapp token``: make a token for a caller of the service."""

from __future__ import annotations

import re
import sys
from datetime import date, datetime, timezone
from pathlib import Path

import click

from sampleapp.cli._callers_file import caller_lines, replace_file, token_lines
from sampleapp.cli._output import CommandFailed, note
from sampleapp.cli._streams import discard_stdout

__all__ = ["token"]

EPILOG = """
\b
Examples:
  sampleapp token thermometer --publish readings --publish "sensors.*"
  sampleapp token display --read --until 2027-01-31
  sampleapp token thermometer --append /etc/sampleapp/callers.toml

The service knows the token only by its SHA-256, so nobody can show it again: put it at once where the
caller reads it.
"""


def _name(_context: click.Context, parameter: click.Parameter, value: str) -> str:
    from sampleapp.access.caller import is_legal_name

    if not is_legal_name(value):
        raise click.BadParameter(
            f"{value!r} is no name of a caller: 1 to 100 characters out of A-Z, a-z, 0-9, '.', '_', '-' "
            "and '@'.",
            param=parameter,
        )
    return value


def _patterns(_context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    from sampleapp.access.patterns import is_legal_pattern

    for pattern in value:
        if not is_legal_pattern(pattern):
            raise click.BadParameter(
                f"{pattern!r} is no topic, and no pattern of topics: 1 to 249 characters out of A-Z, a-z, "
                "0-9, '.', '_', '-' and '*', which stands for any run of characters.",
                param=parameter,
            )
    # One that is given twice says nothing more.
    return tuple(dict.fromkeys(value))


def _day(_context: click.Context, parameter: click.Parameter, value: str | None) -> date | None:
    if value is None:
        return None
    try:
        # fromisoformat() takes other forms as well.
        day = date.fromisoformat(value) if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value) else None
    except ValueError:
        day = None
    if day is None:
        raise click.BadParameter(f"{value!r} is no date such as 2027-01-31.", param=parameter)
    if day < datetime.now(timezone.utc).date():
        raise click.BadParameter(
            f"{value} is over (in UTC); the token would never be valid.", param=parameter
        )
    return day


@click.command(epilog=EPILOG)
@click.argument("name", callback=_name)
@click.option(
    "--publish",
    multiple=True,
    metavar="PATTERN",
    callback=_patterns,
    help="A topic that the caller may publish to, or a pattern: in it, * is any run of characters. May be "
    "given more than once. Quote a *, which the shell takes for names of files.",
)
@click.option("--read", is_flag=True, help="The caller may read the readings.")
@click.option("--metrics", is_flag=True, help="The caller may see metrics.")
@click.option(
    "--until",
    metavar="YYYY-MM-DD",
    callback=_day,
    help="The last day, in UTC, on which the token is valid. Without it, the token has no end.",
)
@click.option(
    "--append",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Add the lines to this file of callers, which is made if it does not exist. A caller that is in it "
    "already keeps its rights, and its other tokens.",
)
def token(
    *, name: str, publish: tuple[str, ...], read: bool, metrics: bool, until: date | None, path: Path | None
) -> None:
    """
    Make a token for the caller NAME, and print it.

    The token is on stdout, alone, once. What the service has to know of it is on stderr: the lines for the
    file that its option --callers names. --append FILE adds them there instead.
    """
    from sampleapp.access.tokens import digest_of, new_token

    made = new_token()
    caller = caller_lines(name, publish=publish, read=read, metrics=metrics)
    new = token_lines(name, sha256=digest_of(made.encode("ascii")).hex(), until=until)
    has_rights = bool(publish or read or metrics)
    if path is None:
        note(_for_the_file(name, caller, new, has_rights=has_rights))
        _print_once(made, "Remove the lines above if you have them already.")
        return

    known = False

    def added_to(old: str) -> str:
        nonlocal known
        known = _names(name, old, path)
        if known and has_rights:
            raise CommandFailed(
                f"The caller {name} is in {path} already, with rights of its own. Change those there; leave "
                "out --publish, --read and --metrics to add a token."
            )
        result = f"{_ended(old)}{new}" if known else f"{_ended(old)}{caller}\n{new}"
        _check(result, path)
        return result

    try:
        replace_file(path, added_to, before=lambda: _print_once(made, f"{path} is as it was."))
    except UnicodeDecodeError as error:
        raise CommandFailed(f"{path} is not UTF-8, which TOML has to be.") from error
    except OSError as error:
        raise CommandFailed(
            f"{path} cannot be changed, so the token is of no use: {error.strerror}."
        ) from error
    what = "a further token of the caller" if known else "the caller"
    note(f"Added to {path}: {what} {name}.{_advice(known=known, has_rights=has_rights)}")


def _for_the_file(name: str, caller: str, new: str, *, has_rights: bool) -> str:
    """Say it in TOML as a whole, so that all of stderr can go into the file."""
    hint = "" if has_rights else "# No rights are given: a new caller may do nothing yet.\n"
    return (
        f"# For the file of callers. If {name} is in it already, add only what follows from [[ on.\n"
        f"{hint}\n{caller}\n{new}"
    ).rstrip("\n")


def _advice(*, known: bool, has_rights: bool) -> str:
    return "" if known or has_rights else " It has no rights yet: give it some there."


def _ended(old: str) -> str:
    """End the last line, and leave one empty."""
    if not old:
        return ""
    return f"{old}\n" if old.endswith("\n") else f"{old}\n\n"


def _names(name: str, text: str, path: Path) -> bool:
    """
    Whether a file of callers has this one.

    :raise CommandFailed: it cannot be read.
    """
    from sampleapp.access.toml_lines import TOMLDocument, TOMLMistake

    try:
        callers = TOMLDocument(text.encode("utf-8")).value.get("callers", {})
    except TOMLMistake as mistake:
        raise CommandFailed(f"{path}, line {mistake.line}: {mistake}. {path} is as it was.") from mistake
    return isinstance(callers, dict) and name in callers


def _check(text: str, path: Path) -> None:
    """:raise CommandFailed: the service would not take this for a file of callers."""
    from sampleapp.access import CallersFileError, parse_callers

    try:
        parse_callers(text.encode("utf-8"), name=str(path))
    except CallersFileError as error:
        mistakes = str(error).replace("--callers: ", "")
        raise CommandFailed(
            f"With the token, the file would not be one of callers:\n{mistakes}\n"
            f"{path} is as it was. Correct it first, or add the token by hand: without --append, its lines "
            "are shown."
        ) from error


def _print_once(token: str, otherwise: str) -> None:
    """
    Print the token.

    :param otherwise: a sentence for when nobody takes it.
    """
    try:
        sys.stdout.write(f"{token}\n")
        sys.stdout.flush()
    except OSError as error:
        discard_stdout()
        raise CommandFailed(
            f"The token cannot be printed, so it is lost: {error.strerror}. {otherwise}"
        ) from error
