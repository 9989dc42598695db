"""
Translation of SQLite's errors, with messages for the caller and for the operator.

No other module distinguishes errors of ``sqlite3``.
"""

from __future__ import annotations

import sqlite3

from msgspec import Struct

from sampleapp.brokers.shared.following import CANNOT_BE_READ
from sampleapp.errors import BrokerUnavailable, OutcomeUnknown, PublishError


class _Meaning(Struct, frozen=True):
    reason: str
    """For the operator: the problem with the file, and its solution."""
    detail: str
    """For callers."""
    reopen: bool = True
    """Whether the connection must be closed."""


_UNKNOWN = "The broker cannot tell whether this record is stored."
_UNAVAILABLE = "The broker cannot store records at the moment; this one was not stored."
_RESTART = "The broker cannot store records until the service is restarted; this one was not stored."

_READING_REASONS: dict[int | None, str] = {
    sqlite3.SQLITE_BUSY: (
        "The stored records are in use by another program, and cannot be read until it ends."
    ),
    sqlite3.SQLITE_CORRUPT: "The stored records are damaged and cannot be read.",
    sqlite3.SQLITE_NOTADB: "The stored records are damaged and cannot be read.",
}

_STORING_REASONS: dict[int | None, str] = {
    sqlite3.SQLITE_BUSY: (
        "The stored records are in use by another program, and nothing can be stored until it ends."
    ),
    sqlite3.SQLITE_FULL: "The disk of the broker is full.",
    sqlite3.SQLITE_CORRUPT: "The stored records are damaged.",
    sqlite3.SQLITE_NOTADB: "The stored records are damaged.",
}

_MEANINGS: dict[int, _Meaning] = {
    sqlite3.SQLITE_BUSY: _Meaning(
        "is locked by another program, which did not release it in time; find that program and end it",
        "The broker's log is in use by another program; this record was not stored.",
        reopen=False,
    ),
    sqlite3.SQLITE_READONLY: _Meaning(
        "cannot be written to; allow this user to write to the file and to its directory",
        _UNAVAILABLE,
    ),
    sqlite3.SQLITE_IOERR: _Meaning(
        "could not be read or written (an I/O error); look at the disk, at its quota, at limits on "
        "the size of files (ulimit -f) and at the system's log",
        _UNAVAILABLE,
    ),
    sqlite3.SQLITE_CORRUPT: _Meaning(
        "is damaged; restore it from a backup, or see sqlite3's .recover", _UNAVAILABLE
    ),
    sqlite3.SQLITE_FULL: _Meaning(
        "cannot grow: the disk is full, or a limit on the size of the file is reached; make room",
        "The broker's disk is full; this record was not stored.",
        reopen=False,
    ),
    sqlite3.SQLITE_CANTOPEN: _Meaning(
        "cannot be opened or created; its directory must exist, and be writable by this user",
        _UNAVAILABLE,
    ),
    sqlite3.SQLITE_NOTADB: _Meaning(
        "is not a SQLite database; give the path of another file, or move it", _UNAVAILABLE
    ),
}
_MEANINGS[sqlite3.SQLITE_LOCKED] = _MEANINGS[sqlite3.SQLITE_BUSY]
_MEANINGS[sqlite3.SQLITE_PERM] = _MEANINGS[sqlite3.SQLITE_CANTOPEN]
_MEANINGS[sqlite3.SQLITE_AUTH] = _MEANINGS[sqlite3.SQLITE_CANTOPEN]
_OTHER = _Meaning("could not be used", _UNAVAILABLE)


class StoreError(Exception):
    """An operation of the store failed. Nothing was stored, unless ``error`` is `OutcomeUnknown`."""

    def __init__(
        self,
        reason: str,
        *,
        error: type[PublishError] = BrokerUnavailable,
        detail: str | None = None,
        code: int | None = None,
        reopen: bool = True,
        needs_restart: bool = False,
    ) -> None:
        """
        :param reason: a message for the operator; it names the file.
        :param error: the error of the affected publishes.
        :param detail: the message of that error; it may be shown to any caller.
        :param code: SQLite's primary result code, if this is an error of SQLite.
        :param reopen: whether the connection must be closed.
        :param needs_restart: whether the store refuses to use the file until the service restarts.
        """
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.reopen = reopen
        self.needs_restart = needs_restart
        self._error = error
        self._detail = detail or (_RESTART if needs_restart else _UNAVAILABLE)

    @property
    def public_reason(self) -> str:
        """The reason why reading does not continue, for callers; see `ISubscription.unavailable_reason`."""
        if self.needs_restart:
            return "The stored records cannot be read until the service is restarted."
        return _READING_REASONS.get(self.code, CANNOT_BE_READ)

    @property
    def public_storing_reason(self) -> str:
        """The reason why nothing can be stored, for callers; see `sampleapp.model.Health.public_reasons`."""
        if self.needs_restart:
            return "Records cannot be stored until the service is restarted."
        return _STORING_REASONS.get(self.code, "Records cannot be stored at the moment.")

    @property
    def is_lasting(self) -> bool:
        """True if it stays until the operator acts."""
        return self.needs_restart or self.code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

    def after_commit(self) -> StoreError:
        """Return this error with an unknown outcome, for a transaction that was committed before."""
        return StoreError(
            self.reason,
            error=OutcomeUnknown,
            detail=_UNKNOWN,
            code=self.code,
            needs_restart=self.needs_restart,
        )

    def publish_error(self) -> PublishError:
        """Return a new error for one waiting caller. Each needs its own, since tracebacks grow."""
        return self._error(self._detail)


def primary_code(error: Exception) -> int | None:
    """Return the primary result code of SQLite for an exception, or ``None`` if there is none."""
    number: int | None = getattr(error, "sqlite_errorcode", None)
    if number is not None:
        # An extended code, such as SQLITE_IOERR_FSYNC, has its primary one in the low byte.
        return number & 0xFF
    if isinstance(error, MemoryError):
        return sqlite3.SQLITE_NOMEM
    if isinstance(error, PermissionError):
        return sqlite3.SQLITE_CANTOPEN
    return None


def from_sqlite(error: Exception, *, path: str, committing: bool) -> StoreError:
    """
    Translate an exception of SQLite.

    :param committing: whether the commit failed. If it could not be synced, its last frame may still have
        reached the disk, and a recovery after a crash would find it.
    """
    code = primary_code(error)
    meaning = _OTHER if code is None else _MEANINGS.get(code, _OTHER)
    reason = f"{path} {meaning.reason} (SQLite: {error})."
    if committing and not _is_certain(error, code):
        return StoreError(
            reason,
            error=OutcomeUnknown,
            detail=_UNKNOWN,
            code=code,
        )
    return StoreError(reason, detail=meaning.detail, code=code, reopen=meaning.reopen)


def _is_certain(error: Exception, code: int | None) -> bool:
    """
    Return whether a commit that failed is certainly not in the write-ahead log, now or after a crash.

    It is if SQLite failed before the whole last frame was written (``walFrames`` in its ``wal.c``): at a
    lock, or at a write, which is ``SQLITE_FULL`` without room, and ``SQLITE_IOERR_WRITE`` at a quota or at a
    limit on the size of files. Frames without the last one are ignored. A sync (``SQLITE_IOERR_FSYNC``) and
    the index in shared memory come after the last frame. Of other errors it is not known.
    """
    if code in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY}:
        return True
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_WRITE
