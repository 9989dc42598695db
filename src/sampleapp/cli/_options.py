"""Options that are parsed at once into values, or refused with what would be right."""

from __future__ import annotations

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
