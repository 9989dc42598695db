"""
The files that the configuration names: permissions, reading while they may change, and paths in messages.

Only the rights of all users count here. The rights of the file's owner and group are the operator's decision:
secrets of Kubernetes and of systemd have a group that the service belongs to.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["MAX_BYTES", "changeable_by_all", "is_readable_by_all", "read_file", "shown_path", "system_error"]

_USUAL_NAME = re.compile(r"[\w./-]+\.(?:toml|pem|key|crt|cer|json|jwks|secret|txt|conf|log|sqlite3?|db)")
_MOST_LINKS = 40
"""The limit of Linux for the symbolic links in a path."""


def is_readable_by_all(mode: int) -> bool:
    """Return true if every user of this machine may read a file of this mode (`os.stat_result.st_mode`)."""
    return bool(mode & stat.S_IROTH)


def changeable_by_all(path: str | os.PathLike[str], mode: int | None) -> str | None:
    """
    Return the reason why every user of this machine may change a file; ``None`` if they may not.

    They may if they may write to it, or put another file or directory into its path. With the sticky bit, as
    in ``/tmp``, a directory lets them add entries, but not replace those of others.

    :param mode: of the file (`os.stat_result.st_mode`); ``None`` if it does not exist.
    :return: the end of a sentence about the file.
    :raise OSError: a directory cannot be examined.
    """
    if mode is not None and mode & stat.S_IWOTH:
        return "every user of this machine may write to it; remove that permission (chmod o-w)"
    for directory, entry in _lookups(os.fspath(path)):
        status = os.stat(directory)  # noqa: PTH116 -- as in _lookups
        if not status.st_mode & stat.S_IWOTH or os.statvfs(directory).f_flag & os.ST_RDONLY:
            # Volumes of Kubernetes may be writable by their mode, and are mounted read-only.
            continue
        if not status.st_mode & stat.S_ISVTX:
            return (
                "every user of this machine may replace it, since they may write to the directory "
                f"{directory}; remove that permission (chmod o-w), or mount the directory read-only"
            )
        try:
            owner = os.lstat(entry).st_uid
        except FileNotFoundError:
            continue
        if owner not in {0, os.geteuid(), status.st_uid}:
            return (
                f"every user of this machine may add to the directory {directory}, and {entry} belongs to "
                "another user; move it to a directory of your own"
            )
    return None


def _lookups(path: str) -> Iterator[tuple[str, str]]:
    """Yield each directory in which the system looks for a file, with the path of the entry that it finds."""
    # With os.path, since pathlib removes "..", which means another directory after a symbolic link.
    # The working directory may be deleted, which does not matter for an absolute path.
    steps = (path if path.startswith("/") else f"{os.getcwd()}/{path}").split("/")[::-1]  # noqa: PTH109
    directory, links = "/", 0
    while steps:
        step = steps.pop()
        if step in {"", "."}:
            continue
        entry = os.path.join(directory, step)  # noqa: PTH118
        yield directory, entry
        if step == "..":
            directory = os.path.dirname(directory)  # noqa: PTH120
        elif os.path.islink(entry):  # noqa: PTH114
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(entry)  # noqa: PTH115
            steps += target.split("/")[::-1]
            directory = "/" if target.startswith("/") else directory
        else:
            directory = entry


def system_error(error: OSError) -> str:
    """Return an error of the operating system as a sentence."""
    reason = error.strerror or str(error)
    if error.filename is not None:
        return f"{shown_path(error.filename)}: {reason}."
    try:
        os.getcwd()  # noqa: PTH109 -- only whether it can be found
    except OSError:
        return f"The current directory cannot be used: {reason}. Change to another one."
    return f"{reason}."


def shown_path(path: str | os.PathLike[str]) -> str:
    """
    Return a path for a message; an ellipsis if it may be a secret instead of a path.

    It certainly is a path if there is such a file or directory, or its name ends as that of a usual file.
    """
    text = os.fspath(path)
    directory = os.path.dirname(text)  # noqa: PTH120 -- of a text that need not be a path
    is_path = os.path.lexists(text) or (directory and os.path.isdir(directory))  # noqa: PTH112 -- as above
    return text if is_path or _USUAL_NAME.fullmatch(text) else "\N{HORIZONTAL ELLIPSIS}"


MAX_BYTES: Final = 4 * 1024 * 1024
"""A larger file would take so long to parse that callers would notice."""


def read_file(path: Path) -> bytes:
    """
    Read a regular file as a whole.

    :raise OSError: it cannot be read, is not regular, has more than `MAX_BYTES`, or every user of this
        machine may change it, who could grant themselves rights.
    """
    # Without O_NONBLOCK, opening a pipe waits until a program writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "It is not a regular file", str(path))
        fault = changeable_by_all(path, mode)
        if fault is not None:
            raise OSError(errno.EPERM, f"{fault[0].upper()}{fault[1:]}", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"It has more than {MAX_BYTES} bytes", str(path))
    return content
