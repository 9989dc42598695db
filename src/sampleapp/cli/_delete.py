"""``sampleapp delete``: publish a tombstone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from sampleapp.cli._options import checked_text, url_option
from sampleapp.cli._record import publish_record
from sampleapp.cli._tokens import token_option, warn_of_a_token_in_the_clear

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from sampleapp.client import Client
    from sampleapp.model import RecordMetadata

__all__ = ["delete"]

EPILOG = """
\b
Examples:
  sampleapp delete readings kitchen
  sampleapp delete readings ""
  sampleapp delete readings -- -5

A key that begins with a dash has to follow "--".
"""


@click.command(epilog=EPILOG)
@click.argument("topic", callback=checked_text)
@click.argument("key")
@url_option
@token_option
def delete(*, topic: str, key: str, url: str, token: str | None) -> None:
    """
    Publish a tombstone for KEY to TOPIC: a record with that key and a null value.

    If TOPIC is the one of the readings, the reading of KEY is gone then. In Kafka, a compacted topic loses
    the older records of that key some time later. In other topics, and in SQLite, they stay.

    The answer is one line of JSON, which says where the tombstone is.
    """
    warn_of_a_token_in_the_clear(url=url, token=token)

    def request(client: Client) -> Deferred[RecordMetadata]:
        # The bytes that were typed, UTF-8 or not: a record may have any key.
        return client.delete(topic=topic, key=os.fsencode(key))

    publish_record(request, what="tombstone", url=url, token=token)
