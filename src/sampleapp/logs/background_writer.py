"""A bounded queue of lines, and the thread that writes them."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby
from queue import Empty, SimpleQueue
from threading import Event, RLock, Thread, current_thread
from typing import Final, TypeAlias

from twisted.logger import Logger, LogLevel

_MAX_WAITING: Final = 1024 * 1024
"""The maximum number of bytes that wait to be written. More lines are lost."""
_MAX_JOINED: Final = 500
_RETRY_S: Final = 1.0
_STANDARD_OUTPUT: Final = 1

_Write: TypeAlias = Callable[[bytes], int]
_Call: TypeAlias = Callable[[], None]

_standard_output_lock: Final = RLock()


def write_to_standard_output(data: bytes) -> int:
    """
    Write whole lines, so that lines of several threads do not mix.

    :return: the number of bytes written.
    """
    # Writes of more than PIPE_BUF bytes to a pipe are not atomic (pipe(7)).
    with _standard_output_lock:
        return os.write(_STANDARD_OUTPUT, data)


class BackgroundWriter:
    """
    Writes lines in its own thread, so that no caller waits for a pipe that is not read, or for a disk.

    Up to 1 MiB may wait; further lines are lost and counted. A failed write is retried each second. Twisted's
    signal handlers log, and may interrupt a thread that holds a lock: hence `RLock`, and `SimpleQueue`, whose
    ``put`` is reentrant.
    """

    _log = Logger()

    def __init__(self, name: str, write: _Write, *, lost: Counter[str], label: str) -> None:
        """
        :param name: the name of the log, as the subject of a sentence.
        :param write: writes bytes, and may block; returns the number written, or raises `OSError`.
        :param lost: counts lost lines under the label.
        """
        self._name = name
        self._write = write
        self._lost = lost
        self._label = label
        self._lost[label] += 0
        self._reported = 0
        self._queue: SimpleQueue[bytes | _Call] = SimpleQueue()
        self._lock = RLock()
        self._waiting = 0
        self._in_hand = b""
        self._reasons: set[str] = set()
        """The reasons for which writing fails, since it last worked."""
        self._thread: Thread | None = None
        self._finishing = Event()
        self._deadline_s: float | None = None

    @property
    def unreported(self) -> int:
        """The number of lost lines that are not logged yet."""
        return self._lost[self._label] - self._reported

    def start(self) -> None:
        """
        Start the thread, after a daemon has forked, since threads do not survive a fork.

        Before this, lines are written at once.
        """
        if self._thread is None:
            self._thread = Thread(target=self._run, name=f"sampleapp.log.{self._label}", daemon=True)
            self._thread.start()

    def write(self, data: bytes) -> None:
        """Queue whole lines, or lose them if the queue is full."""
        if self._thread is None:
            self._write_at_once(data)
            return
        with self._lock:
            if self._waiting + len(data) > _MAX_WAITING:
                self._count_lost(data)
                return
            self._waiting += len(data)
            self._queue.put(data)
        # The thread cannot wait for itself.
        if self._deadline_s is not None and current_thread() is not self._thread:
            self._wait()

    def call(self, function: _Call) -> None:
        """Call a function in the thread, after everything that is queued."""
        self._queue.put(function)

    def finish(self, timeout_s: float) -> None:
        """
        Wait until everything is written; later lines may use the rest of the time.

        :param timeout_s: seconds for all of this; lines not written by then may be lost.
        """
        if self._thread is not None:
            if self._deadline_s is None:
                self._deadline_s = time.monotonic() + timeout_s
            self._finishing.set()
            self._wait()

    def stop(self) -> None:
        """Drop the waiting lines, and end the thread."""
        with suppress(Empty):
            while True:
                waiting = self._queue.get_nowait()
                if isinstance(waiting, bytes):
                    self._count_lost(waiting)
        # A write in progress may still succeed in part.
        self._count_lost(self._in_hand)
        self._queue.put(_end)
        self._thread = None

    def _wait(self) -> None:
        written = Event()
        self._queue.put(written.set)
        written.wait(max((self._deadline_s or 0.0) - time.monotonic(), 0))

    def _count_lost(self, data: bytes) -> None:
        with self._lock:
            self._lost[self._label] += data.count(b"\n")

    def _write_at_once(self, data: bytes) -> None:
        try:
            while data:
                data = data[self._write(data) :]
        except (OSError, ValueError):
            self._count_lost(data)

    def _run(self) -> None:
        while True:
            for is_bytes, group in groupby(self._next(), lambda each: isinstance(each, bytes)):
                if is_bytes:
                    self._write_all(b"".join(group))  # type: ignore[arg-type] # as groupby says
                    continue
                for call in group:
                    if call is _end:
                        return
                    self._call(call)  # type: ignore[arg-type] # as groupby says
            if self._queue.empty():
                self._log_recovery()

    def _call(self, function: _Call) -> None:
        try:
            function()
        except Exception:  # noqa: BLE001 -- later lines must be written
            self._log.failure("A bug in the service: a call in the thread of {name} failed", name=self._name)

    def _next(self) -> list[bytes | _Call]:
        taken = [self._queue.get()]
        with suppress(Empty):
            while len(taken) < _MAX_JOINED:
                taken.append(self._queue.get_nowait())
        return taken

    def _write_all(self, data: bytes) -> None:
        self._in_hand = data
        while self._in_hand:
            try:
                written = self._write(self._in_hand)
            # Writing to a closed file raises ValueError.
            except (OSError, ValueError) as error:
                if not self._finishing.is_set():
                    self._log_failure(error)
                    self._finishing.wait(_RETRY_S)
                    continue
                self._count_lost(self._in_hand)
                written = len(self._in_hand)
            self._in_hand = self._in_hand[written:]
            with self._lock:
                self._waiting -= written

    def _log_failure(self, error: OSError | ValueError) -> None:
        reason = getattr(error, "strerror", None) or str(error)
        if reason not in self._reasons:
            self._reasons.add(reason)
            self._log.error(
                "{name} cannot be written to: {reason}. Up to 1 MiB of lines wait, and more are lost; "
                "requests are still answered.",
                name=self._name,
                reason=reason,
            )

    def _log_recovery(self) -> None:
        count = self.unreported
        if (self._reasons or count) and not self._finishing.is_set():
            self._reasons.clear()
            self._reported += count
            self._log.emit(
                LogLevel.warn if count else LogLevel.info,
                "{name} can be written to again; {count} line(s) were lost.",
                name=self._name,
                count=count,
            )


def _end() -> None:
    """Mark the end of the queue."""
