"""A reactor for one command, so that commands can run one after the other in the process of the tests."""

from __future__ import annotations

import atexit
import signal
from contextlib import contextmanager
from unittest.mock import patch

from twisted.internet.pollreactor import PollReactor

__all__ = ["command_reactor"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


class _CommandReactor(PollReactor):
    """Unlike that of epoll, it has no descriptors but those of its waker, which can be closed."""

    def __init__(self):
        self._readers = set()
        super().__init__()

    def addReader(self, reader):
        self._readers.add(reader)
        super().addReader(reader)

    def run(self):
        # The tests' reactor, inside of which this one runs, has handlers of its own.
        super().run(installSignalHandlers=False)

    def close(self):
        """Close all sockets, as the end of a process does. Stopping leaves those that do not read then."""
        self.waker.connectionLost(None)
        for reader in self._readers:
            if (socket := getattr(reader, "socket", None)) is not None:
                socket.close()


@contextmanager
def command_reactor():
    """
    Make a new reactor the global one, for code that imports it in the meantime.

    The connections and timers of a command end with its reactor. Afterwards, the signal handlers and the
    interval timer are as they were.
    """
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    own = _CommandReactor()
    try:
        with patch("twisted.internet.reactor", own):
            yield own
    finally:
        own.close()
        signal.setitimer(signal.ITIMER_REAL, 0)
        atexit.unregister(signal.setitimer)
        for number, handler in handlers.items():
            signal.signal(number, handler)
