"""The token that a command sends. It is never on the command line, where every user could see it (ps)."""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import click

from sampleapp.cli._options import OptionWithVariable
from sampleapp.cli._output import note
from sampleapp.file_permissions import shown_path

__all__ = ["token_option", "warn_of_unencrypted_token"]

VARIABLE = "SAMPLEAPP_TOKEN"
# The maximum length of a request's header in the service.
MAX_BYTES = 16 * 1024


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


token_option = click.option(
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
