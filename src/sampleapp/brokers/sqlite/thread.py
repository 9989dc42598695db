"""The private thread for all calls of SQLite."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any, ParamSpec, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorFromThreads
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

__all__ = ["PrivateThread"]

P = ParamSpec("P")
T = TypeVar("T")


class _DaemonThread(Thread):
    """
    A thread that does not keep the process alive.

    Otherwise, a broker that was never stopped, or whose disk hangs, would keep the interpreter from ending.
    Nothing is lost, since acknowledged records are on the disk.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, daemon=True)


class _OneThread(ThreadPool):
    threadFactory = _DaemonThread  # noqa: N815 -- Twisted's name


class PrivateThread:
    """A thread that runs calls one after the other, in order."""

    def __init__(self, *, threads: IReactorFromThreads) -> None:
        """:param threads: brings the results back to the reactor's thread."""
        self._threads = threads
        self._pool: _OneThread | None = None

    def start(self) -> None:
        """Start the thread. Not in the constructor, since a process loses its threads when it forks."""
        self._pool = _OneThread(1, 1, name="sampleapp.sqlite")
        self._pool.start()

    def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Deferred[T]:
        """
        Call a function on the thread.

        :return: fires with the result, or fails with the exception, on the reactor's thread. Cancelling it
            only ends the waiting: a call that has begun cannot be stopped.
        """
        if self._pool is None:
            raise RuntimeError("the thread is not running")
        return deferToThreadPool(self._threads, self._pool, work, *args, **kwargs)

    def stop(self) -> None:
        """End the thread. Blocks until it has ended, so no call may be running on it."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()
