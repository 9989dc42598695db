"""What is read again while the service runs: when somebody asks for it, and when its files have changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from sampleapp.errors import StartUpError

__all__ = ["Reloads"]

_INTERVAL_S: Final = 1.0

_Signature: TypeAlias = "tuple[int, int, int, int] | int | None"


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

    def __init__(
        self, name: str, reload: Callable[[], object], paths: Callable[[], Iterable[str]], texts: _Texts
    ) -> None:
        self.name = name
        self.texts = texts
        self.reload = reload
        self._paths = paths
        self._seen = self._look()

    def has_changed(self) -> bool:
        """Whether a file is another one than at the last look, or says so."""
        before, self._seen = self._seen, self._look()
        return before != self._seen

    def _look(self) -> dict[str, _Signature]:
        return {path: _signature(path) for path in self._paths()}


class Reloads:
    """
    All that can be read again while the service runs.

    A file counts as changed when it is written to, when another one takes its name, and when a symbolic link
    on the way to it turns, as Kubernetes replaces secrets. Files are looked at each second, since what tells
    of changes as they happen (inotify) misses those on network file systems.
    """

    _log = Logger()

    def __init__(self, clock: IReactorTime) -> None:
        """:param clock: says when to look at the files."""
        self._clock = clock
        self._sources: list[_Source] = []
        self._looking: IDelayedCall | None = None

    def add(
        self,
        name: str,
        reload: Callable[[], object],
        paths: Iterable[str] | Callable[[], Iterable[str]] = (),
        *,
        is_written: bool = False,
    ) -> None:
        """
        Let something be read again.

        :param name: what it is, as the log calls it: "the callers file".
        :param reload: reads it again. It raises `StartUpError` if what is there cannot be used; nothing has
            changed then, and its sentence is logged.
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
        """Look at them no longer."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()

    def reload(self) -> bool:
        """
        Read everything again.

        :return: whether all of it could be used.
        """
        for source in self._sources:
            # It is read now, whatever it was before.
            source.has_changed()
        # None is left out because another cannot be used.
        results = [self._reload(source) for source in self._sources]
        return all(results)

    def _look_later(self) -> None:
        self._looking = self._clock.callLater(_INTERVAL_S, self._look)

    def _look(self) -> None:
        self._look_later()
        for source in self._sources:
            if source.has_changed():
                self._reload(source)

    def _reload(self, source: _Source) -> bool:
        try:
            source.reload()
        except StartUpError as error:
            self._log.error(source.texts.refused, name=source.name, reason=str(error))
        except Exception:  # noqa: BLE001 -- whatever it is, the service goes on with what it has
            self._log.failure(source.texts.failed, name=source.name)
        else:
            self._log.info(source.texts.done, name=source.name)
            return True
        return False


def _signature(path: str) -> _Signature:
    try:
        status = os.stat(path)  # noqa: PTH116 -- a Path has to be made for its own
    except OSError as error:
        return error.errno
    # Not st_mtime_ns, which stays as it is when a file becomes one that may be read.
    return status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev
