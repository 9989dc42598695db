"""The file with a line for each request."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from sampleapp.errors import StartUpError
from sampleapp.logs.access_lines import combined_line, json_access_line
from sampleapp.logs.settings import STANDARD_OUTPUT, AccessLogFormat
from sampleapp.web import Answer, Exchange

__all__ = ["AccessLog", "require_writable"]

_INTERVAL_S: Final = 1.0
_MOST_GATHERED: Final = 64 * 1024
"""How much text waits for the next write at most, in characters; more is written at once."""
_MOST_KEPT: Final = 1024 * 1024
"""How much is kept when it cannot be written, in bytes. What comes then is lost."""
# Others of the machine have no business with who calls.
_MODE: Final = 0o640
_STANDARD_OUTPUT: Final = 1

_WRITERS: Final[dict[AccessLogFormat, Callable[[Exchange, Answer, float], str]]] = {
    AccessLogFormat.COMBINED: combined_line,
    AccessLogFormat.JSON: json_access_line,
}


class AccessLog:
    """
    Writes a line for each answer.

    Lines are gathered for up to a second. A file that cannot be written to costs no request anything: some
    lines are kept until it can be, and the log of the service tells once how many were lost.
    """

    _log = Logger()

    def __init__(self, *, path: str, line_format: AccessLogFormat, clock: IReactorTime) -> None:
        """
        :param path: of the file, or `STANDARD_OUTPUT`.
        :param clock: says when to write; it shows seconds since the epoch.
        """
        self._path = path if path == STANDARD_OUTPUT else str(Path(path).absolute())
        self._line = _WRITERS[line_format]
        self._clock = clock
        self._file: int | None = None
        self._lines: list[str] = []
        self._gathered = 0
        self._unwritten = b""
        self._lost = 0
        self._is_failing = False
        self._writing: IDelayedCall | None = None

    def answered(self, exchange: Exchange, answer: Answer) -> None:
        """Write down an answer, which was decided now."""
        line = self._line(exchange, answer, self._clock.seconds())
        self._lines.append(line)
        self._gathered += len(line)
        if self._gathered >= _MOST_GATHERED:
            self.flush()
        elif self._writing is None:
            self._writing = self._clock.callLater(_INTERVAL_S, self.flush)

    def open(self) -> None:
        """
        Open the file, and make it if there is none.

        :raise StartUpError: it cannot be opened.
        """
        self._file = self._opened()

    def reopen(self) -> None:
        """
        Open the file again by its name, after another one has got it.

        :raise StartUpError: it cannot be opened. The lines go on to the file that is open.
        """
        if self._path == STANDARD_OUTPUT:
            return
        self.flush()
        new, old = self._opened(), self._file
        self._file = new
        if old is not None:
            os.close(old)

    def close(self) -> None:
        """Write what waits, and close the file."""
        self.flush()
        # Nothing is tried any more.
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.cancel()
        if self._unwritten or self._lost:
            self._log.error(
                "{count} line(s) of the access log {path} are lost.",
                count=self._lost + self._unwritten.count(b"\n"),
                path=self._path,
            )
        self._unwritten, self._lost = b"", 0
        file, self._file = self._file, None
        if file is not None and file != _STANDARD_OUTPUT:
            os.close(file)

    def flush(self) -> None:
        """Write what waits, as far as it can be written."""
        writing, self._writing = self._writing, None
        if writing is not None and writing.active():
            writing.cancel()
        lines, self._lines, self._gathered = self._lines, [], 0
        if len(self._unwritten) < _MOST_KEPT:
            self._unwritten += "".join(lines).encode("utf-8")
        else:
            self._lost += len(lines)
        if self._file is None or not self._unwritten:
            return
        try:
            while self._unwritten:
                written = os.write(self._file, self._unwritten)
                self._unwritten = self._unwritten[written:]
        except OSError as error:
            self._failed(error)
        else:
            self._succeeded()

    def _failed(self, error: OSError) -> None:
        # Also where no request comes meanwhile.
        self._writing = self._clock.callLater(_INTERVAL_S, self.flush)
        if not self._is_failing:
            self._is_failing = True
            self._log.error(
                "The access log {path} cannot be written to: {reason}. Requests are answered all the same.",
                path=self._path,
                reason=error.strerror or str(error),
            )

    def _succeeded(self) -> None:
        if self._is_failing:
            self._is_failing = False
            self._log.info(
                "The access log {path} is written to again; {count} line(s) are lost.",
                path=self._path,
                count=self._lost,
            )
            self._lost = 0

    def _opened(self) -> int:
        if self._path == STANDARD_OUTPUT:
            return _STANDARD_OUTPUT
        try:
            # Not blocking, or a pipe without a reader would be waited for.
            return os.open(
                self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, _MODE
            )
        except OSError as error:
            raise StartUpError(_refusal(self._path, error)) from error


def require_writable(path: str) -> None:
    """
    See whether a file could be opened for lines, without making it.

    :param path: of the file, or `STANDARD_OUTPUT`.
    :raise StartUpError: it could not.
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
        raise StartUpError(_refusal(path, error)) from error


def _refusal(path: str, error: OSError) -> str:
    return (
        f"--access-log: cannot open {path}: {error.strerror}. Give a file in a directory that is there, and "
        "that the service's user may write to; or - for standard output."
    )
