"""The directory with the schemas of topics: read at the start, and again after each change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from twisted.internet.defer import Deferred

from sampleapp.concurrency.slices import Run
from sampleapp.errors import StartUpError
from sampleapp.files import read_file, shown_path
from sampleapp.messages.schemas import Schema, Schemas, compile_schemas

_MOST_ENTRIES: Final = 10_000
"""A directory with more, such as one that was named by mistake, would take long to search."""


class SchemaFiles:
    """The files of a directory, and the schemas that they had when all of them were valid."""

    def __init__(self, directory: str, *, run: Run) -> None:
        """
        Read the directory.

        :raise StartUpError: a file cannot be read, or is not a schema.
        """
        self._directory = directory
        self._run = run
        self.schemas: Final = Schemas(self._load())
        """The schemas that are in use."""

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
        return self._run(self._load).addCallback(self.schemas.use)

    def _load(self) -> dict[str, Schema]:
        files = {}
        for path in self._paths():
            if path.endswith(".json"):
                try:
                    files[os.path.relpath(path, self._directory)] = read_file(Path(path))
                except OSError as error:
                    raise StartUpError(f"--schemas: cannot read {path}: {error.strerror}.") from error
        return compile_schemas(files, directory=self._directory)

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
