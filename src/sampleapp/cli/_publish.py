"""``sampleapp publish``: a message, the lines or messages of a file, or a file; and ``sampleapp delete``."""

from __future__ import annotations

import os
import re
import stat
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from sampleapp.cli._options import (
    WithDashes,
    base64_key,
    checked_text,
    date_time,
    from_base64,
    new_client,
    token_option,
    topic_name,
    url_option,
    warn_of_unencrypted_token,
)
from sampleapp.cli._output import (
    INTERRUPTED,
    CommandFailed,
    OutputLost,
    flush_results,
    note,
    note_terminal,
    print_result,
)
from sampleapp.cli._run import command_failure, note_waiting, run
from sampleapp.messages.timestamps import InvalidTimestamp, parse_timestamp

if TYPE_CHECKING:
    from datetime import datetime

    from twisted.internet.defer import Deferred

    from sampleapp.cli._line_readers import LineReader, Template
    from sampleapp.cli._report import LineResult, Report
    from sampleapp.client import Client
    from sampleapp.model import RecordMetadata

    _Request: TypeAlias = Callable[[Client], Deferred[RecordMetadata]]


# Enough for the service to have the next batch always; more batches would only wait there.
BATCHES_IN_FLIGHT = 4
# Longer than the service waits for its broker by default: its response has the outcome of each line.
LINES_TIMEOUT_S = 60.0

EPILOG = """
\b
Examples:
  sampleapp publish greetings "Good morning"
  sampleapp publish readings --key kitchen 21.5
  sampleapp publish readings --key cellar -5.5
  sampleapp publish events --header source=shop --timestamp 2026-11-21T08:00:00Z sold
  sampleapp publish letters - < letter.txt
  sampleapp publish events --lines events.txt
  sampleapp publish orders --lines orders.txt --idempotent
  sampleapp publish --messages orders.jsonl --results
  sampleapp consume orders | sampleapp publish copies --messages -
  tail -f /var/log/syslog | sampleapp publish logs --lines -
  sampleapp publish photos --key door --raw door.jpg
  sampleapp publish frames --header format=cbor --base64 oWF4AQ==

Content that begins with a dash, and is not a number, must follow "--".
"""


def _headers(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str] | None:
    headers: dict[str, str] = {}
    for value in values:
        name, separator, text = value.partition("=")
        if not separator:
            raise click.BadParameter("takes NAME=VALUE; there is no = in it.", param=parameter)
        if name in headers:
            raise click.BadParameter(f"{name!r} is given twice.", param=parameter)
        headers[name] = text
        checked_text(context, parameter, value)
    return headers or None


def _timestamp(_context: click.Context, parameter: click.Parameter, value: str | None) -> datetime | None:
    if value is None:
        return None
    is_number = re.fullmatch(r"[0-9]{1,19}", value, re.ASCII)
    try:
        return date_time(parse_timestamp(int(value) if is_number else value))
    except InvalidTimestamp as error:
        raise click.BadParameter(
            f"{value!r} {error}. Give a time such as 2026-11-21T08:00:00Z, or milliseconds since 1970 in "
            "12 to 14 digits.",
            param=parameter,
        ) from error


