"""Output of the commands: results on stdout, one JSON document per line; everything else on stderr."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import re
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
import msgspec

from sampleapp.errors import CONTROLS, visible


def open_standard_streams() -> None:
    """
    Replace each closed standard stream.

    Otherwise the next file or socket would get its descriptor, and be written or read by mistake. The
    replacement of stdin cannot be read, and that of stdout cannot be written, so that their use fails as
    expected (EBADF). Output to the replacement of stderr is discarded.
    """
    for descriptor, flags in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        if not _is_open(descriptor):
            # A new file gets the lowest free descriptor: this one, since the lower ones are open.
            os.open(os.devnull, flags)
    # Never closed, like the streams that they replace.
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 -- see above
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 -- see above
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 -- see above


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def discard_stdout() -> None:
    """
    Discard pending output to stdout.

    Otherwise the interpreter would write it again when it ends, and fail or block again.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


# In JSON, the C0 controls can occur only in strings, which have them escaped already.
_IN_JSON = re.compile(f"(?![\x00-\x1f])[{CONTROLS}]")


def escaped_json(document: bytes) -> bytes:
    """
    Replace control characters in a line of JSON by JSON's escapes, so that its value stays the same.

    :param document: the line, in UTF-8.
    """
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", document.decode("utf-8")).encode("utf-8")


INTERRUPTED = 130
"""By the shells' convention: 128 and the number of SIGINT."""

GRACE_S = 1.0
"""After a signal, the time for the reader of stdout to read pending output, in seconds."""

_encode = msgspec.json.Encoder().encode


class CommandFailed(click.ClickException):
    """A command has failed. Control characters in the message, which may quote anything, are escaped."""

    def format_message(self) -> str:
        """Return the text after ``Error:``."""
        return visible(self.message)


class OutputLost(CommandFailed):
    """Stdout cannot be written, for example to a full disk."""


class _GivenUpError(Exception):
    """The reader of stdout does not read, and a signal has asked the command to end."""


class _Writing:
    """True while stdout is being written, which blocks until its reader reads."""

    under_way = False


def print_result(result: object, *, flush: bool = True) -> None:
    """
    Print a value as one line of JSON, in UTF-8 whatever the locale; bytes are JSON already.

    On a terminal, control characters are escaped, which changes the text and not the value.

    :param flush: True if the reader must see it now.
    :raise click.exceptions.Exit: stdout has no reader any more, as after ``| head -1`` or with ``>&-``: a
        success, since the reader had enough. Or its reader does not read, and the command was interrupted.
    :raise OutputLost: stdout cannot be written.
    """
    line = (result if isinstance(result, bytes) else _encode(result)) + b"\n"
    if sys.stdout.isatty():
        line = escaped_json(line)
    with _written():
        # One write: a line is never half there.
        sys.stdout.buffer.write(line)
        if flush:
            sys.stdout.buffer.flush()


def flush_results() -> None:
    """Flush everything that was printed; raises the same as `print_result`."""
    with _written():
        sys.stdout.buffer.flush()


def note(sentence: str) -> None:
    """Print a sentence that is not a result to stderr."""
    # stderr may go to a full disk as well.
    with contextlib.suppress(OSError):
        click.echo(visible(sentence), err=True)


def note_terminal(what: str) -> None:
    """Print how to end the input, if a person types it."""
    with contextlib.suppress(OSError):
        if sys.stdin.isatty():
            note(f"Type {what}; Ctrl-D on an empty line ends the input.")


def interrupt_output() -> None:
    """
    End a blocked write to stdout soon. Call it in a signal handler.

    A write that waits for its reader blocks the reactor as well. Only an exception from a signal handler ends
    such a write (PEP 475).
    """

    def give_up_if_blocked(_number: int, _frame: object) -> None:
        if _Writing.under_way and not select.select([], [sys.stdout], [], 0)[1]:
            raise _GivenUpError

    signal.signal(signal.SIGALRM, give_up_if_blocked)
    signal.setitimer(signal.ITIMER_REAL, GRACE_S, GRACE_S)
    # At the end, Python removes the handler first: then the signal would replace the exit status.
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)


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
