"""Lines for the file of callers, and how they get into one that is in use."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path

__all__ = ["caller_lines", "replace_file", "token_lines"]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def caller_lines(name: str, *, publish: Sequence[str], read: bool, metrics: bool) -> str:
    """
    Write down a caller and its rights in TOML, with a line feed at the end.

    :param publish: the topics, or patterns of topics, that it may publish to.
    """
    lines = [f"[callers.{_key(name)}]"]
    if publish:
        lines.append(f"publish = [{', '.join(map(_quoted, publish))}]")
    if read:
        lines.append("read = true")
    if metrics:
        lines.append("metrics = true")
    return "\n".join(lines) + "\n"


def token_lines(name: str, *, sha256: str, until: date | None) -> str:
    """
    Write down a token of a caller in TOML, with a line feed at the end.

    :param sha256: of the token's text, in hexadecimal.
    :param until: its last day, in UTC.
    """
    lines = [f"[[callers.{_key(name)}.tokens]]", f"sha256 = {_quoted(sha256)}"]
    if until is not None:
        lines.append(f"until = {until.isoformat()}")
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _quoted(name)


def _quoted(text: str) -> str:
    """Write a basic string. What is legal in names and patterns needs no escape."""
    return f'"{text}"'


def replace_file(path: Path, change: Callable[[str], str], *, before: Callable[[], None]) -> None:
    """
    Change a text file in one step, so that nobody ever reads half of it.

    It keeps its owner, its permissions and its extended attributes; one that does not exist is made, for its
    owner alone. A symbolic link stays one. Other processes that use this function wait meanwhile.

    :param change: makes the new text of the old one, or raises what is wrong with it.
    :param before: is called when all is ready; what it raises leaves the file as it was.
    :raise OSError: the file cannot be read or replaced.
    :raise UnicodeDecodeError: it is not UTF-8.
    """
    target = path.resolve()
    with _locked(target.parent):
        try:
            old, status = target.read_bytes(), target.stat()
        except FileNotFoundError:
            old, status = b"", None
        new = change(old.decode("utf-8")).encode("utf-8")
        # Beside it, because only there a rename is one step. It is for its owner alone.
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        beside = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(new)
                if status is not None:
                    _look_like(target, status, descriptor, beside)
                file.flush()
                os.fsync(descriptor)
            before()
            beside.replace(target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        _sync_directory(target.parent)


def _look_like(target: Path, status: os.stat_result, descriptor: int, beside: Path) -> None:
    own = os.fstat(descriptor)
    if (own.st_uid, own.st_gid) != (status.st_uid, status.st_gid):
        os.fchown(descriptor, status.st_uid, status.st_gid)
    # The extended attributes hold an access control list.
    shutil.copystat(target, beside)
    # Who looks at its time has to see that it has changed.
    os.utime(beside)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep others out. It is the directory that is locked: the file itself is another one afterwards."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
