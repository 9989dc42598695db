"""Entries of the callers file, and its replacement while the service uses it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path

from sampleapp.cli._output import CommandFailed, note
from sampleapp.files import changeable_by_all

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def caller_lines(name: str, *, rights: Mapping[str, Sequence[str]], read: bool, metrics: bool) -> str:
    """
    Format a caller and its rights as TOML, with a line feed at the end.

    :param rights: those for topics or groups, with their names or patterns; those without any are left out.
    """
    lines = [f"[callers.{_key(name)}]"]
    for right, patterns in rights.items():
        if patterns:
            lines.append(f"{right} = {_value(patterns)}")
    if read:
        lines.append("read = true")
    if metrics:
        lines.append("metrics = true")
    return "\n".join(lines) + "\n"


def token_lines(name: str, *, sha256: str, until: date | None) -> str:
    """
    Format a token of a caller as TOML, with a line feed at the end.

    :param sha256: the SHA-256 of the token's text, in hexadecimal.
    :param until: the last day on which the token is valid, in UTC.
    """
    lines = [f"[[callers.{_key(name)}.tokens]]", f"sha256 = {_value(sha256)}"]
    if until is not None:
        lines.append(f"until = {until.isoformat()}")
    return "\n".join(lines) + "\n"


def hook_lines(name: str, **members: str | float | Sequence[str] | None) -> str:
    """
    Format a hook as TOML, with a line feed at the end.

    :param members: of its table; ``None`` for those that are not given.
    """
    given = [f"{member} = {_value(value)}" for member, value in members.items() if value is not None]
    return "\n".join([f"[hooks.{_key(name)}]", *given]) + "\n"


def append_lines(text: str, lines: str) -> str:
    """Return the text of a callers file with lines after it, and an empty line in between."""
    if not text:
        return lines
    return f"{text}\n{lines}" if text.endswith("\n") else f"{text}\n\n{lines}"


def names_in(table: str, text: str, path: Path) -> Collection[str]:
    """
    Return the names of the callers, or of the hooks, in a callers file that may have other mistakes.

    :param table: ``callers`` or ``hooks``.
    :param path: of the file, for the error.
    :raise CommandFailed: the file is not TOML.
    """
    from sampleapp.access.callers_file_tables import TOMLDocument, TOMLMistake

    try:
        named = TOMLDocument(text.encode("utf-8")).value.get(table, {})
    except TOMLMistake as mistake:
        raise CommandFailed(f"{path}, line {mistake.line}: {mistake}. {path} is unchanged.") from mistake
    return named if isinstance(named, dict) else ()


def require_valid(text: str, path: Path, *, what: str) -> None:
    """
    Check the new text of a callers file.

    :param what: what was added to it: ``token`` or ``hook``.
    :raise CommandFailed: the service would reject the file.
    """
    from sampleapp.access import CallersFileError, parse_callers

    try:
        parse_callers(text.encode("utf-8"), name=str(path))
    except CallersFileError as error:
        mistakes = str(error).replace("--callers: ", "")
        raise CommandFailed(
            f"With the {what}, the callers file would be invalid:\n{mistakes}\n"
            f"{path} is unchanged. Correct it first, or add the {what} by hand: without --append, this "
            "command prints its lines."
        ) from error


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _value(name)


def _value(value: str | float | Sequence[str]) -> str:
    # JSON writes strings and arrays of strings as TOML does, and Python numbers (and nan).
    return repr(value) if isinstance(value, float) else json.dumps(value)


def replace_file(path: Path, change: Callable[[str], str], *, before: Callable[[], None]) -> None:
    """
    Replace a text file atomically, so that readers never see half of it.

    The file keeps its owner, permissions and extended attributes. If it does not exist, it is created with
    permissions for its owner only. A symbolic link stays a link. Processes that call this function for files
    of one directory wait for each other.

    :param change: returns the new text for the old one, or raises an exception.
    :param before: is called just before the replacement; if it raises, the file stays unchanged.
    :raise CommandFailed: every user of this machine may change it, so the service would reject it.
    :raise OSError: the file cannot be read or replaced.
    :raise UnicodeDecodeError: the file is not UTF-8.
    """
    target = path.resolve()
    with _locked(target.parent):
        try:
            old, status = target.read_bytes(), target.stat()
        except FileNotFoundError:
            old, status = b"", None
        fault = changeable_by_all(path, None if status is None else status.st_mode)
        if fault is not None:
            raise CommandFailed(f"{path} cannot be used, since {fault}.")
        new = change(old.decode("utf-8")).encode("utf-8")
        # In the same directory, since a rename is atomic only there. mkstemp grants rights only to the owner.
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(new)
                if status is not None:
                    _copy_attributes(target, status, descriptor, temporary)
                file.flush()
                os.fsync(descriptor)
            before()
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_directory(target.parent)


def _copy_attributes(target: Path, status: os.stat_result, descriptor: int, temporary: Path) -> None:
    own = os.fstat(descriptor)
    if (own.st_uid, own.st_gid) != (status.st_uid, status.st_gid):
        os.fchown(descriptor, status.st_uid, status.st_gid)
    # The extended attributes contain the access control list.
    shutil.copystat(target, temporary)
    # The new time of modification shows that the file has changed.
    os.utime(temporary)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock the directory: the file itself is replaced, and a lock on it would be lost."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(f"Waiting for another command that changes a file in {directory}.")
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
