"""The secrets of hooks: read from their files, each of which has one."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

from sampleapp.access.callers_file import CallersFileError
from sampleapp.access.files import read_file
from sampleapp.access.hooks import Hook

__all__ = ["HookKeys", "load_hook_keys", "secret_paths"]

_MOST_BYTES: Final = 4096


class HookKeys(tuple[bytes, ...]):
    """The keys of a hook, each of which is valid. They are not in its ``repr``."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return their number only."""
        return f"<{len(self)} keys>"


def secret_paths(hooks: Mapping[str, Hook], *, directory: Path) -> list[Path]:
    """
    Return the paths of the files with secrets.

    :param directory: for relative paths.
    """
    return [directory / file for hook in hooks.values() for file in hook.secret_files]


def load_hook_keys(hooks: Mapping[str, Hook], *, directory: Path) -> dict[str, HookKeys]:
    """
    Read the secrets of all hooks.

    :param directory: for relative paths.
    :return: by the names of the hooks.
    :raise CallersFileError: a file cannot be used. The message has nothing of its content.
    """
    return {
        name: HookKeys(_load(hook, directory / file) for file in hook.secret_files)
        for name, hook in hooks.items()
    }


def _load(hook: Hook, path: Path) -> bytes:
    def refuse(reason: str, error: Exception | None = None) -> NoReturn:
        raise CallersFileError(f"--callers: a secret of hooks.{hook.name}: {path} {reason}.") from error

    try:
        secret = read_file(path).rstrip()
    except OSError as error:
        refuse(f"cannot be read: {error.strerror}", error)
    if secret.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        refuse("begins with a byte order mark, which is not a part of the secret; save it without one")
    if not secret:
        refuse("is empty")
    if len(secret) > _MOST_BYTES:
        refuse(f"has more than {_MOST_BYTES} bytes, so it is not the secret of a webhook")
    if b"\n" in secret:
        refuse("has several lines; give each secret a file of its own, in secret_files")
    try:
        return hook.scheme.key_of(secret)
    except ValueError as error:
        refuse(str(error))
