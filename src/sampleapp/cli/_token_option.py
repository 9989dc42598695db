"""The token that a command sends. It is never on the command line, where every user could see it (ps)."""

from __future__ import annotations

import os
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click

from sampleapp.cli._options import OptionWithVariable
from sampleapp.cli._output import note
from sampleapp.cli._visible import visible
from sampleapp.file_permissions import shown_path

__all__ = ["new_client", "token_option", "warn_of_unencrypted_token"]

if TYPE_CHECKING:
    from sampleapp.client import Client

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
