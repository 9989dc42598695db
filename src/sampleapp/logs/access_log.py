"""The access log: a file with a line for each request."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from sampleapp.errors import StartUpError
from sampleapp.logs.access_lines import combined_line, json_access_line
from sampleapp.logs.background_writer import BackgroundWriter, write_to_standard_output
from sampleapp.logs.settings import STANDARD_OUTPUT, AccessLogFormat
from sampleapp.web import Exchange, Response, StreamEnd

__all__ = ["AccessLog", "require_writable"]

_INTERVAL_S: Final = 1.0
_MAX_GATHERED: Final = 64 * 1024
"""The number of gathered characters that are handed over to the writer at once."""
_LAST_LINES_S: Final = 1.0
"""Seconds for writing the last lines."""
# Other users of the machine must not see the callers.
_MODE: Final = 0o640

_WRITERS: Final[
    dict[AccessLogFormat, Callable[[Exchange, Response, float, float, StreamEnd | None], str]]
] = {
    AccessLogFormat.COMBINED: combined_line,
    AccessLogFormat.JSON: json_access_line,
}


class AccessLog:
    """
    Writes a line for each response.

    Lines are gathered for up to a second, and written by a thread. A file that cannot be written to does not
    delay requests, see `BackgroundWriter`.
    """

    _log = Logger()

    def __init__(
        self,
        *,
        path: str,
        line_format: AccessLogFormat,
        clock: IReactorTime,
        now: Callable[[], float] = time.time,
        lost_lines: Counter[str] | None = None,
    ) -> None:
        """
        :param path: the path of the file, or `STANDARD_OUTPUT`.
        :param clock: schedules writes, and measures exchanges: the clock of their start times.
        :param now: the time of day, in seconds since the epoch.
        :param lost_lines: counts lost lines under ``access``.
        """
        self._path = path if path == STANDARD_OUTPUT else str(Path(path).absolute())
        self._line = _WRITERS[line_format]
        self._clock = clock
        self._now = now
        self._file: int | None = None
        self._lines: list[str] = []
        self._gathered = 0
        self._writing: IDelayedCall | None = None
        self._writer = BackgroundWriter(
            f"The access log {self._path}",
            write_to_standard_output if path == STANDARD_OUTPUT else self._write,
            lost=Counter() if lost_lines is None else lost_lines,
            label="access",
        )

    def responded(self, exchange: Exchange, response: Response) -> None:
        """Add a line for a response that is given now, unless it only begins: see `stream_ended`."""
        if response.source is None or (exchange.head is not None and exchange.head.method == b"HEAD"):
            self._add(exchange, response, None)

    def stream_ended(self, exchange: Exchange, response: Response, end: StreamEnd) -> None:
        """Add a line for a response that was sent in chunks, and that has ended."""
        self._add(exchange, response, end)

    def _add(self, exchange: Exchange, response: Response, end: StreamEnd | None) -> None:
        line = self._line(exchange, response, self._clock.seconds() - exchange.started_s, self._now(), end)
        self._lines.append(line)
        self._gathered += len(line)
        if self._gathered >= _MAX_GATHERED:
            self.flush()
        elif self._writing is None:
            self._writing = self._clock.callLater(_INTERVAL_S, self.flush)

    def open(self) -> None:
        """
        Open the file, and create it if it is missing.

        :raise StartUpError: it cannot be opened.
        """
        if self._path != STANDARD_OUTPUT:
            self._file = self._opened()
        self._writer.start()

    def reopen(self) -> None:
        """
        Open the file again by its name, after it was moved away.

        :raise StartUpError: it cannot be opened. Lines still go to the open file.
        """
        if self._path != STANDARD_OUTPUT:
            new = self._opened()
            self.flush()
            self._writer.call(partial(self._use, new))

    def close(self) -> None:
        """Write the waiting lines, for up to a second, and close the file."""
        self.flush()
        self._writer.call(partial(self._use, None))
        self._writer.finish(_LAST_LINES_S)
        self._writer.stop()
        if self._writer.unreported:
            self._log.error(
                "{count} line(s) of the access log {path} could not be written at shutdown, and are lost.",
                count=self._writer.unreported,
                path=self._path,
            )

    def flush(self) -> None:
        """Hand the gathered lines to the writer."""
        writing, self._writing = self._writing, None
        if writing is not None and writing.active():
            writing.cancel()
        if self._lines:
            lines, self._lines, self._gathered = self._lines, [], 0
            self._writer.write("".join(lines).encode("utf-8"))

    def _write(self, data: bytes) -> int:
        """Write to the file; in the thread."""
        if self._file is None:
            raise OSError(errno.EBADF, "The file is closed")
        try:
            return os.write(self._file, data)
        except OSError:
            # A new file may have the name by now.
            with suppress(StartUpError):
                self._use(self._opened())
            raise

    def _use(self, file: int | None) -> None:
        before, self._file = self._file, file
        if before is not None:
            # Some file systems report a full disk only now.
            with suppress(OSError):
                os.close(before)

    def _opened(self) -> int:
        try:
            # Not blocking: opening a pipe without a reader would wait.
            file = os.open(
                self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, _MODE
            )
        except OSError as error:
            raise StartUpError(_rejection(self._path, error)) from error
        # Writes may block, since a thread makes them.
        os.set_blocking(file, True)
        return file


def require_writable(path: str) -> None:
    """
    Check that a file could be opened for writing, without creating it.

    :param path: the path of the file, or `STANDARD_OUTPUT`.
    :raise StartUpError: it could not be opened.
    """
    if path == STANDARD_OUTPUT:
        return
    file = Path(path)
    try:
        if file.exists():
            os.close(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK))
        else:
            tempfile.TemporaryFile(dir=file.parent).close()
    except OSError as error:
        raise StartUpError(_rejection(path, error)) from error


def _rejection(path: str, error: OSError) -> str:
    return (
        f"--access-log: cannot open {path}: {error.strerror}. Give a file in an existing directory that the "
        "service's user may write to, or - for standard output."
    )