@click.command(cls=WithDashes, epilog=EPILOG)
@click.argument("topic", required=False, callback=topic_name)
@click.argument("content", required=False, callback=checked_text)
@click.option(
    "--key",
    help="Key of the record, or of every record. Without this option a record has no key, which differs from "
    'the empty key, --key "".',
)
@click.option(
    "--key-base64",
    callback=base64_key,
    metavar="BASE64",
    help="Key of the record, or of every record, in base64: for a key that is not text. Instead of --key.",
)
@click.option(
    "--base64",
    "is_base64",
    is_flag=True,
    help="CONTENT, or with --lines each line, is base64 with padding (RFC 4648, section 4); white space in "
    "it is ignored. The record gets the decoded bytes.",
)
@click.option(
    "--lines",
    "path",
    type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True),
    metavar="FILE",
    help="Publish each line of FILE (- for stdin) as a message. A line ends with a line feed, which is not "
    "part of the message.",
)
@click.option(
    "--messages",
    "messages_path",
    type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True),
    metavar="FILE",
    help="Publish each line of FILE (- for stdin) as it says: a record as consume prints it, or a message as "
    "POST /messages takes it, each with its own topic, key, headers and timestamp. With TOPIC, all go there.",
)
@click.option(
    "--results",
    "prints_results",
    is_flag=True,
    help="With --lines or --messages: print the outcome of each line to stdout, as a line of JSON with the "
    "line's number and the record's topic, partition and offset, or the error.",
)
@click.option(
    "--in-flight",
    type=click.IntRange(1, 1024),
    help="With --lines or --messages: maximum number of requests, each with up to 1,000 lines, that wait for "
    f"their answers at one time. Only 1 guarantees the order of the lines.  [default: {BATCHES_IN_FLIGHT}; 1 "
    "with --key or --messages, because the order of records with one key matters]",
)
@click.option(
    "--idempotent",
    "is_idempotent",
    is_flag=True,
    help="Send an idempotency key, so that a request whose outcome is not known is repeated without "
    "publishing twice. With --lines or --messages FILE, the keys depend only on the lines, their numbers, "
    "TOPIC, --key, --header and --timestamp: after an interruption, the same command publishes the rest of "
    "the unchanged file. Another file with equal lines counts as the same file. On Kafka, the topic needs "
    "--idempotent-topic of the service.",
)
@click.option(
    "--raw",
    "raw_path",
    type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True),
    metavar="FILE",
    help="Publish FILE (- for stdin), with any bytes, as one record.",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    callback=_headers,
    metavar="NAME=VALUE",
    help="Header of the record, or of every record. May be given more than once, for other names.",
)
@click.option(
    "--timestamp",
    callback=_timestamp,
    metavar="TIME",
    help="Timestamp of the record, or of every record: a time such as 2026-11-21T08:00:00Z, or milliseconds "
    "since 1970 in 12 to 14 digits.  [default: now]",
)
@url_option
@token_option
def publish(
    *,
    topic: str | None,
    content: str | None,
    key: str | None,
    key_base64: bytes | None,
    is_base64: bool,
    path: str | None,
    messages_path: str | None,
    prints_results: bool,
    in_flight: int | None,
    is_idempotent: bool,
    raw_path: str | None,
    headers: dict[str, str] | None,
    timestamp: datetime | None,
    url: str,
    token: str | None,
) -> None:
    """
    Publish to TOPIC: one message with CONTENT, the lines or messages of a file, or a file as it is.

    CONTENT may be - for all of stdin as one message, unchanged. The result is one line of JSON with the
    topic, partition and offset of the record.

    With --messages, a copy of a topic is: sampleapp consume A | sampleapp publish B --messages -

    With --lines and --messages, stderr has the numbers of the lines that could not be published, and the
    reasons. While the service restarts, or the caller's rate allows no more, the lines wait, for up to five
    minutes. Lines without a response, which may have been published, are reported and not sent again, unless
    --idempotent is given. If the service cannot be reached at all, or rejects the caller, the rest of the
    file is not sent.
    """
    _require_consistent_options(click.get_current_context().params)
    warn_of_unencrypted_token(url=url, token=token)
    if messages_path is not None:
        from sampleapp.cli._line_readers import MessageReader

        _publish_file(
            MessageReader(topic=topic),
            path=messages_path,
            in_flight=in_flight or 1,
            is_idempotent=is_idempotent,
            prints_results=prints_results,
            url=url,
            token=token,
        )
        return
    assert topic is not None  # noqa: S101 -- checked above
    if raw_path is not None:
        # The bytes as typed, UTF-8 or not: a key may have any bytes.
        raw_key = key_base64 if key is None else os.fsencode(key)
        request = _raw_request(topic=topic, key=raw_key, body=_read(raw_path), is_idempotent=is_idempotent)
        publish_record(request, what="message", url=url, token=token)
        return
    from sampleapp.cli._line_readers import ContentReader, Template

    template = Template(
        topic=topic,
        key=_checked_key(key) if key_base64 is None else key_base64,
        headers=headers,
        timestamp=timestamp,
    )
    if path is not None:
        _publish_file(
            ContentReader(template, is_base64=is_base64),
            path=path,
            in_flight=in_flight or (BATCHES_IN_FLIGHT if template.key is None else 1),
            is_idempotent=is_idempotent,
            prints_results=prints_results,
            url=url,
            token=token,
        )
    elif content is not None:
        text = _stdin() if content == "-" else content
        request = _request(
            template,
            content=_decoded(text, is_argument=content != "-") if is_base64 else text,
            is_idempotent=is_idempotent,
        )
        publish_record(request, what="message", url=url, token=token)


