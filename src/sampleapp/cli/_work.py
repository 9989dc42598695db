"""``sampleapp work``: run a command for each message of a group of workers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from sampleapp.cli._options import (
    new_client,
    token_option,
    topic_name,
    url_option,
    warn_of_unencrypted_token,
)
from sampleapp.cli._output import INTERRUPTED, note
from sampleapp.cli._run import command_failure, run

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from sampleapp.model import LeasedRecord

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
_OTHER_THREADS = 10
_VARIABLE = re.compile(rb"SAMPLEAPP_(?:TOPIC|ID|ATTEMPTS|KEY|HEADER_.*)", re.DOTALL)
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
    from twisted.internet.defer import CancelledError

    from sampleapp.client import ClientError

    warn_of_unencrypted_token(url=url, token=token)
    results: Counter[str] = Counter()

    async def main(reactor: Any) -> None:
        # Besides those that wait for commands, some look up names.
        reactor.suggestThreadPoolSize(parallel + _OTHER_THREADS)
        client = new_client(url=url, token=token, reactor=reactor)
        handler = partial(handle, command=command, in_thread=_in_thread(reactor), results=results)
        worker = client.work(
            topic=topic, group=group, handler=handler, parallel=parallel, most=most, on_trouble=note
        )

        async def finish() -> None:
            try:
                await _shielded(worker.done)
            except ClientError as error:
                raise command_failure(error) from error

        try:
            await finish()
        except CancelledError:
            note("Ending after the commands that run. Interrupt again to end them, too.")
            worker.stop()
            try:
                await finish()
            except CancelledError:
                worker.abort()
                await finish()
            raise click.exceptions.Exit(INTERRUPTED) from None
        finally:
            if results and sys.stderr.isatty():
                click.echo(err=True)
            note(_shown(results))

    run(main)


def _shown(results: Counter[str]) -> str:
    return ", ".join(f"{results[result]} {result}" for result in ("accepted", "rejected", "released"))


def _count(results: Counter[str], result: str) -> None:
    """Count a message, and show the numbers on a terminal."""
    results[result] += 1
    if sys.stderr.isatty():
        with suppress(OSError):
            click.echo(f"\r{_shown(results)}", nl=False, err=True)


def _in_thread(reactor: Any) -> Callable[[Callable[[], Any]], Deferred[Any]]:
    from twisted.internet.threads import deferToThreadPool

    return partial(deferToThreadPool, reactor, reactor.getThreadPool())


def _shielded(waiting: Deferred[Any]) -> Deferred[Any]:
    """Return a Deferred with the same outcome; cancelling it stops the waiting only."""
    from twisted.internet.defer import Deferred

    shield: Deferred[Any] = Deferred()
    waiting.addBoth(lambda outcome: None if shield.called else shield.callback(outcome))
    return shield


async def handle(
    message: LeasedRecord,
    *,
    command: tuple[str, ...],
    in_thread: Callable[..., Deferred[Any]],
    results: Counter[str],
) -> None:
    """
    Run a command for a message.

    :param in_thread: calls a function in a thread.
    :param results: counts the message.
    :raise Rejected: the command says so.
    :raise Released: it has failed, or cannot be run.
    """
    from twisted.internet.defer import CancelledError

    from sampleapp.client import Rejected, Released

    result = "released"
    try:
        process = _started(command, variables_of(message, os.environb))
    except OSError as error:
        note(f"{command[0]} cannot be run: {error.strerror}. The message is given again.")
        _count(results, result)
        raise Released from error
    running = in_thread(process.communicate, message.record.value or b"")
    try:
        await _shielded(running)
    except CancelledError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        await _shielded(running)
        raise
    else:
        result = {0: "accepted", _REJECTED: "rejected"}.get(process.returncode, result)
    finally:
        _count(results, result)
    if result == "rejected":
        raise Rejected
    if result == "released":
        raise Released


def _started(command: tuple[str, ...], environment: Mapping[bytes, bytes]) -> subprocess.Popen[bytes]:
    # A group of its own: Ctrl-C at the terminal is for this command only.
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True)  # noqa: S603 -- the user has given it


def variables_of(message: LeasedRecord, environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """
    Return the environment of a command.

    :param environment: of this process. The variables of a message around it, if any, are left out. So are
        those of this message that would contain NUL, which the system does not allow.
    """
    record = message.record
    variables = {
        b"SAMPLEAPP_TOPIC": record.topic.encode(),
        b"SAMPLEAPP_ID": b"%d-%d" % (record.partition, record.offset),
        b"SAMPLEAPP_ATTEMPTS": b"%d" % message.attempts,
        **({} if record.key is None else {b"SAMPLEAPP_KEY": record.key}),
    }
    for name, content in record.headers:
        if content is not None:
            variable = _NOT_IN_VARIABLE.sub("_", name.upper())
            variables[b"SAMPLEAPP_HEADER_" + variable.encode("ascii")] = content
    return {
        **{name: value for name, value in environment.items() if not _VARIABLE.fullmatch(name)},
        **{name: value for name, value in variables.items() if b"\0" not in value},
    }
