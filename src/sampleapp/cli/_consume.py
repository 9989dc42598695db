"""``sampleapp consume``: print the records of a topic, straight from the broker."""

from __future__ import annotations

from typing import Any

import click

from sampleapp.cli._options import broker_option
from sampleapp.cli._output import note
from sampleapp.cli._run import run

__all__ = ["consume"]

EPILOG = """
\b
Examples:
  sampleapp consume readings
  sampleapp consume readings --follow
  sampleapp consume greetings --broker sqlite:/var/lib/sampleapp/records.sqlite3
  sampleapp consume readings --broker kafka://kafka1:9092,kafka2:9092
"""


@click.command(epilog=EPILOG)
@click.argument("topic")
@broker_option
@click.option("--follow", is_flag=True, help="Go on with records that are added later, until Ctrl-C.")
def consume(*, topic: str, broker: str, follow: bool) -> None:
    """
    Print the records of TOPIC, one JSON object a line.

    Each has the members topic, partition, offset, timestamp (milliseconds since 1970, in UTC), key and
    value. A key or value of null is one that the record does not have.

    A key or value that is not UTF-8 has no exact form as a string. Such a record has, in place of key or
    value, the member key_base64 or value_base64, with the bytes in base64.

    No record is added or changed, and the service may be running or not.
    """

    async def command(reactor: Any) -> None:
        from sampleapp.cli._printer import consume_topic

        if not await consume_topic(broker_url=broker, topic=topic, follow=follow, reactor=reactor):
            note(f"There are no records in {topic!r}.")

    run(command)
