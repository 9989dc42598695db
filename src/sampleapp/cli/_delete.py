"""``sampleapp delete``: publish a tombstone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from sampleapp.cli._options import WithDashes, topic_name, url_option
from sampleapp.cli._record import publish_record
from sampleapp.cli._token_option import token_option, warn_of_unencrypted_token

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
  sampleapp delete readings -- -kitchen

A key that begins with a dash, and is not a number, must follow "--".
"""


@click.command(cls=WithDashes, epilog=EPILOG)
@click.argument("topic", callback=topic_name)
@click.argument("key")
@url_option
@token_option
def delete(*, topic: str, key: str, url: str, token: str | None) -> None:
    """
    Publish a tombstone for KEY to TOPIC: a record with KEY and a null value.

    If TOPIC is the topic of the readings, this removes the reading of KEY. In Kafka, a compacted topic loses
    the older records with KEY some time later. In other topics, and in SQLite, they stay.

    The result is one line of JSON with the topic, partition and offset of the tombstone.
    """
    warn_of_unencrypted_token(url=url, token=token)

    def request(client: Client) -> Deferred[RecordMetadata]:
        # The bytes as typed, UTF-8 or not: a key may have any bytes.
        return client.delete(topic=topic, key=os.fsencode(key))

    publish_record(request, what="tombstone", url=url, token=token)
