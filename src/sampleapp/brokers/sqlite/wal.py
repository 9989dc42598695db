"""
Detection of a write-ahead log (the ``-wal`` file) that was deleted, replaced or overwritten while in use.

SQLite does not check for this. It would go on to commit to a deleted file, and everything since the last
checkpoint would be lost after a crash. A checkpoint would copy the content of an overwritten file into the
database. The format is described at https://www.sqlite.org/fileformat2.html#walformat.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import sys
from pathlib import Path

__all__ = ["WalFault", "WriteAheadLog", "checkpoint", "close_without_checkpoint"]

_HEADER_BYTES = 32
_MAGIC = {0x377F0682, 0x377F0683}
_UINT32 = struct.Struct(">I")


class WalFault(Exception):
    """The write-ahead log is not as SQLite left it. The message says what happened to it."""

    def __init__(self, what: str, *, is_readable: bool) -> None:
        """:param is_readable: whether the open file certainly still holds all that was committed to it."""
        super().__init__(what)
        self.is_readable = is_readable


class WriteAheadLog:
    """
    The ``-wal`` file of one connection.

    Opening and closing this file here is harmless: SQLite's own locks, which end when their process closes
    the file (POSIX), are on the database and on the ``-shm`` file, never on this one.
    """

    def __init__(self, database: Path, connection: sqlite3.Connection) -> None:
        """:param connection: has the database open, and has read from it."""
        self.path = Path(f"{database}-wal")
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(self._descriptor)
        self._identity = (status.st_dev, status.st_ino)
        self._version = _data_version(connection)
        self.remember()

    def close(self) -> None:
        """Close the descriptor. SQLite has its own."""
        os.close(self._descriptor)

    def remember(self) -> None:
        """
        Store the present header and size for the next check.

        For use after a rollback: a large transaction is written early, and can have restarted the log.
        """
        self._header, self._bytes = self._read()

    def require_intact(self, connection: sqlite3.Connection, *, committed: bool = False) -> int:
        """
        Check that the path leads to the open file, and that the file still holds all that was committed.

        Other processes may append, restart the log with other salts, or truncate it in a checkpoint. All of
        these show in the connection's ``data_version``, and the last two only happen after everything has
        reached the database. No process deletes the file while this connection is open.

        :param connection: the one that has the file open; it has no uncommitted changes.
        :param committed: whether it has committed since the last check, and so may have restarted the log.
        :return: the size of the file, in bytes.
        :raise WalFault: another file, or none, is at the path; or the file was overwritten or cut short.
        """
        version = _data_version(connection)
        header, size = self._read()
        # Without the write lock, another process may restart the log between these statements.
        others_wrote = version != self._version or (
            header != self._header and _data_version(connection) != version
        )
        if header == self._header:
            intact = size >= self._bytes
        elif header:
            intact = (committed or others_wrote) and _is_header(header)
        else:
            intact = others_wrote
        moved = self._moved()
        if moved is not None:
            # Another process may have committed to the file that is at the path now.
            raise WalFault(moved, is_readable=intact and not others_wrote)
        if not intact:
            raise WalFault("was overwritten or cut short", is_readable=False)
        self._header, self._bytes, self._version = header, size, version
        return size

    def _read(self) -> tuple[bytes, int]:
        header = os.pread(self._descriptor, _HEADER_BYTES, 0)
        while True:
            size = os.fstat(self._descriptor).st_size
            # Another process may truncate the file in a checkpoint at any time. Return the size that belongs
            # to the header, or this would look like a file that was cut short.
            before, header = header, os.pread(self._descriptor, _HEADER_BYTES, 0)
            if header == before:
                return header, size

    def _moved(self) -> str | None:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return "was deleted"
        is_same = (status.st_dev, status.st_ino) == self._identity
        return None if is_same else "was replaced by another file"


def checkpoint(connection: sqlite3.Connection) -> bool:
    """
    Copy the write-ahead log that is open into the database, and sync both.

    :return: whether all of it is in the database now. It is not while another program reads an old state.
    :raise sqlite3.Error: the database cannot be written to.
    """
    busy, frames, copied = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return not busy and frames == copied


def close_without_checkpoint(connection: sqlite3.Connection) -> None:
    """
    Close a connection whose ``-wal`` file must not be copied into the database.

    The last connection to close would copy it.
    """
    if sys.version_info >= (3, 12):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE)
        connection.close()
    else:
        # Python 3.10 and 3.11 have no such option. Leave the connection open, also when the interpreter
        # ends: the system closes the descriptors, without SQLite.
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _data_version(connection: sqlite3.Connection) -> int | None:
    """Return a number that changes when other processes commit, or ``None`` if it cannot be read now."""
    try:
        (version,) = connection.execute("PRAGMA data_version").fetchone()
    except sqlite3.Error:
        return None
    return int(version)


def _is_header(header: bytes) -> bool:
    return len(header) == _HEADER_BYTES and _UINT32.unpack_from(header)[0] in _MAGIC
