"""``sampleapp readings``: print the readings, once or each time they change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sampleapp.cli._options import url_option
from sampleapp.cli._output import note, print_result
from sampleapp.cli._run import command_failure, note_waiting, run
from sampleapp.cli._token_option import new_client, token_option, warn_of_unencrypted_token

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from sampleapp.client import Client, Snapshot, Version
    from sampleapp.model import Reading

__all__ = ["readings", "watch"]

POLL_INTERVAL_S = 1.0
MAX_RETRY_AFTER_S = 30.0

EPILOG = """
\b
Examples:
  sampleapp readings
  sampleapp readings --version 2
  sampleapp readings --version 2 --watch
"""


@click.command(epilog=EPILOG)
@click.option(
    "--version",
    "version_name",
    type=click.Choice(["1", "2"]),
    default="1",
    show_default=True,
    help="Version of the representation: 1 for the values, 2 for values with their ids.",
)
@click.option(
    "--watch",
    "watching",
    is_flag=True,
    help="Print the readings again each time they change, until Ctrl-C. If the service does not answer, ask "
    "again until it does.",
)
@url_option
@token_option
def readings(*, version_name: str, watching: bool, url: str, token: str | None) -> None:
    """Print the readings as one line of JSON."""
    warn_of_unencrypted_token(url=url, token=token)
    version: Version = 2 if version_name == "2" else 1

    async def command(reactor: Any) -> None:
        from sampleapp.client import ClientError

        client = new_client(url=url, reactor=reactor, token=token)
        try:
            if watching:
                await watch(client=client, version=version, reactor=reactor, url=url)
            else:
                polled = client.poll(version=version)
                snapshot: Snapshot[Any] = await note_waiting(polled, clock=reactor, url=url)
                print_result(snapshot.readings)
        except ClientError as error:
            raise command_failure(error) from error

    run(command)


async def watch(*, client: Client, version: Version, reactor: Any, url: str) -> None:
    """
    Print the readings, and again each time they have changed, until cancelled.

    :raise sampleapp.client.ClientError: a later request would fail in the same way.
    """
    from twisted.internet.defer import CancelledError
    from twisted.internet.task import deferLater

    from sampleapp.client import ClientError

    snapshot: Snapshot[Any] | None = None
    printed: list[float] | list[Reading] | None = None
    away = False
    try:
        while True:
            pause_s = POLL_INTERVAL_S
            try:
                polled: Deferred[Snapshot[Any]] = client.poll(version=version, after=snapshot)
                snapshot = await note_waiting(polled, clock=reactor, url=url)
            except ClientError as error:
                if not error.retriable:
                    raise
                pause_s = max(pause_s, min(getattr(error, "retry_after_s", None) or 0, MAX_RETRY_AFTER_S))
                if not away:
                    note(f"{error} Asking again until there is an answer.")
                away = True
            else:
                if away:
                    note("The service answers again.")
                away = False
                # Not by the snapshot alone: without entity tags, each snapshot is new.
                if snapshot.readings != printed:
                    printed = snapshot.readings
                    print_result(printed)
            await deferLater(reactor, pause_s)
    except CancelledError:
        # Ctrl-C is the regular end of --watch.
        return
