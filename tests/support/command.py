"""The ``sampleapp`` command: in the process of the tests, and as a process."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch
from urllib.request import urlopen

import pytest

from sampleapp.cli import main
from tests.support import process
from tests.support.command_reactor import command_reactor
from tests.support.secrets import record_output

COMMAND = str(Path(sys.executable).with_name("sampleapp"))


DEADLINE_S = 60.0


def sampleapp(service, *arguments, stdin=b"", url=None, code=0, environment=None, interrupt_when=None):
    """
    Run a command in this process to its end, and return what it printed: stdout, stderr.

    :param stdin: what it reads from a pipe.
    :param environment: variables on top of those of the tests.
    :param interrupt_when: is called with what is on stderr until it returns true; then Ctrl-C is pressed.
    """
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    stderr = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")

    def interrupt():
        if interrupt_when(stderr.buffer.getvalue().decode()):
            signal.raise_signal(signal.SIGINT)
        else:
            reactor.callLater(0.01, interrupt)

    with (
        command_reactor() as reactor,
        patch.dict(os.environ, {"SAMPLEAPP_URL": url or service.url, **(environment or {})}),
        _piped(stdin) as pipe,
        patch("sys.stdin", pipe),
        redirect_stdout(stdout),
        redirect_stderr(stderr),
    ):
        reactor.callLater(DEADLINE_S, reactor.stop)
        if interrupt_when is not None:
            reactor.callWhenRunning(interrupt)
        with pytest.raises(SystemExit) as ended:
            main([*map(os.fsdecode, arguments)], prog_name="sampleapp")
    for stream in (stdout, stderr):
        stream.flush()
    printed, told = (stream.buffer.getvalue().decode() for stream in (stdout, stderr))
    record_output("output of commands", printed + told)
    assert (ended.value.code or 0) == code, (printed, told)
    return printed, told


@contextlib.contextmanager
def _piped(data):
    """Yield the end of a pipe for reading, into which a thread writes the data."""
    reading, writing = os.pipe()

    def write():
        # A command that does not read to the end leaves a broken pipe.
        with contextlib.suppress(BrokenPipeError), os.fdopen(writing, "wb", buffering=0) as file:
            file.write(data)

    thread = threading.Thread(target=write)
    thread.start()
    with os.fdopen(reading, encoding="utf-8") as file:
        yield file
    thread.join()


def redirected(service, redirection, *arguments, stdin=b""):
    """Run a command as a process, with a shell's redirection; return its exit code, stdout and stderr."""
    ended = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        check=False,
        cwd=service.directory,
        env={**os.environ, "SAMPLEAPP_URL": service.url},
        timeout=DEADLINE_S,
    )
    record_output("output of commands", ended.stdout + ended.stderr)
    return ended.returncode, ended.stdout.decode(), ended.stderr.decode()


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
