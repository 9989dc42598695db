"""``sampleapp publish``: publish one message, or each line of a file."""

from __future__ import annotations

import re
import sys
from typing import Any

import click

from sampleapp.cli._options import url_option
from sampleapp.cli._output import INTERRUPTED, CommandFailed, OutputLost, note, print_result
from sampleapp.cli._run import explained, run
from sampleapp.cli._tokens import token_option, warn_of_a_token_in_the_clear

__all__ = ["publish"]

IN_FLIGHT = 64
NEGATIVE_NUMBER = re.compile(r"-(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")

EPILOG = """
\b
Examples:
  sampleapp publish greetings "Good morning"
  sampleapp publish readings --key kitchen 21.5
  sampleapp publish readings --key cellar -5.5
  sampleapp publish letters - < letter.txt
  sampleapp publish events --lines events.txt
  tail -f /var/log/syslog | sampleapp publish logs --lines -

Content that begins with a dash, and is not a number, has to follow "--".
"""


def _text(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse an argument with bytes that are not UTF-8, which Python keeps as lone surrogates."""
    try:
        (value or "").encode("utf-8")
    except UnicodeEncodeError as error:
        raise click.BadParameter("it is not UTF-8.", param=parameter) from error
    return value


class _AnswerLost(CommandFailed):
    """Published, but the answer could not be printed: who takes that for a failure publishes it twice."""

    exit_code = 3


class _TakesNegativeNumbers(click.Command):
    """A command to which -5.5 is no option: readings are often below zero."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """
        Take unknown options for arguments if one of them is a number.

        :raise click.NoSuchOption: there is one; the message says what to do if it is meant to be content.
        """
        if any(NEGATIVE_NUMBER.fullmatch(argument) for argument in args):
            ctx.ignore_unknown_options = True
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.possibilities:
                raise
            message = (
                f'{error.message} Content that begins with a dash has to follow "--", after all options.'
            )
            raise click.NoSuchOption(error.option_name, message, ctx=ctx) from error


@click.command(cls=_TakesNegativeNumbers, epilog=EPILOG)
@click.argument("topic", callback=_text)
@click.argument("content", required=False, callback=_text)
@click.option(
    "--key",
    callback=_text,
    help="The key of the record, or of every record. Without this option there is none, which is not the "
    'same as the empty key, --key "".',
)
@click.option(
    "--lines",
    "path",
    type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True),
    metavar="FILE",
    help="Publish each line of FILE (- for stdin) as a message of its own. A line ends with a line feed, "
    "which is not part of the message.",
)
@click.option(
    "--in-flight",
    type=click.IntRange(1, 1024),
    help="With --lines: how many messages may wait for their answers at one time. Only with 1 are the "
    f"lines sure to be published in their order.  [default: {IN_FLIGHT}; with --key 1, because the order of "
    "records with one key matters]",
)
@url_option
@token_option
def publish(
    *,
    topic: str,
    content: str | None,
    key: str | None,
    path: str | None,
    in_flight: int | None,
    url: str,
    token: str | None,
) -> None:
    """
    Publish to TOPIC: one message with CONTENT, or each line of a file.

    CONTENT may be - for all of stdin as one message, unchanged. The answer is one line of JSON, which says
    where the record is.

    With --lines, the numbers of the lines that could not be published, and why, are on stderr. Should the
    service become unreachable, or not let the caller in, what is left of the file is not sent. If the caller
    has a rate, the lines are sent as it allows.
    """
    if (content is None) == (path is None):
        raise click.UsageError("Say what to publish: either CONTENT (- for stdin), or --lines FILE.")
    warn_of_a_token_in_the_clear(url=url, token=token)
    if path is not None:
        if in_flight is None:
            in_flight = IN_FLIGHT if key is None else 1
        _publish_lines(topic=topic, key=key, path=path, in_flight=in_flight, url=url, token=token)
    elif content is not None:
        text = _stdin() if content == "-" else content
        _publish_one(topic=topic, key=key, content=text, url=url, token=token)


def _stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise CommandFailed("What stdin contains is not UTF-8; nothing was published.") from error
    except KeyboardInterrupt:
        note("Interrupted. Nothing was published.")
        raise click.exceptions.Exit(INTERRUPTED) from None
    except OSError as error:
        raise CommandFailed(f"Stdin cannot be read: {error.strerror}. Nothing was published.") from error


def _publish_one(*, topic: str, key: str | None, content: str, url: str, token: str | None) -> None:
    async def command(reactor: Any) -> None:
        from twisted.internet.defer import CancelledError

        from sampleapp.client import Client, ClientError

        client = Client(base_url=url, reactor=reactor, token=token)
        try:
            metadata = await client.publish(topic=topic, content=content, key=key)
        except ClientError as error:
            outcome = "The message may have been published." if error.possibly_published else ""
            raise explained(error, outcome=outcome) from error
        except CancelledError:
            note("Interrupted. The message may have been published.")
            raise
        try:
            print_result(metadata)
        except OutputLost as error:
            raise _AnswerLost(
                f"The message was published (partition {metadata.partition}, offset {metadata.offset}). "
                f"{error.message}"
            ) from error

    run(command)


def _publish_lines(
    *, topic: str, key: str | None, path: str, in_flight: int, url: str, token: str | None
) -> None:
    async def command(reactor: Any) -> None:
        from sampleapp.cli._chunks import ChunkReader
        from sampleapp.cli._file_publisher import publish_lines
        from sampleapp.cli._lines import LineSource
        from sampleapp.cli._progress import progress_of
        from sampleapp.client import Client

        client = Client(base_url=url, reactor=reactor, token=token, max_idle_connections=in_flight)
        with click.open_file(path, "rb") as file, progress_of(file, clock=reactor) as progress:
            report = await publish_lines(
                client=client,
                topic=topic,
                key=key,
                source=LineSource(ChunkReader(file=file, reactor=reactor).read),
                in_flight=in_flight,
                clock=reactor,
                progress=progress,
            )
        for sentence in report.sentences():
            note(sentence)
        if report.interrupted:
            raise click.exceptions.Exit(INTERRUPTED)
        if not report.complete:
            raise click.exceptions.Exit(1)

    run(command)
