"""Files that are reloaded while the service runs, on request and when they change; schemas of topics."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from twisted.internet.defer import CancelledError, Deferred, DeferredLock
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.concurrency.slices import Run
from sampleapp.errors import StartUpError, visible
from sampleapp.files import read_file, shown_path
from sampleapp.messages.schema_keywords import keyword_warnings
from sampleapp.messages.schemas import Schema, compile_schemas
from sampleapp.validation.validation import Validation

_MOST_ENTRIES: Final = 10_000
"""A directory with more, such as one that was named by mistake, would take long to search."""


class _Loaded(NamedTuple):
    """The files of a directory of schemas, all of them valid."""

    files: dict[str, bytes]
    by_topic: dict[str, Schema]
    warnings: list[str]


class SchemaFiles:
    """A directory of schemas, from which contents are checked while all of its files are valid."""

    _log = Logger()

    def __init__(self, directory: str, *, run: Run, validation: Validation) -> None:
        """
        Read the directory.

        :param validation: uses the schemas.
        :raise StartUpError: a file cannot be read, or is not a schema.
        """
        self._directory = directory
        self._run = run
        self._validation = validation
        self._use(self._load())

    def paths(self) -> list[str]:
        """Return the paths to watch: of all files, and of the directories, whose entries may change."""
        try:
            return self._paths()
        except StartUpError:
            # The next reload says why.
            return [self._directory]

    def reload(self) -> Deferred[None]:
        """
        Read the directory again, in a thread.

        :return: fires with ``None`` when the new schemas are in use. Fails with `StartUpError` if a file is
            not a schema; then the previous ones stay in use.
        """
        return self._run(self._load).addCallback(self._use)

    def _use(self, loaded: _Loaded) -> None:
        for warning in loaded.warnings:
            self._log.warn("{warning}", warning=visible(warning, keeping=""))
        self._validation.use(loaded.files, loaded.by_topic)

    def _load(self) -> _Loaded:
        files = {}
        for path in self._paths():
            if path.endswith(".json"):
                try:
                    files[os.path.relpath(path, self._directory)] = read_file(Path(path))
                except OSError as error:
                    raise StartUpError(f"--schemas: cannot read {path}: {error.strerror}.") from error
        by_topic = compile_schemas(files, directory=self._directory)
        return _Loaded(files, by_topic, list(keyword_warnings(files, directory=self._directory)))

    def _paths(self) -> list[str]:
        """:raise StartUpError: the directory cannot be searched."""
        paths = []
        try:
            for directory, directories, files in os.walk(self._directory, onerror=_fail):
                # Kubernetes keeps the versions of a volume in such directories, and links to the current one.
                directories[:] = sorted(each for each in directories if not each.startswith("."))
                named = sorted(each for each in files if each.endswith(".json"))
                paths += [directory, *(os.path.join(directory, each) for each in named)]  # noqa: PTH118
                if len(paths) + len(directories) > _MOST_ENTRIES:
                    raise StartUpError(
                        f"--schemas: {self._directory} has more than {_MOST_ENTRIES} files and directories; "
                        "give a directory with schemas only."
                    )
        except OSError as error:
            raise StartUpError(
                f"--schemas: cannot read the directory {shown_path(self._directory)}: {error.strerror}."
            ) from error
        return paths


def _fail(error: OSError) -> None:
    raise error


_INTERVAL_S: Final = 1.0

Reload: TypeAlias = Callable[[], "Deferred[None] | None"]
"""
Reloads one thing: at once, or until the `Deferred` fires with ``None``.

