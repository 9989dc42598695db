"""``sampleapp hook``: add a hook for a sender that signs its requests."""

from __future__ import annotations

import os
import re
import secrets
import sys
from getpass import getpass
from pathlib import Path
from typing import Any, Final

import click

from sampleapp.cli._callers_file import append_lines, hook_lines, names_in, replace_file, require_valid
from sampleapp.cli._options import OptionWithVariable, WithDashes, parsed_url
from sampleapp.cli._output import CommandFailed, discard_stdout, note
from sampleapp.errors import visible

EPILOG = """
\b
Examples:
  sampleapp hook github --scheme github --topic github --append /etc/sampleapp/callers.toml
  sampleapp hook stripe --scheme stripe --topic payments --url https://hooks.example.org
  sampleapp hook meters --scheme hmac --topic readings --header X-Signature --key-header X-Meter

With --append, a new secret is made for github and hmac, and printed once; for the others, the command reads
the secret that the sender shows from standard input.
"""

_CHOSEN_HERE: Final = frozenset({"github", "hmac"})
"""The schemes whose secret is entered at the sender; the other senders make it themselves."""
_WHERE: Final = {
    "github": "GitHub: Settings, Webhooks, Add webhook",
    "stripe": "Stripe: Developers, Webhooks, Add destination",
    "slack": "Slack: your app, Event Subscriptions, Enable Events",
    "standard": "The sender, where it asks for the URL of a webhook",
    "hmac": "The sender",
}
_URL_NAMES: Final = {"github": "Payload URL", "stripe": "Endpoint URL", "slack": "Request URL"}
_SECRET_NAMES: Final = {
    "stripe": "Signing secret (whsec_...)",
    "slack": "Signing Secret (Basic Information, App Credentials)",
    "standard": "Secret (whsec_...) or public key (whpk_...)",
}
_KEYS_ON_KAFKA: Final = (
    "# With Kafka, start the service with --idempotent-topic {topic}, since it does not start with a hook "
    "whose idempotency keys the topic does not take."
)
_PREFIX_OF_MISTAKES: Final = re.compile(r"--callers: .*, line [0-9]+: ")


def _url(context: click.Context, parameter: click.Parameter, value: str) -> str:
    parsed_url(context, parameter, value)
    # As it was written: the default must be replaced by hand.
    return value


@click.command(cls=WithDashes, epilog=EPILOG)
@click.argument("name")
@click.option(
    "--scheme", required=True, help="How the sender signs: github, stripe, slack, standard or hmac."
)
@click.option("--topic", required=True, help="Topic that gets the records.")
@click.option("--header", help="For hmac: header with the signature.")
@click.option("--encoding", help="For hmac: hex or base64. [default: hex]")
@click.option("--prefix", help="For hmac: text in front of the signature, such as sha256=.")
@click.option(
    "--signed", help="For hmac: form of the signed text, if it has a time, such as {timestamp}:{body}."
)
@click.option("--timestamp-header", help="For hmac: header with the time that is signed.")
@click.option("--key-header", help="Header whose value is the key of the record.")
@click.option("--idempotency-header", help="Header whose value is used as Idempotency-Key.")
@click.option(
    "--tolerance",
    type=float,
    metavar="SECONDS",
    help="Greatest difference between the time of a request and the service's clock. [default: 300]",
)
@click.option(
    "--secret-file",
    metavar="FILE",
    help="File with the secret, relative to the directory of the callers file. [default: NAME.secret]",
)
@click.option(
    "--url",
    cls=OptionWithVariable,
    default="https://HOST",
    envvar="SAMPLEAPP_URL",
    show_default=True,
    show_envvar=True,
    callback=_url,
    help="URL at which the sender reaches the service.",
)
@click.option(
    "--append",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Add the hook to this callers file, which is created if it does not exist, and make the file with "
    "the secret unless it exists.",
)
def hook(
    *,
    name: str,
    scheme: str,
    topic: str,
    secret_file: str | None,
    url: str,
    path: Path | None,
    **members: Any,
) -> None:
    """
    Add the hook NAME for a sender that signs its requests, and print what to enter at the sender.

    The lines for the service's callers file (its option --callers) are on stderr. --append FILE adds them to
    that file instead.
    """
    secret_file = secret_file or f"{name}.secret"
    if members["idempotency_header"]:
        note(_KEYS_ON_KAFKA.format(topic=topic))
    lines = hook_lines(name, topic=topic, scheme=scheme, secret_files=[secret_file], **members)
    _check(lines)
    address = f"{url.rstrip('/')}/hooks/{name}"
    if path is None:
        note(f"# For the callers file. Put the secret into {secret_file}, in the same directory.\n\n{lines}")
        shown = "the content of" if scheme in _CHOSEN_HERE else "copy it into"
        _print(_instructions(scheme, address, f"{shown} {secret_file}"))
        return
    try:
        _append(path, lines, name=name, scheme=scheme, secret_path=path.parent / secret_file, address=address)
    except UnicodeDecodeError as error:
        raise CommandFailed(f"{path} is not UTF-8, which TOML requires.") from error
    except OSError as error:
        raise CommandFailed(f"{error.filename or path} cannot be written: {error.strerror}.") from error
    note(f"Added to {path}: the hook {name}.")


def _append(path: Path, lines: str, *, name: str, scheme: str, secret_path: Path, address: str) -> None:
    is_new = not secret_path.exists()
    secret = _secret(scheme) if is_new else ""

    def added_to(old: str) -> str:
        if name in names_in("hooks", old, path):
            raise CommandFailed(f"The hook {name} is already in {path}. Change it there.")
        result = append_lines(old, lines)
        require_valid(result, path, what="hook")
        return result

    def write_secret() -> None:
        if is_new:
            _write_secret(secret_path, secret, like=path)
        try:
            _check_secret(lines, directory=path.parent)
            is_shown = is_new and scheme in _CHOSEN_HERE
            shown = "the content of" if scheme in _CHOSEN_HERE else "stored in"
            _print(_instructions(scheme, address, secret if is_shown else f"{shown} {secret_path}"))
        except CommandFailed:
            if is_new:
                secret_path.unlink(missing_ok=True)
            raise

    replace_file(path, added_to, before=write_secret)


def _secret(scheme: str) -> str:
    if scheme in _CHOSEN_HERE:
        return secrets.token_hex(32)
    try:
        if sys.stdin.isatty():
            text = getpass("The secret that the sender shows: ", stream=sys.stderr)
        else:
            note("Reading the secret from standard input.")
            text = sys.stdin.readline()
        # In some locales, Python reads bytes that are not UTF-8 as surrogates.
        text.encode("utf-8")
    except EOFError:
        text = ""
    except UnicodeError:
        # Without the cause, which has the input.
        raise CommandFailed("The secret on standard input is not text in UTF-8.") from None
    if not text.strip():
        raise CommandFailed(
            "No secret was given. Create the webhook at the sender with the URL that this command prints "
            "without --append, and give the secret that the sender shows on standard input."
        )
    return text.strip()


def _write_secret(secret_path: Path, secret: str, *, like: Path) -> None:
    """Create the file, for the owner and the group of the callers file, so that the service can read it."""
    descriptor = os.open(secret_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        if like.exists():
            status, own = like.stat(), os.fstat(descriptor)
            if (own.st_uid, own.st_gid) != (status.st_uid, status.st_gid):
                os.fchown(descriptor, status.st_uid, status.st_gid)
            os.fchmod(descriptor, 0o600 | status.st_mode & 0o040)
        file.write(f"{secret}\n")


def _check(lines: str) -> None:
    """:raise click.UsageError: the service would reject these lines."""
    from sampleapp.access import CallersFileError, parse_callers

    try:
        parse_callers(lines.encode("utf-8"), name="")
    except CallersFileError as error:
        raise click.UsageError(visible(_PREFIX_OF_MISTAKES.sub("", str(error), count=1))) from error


def _check_secret(lines: str, *, directory: Path) -> None:
    """:raise CommandFailed: the secret cannot be used."""
    from sampleapp.access import parse_callers
    from sampleapp.access.callers_file_tables import Mistake
    from sampleapp.access.hook_verification import load_hook_keys

    try:
        load_hook_keys(parse_callers(lines.encode("utf-8"), name="").hooks, directory=directory)
    except Mistake as error:
        raise CommandFailed(str(error)) from error


def _instructions(scheme: str, address: str, secret: str) -> str:
    lines = [f"{_WHERE[scheme]}:", f"  {_URL_NAMES.get(scheme, 'URL')}: {address}"]
    if scheme == "github":
        lines.append("  Content type: application/json")
    if scheme in _CHOSEN_HERE:
        lines.append(f"  Secret: {secret}")
    else:
        lines.append(f"  {_SECRET_NAMES[scheme]}: {secret}")
    return "\n".join(lines)


def _print(text: str) -> None:
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except OSError as error:
        discard_stdout()
        raise CommandFailed(f"Nothing was changed, since the output failed: {error.strerror}.") from error
