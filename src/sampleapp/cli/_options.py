"""Options that are parsed at once into values, or refused with what would be right."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["broker_option", "url_option"]


def _parsed_url(_context: click.Context, parameter: click.Parameter, value: str) -> str:
    from sampleapp.client import parse_base_url

    try:
        return parse_base_url(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param=parameter) from error


url_option = click.option(
    "--url",
    default="http://127.0.0.1:8080/",
    envvar="SAMPLEAPP_URL",
    show_default=True,
    show_envvar=True,
    metavar="URL",
    callback=_parsed_url,
    help="Where the service is.",
)


def _readable_broker(_context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Refuse what would be made, or would be empty, only because it was asked for."""
    scheme, _, rest = value.partition(":")
    # A service makes its file when it starts. Who reads one wants what is there, or has mistyped it.
    if scheme.lower() == "sqlite" and rest and not Path(rest).exists():
        raise click.BadParameter(
            f"there is no file {rest!r}. It is made by the service, in the directory where that was started, "
            "or wherever its own --broker says.",
            param=parameter,
        )
    if scheme.lower() == "memory":
        raise click.BadParameter(
            "what a memory broker keeps can be read only in the service itself.", param=parameter
        )
    return value


broker_option = click.option(
    "--broker",
    default="sqlite:sampleapp.sqlite3",
    show_default=True,
    metavar="URL",
    callback=_readable_broker,
    help="The broker, as it was given to the service: sqlite:PATH, or kafka://HOST:PORT.",
)
