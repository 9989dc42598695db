"""
The write-ahead log: whether the ``-wal`` file is still the one that SQLite has open, and whole.

SQLite does not look. It would go on to commit to a file that was deleted, and after a crash everything
since the last checkpoint would be gone; and a checkpoint would copy whatever now stands in a file that was
overwritten into the database. The format is that of https://www.sqlite.org/fileformat2.html#walformat.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import sys
from contextlib import suppress
from pathlib import Path

from sampleapp.brokers.sqlite.faults import Code, StoreError

__all__ = ["WalDamaged", "WalMoved", "WriteAheadLog", "close_without_checkpoint"]

_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
_MAGIC = {0x377F0682, 0x377F0683}
_UINT32 = struct.Struct(">I")
_SALT = slice(16, 24)
_FRAME_SALT = slice(8, 16)
_COMMITTED_SIZE = slice(4, 8)
_COPY_BYTES = 1024 * 1024


class WalMoved(StoreError):
    """Another file, or none, stands at the path; what was committed is in the one that is still open."""


class WalDamaged(StoreError):
    """The file that is open does not hold any more what was committed."""


class WriteAheadLog:
    """
    The ``-wal`` file of one connection.

    Opening and closing it by ourselves is harmless: SQLite's own locks, which end when their process
    closes the file (POSIX), are on the database and on the ``-shm`` file, never on this one.
    """

    def __init__(self, database: Path) -> None:
        """:param database: a connection has it open, and has read from it."""
        self._database = database
        self.path = Path(f"{database}-wal")
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(self._descriptor)
        self._identity = (status.st_dev, status.st_ino)
        self._header = os.pread(self._descriptor, _HEADER_BYTES, 0)
        self._bytes = status.st_size
        self._version: int | None = None

    def close(self) -> None:
        """Stop looking at it."""
        os.close(self._descriptor)

    def require_in_place(self) -> None:
        """
        See whether the path still leads to the open file.

        :raise WalMoved: it does not.
        """
        try:
            status = self.path.stat()
        except FileNotFoundError:
            status = None
        if status is None or (status.st_dev, status.st_ino) != self._identity:
            what = "deleted" if status is None else "replaced by another file"
            raise WalMoved(
                f"{self.path} was {what} while it was in use; what it held was put back from the file that "
                "was still open, and nothing that was answered is lost."
            )

    def require_whole(self, connection: sqlite3.Connection) -> None:
        """
        See whether the open file still holds what was committed; for a transaction that has written nothing.

        What another process may do to it is no fault: append, begin anew with other salts, or empty it by
        a checkpoint that truncates. All of these show in the connection's ``data_version``, and the last
        two come only after everything has reached the database.

        :param connection: the one that has the file open; it holds the write lock.
        :raise WalMoved: another file, or none, stands at the path.
        :raise WalDamaged: it is shorter than it was, or was overwritten.
        """
        self.require_in_place()
        header, size, version = self._look(connection)
        others_wrote = version != self._version
        if header == self._header:
            whole = size >= self._bytes or (not header and others_wrote)
        else:
            whole = others_wrote and (not header or _is_header(header))
        if not whole:
            raise self._damaged()
        self._header, self._bytes, self._version = header, size, version

    def require_committed(self, connection: sqlite3.Connection) -> int:
        """
        See whether what has just been committed is in a file that the next start will find.

        :return: the size of the file, in bytes.
        :raise WalMoved: another file, or none, stands at the path.
        :raise WalDamaged: it does not begin as it has to.
        """
        self.require_in_place()
        header, size, version = self._look(connection)
        # A transaction may begin the file anew, with salts that are counted up or drawn at random.
        if not _is_header(header) or (header == self._header and size < self._bytes):
            raise self._damaged()
        self._header, self._bytes, self._version = header, size, version
        return size

    def rolled_back(self) -> None:
        """A transaction that is taken back may have begun the file anew: large ones are written early."""
        self._header = os.pread(self._descriptor, _HEADER_BYTES, 0)
        self._bytes = os.fstat(self._descriptor).st_size

    def require_fit_for_checkpoint(self, *, after_error: bool = False) -> None:
        """
        See whether closing the connection, which may copy the file into the database, does no harm.

        :param after_error: whether reading it has failed, so that it cannot be empty rightly. (Otherwise
            SQLite finds out by itself what is missing from an empty one, and copies nothing.)
        :raise WalMoved: another file, or none, stands at the path.
        :raise WalDamaged: it was overwritten, or is shorter than it was.
        """
        self.require_in_place()
        header = os.pread(self._descriptor, _HEADER_BYTES, 0)
        if header == self._header:
            fit = os.fstat(self._descriptor).st_size >= self._bytes
        else:
            fit = _is_header(header) or not (header or after_error)
        if not fit:
            raise self._damaged()

    def _look(self, connection: sqlite3.Connection) -> tuple[bytes, int, int]:
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        header = os.pread(self._descriptor, _HEADER_BYTES, 0)
        return header, os.fstat(self._descriptor).st_size, version

    def _damaged(self) -> WalDamaged:
        return WalDamaged(
            f"{self.path} was overwritten or cut short while it was in use, and the newest records are lost. "
            "Restore a backup, or restart the service to go on with what there is.",
            code=Code.CORRUPT,
        )

    def is_continued_at_its_path(self, connection: sqlite3.Connection) -> bool:
        """Whether another process has put it back: what stands at the path holds all that this one does."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            mine = os.pread(self._descriptor, _HEADER_BYTES, 0)
            other = os.pread(descriptor, _HEADER_BYTES, 0)
            if not _is_header(other):
                return False
            if mine == other:
                return _committed_frames(descriptor, other) >= _committed_frames(self._descriptor, mine)
        finally:
            os.close(descriptor)
        # A file that was begun after this one is another process's, which has committed to it since.
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        return bool(version != self._version)

    def put_back(self) -> None:
        """
        Make the path lead to a copy of the open file.

        To be called while the write lock is held, so that nobody appends meanwhile. At every moment the
        path leads to what it did before, or to the whole copy.

        :raise OSError: it could not be written.
        """
        copy = Path(f"{self._database}-wal-copy")
        owner = self._database.stat()
        descriptor = os.open(
            copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, owner.st_mode & 0o777
        )
        try:
            with suppress(PermissionError):
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
            offset = 0
            while data := os.pread(self._descriptor, _COPY_BYTES, offset):
                offset += os.write(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        copy.replace(self.path)
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def close_without_checkpoint(connection: sqlite3.Connection) -> None:
    """
    Close a connection whose ``-wal`` file is not to be trusted.

    The last connection to close would copy it into the database.
    """
    if sys.version_info >= (3, 12):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE)
        connection.close()
    else:
        # Python 3.10 and 3.11 cannot say so. It stays open, also when the interpreter ends: the process
        # closes its descriptors, and SQLite is not asked.
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _is_header(header: bytes) -> bool:
    return len(header) == _HEADER_BYTES and _UINT32.unpack_from(header)[0] in _MAGIC


def _committed_frames(descriptor: int, header: bytes) -> int:
    """Count the frames of this generation up to the last commit."""
    (page_bytes,) = _UINT32.unpack_from(header, 8)
    count = committed = 0
    while True:
        offset = _HEADER_BYTES + count * (_FRAME_HEADER_BYTES + page_bytes)
        frame = os.pread(descriptor, _FRAME_HEADER_BYTES, offset)
        if len(frame) < _FRAME_HEADER_BYTES or frame[_FRAME_SALT] != header[_SALT]:
            return committed
        count += 1
        if any(frame[_COMMITTED_SIZE]):
            committed = count
