"""The token that a command sends, which is never on its command line, where everybody could see it (ps)."""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import click

from sampleapp.cli._output import note

__all__ = ["token_option", "warn_of_a_token_in_the_clear"]

VARIABLE = "SAMPLEAPP_TOKEN"
# As long as a header of the service may be.
MAX_BYTES = 16 * 1024


def _token(_context: click.Context, parameter: click.Parameter, value: Path | None) -> str | None:
    """Return the token in a file, or else that in the environment; ``None`` if there is none."""
    from sampleapp.client import check_token

    if value is None:
        source, text = f"the environment variable {VARIABLE}", os.environ.get(VARIABLE, "")
        if not text:
            return None
    else:
        source = f"the file '{value}'"
        try:
            with value.open("rb") as file:
                text = file.read(MAX_BYTES + 1).decode("ascii", "replace")
        except OSError as error:
            raise click.BadParameter(
                f"{source} cannot be read: {error.strerror}.", param=parameter
            ) from error
    if len(text) > MAX_BYTES:
        raise click.BadParameter(
            f"{source} holds more than a token: over {MAX_BYTES} bytes.", param=parameter
        )
    try:
        return check_token(text.strip())
    except ValueError as error:
        raise click.BadParameter(f"what {source} holds is no token: {error}.", param=parameter) from None


token_option = click.option(
    "--token-file",
    "token",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    envvar="SAMPLEAPP_TOKEN_FILE",
    show_envvar=True,
    callback=_token,
    help="A file with the token of the caller, such as sampleapp token has printed, or a JSON Web Token. "
    f"Without it, the token is what the environment variable {VARIABLE} holds, if that is set.",
)


def warn_of_a_token_in_the_clear(*, url: str, token: str | None) -> None:
    """
    Say on stderr that others can read the token, if they can.

    :param url: where it is sent, as `sampleapp.client.parse_base_url` returns it.
    """
    parts = urlsplit(url)
    if token is not None and parts.scheme == "http" and not _is_loopback(parts.hostname or ""):
        note(
            f"Warning: the token goes to {parts.hostname} without encryption, and everybody on the way can "
            "read it. Use https:// if the service has it."
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        # RFC 6761, section 6.3.
        return host == "localhost" or host.endswith(".localhost")