It raises, or fails with, `StartUpError` if the new version is invalid; then nothing has changed.
"""

_Signature: TypeAlias = "tuple[int, ...] | int | None"


_log: Final = Logger(namespace="sampleapp.service.reloads.Reloads")


class _Texts(NamedTuple):
    """Log lines; constants, so that they can be searched for."""

    done: str
    invalid: str
    failed: str


_READ: Final = _Texts(
    "Reloaded {name}.",
    "Could not reload {name}; the previous version stays in use: {reason}",
    "Could not reload {name}; the previous version stays in use.",
)
_OPEN: Final = _Texts(
    "Reopened {name}.",
    "Could not reopen {name}; the previous file stays in use: {reason}",
    "Could not reopen {name}; the previous file stays in use.",
)


class _Source:
    """One thing that can be reloaded, and its files."""

    def __init__(
        self, name: str, reload: Reload, paths: Callable[[], Iterable[str]], texts: _Texts, *, run: Run
    ) -> None:
        self._name = name
        self._texts = texts
        self._reload = reload
        self._paths = paths
        self._run = run
        self._signatures = self._read_signatures()
        # Only one reload at a time, so that the last version of the files wins.
        self._lock = DeferredLock()
        self._requests = 0
        self._served_requests = 0
        self._is_valid = True

    async def has_changed(self) -> bool:
        """Return whether a file has changed since the last call; at once if it has none."""
        if not self._signatures:
            return False
        try:
            before, self._signatures = self._signatures, await self._run(self._read_signatures)
        except CancelledError:
            raise
        except Exception:  # noqa: BLE001 -- after any failure, the other sources are checked
            _log.failure("Could not check whether the files of {name} have changed.", name=self._name)
            return False
        return before != self._signatures

    def _read_signatures(self) -> dict[str, _Signature]:
        return {path: _signature(path) for path in self._paths()}

    async def reload(self) -> bool:
        """Reload it, and return whether it is valid. A reload that began before this call does not count."""
        self._requests += 1
        request = self._requests
        async with self._lock:
            # A reload that began while this call waited for the lock serves it as well.
            if self._served_requests < request:
                self._served_requests = self._requests
                # Updates the signatures, so that this reload is not followed by another one.
                await self.has_changed()
                self._is_valid = await self._reload_now()
            return self._is_valid

    async def _reload_now(self) -> bool:
        try:
            reloading = self._reload()
            if reloading is not None:
                await reloading
        except StartUpError as error:
            _log.error(self._texts.invalid, name=self._name, reason=visible(str(error), keeping=""))
        except CancelledError:
            raise
        except Exception:  # noqa: BLE001 -- after any failure, the service goes on with the previous version
            _log.failure(self._texts.failed, name=self._name)
        else:
            _log.info(self._texts.done, name=self._name)
            return True
        return False


class Reloads:
    """
    Everything that can be reloaded while the service runs.

    A file has changed when it is written to, when another file takes its name, and when a symbolic link in
    its path points elsewhere, as when Kubernetes replaces secrets. Files are checked each second, since
    notifications of changes (inotify) miss those on network file systems.
    """

    def __init__(self, clock: IReactorTime, *, run: Run) -> None:
        """
        :param clock: schedules the checks for changed files.
        :param run: calls a function in a thread: a directory may have thousands of files, and a network file
            system may not respond.
        """
        self._clock = clock
        self._run = run
        self._sources: list[_Source] = []
        self._next_check: IDelayedCall | None = None
        self._checking: Deferred[None] | None = None
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
        Add something to be reloaded.

        :param name: its name in the log: "the callers file".
        :param reload: reloads it. The sentence of a `StartUpError` is logged.
        :param paths: its files, or a function that returns its current files, which is called in a thread;
            without any, it is reloaded only when `reload` is called.
        :param is_written: True for a file that is reopened for writing.
        """
        texts = _OPEN if is_written else _READ
        fixed = None if callable(paths) else tuple(paths)
        current = paths if callable(paths) else lambda: fixed or ()
        self._sources.append(_Source(name, reload, current, texts, run=self._run))

    def start(self) -> None:
        """Begin to check the files for changes."""
        if self._next_check is None:
            self._check_later()

    def stop(self) -> None:
        """Stop checking the files, and cancel running reloads: they have no effect."""
        next_check, self._next_check = self._next_check, None
        if next_check is not None:
            next_check.cancel()
        if self._checking is not None:
            self._checking.cancel()
        # Waiting ones first: otherwise they would begin as soon as the one before them has ended.
        for reloading in self._running[::-1]:
            reloading.cancel()

    def reload(self) -> Deferred[bool]:
        """
        Reload everything.

        :return: fires, once all is reloaded, with True if all is valid. Never fails.
        """
        return Deferred.fromCoroutine(self._reload_all())

    async def _reload_all(self) -> bool:
        # All start at once, and an invalid one does not keep the others from being reloaded.
        running = [self._reload(source) for source in self._sources]
        results = [await reloading for reloading in running]
        return all(results)

    def _check_later(self) -> None:
        self._next_check = self._clock.callLater(_INTERVAL_S, self._check)

    def _check(self) -> None:
        self._next_check = None
        self._checking = Deferred.fromCoroutine(self._check_files())
        # It fails only when it is cancelled.
        self._checking.addErrback(lambda failure: failure.trap(CancelledError))

    async def _check_files(self) -> None:
        for source in self._sources:
            if await source.has_changed():
                self._reload(source)
        self._check_later()

    def _reload(self, source: _Source) -> Deferred[bool]:
        reloading = Deferred.fromCoroutine(source.reload())
        self._running.append(reloading)

        def ended(result: bool | Failure) -> bool:  # noqa: FBT001 -- the result of a Deferred
            self._running.remove(reloading)
            # It fails only when it is cancelled.
            return result is True

        return reloading.addBoth(ended)


def _signature(path: str) -> _Signature:
    try:
        status = os.stat(path)  # noqa: PTH116 -- a Path has to be made for its own
        # A file in a directory that every user may write to is rejected.
        directory_mode = os.stat(os.path.dirname(path) or ".").st_mode  # noqa: PTH116, PTH120
    except OSError as error:
        return error.errno
    # Not st_mtime_ns, which a change of the permissions leaves as it is.
    return status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev, directory_mode
