"""Reading a file, pipe or terminal without blocking the reactor."""

from __future__ import annotations

import os
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

__all__ = ["ChunkReader"]

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
