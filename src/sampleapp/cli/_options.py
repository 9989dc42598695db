"""Options that several commands share, parsed at once into values."""

from __future__ import annotations

import click

__all__ = ["broker_option", "checked_text", "parsed_url", "url_option"]


def checked_text(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Reject an argument that is not UTF-8; Python decodes such bytes to lone surrogates."""
    try:
        (value or "").encode("utf-8")
    except UnicodeEncodeError as error:
        raise click.BadParameter("it is not UTF-8.", param=parameter) from error
    return value


def parsed_url(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Parse the URL of a service; ``None`` stays ``None``."""
    from sampleapp.client import parse_base_url

    if value is None:
        return None
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
    callback=parsed_url,
    help="URL of the service.",
)


def _readable_broker(context: click.Context, parameter: click.Parameter, value: str) -> str:
    from sampleapp.brokers import BrokerURLError, check_readable

    if context.params.get("url") is not None:
        # The command reads through the service.
        return value
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
    help="URL of the broker, as given to the service: sqlite:PATH, or kafka://HOST:PORT.",
)
