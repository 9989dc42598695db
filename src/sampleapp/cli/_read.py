"""Commands that read: ``sampleapp consume``, ``sampleapp topics`` and ``sampleapp readings``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from sampleapp.cli._options import (
    WithDashes,
    base64_key,
    broker_option,
    broker_or_url_option,
    checked_text,
    new_client,
    require_one_source,
    token_option,
    topic_name,
    url_option,
    warn_of_unencrypted_token,
)
from sampleapp.cli._output import CommandFailed, flush_results, note, print_result
from sampleapp.cli._run import command_failure, note_waiting, run

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from sampleapp.client import Client, Snapshot, Version
    from sampleapp.model import Reading


CONSUME_EPILOG = """
\b
Examples:
  sampleapp consume readings
  sampleapp consume readings --follow --from latest
  sampleapp consume readings --from -10
  sampleapp consume readings --from 2026-11-21T08:00:00Z --limit 100
  sampleapp consume greetings --broker sqlite:/var/lib/sampleapp/records.sqlite3
  sampleapp consume readings --broker kafka://kafka1:9092,kafka2:9092
  sampleapp consume readings --url http://127.0.0.1:8080/ --key kitchen --follow
"""


def _start(context: click.Context, parameter: click.Parameter, value: str) -> str:
    from sampleapp.records.positions import Position
    from sampleapp.records.read_parameters import parse_start

    try:
        start = parse_start(value)
    except ValueError as error:
        raise click.BadParameter(f"it {error}.", param=parameter) from error
    partition = context.params.get("partition")
    if isinstance(start, Position) and partition in start.skipped:
        raise click.BadParameter(
            f'the position does not read partition {partition}, as its "-" says. Give one with its offset.',
            param=parameter,
        )
    return value


def _headers(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, bytes], ...]:
    headers = []
    for value in values:
        name, colon, content = value.partition(":")
        if not colon:
            raise click.BadParameter(f"takes NAME:VALUE; there is no colon in {value!r}.", param=parameter)
        checked_text(context, parameter, name)
        headers.append((name, os.fsencode(content)))
    return tuple(headers)


@click.command(cls=WithDashes, epilog=CONSUME_EPILOG)
@click.argument("topic", callback=topic_name)
@broker_option
@broker_or_url_option
@token_option
# --from depends on it.
@click.option(
    "--partition", type=click.IntRange(min=0), is_eager=True, metavar="P", help="Print only partition P."
)
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar="WHERE",
    callback=_start,
    help="First record, in the words of the HTTP parameter from: earliest; latest; -N for the last N records "
    "of each partition; offset:N in each partition; a time such as 2026-11-21T08:00:00Z, or in milliseconds "
    "since 1970 in at least 12 digits, for the first record that is not older; or a position.",
)
@click.option("--key", metavar="TEXT", help="Print only records with this key.")
@click.option(
    "--key-base64",
    callback=base64_key,
    metavar="BASE64",
    help="Print only records with this key, in base64: for a key that is not text. Instead of --key.",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    callback=_headers,
    metavar="NAME:VALUE",
    help="Print only records with this header. May be given more than once: records have all of them.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after N records.")
@click.option("--follow", is_flag=True, help="Go on with new records, until Ctrl-C.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="End when all existing records are printed and no record has come for SECONDS; 0 to wait for none. "
    "End with failure if the existing records cannot be read for SECONDS.  [default: wait for ever]",
)
@click.pass_context
def consume(
    context: click.Context,
    *,
    topic: str,
    broker: str,
    url: str | None,
    token: str | None,
    start: str,
    partition: int | None,
    key: str | None,
    key_base64: bytes | None,
    headers: tuple[tuple[str, bytes], ...],
    limit: int | None,
    follow: bool,
    timeout_s: float | None,
) -> None:
    """
    Print the records of TOPIC, one JSON object per line.

    The lines are those of GET /topics/TOPIC/records; publish --messages takes them again. Each has the
    members topic, partition, offset, timestamp (milliseconds since 1970, in UTC), key (absent if the record
    has none), content (null in a tombstone) and headers (an object).

    A key or content that is not UTF-8 is key_base64 or content_base64 instead. Headers that repeat, are not
    UTF-8 or are null are a list of [name, base64 or null] named headers_base64.

    With --url, or the environment variable SAMPLEAPP_URL, the command reads through the service, and goes on
    by itself after a restart of the service. Otherwise, and with --broker, it reads the broker, whether the
    service is running or not. It adds and changes no record.
    """
    require_one_source(context)
    if key is not None and key_base64 is not None:
        raise click.UsageError("Give one key: either --key or --key-base64.")
    if url is not None:
        warn_of_unencrypted_token(url=url, token=token)

    async def command(reactor: Any) -> None:
        from sampleapp.cli._consume_broker import Selection, print_topic

        selection = Selection(
            topic=topic,
            start=start,
            partition=partition,
            # The bytes as typed, UTF-8 or not: a key may have any bytes.
            key=key_base64 if key is None else os.fsencode(key),
            headers=headers,
            limit=limit,
            follow=follow,
            timeout_s=timeout_s,
        )
        if url is None:
            printed = await print_topic(selection, broker_url=broker, reactor=reactor)
        else:
            from sampleapp.cli._consume_service import print_pages

            client = new_client(url=url, reactor=reactor, token=token)
            printed = await print_pages(selection, client=client, clock=reactor)
        if printed == 0:
            note(f"There are no records in {selection.describe()}{selection.filters()}.")

    run(command)


TOPICS_EPILOG = """
\b
Examples:
  sampleapp topics
  sampleapp topics --url http://127.0.0.1:8080/
  sampleapp topics --broker kafka://kafka1:9092
"""


@click.command(epilog=TOPICS_EPILOG)
@broker_option
@broker_or_url_option
@token_option
@click.pass_context
def topics(context: click.Context, *, broker: str, url: str | None, token: str | None) -> None:
    """
    Print the names of the topics, one per line.

    With --url, or the environment variable SAMPLEAPP_URL, these are the topics that you may publish to,
    consume or work in. Otherwise, and with --broker, they are those of the broker, without its internal ones.
    """
    require_one_source(context)
    if url is not None:
        warn_of_unencrypted_token(url=url, token=token)

    async def command(reactor: Any) -> None:
        from sampleapp.cli._consume_broker import started_broker
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


POLL_INTERVAL_S = 1.0
MAX_RETRY_AFTER_S = 30.0

READINGS_EPILOG = """
\b
Examples:
  sampleapp readings
  sampleapp readings --version 2
  sampleapp readings --version 2 --watch
"""


@click.command(epilog=READINGS_EPILOG)
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
