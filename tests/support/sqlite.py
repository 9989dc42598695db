"""Support for tests of the SQLite broker: brokers on a file, other programs, and injected faults."""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from contextlib import asynccontextmanager, closing, contextmanager

from twisted.internet import reactor
from twisted.internet.threads import deferToThread

from sampleapp.brokers.sqlite import SQLiteBroker, store
from tests.support import sqlite_process
from tests.support.brokers import within

_CODES = {
    "database disk image is malformed": sqlite3.SQLITE_CORRUPT,
    "database is locked": sqlite3.SQLITE_BUSY,
    "database or disk is full": sqlite3.SQLITE_FULL,
    "disk I/O error": sqlite3.SQLITE_IOERR,
}


def sqlite_error(message):
    """Return an error as `sqlite3` raises it for a failure of SQLite: with its code."""
    code = _CODES[message]
    error = (sqlite3.DatabaseError if code == sqlite3.SQLITE_CORRUPT else sqlite3.OperationalError)(message)
    error.sqlite_errorcode = code
    return error


def new_broker(path, *, clock=reactor, **options):
    return SQLiteBroker(path=path, clock=clock, threads=reactor, **options)


def make_file(path):
    """Create the file as a broker does."""
    path.touch()
    new_broker(path).check()


@asynccontextmanager
async def running(path, **options):
    broker = new_broker(path, **options)
    broker.start()
    try:
        yield broker
    finally:
        await within(broker.stop(deadline_s=20))


@contextmanager
def other_connection(path):
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as connection:
        yield connection


async def in_process(work, *arguments):
    """Run a function of `sqlite_process` in its own process, and return its result."""
    process, pipe = sqlite_process.start(work, *arguments)
    with pipe:
        result = await deferToThread(pipe.recv)
    await deferToThread(process.join)
    assert process.exitcode == 0
    return result


def stored(path):
    """Return the records of the file, as another program reads them."""
    with other_connection(path) as connection:
        return connection.execute(
            "SELECT name, offset, key, value FROM record JOIN topic ON topic.id = topic_id ORDER BY 1, 2"
        ).fetchall()


class Disk:
    """Counts the calls of each broker's store, and can let them hang."""

    def __init__(self, monkeypatch):
        self.asked = Counter()
        self.responded = Counter()
        self._responses = threading.Event()
        self._responses.set()
        self._hanging = None
        for operation in ("append", "read", "section", "search_time", "keep_times", "probe", "work"):
            monkeypatch.setattr(store.Store, operation, self._watched(operation))

    def hang(self, operation):
        """Let calls of this operation hang until `answer`."""
        self.asked.clear()
        self._hanging = operation
        self._responses.clear()

    def answer(self):
        self._responses.set()

    def _watched(self, name):
        operate = getattr(store.Store, name)

        def watched(*arguments, **options):
            self.asked[name] += 1
            if name == self._hanging:
                assert self._responses.wait(30)
            result = operate(*arguments, **options)
            self.responded[name] += 1
            return result

        return watched


class OwnConnection:
    """Access to the broker's own connection, on its thread."""

    def __init__(self, monkeypatch):
        self._todo = []
        self._failures = []
        open_file = store.open_file
        monkeypatch.setattr(store, "open_file", lambda *a, **options: _Tapped(open_file(*a, **options), self))

    def before_next_use(self, work):
        """Call a function with the connection, right before its next use."""
        self._todo.append(work)

    def fail_next_commit(self, message, *, after=0):
        """Let the next commit fail; or a later one, after a number of commits."""
        self.fail_next("COMMIT", message, after=after)

    def fail_next(self, statement, message, *, after=0):
        """Let the next statement with this beginning fail; or a later one, after a number of them."""
        self._failures.append([statement, message, after])

    def fail_no_more(self):
        """Fail no more statements."""
        self._failures.clear()

    def used(self, connection, statement):
        todo, self._todo = self._todo, []
        for work in todo:
            work(connection)
        for failure in self._failures:
            beginning, message, after = failure
            if statement.startswith(beginning):
                failure[2] -= 1
                if not after:
                    self._failures.remove(failure)
                    raise sqlite_error(message)


class _Tapped:
    def __init__(self, connection, hand):
        self._connection = connection
        self._hand = hand

    def execute(self, statement, *arguments):
        self._hand.used(self._connection, statement)
        return self._connection.execute(statement, *arguments)

    def executemany(self, statement, rows):
        self._hand.used(self._connection, statement)
        return self._connection.executemany(statement, rows)

    def __getattr__(self, name):
        return getattr(self._connection, name)
