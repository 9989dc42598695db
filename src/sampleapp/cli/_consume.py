"""``sampleapp consume``: print the records of a topic, from its broker or through the service."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from sampleapp.cli._options import broker_option, parsed_url
from sampleapp.cli._output import CommandFailed, note
from sampleapp.cli._run import run
from sampleapp.cli._times import MAX_INT64, milliseconds
from sampleapp.cli._token_option import token_option, warn_of_unencrypted_token

if TYPE_CHECKING:
    from sampleapp.model import Start

__all__ = ["consume"]

EPILOG = """
\b
Examples:
  sampleapp consume readings
  sampleapp consume readings --follow --from end
  sampleapp consume readings --from -10
  sampleapp consume readings --from 2026-11-21T08:00:00Z --limit 100
  sampleapp consume greetings --broker sqlite:/var/lib/sampleapp/records.sqlite3
  sampleapp consume readings --broker kafka://kafka1:9092,kafka2:9092
  sampleapp consume readings --url http://127.0.0.1:8080/ --key kitchen --follow
"""

INTEGER = re.compile(r"(?P<sign>-?)(?P<digits>[0-9]{1,19})")


def _start(_context: click.Context, parameter: click.Parameter, value: str) -> Start:
    from sampleapp.model import EARLIEST, FromEnd, FromOffset, FromTime

    if value == "start":
        return EARLIEST
    if value == "end":
        return FromEnd(0)
    number = INTEGER.fullmatch(value)
    if number is not None and int(number["digits"]) <= MAX_INT64:
        kind: type[FromOffset | FromEnd] = FromEnd if number["sign"] else FromOffset
        return kind(int(number["digits"]))
    timestamp_ms = milliseconds(value)
    if timestamp_ms is not None:
        return FromTime(timestamp_ms)
    raise click.BadParameter(
        f"{value!r} is none of: start; end; an offset, such as 42; -N for the last N records of each "
        "partition; a time with its offset from UTC, such as 2026-11-21T08:00:00Z; @MILLISECONDS since 1970.",
        param=parameter,
    )


@click.command(epilog=EPILOG)
@click.argument("topic")
@broker_option
@click.option(
    "--url",
    metavar="URL",
    callback=parsed_url,
    # The broker and the token depend on it.
    is_eager=True,
    help="URL of the service, to read the topic over HTTP instead of from its broker.",
)
@token_option
@click.option(
    "--from",
    "start",
    default="start",
    show_default=True,
    metavar="WHERE",
    callback=_start,
    help="First record: start; end; an offset; -N for the last N records of each partition; a time such as "
    "2026-11-21T08:00:00Z, or @MILLISECONDS since 1970, for the first record that is not older.",
)
@click.option("--partition", type=click.IntRange(min=0), metavar="P", help="Print only partition P.")
@click.option("--key", metavar="TEXT", help="Print only records with this key.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after N records.")
@click.option("--follow", is_flag=True, help="Go on with new records, until Ctrl-C.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="End when no record has come for SECONDS: with success if all existing records are printed, "
    "otherwise with failure.  [default: wait for ever]",
)
@click.pass_context
def consume(
    context: click.Context,
    *,
    topic: str,
    broker: str,
    url: str | None,
    token: str | None,
    start: Start,
    partition: int | None,
    key: str | None,
    limit: int | None,
    follow: bool,
    timeout_s: float | None,
) -> None:
    """
    Print the records of TOPIC, one JSON object per line.

    The lines are those of GET /topics/TOPIC/records, and Each has the
    members topic, partition, offset, timestamp (milliseconds since 1970, in UTC), key (absent if the record
    has none), content (null in a tombstone) and headers (an object).

    A key or content that is not UTF-8 is key_base64 or content_base64 instead. Headers that repeat, are not
    UTF-8 or are null are a list of [name, base64 or null] named headers_base64.

    The command reads the broker, whether the service is running or not. With --url it reads through the
    service instead, and goes on by itself after a restart of the service. It adds and changes no record.
    """
    if url is None:
        if context.get_parameter_source("token") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--token-file is for the service: give its URL with --url, too.")
    else:
        if context.get_parameter_source("broker") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--url reads through the service, --broker without it: give one of them.")
        warn_of_unencrypted_token(url=url, token=token)

    async def command(reactor: Any) -> None:
        from sampleapp.cli._topic import Selection, print_topic
        from sampleapp.model import EARLIEST, is_legal_topic

        if not is_legal_topic(topic):
            raise CommandFailed(
                f"There is no topic {topic!r}: the name of a topic is 1 to 249 characters out of A-Z, a-z, "
                "0-9, '.', '_' and '-', and neither '.' nor '..'."
            )
        selection = Selection(
            topic=topic,
            start=start,
            partition=partition,
            # The bytes as typed, UTF-8 or not: a key may have any bytes.
            key=None if key is None else os.fsencode(key),
            limit=limit,
            follow=follow,
            timeout_s=timeout_s,
        )
        if url is None:
            printed = await print_topic(selection, broker_url=broker, reactor=reactor)
        else:
            from sampleapp.cli._pages import print_pages
            from sampleapp.client import Client

            client = Client(base_url=url, reactor=reactor, token=token)
            printed = await print_pages(selection, client=client, clock=reactor)
        if not printed:
            place = "" if start == EARLIEST else " from there on"
            note(f"There are no records in {selection.describe()}{place}.")

    run(command)
