"""``sampleapp topics``: list topics, of a broker or as the service shows them."""

from __future__ import annotations

from typing import Any

import click

from sampleapp.cli._options import broker_option, broker_or_url_option, require_one_source
from sampleapp.cli._output import CommandFailed, flush_results, note, print_result
from sampleapp.cli._run import command_failure, note_waiting, run
from sampleapp.cli._token_option import new_client, token_option, warn_of_unencrypted_token

__all__ = ["topics"]

EPILOG = """
\b
Examples:
  sampleapp topics
  sampleapp topics --url http://127.0.0.1:8080/
  sampleapp topics --broker kafka://kafka1:9092
"""


@click.command(epilog=EPILOG)
@broker_option
@broker_or_url_option
@token_option
@click.pass_context
def topics(context: click.Context, *, broker: str, url: str | None, token: str | None) -> None:
    """
    Print the names of the topics, one per line.

    With --url, or the environment variable SAMPLEAPP_URL, these are the topics that you may publish to or
    consume. Otherwise, and with --broker, they are those of the broker, without its internal ones.
    """
    require_one_source(context)
    if url is not None:
        warn_of_unencrypted_token(url=url, token=token)

    async def command(reactor: Any) -> None:
        from sampleapp.cli._topic import started_broker
        from sampleapp.client import ClientError
        from sampleapp.errors import BrokerUnavailable

        try:
            if url is not None:
                listed = new_client(url=url, reactor=reactor, token=token).topics()
                names = await note_waiting(listed, clock=reactor, url=url)
            else:
                async with started_broker(broker, reactor=reactor) as started:
                    names = list(await started.list_topics())
        except ClientError as error:
            raise command_failure(error) from error
        except BrokerUnavailable as error:
            raise CommandFailed(str(error)) from error
        for name in names:
            # No character of a name needs an escape.
            print_result(name.encode("ascii"), flush=False)
        flush_results()
        if not names:
            note("There are no topics.")

    run(command)
