"""Lines of a file, pipe or terminal, in bounded memory and without blocking the reactor."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any

from msgspec import Struct
from twisted.internet.defer import Deferred, DeferredLock
from twisted.python.failure import Failure

# Far above the service's limit (--max-body, 1 MiB by default), so that the service rejects a long line.
MAX_LINE_BYTES = 16 * 1024 * 1024


class Line(Struct, frozen=True):
    """One line of a file."""

    number: int
    """From 1."""
    size: int
    """Bytes in the file, its line feed included."""
    content: bytes | None
    """Without its line feed; ``None`` if it is longer than the limit."""


class LineSplitter:
    """Splits bytes at line feeds only: a carriage return may be content. Does no I/O."""

    def __init__(self, *, max_bytes: int = MAX_LINE_BYTES) -> None:
        """:param max_bytes: the maximum content of a line; longer content is not kept."""
        self._max_bytes = max_bytes
        self._begun: list[bytes] = []
        self._begun_size = 0
        self._number = 0

    def feed(self, data: bytes) -> list[Line]:
        """Add the next bytes of the file; return the lines that end in them."""
        first, *others = data.split(b"\n")
        self._extend(first)
        if not others:
            return []
        rest = others.pop()
        lines = [self._finished(line_feed=1)]
        limit = self._max_bytes
        lines += [
            Line(number, len(content) + 1, content if len(content) <= limit else None)
            for number, content in enumerate(others, self._number + 1)
        ]
        self._number += len(others)
        self._extend(rest)
        return lines

    def end(self) -> list[Line]:
        """End the file; return its last line if it has no line feed."""
        return [self._finished(line_feed=0)] if self._begun_size else []

    def _extend(self, data: bytes) -> None:
        self._begun_size += len(data)
        if self._begun_size > self._max_bytes:
            self._begun.clear()
        elif data:
            self._begun.append(data)

    def _finished(self, *, line_feed: int) -> Line:
        self._number += 1
        size = self._begun_size
        content = b"".join(self._begun) if size <= self._max_bytes else None
        self._begun.clear()
        self._begun_size = 0
        return Line(self._number, size + line_feed, content)


class LineSource:
    """Returns lines to several workers, and reads on only when all have been returned."""

    def __init__(
        self,
        read: Callable[[], Deferred[bytes]],
        *,
        splitter: LineSplitter | None = None,
        waits_for_all: bool = False,
    ) -> None:
        """
        :param read: reads the next bytes of the file; its Deferred fires with none at the end.
        :param waits_for_all: return as many lines as are asked for, so that a file always has the same parts.
        """
        self._read = read
        self._waits_for_all = waits_for_all
        self._splitter = splitter or LineSplitter()
        self._lines: list[Line] = []
        self._taken = 0
        self._ended = False
        self._reading = DeferredLock()

    async def take(self, *, max_lines: int, max_bytes: int) -> list[Line]:
        """
        Return the next lines that have been read; wait until there is at least one.

        :param max_bytes: the maximum of their sizes together, unless the first line alone is larger.
        :return: an empty list at the end of the file.
        """
        # Only one worker may read: two chunks of the file in the wrong order would be two wrong lines.
        await self._reading.acquire()
        try:
            least = max_lines if self._waits_for_all else 1
            while not self._ended and self._has_less(least, max_bytes):
                data = await self._read()
                self._ended = not data
                left = self._lines[self._taken :]
                self._lines = left + (self._splitter.feed(data) if data else self._splitter.end())
                self._taken = 0
            lines = self._lines[self._taken : self._taken + max_lines]
            if sum(line.size for line in lines) > max_bytes:
                lines = lines[: _fitting(lines, max_bytes)]
            self._taken += len(lines)
            return lines
        finally:
            self._reading.release()

    def _has_less(self, lines: int, max_bytes: int) -> bool:
        """Return true if fewer lines than ``lines`` are waiting, of ``max_bytes`` at most in total."""
        left = self._lines[self._taken : self._taken + lines]
        return len(left) < lines and sum(line.size for line in left) <= max_bytes


def _fitting(lines: list[Line], max_bytes: int) -> int:
    """Return the number of lines at the beginning that fit, but at least one."""
    sizes = itertools.accumulate(line.size for line in lines)
    return max(1, sum(size <= max_bytes for size in sizes))


CHUNK_BYTES = 256 * 1024


class ChunkReader:
    """
    Reads one chunk at a time, in a thread of its own.

    A read from a terminal, a pipe or a network file may block for ever. So the thread is a daemon, and not
    one of the reactor's: it does not keep the process from ending. It reads from the descriptor, since a
    buffered file would be locked when the interpreter finalizes it.
    """

    def __init__(self, *, file: IO[bytes], reactor: Any) -> None:
        """
        :param file: must stay open while it is read.
        :param reactor: the chunks are delivered in its thread.
        """
        self._descriptor = file.fileno()
        self._reactor = reactor
        self._wanted: SimpleQueue[Deferred[bytes]] = SimpleQueue()
        Thread(target=self._run, daemon=True).start()

    def read(self) -> Deferred[bytes]:
        """
        Read the available bytes, up to a limit, and wait for at least one byte.

        :return: fires with the bytes; without any at the end of the file. Fails with `OSError`.
        """
        wanted: Deferred[bytes] = Deferred()
        self._wanted.put(wanted)
        return wanted

    def _run(self) -> None:
        while True:
            wanted = self._wanted.get()
            try:
                data = os.read(self._descriptor, CHUNK_BYTES)
            except OSError:
                self._reactor.callFromThread(wanted.errback, Failure())
            else:
                self._reactor.callFromThread(wanted.callback, data)
