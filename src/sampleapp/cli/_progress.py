"""A progress bar, where there is somebody to see it."""

from __future__ import annotations

import itertools
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

import click
from twisted.internet.interfaces import IReactorTime

from sampleapp.cli._file_publisher import Report

__all__ = ["progress_of"]

# As often as it can be seen; drawing it for each line would cost more than publishing the line.
INTERVAL_S = 0.1


@contextmanager
def progress_of(file: IO[bytes], *, clock: IReactorTime) -> Iterator[Callable[[Report], None]]:
    """
    Show on stderr, if that is a terminal, how far the publishing of a file is.

    :param file: tells, unless it is a pipe or a terminal, how much there is to do.
    :return: to be called with each new state of the report.
    """
    if not sys.stderr.isatty():
        yield lambda _report: None
        return

    size = _remaining_bytes(file)
    latest: list[Report] = []
    shown_bytes = 0
    shown_at_s = clock.seconds()

    def outcome(_item: object) -> str:
        return f"{latest[0].published} published, {latest[0].failed} failed" if latest else ""

    bar: Any
    with click.progressbar(
        # Without a length, click shows that something is going on, and not how much of it is left.
        None if size is not None else itertools.repeat(0),
        length=size,
        file=sys.stderr,
        label="Publishing",
        item_show_func=outcome,
        show_eta=size is not None,
    ) as bar:

        def show(report: Report) -> None:
            nonlocal shown_bytes, shown_at_s
            latest[:] = [report]
            now_s = clock.seconds()
            if now_s - shown_at_s >= INTERVAL_S or report.finished_bytes == size:
                bar.update(report.finished_bytes - shown_bytes)
                shown_bytes, shown_at_s = report.finished_bytes, now_s

        yield show


def _remaining_bytes(file: IO[bytes]) -> int | None:
    """Return what is left to read, or ``None`` for what is not a regular file."""
    descriptor = file.fileno()
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        return None
    return max(0, status.st_size - os.lseek(descriptor, 0, os.SEEK_CUR))
