"""Options that several commands share, parsed at once into values."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click
import msgspec
from click.core import ParameterSource

from sampleapp.cli._output import note
from sampleapp.errors import visible
from sampleapp.files import shown_path

if TYPE_CHECKING:
    from sampleapp.client import Client


def from_base64(text: str) -> bytes:
    """
    Decode base64 as the service does, apart from white space, which is ignored: tools put line ends into it.

    :param text: base64 with padding (RFC 4648, section 4).
    :raise ValueError: the text is not base64.
    """
    try:
        return msgspec.convert("".join(text.split()), bytes)
    except msgspec.ValidationError as error:
        raise ValueError("not base64 with padding (RFC 4648, section 4)") from error


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def date_time(timestamp_ms: int) -> datetime:
    """
    Convert milliseconds since the epoch to a time in UTC.

    The service takes numbers of 12 to 14 digits only.

    :raise OverflowError: it is after the year 9999.
    """
    return _EPOCH + timedelta(milliseconds=timestamp_ms)


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
            f"{value!r} is not the name of a {parameter.name}: 1 to 249 characters out of A-Z, a-z, 0-9, "
            "'.', '_' and '-', and neither '.' nor '..'.",
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


VARIABLE = "SAMPLEAPP_TOKEN"
# The maximum length of a request's header in the service.
MAX_BYTES = 16 * 1024

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _token(context: click.Context, parameter: click.Parameter, value: Path | None) -> str | None:
    """Return the token from a file, or else from the environment; ``None`` if there is none."""
    from sampleapp.client import check_token

    if context.params.get("url", "") is None:
        # The command does not call a service, so a mistake in the environment does not matter.
        return None
    if value is None:
        source, text = f"the environment variable {VARIABLE}", os.environ.get(VARIABLE, "")
        if not text:
            return None
    else:
        source = f"the file '{shown_path(value)}'"
        try:
            with value.open("rb") as file:
                text = file.read(MAX_BYTES + 1).decode("ascii", "replace")
        except OSError as error:
            raise click.BadParameter(
                f"{source} cannot be read: {error.strerror}.", param=parameter
            ) from error
    if len(text) > MAX_BYTES:
        raise click.BadParameter(
            f"{source} contains more than a token: over {MAX_BYTES} bytes.", param=parameter
        )
    try:
        return check_token(text.strip())
    except ValueError as error:
        raise click.BadParameter(f"{source} does not contain a token: {error}.", param=parameter) from None


def _kept(context: click.Context, parameter: click.Parameter, value: Path | None) -> None:
    context.meta[f"{__name__}.{parameter.name}"] = value


def new_client(*, url: str, **arguments: Any) -> Client:
    """
    Make a client with the certificate that the options name.

    :param arguments: of `sampleapp.client.Client`.
    :raise click.BadParameter: a file of the certificate cannot be used.
    """
    from sampleapp.client import Client

    context = click.get_current_context()
    files: dict[str, Any] = {
        name: context.meta.get(f"{__name__}.{name}") for name in ("client_certificate", "client_key")
    }
    try:
        return Client(base_url=url, **files, **arguments)
    except ValueError as error:
        (parameter,) = [each for each in context.command.params if each.name == "client_certificate"]
        raise click.BadParameter(visible(str(error)), ctx=context, param=parameter) from error


_token_option = click.option(
    "--token-file",
    "token",
    cls=OptionWithVariable,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    envvar="SAMPLEAPP_TOKEN_FILE",
    show_envvar=True,
    callback=_token,
    help="File with the caller's token: one that sampleapp token has printed, or a JSON Web Token. Without "
    f"this option, the token is the value of the environment variable {VARIABLE}, if it is set.",
)


def _file_option(name: str, text: str) -> Callable[[_Command], _Command]:
    return click.option(
        f"--{name}",
        cls=OptionWithVariable,
        type=click.Path(path_type=Path),
        metavar="FILE",
        envvar=f"SAMPLEAPP_{name.upper().replace('-', '_')}",
        show_envvar=True,
        expose_value=False,
        callback=_kept,
        help=text,
    )


def token_option(command: _Command) -> _Command:
    """Add the options with the caller's credentials: a token, or a certificate."""
    for option in (
        _file_option("client-key", "PEM file with the private key, if not in the file of the certificate."),
        _file_option(
            "client-certificate",
            "PEM file with the caller's certificate, which is presented to an https:// service.",
        ),
        _token_option,
    ):
        command = option(command)
    return command


def warn_of_unencrypted_token(*, url: str, token: str | None) -> None:
    """
    Warn on stderr if the token crosses a network without encryption.

    :param url: the URL of the service, as `sampleapp.client.parse_base_url` returns it.
    """
    parts = urlsplit(url)
    if token is not None and parts.scheme == "http" and not _is_loopback(parts.hostname or ""):
        note(
            f"Warning: the token goes to {parts.hostname} without encryption, and can be read on the "
            "network. Use https:// if the service supports it."
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        # RFC 6761, section 6.3.
        return host == "localhost" or host.endswith(".localhost")
