"""``sampleapp consume``: print the records of a topic, straight from the broker."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from sampleapp.cli._options import broker_option
from sampleapp.cli._output import CommandFailed, note
from sampleapp.cli._run import run
from sampleapp.cli._times import MAX_INT64, milliseconds

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
        f"{value!r} is none of: start; end; an offset, such as 42; -N for the last N of each partition; a "
        "time with its offset from UTC, such as 2026-11-21T08:00:00Z; @MILLISECONDS since 1970.",
        param=parameter,
    )


@click.command(epilog=EPILOG)
@click.argument("topic")
@broker_option
@click.option(
    "--from",
    "start",
    default="start",
    show_default=True,
    metavar="WHERE",
    callback=_start,
    help="Where to begin: start; end; an offset; -N for the last N records of each partition; a time such as "
    "2026-11-21T08:00:00Z, or @MILLISECONDS since 1970, for the first record that is not older.",
)
@click.option("--partition", type=click.IntRange(min=0), metavar="P", help="Print this partition only.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after N records.")
@click.option("--follow", is_flag=True, help="Go on with records that are added later, until Ctrl-C.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="End when no record has come for so long: a success if all that was there is printed, otherwise a "
    "failure.  [default: wait for ever]",
)
def consume(
    *,
    topic: str,
    broker: str,
    start: Start,
    partition: int | None,
    limit: int | None,
    follow: bool,
    timeout_s: float | None,
) -> None:
    """
    Print the records of TOPIC, one JSON object a line.

    Each has the members topic, partition, offset, timestamp (milliseconds since 1970, in UTC), key and
    value. A key or value of null is one that the record does not have. A record that has headers has them as
    a list of objects with name and value.

    What is not UTF-8 has no exact form as a string. Such a record has, in place of key or value, the member
    key_base64 or value_base64, with the bytes in base64.

    No record is added or changed, and the service may be running or not.
    """

    async def command(reactor: Any) -> None:
        from sampleapp.cli._topic import Selection, print_topic
        from sampleapp.messages import is_legal_topic
        from sampleapp.model import EARLIEST

        if not is_legal_topic(topic):
            raise CommandFailed(
                f"There is no topic {topic!r}: the name of a topic is 1 to 249 characters out of A-Z, a-z, "
                "0-9, '.', '_' and '-', and neither '.' nor '..'."
            )
        selection = Selection(
            topic=topic, start=start, partition=partition, limit=limit, follow=follow, timeout_s=timeout_s
        )
        if not await print_topic(selection, broker_url=broker, reactor=reactor):
            place = "" if start == EARLIEST else " from there on"
            note(f"There are no records in {selection.describe()}{place}.")

    run(command)
