"""Options that several commands share, parsed at once into values."""

from __future__ import annotations

import re

import click
from click.core import ParameterSource

from sampleapp.cli._base64 import from_base64

__all__ = [
    "OptionWithVariable",
    "WithDashes",
    "base64_key",
    "broker_option",
    "broker_or_url_option",
    "checked_text",
    "parsed_url",
    "require_one_source",
    "topic_name",
    "url_option",
]


NEGATIVE_NUMBER = re.compile(r"-(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
ENVIRONMENT, COMMANDLINE = ParameterSource.ENVIRONMENT, ParameterSource.COMMANDLINE


def checked_text(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Reject an argument that is not UTF-8; Python decodes such bytes to lone surrogates."""
    try:
        (value or "").encode("utf-8")
    except UnicodeEncodeError as error:
        raise click.BadParameter("it is not UTF-8.", param=parameter) from error
    return value


def base64_key(_context: click.Context, parameter: click.Parameter, value: str | None) -> bytes | None:
    """Decode a key in base64; ``None`` stays ``None``."""
    if value is None:
        return None
    try:
        return from_base64(value)
    except ValueError as error:
        raise click.BadParameter(f"it is {error}.", param=parameter) from error


def topic_name(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Reject an illegal name of a topic; ``None`` stays ``None``."""
    from sampleapp.model import is_legal_topic

    if value is not None and not is_legal_topic(value):
        raise click.BadParameter(
            f"{value!r} is not the name of a topic: 1 to 249 characters out of A-Z, a-z, 0-9, '.', '_' and "
            "'-', and neither '.' nor '..'.",
            param=parameter,
        )
    return value


class WithDashes(click.Command):
    """A command that takes -5.5 for an argument, not for an option: readings are often below zero."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """
        Parse the arguments; if one is a negative number, unknown options are arguments.

        :raise click.NoSuchOption: an option is unknown; the message says how to give it as an argument.
        """
        if any(NEGATIVE_NUMBER.fullmatch(argument) for argument in args):
            ctx.ignore_unknown_options = True
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.possibilities:
                raise
            message = f'{error.message} An argument that begins with a dash must follow "--".'
            raise click.NoSuchOption(error.option_name, message, ctx=ctx) from error


def parsed_url(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Parse the URL of a service; ``None`` stays ``None``."""
    from sampleapp.client import parse_base_url

    if value is None:
        return None
    try:
        return parse_base_url(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param=parameter) from error


class OptionWithVariable(click.Option):
    """An option that names the origin of its value in errors: the command line, or its variable."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the name of the origin."""
        if ctx is not None and self.name and ctx.get_parameter_source(self.name) is ENVIRONMENT:
            return f"'{self.envvar}'"
        return click.Parameter.get_error_hint(self, ctx)


url_option = click.option(
    "--url",
    cls=OptionWithVariable,
    default="http://127.0.0.1:8080/",
    envvar="SAMPLEAPP_URL",
    show_default=True,
    show_envvar=True,
    metavar="URL",
    callback=parsed_url,
    help="URL of the service.",
)


def require_one_source(context: click.Context) -> None:
    """
    Check the options of a command that reads either through the service or from its broker.

    :raise click.UsageError: they contradict each other, or the broker cannot be read.
    """
    from sampleapp.brokers import BrokerURLError, check_readable

    def is_given(name: str) -> bool:
        return context.get_parameter_source(name) is COMMANDLINE

    if is_given("broker") and is_given("url"):
        raise click.UsageError("--url reads through the service, --broker without it: give one of them.")
    if context.params["url"] is not None:
        return
    for parameter in context.command.params:
        if parameter.name in {"token", "client_certificate", "client_key"} and is_given(parameter.name):
            raise click.UsageError(
                f"{parameter.opts[0]} is for the service: give its URL with --url or SAMPLEAPP_URL, too."
            )
    try:
        check_readable(context.params["broker"])
    except BrokerURLError as error:
        raise click.BadParameter(str(error), ctx=context, param_hint="'--broker'") from error


broker_option = click.option(
    "--broker",
    default="sqlite:sampleapp.sqlite3",
    show_default=True,
    metavar="URL",
    # The URL of the service depends on it.
    is_eager=True,
    help="URL of the broker, as given to the service: sqlite:PATH, or kafka://HOST:PORT. It takes "
    "precedence over the variable of --url.",
)


def _url_unless_broker(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    sources = [context.get_parameter_source(name) for name in ("broker", "url")]
    return None if sources == [COMMANDLINE, ENVIRONMENT] else parsed_url(context, parameter, value)


broker_or_url_option = click.option(
    "--url",
    cls=OptionWithVariable,
    envvar="SAMPLEAPP_URL",
    show_envvar=True,
    metavar="URL",
    callback=_url_unless_broker,
    # The token depends on it.
    is_eager=True,
    help="URL of the service, to read the topic over HTTP instead of from its broker.",
)
