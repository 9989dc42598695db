"""``sampleapp token``: create a token for a caller of the service."""

from __future__ import annotations

import re
import sys
from datetime import UTC, date, datetime
from pathlib import Path

import click

from sampleapp.cli._callers_file import (
    append_lines,
    caller_lines,
    names_in,
    replace_file,
    require_valid,
    token_lines,
)
from sampleapp.cli._options import WithDashes
from sampleapp.cli._output import CommandFailed, discard_stdout, note

EPILOG = """
\b
Examples:
  sampleapp token thermometer --publish readings --publish "sensors.*"
  sampleapp token display --read --until 2027-01-31
  sampleapp token archive --consume "sensors.*"
  sampleapp token biller --work orders/billing
  sampleapp token thermometer --append /etc/sampleapp/callers.toml

The service stores only the SHA-256 of the token, so the token cannot be shown again: store it at once where
the caller reads it.
"""


def _name(_context: click.Context, parameter: click.Parameter, value: str) -> str:
    from sampleapp.access.caller import is_legal_name

    if not is_legal_name(value):
        raise click.BadParameter(
            f"{value!r} is not the name of a caller: 1 to 100 characters out of A-Z, a-z, 0-9, '.', '_', "
            "'-' and '@'.",
            param=parameter,
        )
    return value


def _patterns(_context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    from sampleapp.access.caller import is_legal_group_pattern, is_legal_pattern

    is_of_groups = parameter.name == "work"
    for pattern in value:
        if not (is_legal_group_pattern if is_of_groups else is_legal_pattern)(pattern):
            raise click.BadParameter(
                f"{pattern!r} is neither a group of workers nor a pattern of groups: TOPIC/GROUP, such as "
                "orders/billing or 'orders/*', or '*' for every group."
                if is_of_groups
                else f"{pattern!r} is neither a topic nor a pattern of topics: 1 to 249 characters out of "
                "A-Z, a-z, 0-9, '.', '_', '-' and '*', which matches any characters.",
                param=parameter,
            )
    # Without duplicates.
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
        raise click.BadParameter(f"{value!r} is not a date such as 2027-01-31.", param=parameter)
    if day < datetime.now(UTC).date():
        raise click.BadParameter(
            f"{value} is in the past (in UTC): the token would never be valid.", param=parameter
        )
    return day


@click.command(cls=WithDashes, epilog=EPILOG)
@click.argument("name", callback=_name)
@click.option(
    "--publish",
    multiple=True,
    metavar="PATTERN",
    callback=_patterns,
    help="Topic that the caller may publish to, or a pattern with * for any characters. May be "
    "given more than once. Quote a *, since the shell expands it to names of files.",
)
@click.option(
    "--consume",
    multiple=True,
    metavar="PATTERN",
    callback=_patterns,
    help="Topic whose records the caller may read, or a pattern as for --publish. May be given more than "
    "once.",
)
@click.option(
    "--work",
    multiple=True,
    metavar="TOPIC/GROUP",
    callback=_patterns,
    help="Group in which the caller may work, or a pattern with * for any characters, such as 'orders/*'. "
    "May be given more than once.",
)
@click.option("--read", is_flag=True, help="The caller may read the readings.")
@click.option("--metrics", is_flag=True, help="The caller may see metrics.")
@click.option(
    "--until",
    metavar="YYYY-MM-DD",
    callback=_day,
    help="Last day, in UTC, on which the token is valid. Without this option, it does not expire.",
)
@click.option(
    "--append",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Add the lines to this callers file, which is created if it does not exist. A caller that is "
    "already in it keeps its rights and its other tokens.",
)
def token(
    *,
    name: str,
    publish: tuple[str, ...],
    consume: tuple[str, ...],
    work: tuple[str, ...],
    read: bool,
    metrics: bool,
    until: date | None,
    path: Path | None,
) -> None:
    """
    Create a token for the caller NAME, and print it.

    Only the token is on stdout, and only this once. The lines for the service's callers file (its option
    --callers) are on stderr. --append FILE adds them to that file instead.
    """
    from sampleapp.access.caller import digest_of, new_token

    made = new_token()
    rights = {"publish": publish, "consume": consume, "work": work}
    caller = caller_lines(name, rights=rights, read=read, metrics=metrics)
    new = token_lines(name, sha256=digest_of(made.encode("ascii")).hex(), until=until)
    has_rights = any(rights.values()) or read or metrics
    if path is None:
        note(_for_the_file(name, caller, new, has_rights=has_rights))
        _print_once(made, "Remove the lines above if you have them already.")
        return

    known = False

    def added_to(old: str) -> str:
        nonlocal known
        known = name in names_in("callers", old, path)
        if known and has_rights:
            raise CommandFailed(
                f"The caller {name} is already in {path}, with its rights. Change its rights there; to add a "
                "token, leave out --publish, --consume, --work, --read and --metrics."
            )
        result = append_lines(old, new if known else f"{caller}\n{new}")
        require_valid(result, path, what="token")
        return result

    try:
        replace_file(path, added_to, before=lambda: _print_once(made, f"{path} is unchanged."))
    except UnicodeDecodeError as error:
        raise CommandFailed(f"{path} is not UTF-8, which TOML requires.") from error
    except OSError as error:
        raise CommandFailed(
            f"{path} cannot be changed, so the token is useless: {error.strerror}."
        ) from error
    what = "another token of the caller" if known else "the caller"
    note(f"Added to {path}: {what} {name}.{_advice(known=known, has_rights=has_rights)}")


def _for_the_file(name: str, caller: str, new: str, *, has_rights: bool) -> str:
    """Format the lines and hints as TOML, so that all of stderr can go into the file."""
    hint = "" if has_rights else "# Without rights: a new caller may do nothing yet.\n"
    return (
        f"# For the callers file. If {name} is already in it, add only the lines from [[ on.\n"
        f"{hint}\n{caller}\n{new}"
    ).rstrip("\n")


def _advice(*, known: bool, has_rights: bool) -> str:
    return "" if known or has_rights else " It has no rights yet: add them there."


def _print_once(token: str, otherwise: str) -> None:
    """
    Print the token.

    :param otherwise: a sentence for the case that it cannot be printed.
    """
    try:
        sys.stdout.write(f"{token}\n")
        sys.stdout.flush()
    except OSError as error:
        discard_stdout()
        raise CommandFailed(
            f"The token cannot be printed, so it is lost: {error.strerror}. {otherwise}"
        ) from error
