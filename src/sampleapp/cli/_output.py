"""What the commands print: results, one JSON document a line, on stdout; all else on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
import msgspec

__all__ = ["flush_results", "note", "print_result"]

_encode = msgspec.json.Encoder().encode


def print_result(result: object, *, flush: bool = True) -> None:
    """
    Print a value as one line of JSON, in UTF-8 whatever the locale.

    :param flush: whether a reader has to see it now.
    :raise click.exceptions.Exit: nobody reads stdout any more, as after ``| head -1``. The reader has had
        what it wanted, so that is a success.
    :raise click.ClickException: stdout cannot be written, for example to a full disk.
    """
    with _translated_errors():
        # One write: a line is never half there.
        sys.stdout.buffer.write(_encode(result) + b"\n")
        if flush:
            sys.stdout.buffer.flush()


def flush_results() -> None:
    """Let the reader see all that was printed; raises as `print_result` does."""
    with _translated_errors():
        sys.stdout.buffer.flush()


def note(sentence: str) -> None:
    """Tell the person at the terminal something that is not a result."""
    click.echo(sentence, err=True)


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # The interpreter flushes stdout once more when it ends, and would complain once more.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        if isinstance(error, BrokenPipeError):
            raise click.exceptions.Exit(0) from None
        raise click.ClickException(f"The output cannot be written: {error.strerror}.") from error
