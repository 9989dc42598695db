"""Options that are parsed at once into values, or refused with what would be right."""

from __future__ import annotations

import click

__all__ = ["broker_option", "checked_text", "url_option"]


def checked_text(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse an argument with bytes that are not UTF-8, which Python keeps as lone surrogates."""
    try:
        (value or "").encode("utf-8")
    except UnicodeEncodeError as error:
        raise click.BadParameter("it is not UTF-8.", param=parameter) from error
    return value


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
    from sampleapp.brokers import BrokerURLError, check_readable

    try:
        check_readable(value)
    except BrokerURLError as error:
        raise click.BadParameter(str(error), param=parameter) from error
    return value


broker_option = click.option(
    "--broker",
    default="sqlite:sampleapp.sqlite3",
    show_default=True,
    metavar="URL",
    callback=_readable_broker,
    help="The broker, as it was given to the service: sqlite:PATH, or kafka://HOST:PORT.",
)