def _require_consistent_options(params: dict[str, Any]) -> None:
    """:raise click.UsageError: options contradict each other, or one is missing."""
    given = {name for name, value in params.items() if value is not None and value is not False}
    if len(given & {"content", "path", "messages_path", "raw_path"}) != 1:
        raise click.UsageError(
            "Give the message to publish: either CONTENT (- for stdin), or --lines FILE, or --messages FILE, "
            "or --raw FILE."
        )
    if {"key", "key_base64"} <= given:
        raise click.UsageError("Give one key: either --key or --key-base64.")
    if "messages_path" in given:
        if given & {"key", "key_base64", "is_base64", "headers", "timestamp"}:
            raise click.UsageError(
                "With --messages, each line has its own key, headers and timestamp: no --key, --key-base64, "
                "--base64, --header, --timestamp."
            )
    elif "topic" not in given:
        raise click.UsageError("Missing argument 'TOPIC'.")
    if "prints_results" in given and not given & {"path", "messages_path"}:
        raise click.UsageError("--results is for --lines and --messages.")
    if "raw_path" in given:
        if "is_base64" in given:
            raise click.UsageError("--raw publishes FILE as it is. With --base64, give CONTENT or --lines.")
        if given & {"headers", "timestamp"}:
            raise click.UsageError("With --raw, a record has a key at most: no --header, no --timestamp.")


def _checked_key(key: str | None) -> str | None:
    context = click.get_current_context()
    (parameter,) = [each for each in context.command.params if each.name == "key"]
    return checked_text(context, parameter, key)


def _decoded(text: str, *, is_argument: bool) -> bytes:
    try:
        return from_base64(text)
    except ValueError as error:
        if is_argument:
            raise click.BadParameter(
                f"it is {error}.", ctx=click.get_current_context(), param_hint="'CONTENT'"
            ) from error
        raise CommandFailed(f"CONTENT is {error}. Nothing was published.") from error


def _read(path: str) -> bytes:
    if path == "-":
        return _stdin_bytes()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise CommandFailed(f"{path} cannot be read: {error.strerror}. Nothing was published.") from error


def _stdin() -> str:
    try:
        return _stdin_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise CommandFailed(
            "Stdin is not UTF-8. Nothing was published. To publish any bytes, use --raw -"
        ) from error


def _stdin_bytes() -> bytes:
    note_terminal("the message")
    try:
        return sys.stdin.buffer.read()
    except KeyboardInterrupt:
        note("Interrupted. Nothing was published.")
        raise click.exceptions.Exit(INTERRUPTED) from None
    except OSError as error:
        raise CommandFailed(f"Stdin cannot be read: {error.strerror}. Nothing was published.") from error


def _request(template: Template, *, content: str | bytes, is_idempotent: bool) -> _Request:
    key = _new_idempotency_key() if is_idempotent else None

    def request(client: Client) -> Deferred[RecordMetadata]:
        return client.publish(
            topic=template.topic,
            content=content,
            key=template.key,
            headers=template.headers,
            timestamp=template.timestamp,
            idempotency_key=key,
        )

    return request


def _raw_request(*, topic: str, key: bytes | None, body: bytes, is_idempotent: bool) -> _Request:
    idempotency_key = _new_idempotency_key() if is_idempotent else None

    def request(client: Client) -> Deferred[RecordMetadata]:
        return client.publish_raw(
            topic=topic,
            body=body,
            key=key,
            content_type="application/octet-stream",
            idempotency_key=idempotency_key,
        )

    return request


def _new_idempotency_key() -> str:
    return str(uuid.uuid4())


class _Results:
    """Prints the outcomes of lines, until stdout cannot be written."""

    def __init__(self) -> None:
        self.error: OutputLost | None = None
        """Why stdout cannot be written; ``None`` also if its reader has had enough."""
        self._is_over = False

    def show(self, result: LineResult) -> None:
        """Print an outcome; the lines that follow are published even if it cannot be printed."""
        self._write(lambda: print_result(result, flush=False))

    def flush(self) -> None:
        """Let the reader see all outcomes so far."""
        self._write(flush_results)

    def _write(self, write: Callable[[], None]) -> None:
        if self._is_over:
            return
        try:
            write()
        except (click.exceptions.Exit, OutputLost) as error:
            self._is_over = True
            self.error = error if isinstance(error, OutputLost) else None


