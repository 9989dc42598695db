"""``sampleapp work``: run a command for each message of a group of workers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from tempfile import TemporaryFile
from threading import Thread
from typing import TYPE_CHECKING, Any

import click

from sampleapp.cli._options import (
    new_client,
    token_option,
    topic_name,
    url_option,
    warn_of_unencrypted_token,
)
from sampleapp.cli._output import note
from sampleapp.cli._run import command_failure, run

if TYPE_CHECKING:
    from sampleapp.model import Acknowledged, LeasedRecord

EPILOG = """
\b
Examples:
  sampleapp work orders billing -- ./bill
  sampleapp work orders billing --parallel 8 -- python bill.py
  sampleapp work orders billing --max 100 -- sh -c 'tee "$SAMPLEAPP_ID.json"'

\b
The command gets the content on standard input, and in its environment:
  SAMPLEAPP_TOPIC     topic
  SAMPLEAPP_ID        partition and offset, such as 0-42
  SAMPLEAPP_ATTEMPTS  1 the first time that the message is given to a worker
  SAMPLEAPP_KEY       key, if the message has one
  SAMPLEAPP_HEADER_X  header x, for each header: letters in upper case, others than letters and digits as _

\b
Its exit status decides:
  0          accepted: done
  65         rejected: never given again (EX_DATAERR)
  any other  released: given again, up to a number of attempts
"""

_REJECTED = 65
"""``EX_DATAERR`` of sysexits.h."""
_OF_MESSAGE = (b"SAMPLEAPP_KEY", b"SAMPLEAPP_HEADER_")
_NOT_IN_VARIABLE = re.compile(r"[^A-Z0-9]")


def _command(_context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    if shutil.which(value[0]) is None:
        raise click.BadParameter(f"there is no program {value[0]!r}.", param=parameter)
    return value


@click.command(epilog=EPILOG)
@click.argument("topic", callback=topic_name)
@click.argument("group", callback=topic_name)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, callback=_command)
@url_option
@token_option
@click.option(
    "--parallel",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    metavar="N",
    help="Run up to N commands at one time.",
)
@click.option("--max", "most", type=click.IntRange(min=1), metavar="M", help="End after M messages.")
def work(
    *,
    topic: str,
    group: str,
    command: tuple[str, ...],
    url: str,
    token: str | None,
    parallel: int,
    most: int | None,
) -> None:
    """
    Run COMMAND for each message of TOPIC that is given to this worker of GROUP.

    Other workers of the group, here or elsewhere, share the messages. While the command runs, no other worker
    gets its message. Ctrl-C ends after the commands that run; a second Ctrl-C ends them, too, and their
    messages are given again. Put -- in front of the command.
    """
    from sampleapp.client import ClientError

    warn_of_unencrypted_token(url=url, token=token)
    results: Counter[str] = Counter()

    async def main(reactor: Any) -> None:
        client = new_client(url=url, token=token, reactor=reactor)
        try:
            await client.work(
                topic=topic,
                group=group,
                handler=partial(handle, command=command, reactor=reactor),
                parallel=parallel,
                most=most,
                on_result=partial(_count, results),
                on_trouble=note,
            )
        except ClientError as error:
            raise command_failure(error) from error
        finally:
            note(_shown(results))

    run(main)


def _shown(results: Counter[str]) -> str:
    return ", ".join(f"{results[result]} {result}" for result in ("accepted", "rejected", "released"))


def _count(results: Counter[str], new: Acknowledged) -> None:
    """Count results, and show the numbers on a terminal."""
    results.update(accepted=new.accepted, rejected=new.rejected, released=new.released)
    if sys.stderr.isatty():
        with suppress(OSError):
            # The next line is written over this one.
            click.echo(f"{_shown(results)}\r", nl=False, err=True)


async def handle(message: LeasedRecord, *, command: tuple[str, ...], reactor: Any) -> None:
    """
    Run a command for a message.

    :raise Rejected: the command says so.
    :raise Released: it has failed, or cannot be run.
    """
    from sampleapp.client import Rejected, Released

    try:
        status = await _run(command, message, reactor)
    except OSError as error:
        note(f"{command[0]} cannot be run: {error.strerror}. The message is given again.")
        raise Released from error
    if status == _REJECTED:
        raise Rejected
    if status != 0:
        raise Released


async def _run(command: tuple[str, ...], message: LeasedRecord, reactor: Any) -> int:
    """Return the exit status of a command; if cancelled, end it before."""
    from twisted.internet.defer import CancelledError, Deferred

    from sampleapp.concurrency.waiting import shielded

    environment = variables_of(message, os.environb)
    # Not a pipe: a child in the background that keeps it open would be waited for.
    with TemporaryFile() as content:
        content.write(message.record.value or b"")
        content.seek(0)
        # A group of its own: Ctrl-C at the terminal is for this command only.
        process = subprocess.Popen(command, stdin=content, env=environment, start_new_session=True)  # noqa: ASYNC220, S603 -- the user has given it
    ended: Deferred[int] = Deferred()

    def wait() -> None:
        reactor.callFromThread(ended.callback, process.wait())

    # A daemon: a third Ctrl-C does not wait for a command that ignores SIGTERM.
    Thread(target=wait, daemon=True).start()
    try:
        return await shielded(ended)
    except CancelledError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        await shielded(ended)
        raise


def variables_of(message: LeasedRecord, environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """
    Return the environment of a command.

    :param environment: of this process. The key and headers of a message around it, if any, are left out. So
        are those of this message that contain NUL, which the system does not allow.
    """
    record = message.record
    variables = {
        b"SAMPLEAPP_TOPIC": record.topic.encode(),
        b"SAMPLEAPP_ID": b"%d-%d" % (record.partition, record.offset),
        b"SAMPLEAPP_ATTEMPTS": b"%d" % message.attempts,
    }
    optional = {b"SAMPLEAPP_KEY": record.key}
    for name, content in record.headers:
        optional[b"SAMPLEAPP_HEADER_" + _NOT_IN_VARIABLE.sub("_", name.upper()).encode()] = content
    own = {name: value for name, value in environment.items() if not name.startswith(_OF_MESSAGE)}
    given = {name: value for name, value in optional.items() if value is not None and b"\0" not in value}
    return {**own, **variables, **given}
