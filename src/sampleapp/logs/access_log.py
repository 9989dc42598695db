"""
The access log: a file with a line for each request, its caller and its response.

Text from clients is escaped, so that it cannot end a field or a line. Queries are left out, since they hold
the keys of records.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from sampleapp.errors import StartUpError
from sampleapp.logs.background_writer import BackgroundWriter, write_to_standard_output
from sampleapp.logs.settings import STANDARD_OUTPUT, AccessLogFormat
from sampleapp.web import Batch, Exchange, Response, StreamEnd

# As Apache escapes: anything but printable ASCII, quotation marks, and the backslash itself.
_SPECIAL: Final = re.compile(r'[^ -~]|["\\]')
_SPECIAL_OR_BLANK: Final = re.compile(r'[^!-~]|["\\]')
_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def combined_line(
    exchange: Exchange, response: Response, elapsed_s: float, ended_s: float, end: StreamEnd | None = None
) -> str:
    """
    Write a line in Apache's format "combined", with more fields after it.

    :param elapsed_s: seconds from the head of the request to the response, or to the end of a stream.
    :param ended_s: the time of the response or the end, in seconds since the epoch.
    :param end: of a response that was sent in chunks.
    """
    head, record = exchange.head, response.record
    started_s = ended_s - elapsed_s
    length = response.length if end is None else end.bytes_sent
    if head is None:
        request, referer, agent = "-", "-", "-"
    else:
        request = f"{head.method.decode('latin-1')} {_quoted(head.path)} HTTP/1.{1 if head.is_1_1 else 0}"
        values = head.fields.joined
        referer, agent = _without_query(values(b"referer")), _quoted(values(b"user-agent"))
        if head.method == b"HEAD":
            length = 0
    caller = _word(exchange.caller.encode("utf-8", "backslashreplace"))
    if record is not None:
        where = f"{record.topic} {record.partition} {record.offset} 1"
    elif (replayed := response.replayed) is not None:
        where = f"{replayed.topic} {replayed.partition} {replayed.offset} 0"
    else:
        topic, records = _of_batch(response.batch)
        where = f"{topic or '-'} - - {'-' if records is None else records}"
    ended_by = "-" if end is None else end.reason
    return (
        f"{exchange.peer.host or '-'} - {caller} {_apache_time(int(started_s))} "
        f'"{request}" {int(response.status)} {length or "-"} "{referer}" "{agent}" '
        f"{_word(exchange.request_id)} {elapsed_s:.6f} {exchange.route or '-'} {where} {ended_by}\n"
    )


class _Line(Struct, omit_defaults=True, gc=False):
    """One request as JSON; missing values are left out."""

    time: str
    status: int
    bytes: int
    seconds: float
    request_id: str
    client: str = ""
    caller: str = ""
    method: str = ""
    path: str = ""
    route: str = ""
    protocol: str = ""
    topic: str = ""
    partition: int | None = None
    offset: int | None = None
    records: int | None = None
    referer: str = ""
    user_agent: str = ""
    ended_by: str = ""


_encode = msgspec.json.Encoder().encode


def json_access_line(
    exchange: Exchange, response: Response, elapsed_s: float, ended_s: float, end: StreamEnd | None = None
) -> str:
    """
    Write a line of JSON.

    :param elapsed_s: seconds from the head of the request to the response, or to the end of a stream.
    :param ended_s: the time of the response or the end, in seconds since the epoch.
    :param end: of a response that was sent in chunks.
    """
    head, record = exchange.head, response.record
    started_s = ended_s - elapsed_s
    whole_s = int(started_s)
    line = _Line(
        f"{_rfc3339_time(whole_s)}.{int((started_s - whole_s) * 1000):03d}Z",
        int(response.status),
        response.length,
        round(elapsed_s, 6),
        exchange.request_id.decode("latin-1"),
        exchange.peer.host,
        _with_utf8_form(exchange.caller),
    )
    line.route = exchange.route
    if end is not None:
        line.bytes, line.ended_by = end.bytes_sent, end.reason
    if head is not None:
        line.method = head.method.decode("latin-1")
        line.path = head.path.decode("latin-1")
        line.protocol = "HTTP/1.1" if head.is_1_1 else "HTTP/1.0"
        referer, agent = head.fields.joined(b"referer"), head.fields.joined(b"user-agent")
        if referer is not None:
            line.referer = referer.partition(b"?")[0].decode("ascii", "backslashreplace")
        if agent is not None:
            line.user_agent = agent.decode("ascii", "backslashreplace")
        if head.method == b"HEAD":
            line.bytes = 0
    if record is not None:
        line.topic, line.partition, line.offset = record.topic, record.partition, record.offset
        line.records = 1
    elif (replayed := response.replayed) is not None:
        line.topic, line.partition, line.offset = replayed.topic, replayed.partition, replayed.offset
        line.records = 0
    else:
        line.topic, line.records = _of_batch(response.batch)
    return _encode(line).decode("utf-8") + "\n"


def _of_batch(batch: Batch | None) -> tuple[str, int | None]:
    """Return the topic, if there is only one, and the number of published records."""
    if batch is None:
        return "", None
    return batch.published[0].topic if len(batch.published) == 1 else "", batch.records


def _quoted(value: bytes | None) -> str:
    """Escape a value for use between quotation marks."""
    if value is None:
        return "-"
    text = value.decode("latin-1")
    return text if _SPECIAL.search(text) is None else _SPECIAL.sub(_escape, text)


def _without_query(url: bytes | None) -> str:
    return "-" if url is None else _quoted(url.partition(b"?")[0])


def _word(value: bytes) -> str:
    """Escape a value for use without quotation marks."""
    if not value:
        return "-"
    text = value.decode("latin-1")
    return text if _SPECIAL_OR_BLANK.search(text) is None else _SPECIAL_OR_BLANK.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    return _SHORT.get(character) or f"\\x{ord(character):02x}"


def _with_utf8_form(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


@lru_cache(maxsize=4)
def _apache_time(seconds: int) -> str:
    when = time.gmtime(seconds)
    # strftime("%b") would follow the locale.
    return time.strftime(f"[%d/{_MONTHS[when.tm_mon - 1]}/%Y:%H:%M:%S +0000]", when)


@lru_cache(maxsize=4)
def _rfc3339_time(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


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
