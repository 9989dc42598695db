"""The one thread on which all SQLite work runs."""

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

    A broker that was never stopped, or whose disk hangs, would otherwise keep the interpreter from
    ending. Nothing is lost by that: what was answered is on the disk.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, daemon=True)


class _OneThread(ThreadPool):
    threadFactory = _DaemonThread  # noqa: N815 -- Twisted's name


class PrivateThread:
    """A thread that runs one thing after another, in the order in which they were asked for."""

    def __init__(self, *, threads: IReactorFromThreads) -> None:
        """:param threads: brings the results back to the reactor's thread."""
        self._threads = threads
        self._pool: _OneThread | None = None

    def start(self) -> None:
        """Start the thread: not before, since a process that forks loses its threads."""
        self._pool = _OneThread(1, 1, name="sampleapp.sqlite")
        self._pool.start()

    def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Deferred[T]:
        """
        Do something on the thread.

        :return: fires with the result, or fails with what was raised, on the reactor's thread. Cancelling
            it stops the waiting only: work that has begun cannot be called back.
        """
        if self._pool is None:
            raise RuntimeError("the thread is not running")
        return deferToThreadPool(self._threads, self._pool, work, *args, **kwargs)

    def stop(self) -> None:
        """End the thread; blocks until it has ended, so nothing may be running on it any more."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()
