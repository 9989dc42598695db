"""``sampleapp delete``: publish a tombstone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from sampleapp.cli._options import WithDashes, base64_key, topic_name, url_option
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
@click.argument("key", required=False)
@click.option(
    "--key-base64",
    callback=base64_key,
    metavar="BASE64",
    help="Key of the tombstone in base64: for a key that is not text. Instead of KEY.",
)
@url_option
@token_option
def delete(*, topic: str, key: str | None, key_base64: bytes | None, url: str, token: str | None) -> None:
    """
    Publish a tombstone for KEY to TOPIC: a record with KEY and a null value.

    If TOPIC is the topic of the readings, this removes the reading of KEY. In Kafka, a compacted topic loses
    the older records with KEY some time later. In other topics, and in SQLite, they stay.

    The result is one line of JSON with the topic, partition and offset of the tombstone.
    """
    # The bytes as typed, UTF-8 or not: a key may have any bytes.
    wanted = key_base64 if key is None else os.fsencode(key)
    if wanted is None:
        raise click.UsageError("Missing argument 'KEY'.")
    if key is not None and key_base64 is not None:
        raise click.UsageError("Give one key: either KEY or --key-base64.")
    warn_of_unencrypted_token(url=url, token=token)

    def request(client: Client) -> Deferred[RecordMetadata]:
        return client.delete(topic=topic, key=wanted)

    publish_record(request, what="tombstone", url=url, token=token)