def _publish_file(
    reader: LineReader,
    *,
    path: str,
    in_flight: int,
    is_idempotent: bool,
    prints_results: bool,
    url: str,
    token: str | None,
) -> None:
    async def command(reactor: Any) -> None:
        from sampleapp.cli._lines import ChunkReader, LineSource
        from sampleapp.cli._publish_lines import publish_lines
        from sampleapp.cli._report import progress_of

        results = _Results()
        client = new_client(
            url=url,
            reactor=reactor,
            token=token,
            timeout_s=LINES_TIMEOUT_S,
            # The lines wait for all requests together; see `Pace`.
            repeat_for_s=0,
            max_idle_connections=in_flight,
        )
        if path == "-":
            note_terminal("the lines")
        with click.open_file(path, "rb") as file, progress_of(file, clock=reactor) as progress:

            def show(report: Report) -> None:
                progress(report)
                results.flush()

            # The batches of a pipe are not the same another time: they have the lines that have arrived.
            is_repeatable = is_idempotent and stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            report = await publish_lines(
                client=client,
                reader=reader,
                source=LineSource(ChunkReader(file=file, reactor=reactor).read, waits_for_all=is_repeatable),
                in_flight=in_flight,
                clock=reactor,
                progress=show,
                key_seed=_key_seed(is_idempotent=is_idempotent, is_repeatable=is_repeatable),
                result=results.show if prints_results else None,
            )
        results.flush()
        for sentence in report.sentences():
            note(sentence)
        if is_repeatable and not report.complete:
            note(
                "You can run the same command again: if neither the file nor a limit of the service has "
                "changed, no line is published twice."
            )
        if report.interrupted:
            raise click.exceptions.Exit(INTERRUPTED)
        if results.error is not None:
            raise ResponseLost(f"The outcomes of some lines are not printed. {results.error.message}")
        if not report.complete:
            raise click.exceptions.Exit(1)

    run(command)


def _key_seed(*, is_idempotent: bool, is_repeatable: bool) -> str | None:
    if not is_idempotent:
        return None
    # The lines of two pipes may be equal and yet be meant to be published twice, such as a heartbeat.
    return "" if is_repeatable else _new_idempotency_key()


DELETE_EPILOG = """
\b
Examples:
  sampleapp delete readings kitchen
  sampleapp delete readings ""
  sampleapp delete readings -- -kitchen

A key that begins with a dash, and is not a number, must follow "--".
"""


@click.command(cls=WithDashes, epilog=DELETE_EPILOG)
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


REPEAT_FOR_S = 60.0


class ResponseLost(CommandFailed):
    """Published, but the response could not be printed. Publishing again would make a duplicate."""

    exit_code = 3


def publish_record(
    request: Callable[[Client], Deferred[RecordMetadata]], *, what: str, url: str, token: str | None
) -> None:
    """
    Publish a record, and print its topic, partition and offset.

    :param request: publishes it with the client.
    :param what: names the record in error messages: ``"message"``.
    """

    async def command(reactor: Any) -> None:
        from twisted.internet.defer import CancelledError

        from sampleapp.client import ClientError
        from sampleapp.errors import InvalidMessage

        said: list[str] = []

        def say_once(error: ClientError) -> None:
            if str(error) not in said:
                said.append(str(error))
                note(f"{error} Sending again for up to {REPEAT_FOR_S:g} seconds.")

        client = new_client(
            url=url, reactor=reactor, token=token, repeat_for_s=REPEAT_FOR_S, on_repeat=say_once
        )
        try:
            metadata = await note_waiting(request(client), clock=reactor, url=url)
        except ClientError as error:
            outcome = f"The {what} may have been published." if error.possibly_published else ""
            raise command_failure(error, outcome=outcome) from error
        except InvalidMessage as error:
            raise CommandFailed(str(error)) from error
        except CancelledError as error:
            doubt = getattr(error, "possibly_published", True)
            note(f"Interrupted. {f'The {what} may have been' if doubt else 'Nothing was'} published.")
            raise
        try:
            print_result(metadata)
        except OutputLost as error:
            raise ResponseLost(
                f"The {what} was published (partition {metadata.partition}, offset {metadata.offset}). "
                f"{error.message}"
            ) from error

    run(command)
