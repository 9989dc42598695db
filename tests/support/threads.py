"""A reactor in memory whose threads work when the test says so."""

from __future__ import annotations

from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure

__all__ = ["ReactorWithThreads"]


class Threads:
    """A pool of threads whose work is done when the test says so."""

    def __init__(self):
        self.waiting = []

    def callInThreadWithCallback(self, on_result, work, *arguments):
        self.waiting.append((on_result, work, arguments))

    def do_one(self):
        on_result, work, arguments = self.waiting.pop(0)
        try:
            result = work(*arguments)
        except Exception:  # noqa: BLE001 -- as Twisted's pool does it
            on_result(False, Failure())  # noqa: FBT003 -- Twisted's argument
        else:
            on_result(True, result)  # noqa: FBT003 -- as above


class ReactorWithThreads(MemoryReactorClock):
    def __init__(self):
        super().__init__()
        self.threads = Threads()

    def getThreadPool(self):
        return self.threads

    def callFromThread(self, call, *arguments):
        call(*arguments)
