"""What is read again while the service runs: when somebody asks for it, and when its files have changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias

from twisted.internet.defer import CancelledError, Deferred, DeferredLock
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.errors import StartUpError

__all__ = ["Reload", "Reloads"]

_INTERVAL_S: Final = 1.0

Reload: TypeAlias = Callable[[], "Deferred[None] | None"]
"""
Reads something again: at once, or until the `Deferred` fires, which it does with ``None``.

It raises, or fails with, `StartUpError` if what is there cannot be used; nothing has changed then.
"""

_Signature: TypeAlias = "tuple[int, int, int, int] | int | None"


_log: Final = Logger(namespace="sampleapp.reloads.Reloads")


class _Texts(NamedTuple):
    """What the log says, each constant, so that it can be searched for."""

    done: str
    refused: str
    failed: str


_READ: Final = _Texts(
    "Read {name} again.",
    "Could not read {name} again; what was read before stays in use: {reason}",
    "Could not read {name} again; what was read before stays in use.",
)
_OPEN: Final = _Texts(
    "Opened {name} again.",
    "Could not open {name} again; what was open before stays in use: {reason}",
    "Could not open {name} again; what was open before stays in use.",
)


class _Source:
    """Something that can be read again."""

    def __init__(self, name: str, reload: Reload, paths: Callable[[], Iterable[str]], texts: _Texts) -> None:
        self._name = name
        self._texts = texts
        self._reload = reload
        self._paths = paths
        self._seen = self._look()
        # One reading after the other, so that what is there last is what counts.
        self._lock = DeferredLock()
        self._asked = 0
        self._answered = 0
        self._could_be_used = True

    def has_changed(self) -> bool:
        """Whether a file is another one than at the last look, or says so."""
        before, self._seen = self._seen, self._look()
        return before != self._seen

    def _look(self) -> dict[str, _Signature]:
        return {path: _signature(path) for path in self._paths()}

    async def reload(self) -> bool:
        """Read it again, and return whether it could be used. A reading that began before does not count."""
        self._asked += 1
        asked = self._asked
        async with self._lock:
            # While this one waited, one may have begun that is as good.
            if self._answered < asked:
                self._answered = self._asked
                self._could_be_used = await self._read()
            return self._could_be_used

    async def _read(self) -> bool:
        try:
            reading = self._reload()
            if reading is not None:
                await reading
        except StartUpError as error:
            _log.error(self._texts.refused, name=self._name, reason=str(error))
        except CancelledError:
            raise
        except Exception:  # noqa: BLE001 -- whatever it is, the service goes on with what it has
            _log.failure(self._texts.failed, name=self._name)
        else:
            _log.info(self._texts.done, name=self._name)
            return True
        return False


class Reloads:
    """
    All that can be read again while the service runs.

    A file counts as changed when it is written to, when another one takes its name, and when a symbolic link
    on the way to it turns, as Kubernetes replaces secrets. Files are looked at each second, since what tells
    of changes as they happen (inotify) misses those on network file systems.
    """

    def __init__(self, clock: IReactorTime) -> None:
        """:param clock: says when to look at the files."""
        self._clock = clock
        self._sources: list[_Source] = []
        self._looking: IDelayedCall | None = None
        self._running: list[Deferred[bool]] = []

    def add(
        self,
        name: str,
        reload: Reload,
        paths: Iterable[str] | Callable[[], Iterable[str]] = (),
        *,
        is_written: bool = False,
    ) -> None:
        """
        Let something be read again.

        :param name: what it is, as the log calls it: "the callers file".
        :param reload: reads it again. Of a `StartUpError`, the sentence is logged.
        :param paths: the files that it is read from, or what says which they are now; without any, it is only
            read again when `reload` is called.
        :param is_written: it is not read, but a file that is opened again to be written to.
        """
        texts = _OPEN if is_written else _READ
        fixed = None if callable(paths) else tuple(paths)
        self._sources.append(_Source(name, reload, paths if callable(paths) else lambda: fixed or (), texts))

    def start(self) -> None:
        """Begin to look at the files."""
        if self._looking is None:
            self._look_later()

    def stop(self) -> None:
        """Look at them no longer, and let what is being read have no effect."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
        # First those that wait, which would otherwise begin as soon as the one before them has ended.
        for reading in self._running[::-1]:
            reading.cancel()

    def reload(self) -> Deferred[bool]:
        """
        Read everything again.

        :return: fires, once all is read, with whether all of it could be used. Never fails.
        """
        for source in self._sources:
            # It is read now, whatever it was before.
            source.has_changed()
        return Deferred.fromCoroutine(self._reload_all())

    async def _reload_all(self) -> bool:
        # None waits for another, or is left out because another cannot be used.
        readings = [self._reload(source) for source in self._sources]
        results = [await reading for reading in readings]
        return all(results)

    def _look_later(self) -> None:
        self._looking = self._clock.callLater(_INTERVAL_S, self._look)

    def _look(self) -> None:
        self._look_later()
        for source in self._sources:
            if source.has_changed():
                self._reload(source)

    def _reload(self, source: _Source) -> Deferred[bool]:
        reading = Deferred.fromCoroutine(source.reload())
        self._running.append(reading)

        def ended(result: bool | Failure) -> bool:  # noqa: FBT001 -- the result of a Deferred
            self._running.remove(reading)
            # It fails only when it is cancelled.
            return result is True

        return reading.addBoth(ended)


def _signature(path: str) -> _Signature:
    try:
        status = os.stat(path)  # noqa: PTH116 -- a Path has to be made for its own
    except OSError as error:
        return error.errno
    # Not st_mtime_ns, which stays as it is when a file becomes one that may be read.
    return status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev
