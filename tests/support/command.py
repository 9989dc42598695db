"""The ``sampleapp`` command as a process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

from tests.support import process
from tests.support.secrets import record_output

COMMAND = str(Path(sys.executable).with_name("sampleapp"))


DEADLINE_S = 60.0


def sampleapp(service, *arguments, stdin=b"", url=None, code=0):
    """Run a command to its end, and return what it printed: stdout, stderr."""
    ended = subprocess.run(
        [COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        check=False,
        cwd=service.directory,
        env={**os.environ, "SAMPLEAPP_URL": url or service.url},
        timeout=DEADLINE_S,
    )
    record_output("output of commands", ended.stdout + ended.stderr)
    assert ended.returncode == code, ended
    return ended.stdout.decode(), ended.stderr.decode()


def consumed(service, topic):
    """Read a page, whose lines are those of the command, by the standard library."""
    with urlopen(f"{service.url}topics/{topic}/records") as page:
        return [json.loads(line) for line in page]


def publish(service, topic, *contents, key=None):
    """Publish messages one after the other, by the standard library."""
    with closing(process.connect(service)) as connection:
        for content in contents:
            assert process.publish(connection, content, topic=topic, key=key)[0] == 200


def stored(service, topic):
    """The keys and contents of what is in a topic, by SQLite alone."""
    with closing(sqlite3.connect(service.directory / "broker.sqlite3")) as database:
        rows = database.execute(
            "SELECT key, value FROM record JOIN topic ON topic.id = record.topic_id WHERE topic.name = ?"
            ' ORDER BY "offset"',
            [topic],
        ).fetchall()
    return [(None if key is None else key.decode(), value.decode()) for key, value in rows]


def shown_on_a_terminal(*arguments, directory, stream="stdout"):
    """Run a command with one of its streams on a terminal, and return what that shows."""
    controller, terminal = os.openpty()
    with subprocess.Popen([COMMAND, *arguments], cwd=directory, **{stream: terminal}) as process:
        os.close(terminal)
        shown = b""
        # EIO: this is how the end of a terminal is read.
        with contextlib.suppress(OSError):
            while data := os.read(controller, 65536):
                shown += data
        os.close(controller)
    assert process.returncode == 0
    return shown.decode()


class Watched:
    """A command that goes on, and what it has printed so far, stdout and stderr in one."""

    def __init__(self, service, *arguments):
        self.process = subprocess.Popen(
            [COMMAND, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=service.directory,
            env={**os.environ, "SAMPLEAPP_URL": service.url},
            text=True,
        )
        self._lines = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self._news:
                record_output("output of commands", line)
                self._lines.append(line.rstrip("\n"))
                self._news.notify_all()

    def wait_for(self, wanted, *, times=1):
        with self._news:
            seen = self._news.wait_for(
                lambda: sum(wanted in line for line in self._lines) >= times, DEADLINE_S
            )
            assert seen, (wanted, self._lines)

    def interrupt(self):
        """Press Ctrl-C; return the exit code and all that was printed."""
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self):
        code = self.process.wait(DEADLINE_S)
        self._reader.join()
        return code, self._lines

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdin.close()
        self.process.stdout.close()
