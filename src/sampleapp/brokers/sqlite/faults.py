"""
What an error of SQLite means: for the caller whose record it was, and for the operator.

The only place where errors of ``sqlite3`` are told apart.
"""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

from sampleapp.errors import BrokerUnavailable, OutcomeUnknown, PublishError

__all__ = ["CANNOT_BE_READ", "Code", "StoreError", "from_sqlite", "primary_code"]


class Code(IntEnum):
    """SQLite's primary result codes; the module `sqlite3` names them from Python 3.11 only."""

    ERROR = 1
    PERM = 3
    BUSY = 5
    LOCKED = 6
    NOMEM = 7
    READONLY = 8
    INTERRUPT = 9
    IOERR = 10
    CORRUPT = 11
    FULL = 13
    CANTOPEN = 14
    TOOBIG = 18
    AUTH = 23
    NOTADB = 26


class _Meaning(Struct, frozen=True):
    reason: str
    """For the operator: what is the matter with the file, and what to do."""
    detail: str
    """For callers."""
    reopen: bool = True
    """Whether the connection is not to be trusted any more."""


_UNKNOWN = "The broker could not make sure that this record is stored; it may or may not be."
_UNAVAILABLE = "The broker cannot store records at the moment; this one was not stored."

CANNOT_BE_READ = "The stored records cannot be read at the moment."
"""What keeps a following from reading on, for callers, where nothing more exact may be said."""

_OBSTACLES: dict[Code | None, str] = {
    Code.BUSY: "The stored records are in use by another program, and cannot be read until it ends.",
    Code.CORRUPT: "The stored records are damaged and cannot be read.",
    Code.NOTADB: "The stored records are damaged and cannot be read.",
}

_OBSTACLES_TO_STORING: dict[Code | None, str] = {
    Code.BUSY: "The stored records are in use by another program, and nothing can be stored until it ends.",
    Code.FULL: "The disk of the broker is full.",
    Code.CORRUPT: "The stored records are damaged.",
    Code.NOTADB: "The stored records are damaged.",
}

_MEANINGS: dict[Code, _Meaning] = {
    Code.BUSY: _Meaning(
        "is locked by another program, which did not let go of it in time; find it and end it",
        "The broker's log is in use by another program; this record was not stored.",
        reopen=False,
    ),
    Code.READONLY: _Meaning(
        "may not be written to; allow this user to write to the file and to its directory",
        _UNAVAILABLE,
    ),
    Code.IOERR: _Meaning(
        "could not be read or written (an I/O error); look at the disk, at its quota and at the system's log",
        _UNAVAILABLE,
    ),
    Code.CORRUPT: _Meaning("is damaged; restore it from a backup, or see sqlite3's .recover", _UNAVAILABLE),
    Code.FULL: _Meaning(
        "cannot grow: the disk is full, or a limit on the size of the file is reached; make room",
        "The broker's disk is full; this record was not stored.",
        reopen=False,
    ),
    Code.CANTOPEN: _Meaning(
        "cannot be opened or created; the directory has to exist, and this user has to be allowed to write "
        "to it",
        _UNAVAILABLE,
    ),
    Code.NOTADB: _Meaning(
        "is not a SQLite database; give the path of another file, or move it", _UNAVAILABLE
    ),
}
_MEANINGS[Code.LOCKED] = _MEANINGS[Code.BUSY]
_MEANINGS[Code.PERM] = _MEANINGS[Code.CANTOPEN]
_MEANINGS[Code.AUTH] = _MEANINGS[Code.CANTOPEN]
_OTHER = _Meaning("could not be used", _UNAVAILABLE)

