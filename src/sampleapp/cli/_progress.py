"""Progress of publishing a file: a progress bar on a terminal, sentences elsewhere."""

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

from sampleapp.cli._output import note
from sampleapp.cli._report import Report

__all__ = ["progress_of"]

# Fast enough for the eye; drawing for each line would cost more than publishing the line.
INTERVAL_S = 0.1
# Without a terminal, only waiting for the service is reported, at this interval.
WAITING_INTERVAL_S = 30.0


@contextmanager
def progress_of(file: IO[bytes], *, clock: IReactorTime) -> Iterator[Callable[[Report], None]]:
    """
    Show progress on stderr: a progress bar on a terminal, otherwise sentences when it must wait.

    :param file: if it is a regular file, its size is the total.
    :return: a function to call with each new state of the report.
    """
    if not sys.stderr.isatty() or os.isatty(file.fileno()):
        # A bar would be drawn over the lines that the user types.
        yield _Waiting(clock).show
        return

    size = _remaining_bytes(file)
    latest: list[Report] = []
    shown_bytes = 0
    shown_at_s = clock.seconds()

    def outcome(_item: object) -> str:
        if not latest:
            return ""
        report = latest[0]
        waiting = "; waiting for the service" if report.waiting_because is not None else ""
        return f"{report.outcome()}{waiting}"

    bar: Any
    with click.progressbar(
        # Without a length, click shows activity, and not how much is left.
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
            waits = report.waiting_because is not None
            if waits or now_s - shown_at_s >= INTERVAL_S or report.finished_bytes == size:
                bar.update(report.finished_bytes - shown_bytes)
                if waits:
                    # Since update() draws only after progress.
                    bar.render_progress()
                shown_bytes, shown_at_s = report.finished_bytes, now_s

        yield show


class _Waiting:
    """Prints that publishing waits for the service, and that it goes on."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._since_s: float | None = None
        self._reported_at_s = 0.0

    def show(self, report: Report) -> None:
        now_s = self._clock.seconds()
        if report.waiting_because is None:
            if self._since_s is not None:
                note(f"Sending lines again after {now_s - self._since_s:.0f} seconds.")
            self._since_s = None
        elif self._since_s is None:
            note(f"{report.waiting_because} Waiting; {report.published} lines are published so far.")
            self._since_s = self._reported_at_s = now_s
        elif now_s - self._reported_at_s >= WAITING_INTERVAL_S:
            note(f"Still waiting after {now_s - self._since_s:.0f} seconds: {report.waiting_because}")
            self._reported_at_s = now_s


def _remaining_bytes(file: IO[bytes]) -> int | None:
    """Return the number of bytes left to read, or ``None`` if it is not a regular file."""
    descriptor = file.fileno()
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        return None
    return max(0, status.st_size - os.lseek(descriptor, 0, os.SEEK_CUR))
