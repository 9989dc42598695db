"""What the commands print: results, one JSON document a line, on stdout; all else on stderr."""

from __future__ import annotations

import contextlib
import errno
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
import msgspec

from sampleapp.cli._streams import discard_stdout
from sampleapp.cli._visible import escaped_json, visible

__all__ = [
    "INTERRUPTED",
    "CommandFailed",
    "OutputLost",
    "flush_results",
    "interrupt_output",
    "note",
    "print_result",
]

INTERRUPTED = 130
"""By the shells' convention: 128 and the number of SIGINT."""

GRACE_S = 1.0
"""How long a reader of stdout has, after a signal, to take what it is being sent."""

_encode = msgspec.json.Encoder().encode


class CommandFailed(click.ClickException):
    """A command has failed. What is said of it may have come from anywhere, and is made visible."""

    def format_message(self) -> str:
        """Return what is shown after ``Error:``."""
        return visible(self.message)


class OutputLost(CommandFailed):
    """Stdout cannot be written, for example to a full disk."""


class _GivenUpError(Exception):
    """Nobody takes the output, and a signal has asked for an end."""


class _Writing:
    """Whether stdout is just being written, which waits for whoever reads it."""

    under_way = False


def print_result(result: object, *, flush: bool = True) -> None:
    """
    Print a value as one line of JSON, in UTF-8 whatever the locale.

    On a terminal, characters that it would obey are escaped, which changes the text and not the value.

    :param flush: whether a reader has to see it now.
    :raise click.exceptions.Exit: nobody reads stdout any more, as after ``| head -1`` or with ``>&-``. The
        reader has had what it wanted, so that is a success. Or nobody reads it now, and the command was
        interrupted.
    :raise OutputLost: stdout cannot be written.
    """
    line = _encode(result) + b"\n"
    if sys.stdout.isatty():
        line = escaped_json(line)
    with _written():
        # One write: a line is never half there.
        sys.stdout.buffer.write(line)
        if flush:
            sys.stdout.buffer.flush()


def flush_results() -> None:
    """Let the reader see all that was printed; raises as `print_result` does."""
    with _written():
        sys.stdout.buffer.flush()


def note(sentence: str) -> None:
    """Tell the person at the terminal something that is not a result."""
    # If stderr goes to the disk that is full, nothing can be said.
    with contextlib.suppress(OSError):
        click.echo(visible(sentence), err=True)


def interrupt_output() -> None:
    """
    See to it that writing to stdout ends soon, even if nobody reads it. To be called in a signal handler.

    A write that waits for its reader holds up everything, the reactor included. An exception out of a
    signal handler is what ends such a write (PEP 475).
    """

    def look(_number: int, _frame: object) -> None:
        if _Writing.under_way and not select.select([], [sys.stdout], [], 0)[1]:
            raise _GivenUpError

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, GRACE_S, GRACE_S)


@contextmanager
def _written() -> Iterator[None]:
    _Writing.under_way = True
    try:
        yield
    except OSError as error:
        discard_stdout()
        if error.errno in {errno.EPIPE, errno.EBADF}:
            raise click.exceptions.Exit(0) from None
        raise OutputLost(f"The output cannot be written: {error.strerror}.") from error
    except _GivenUpError:
        discard_stdout()
        raise click.exceptions.Exit(INTERRUPTED) from None
    finally:
        _Writing.under_way = False