# How SQLite words its codes (sqlite3ErrStr), for Python 3.10, whose exceptions do not carry them.
_MESSAGES: tuple[tuple[str, Code], ...] = (
    ("database is locked", Code.BUSY),
    ("database table is locked", Code.LOCKED),
    ("database schema is locked", Code.LOCKED),
    ("attempt to write a readonly database", Code.READONLY),
    ("disk I/O error", Code.IOERR),
    ("database disk image is malformed", Code.CORRUPT),
    ("malformed database schema", Code.CORRUPT),
    ("database or disk is full", Code.FULL),
    ("unable to open database file", Code.CANTOPEN),
    ("access permission denied", Code.PERM),
    ("authorization denied", Code.AUTH),
    ("file is not a database", Code.NOTADB),
    ("file is encrypted or is not a database", Code.NOTADB),
    ("string or blob too big", Code.TOOBIG),
    ("interrupted", Code.INTERRUPT),
    ("out of memory", Code.NOMEM),
)


class StoreError(Exception):
    """The store could not do what it was asked. Nothing was stored, unless ``error`` says that it may be."""

    def __init__(
        self,
        reason: str,
        *,
        error: type[PublishError] = BrokerUnavailable,
        detail: str = _UNAVAILABLE,
        code: Code | None = None,
        reopen: bool = True,
    ) -> None:
        """
        :param reason: one sentence for the operator; it names the file.
        :param error: what a publish fails with because of this.
        :param detail: that error's message; it may be shown to anyone.
        :param code: what SQLite said, if it was SQLite.
        :param reopen: whether the connection is not to be trusted any more.
        """
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.reopen = reopen
        self._error = error
        self._detail = detail

    @property
    def obstacle(self) -> str:
        """What keeps a following from reading on, for callers; see `IFollowing.obstacle`."""
        return _OBSTACLES.get(self.code, CANNOT_BE_READ)

    @property
    def obstacle_to_storing(self) -> str:
        """What keeps records from being stored, for callers; see `sampleapp.model.Health.obstacles`."""
        return _OBSTACLES_TO_STORING.get(self.code, "Records cannot be stored at the moment.")

    @property
    def is_lasting(self) -> bool:
        """Whether it stays until somebody repairs the file."""
        return self.code in {Code.CORRUPT, Code.NOTADB}

    def after_commit(self) -> StoreError:
        """Make the same error for a transaction that was committed before it was found."""
        return StoreError(self.reason, error=OutcomeUnknown, detail=_UNKNOWN, code=self.code)

    def publish_error(self) -> PublishError:
        """Make the error for one waiting caller: each needs its own, since tracebacks grow on it."""
        return self._error(self._detail)


def primary_code(error: Exception) -> Code | None:
    """The primary result code of SQLite behind an exception, or ``None`` for one that is not known."""
    number = getattr(error, "sqlite_errorcode", None)
    if number is not None:
        # An extended code, such as SQLITE_IOERR_FSYNC, has its primary one in the low byte.
        primary = number & 0xFF
        return Code(primary) if primary in set(Code) else None
    if isinstance(error, MemoryError):
        return Code.NOMEM
    if isinstance(error, PermissionError):
        return Code.CANTOPEN
    message = str(error)
    for beginning, code in _MESSAGES:
        if message.startswith(beginning):
            return code
    return None


def from_sqlite(error: Exception, *, path: str, committing: bool) -> StoreError:
    """
    Translate what SQLite raised.

    :param committing: whether it was the commit that failed. When it could not be written or synced, the
        last frame may have reached the disk all the same, and a recovery after a crash would find it.
    """
    code = primary_code(error)
    meaning = _OTHER if code is None else _MEANINGS.get(code, _OTHER)
    reason = f"{path} {meaning.reason} (SQLite: {error})."
    # These are given before the last frame of the transaction is written, so it was surely rolled back.
    if committing and code not in {Code.FULL, Code.BUSY, Code.LOCKED, Code.READONLY}:
        return StoreError(
            reason,
            error=OutcomeUnknown,
            detail=_UNKNOWN,
            code=code,
        )
    return StoreError(reason, detail=meaning.detail, code=code, reopen=meaning.reopen)
