"""Reading a file of any kind without keeping the reactor waiting."""

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
    Reads one piece at a time, on a thread of its own.

    A terminal, a pipe or a file on a network may keep a read waiting for ever. The thread is a daemon, and
    not one of the reactor's, so that a read that never returns does not keep the process from ending; and
    it reads from the descriptor, since a buffered file would be locked when the interpreter finalizes it.
    """

    def __init__(self, *, file: IO[bytes], reactor: Any) -> None:
        """
        :param file: stays open until nothing is read any more.
        :param reactor: whose thread the pieces are delivered on.
        """
        self._descriptor = file.fileno()
        self._reactor = reactor
        self._wanted: SimpleQueue[Deferred[bytes]] = SimpleQueue()
        Thread(target=self._run, daemon=True).start()

    def read(self) -> Deferred[bytes]:
        """
        Read what there is, up to a limit, waiting for at least one byte.

        :return: fires with the bytes, none at the end of the file; fails with `OSError`.
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
