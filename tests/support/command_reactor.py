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

    def run(self):
        # The tests' reactor, inside of which this one runs, has handlers of its own.
        super().run(installSignalHandlers=False)


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
        own.waker.connectionLost(None)
        signal.setitimer(signal.ITIMER_REAL, 0)
        atexit.unregister(signal.setitimer)
        for number, handler in handlers.items():
            signal.signal(number, handler)
