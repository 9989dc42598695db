"""
The service as a process of its own, as an operator runs it, for tests that need the real thing.

    with LiveService(directory=tmp_path) as service:
        requests.get(service.url)
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from os import environ
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.secrets import record_output

__all__ = ["LiveService"]

START_DEADLINE_S = 60.0
TWISTD_SAMPLEAPP = (
    sys.executable,
    str(Path(sys.executable).with_name("twistd")),
    "-n",
    "--pidfile=",
    "sampleapp",
)
LISTENING = re.compile(r"""Listening at (http://[^\s"]+)""")
"""In the log, be it text or JSON."""


class LiveService:
    """
    ``twistd -n sampleapp`` on a loopback port, with its files in a directory of the test's own.

    Made, it is already listening; it is ended by `stop` or `kill`, or by leaving its ``with`` block. To
    come back after an end, on the same files, make another one, with the same `listen` for the same port.
    """

    process: subprocess.Popen[str]
    """The running ``twistd``."""
    url: str
    """Where it listens, with a slash at the end: ``http://127.0.0.1:PORT/``."""

    def __init__(
        self,
        *,
        directory: Path,
        broker: str | None = None,
        command: Sequence[str] = TWISTD_SAMPLEAPP,
        listen: str = "tcp:0:interface=127.0.0.1",
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        """
        Start the service, and wait until it listens.

        :param directory: the working directory of the process.
        :param command: what starts it, up to its options.
        :param broker: its ``--broker``; by default ``broker.sqlite3`` in the directory.
        :param listen: its ``--listen``, a Twisted endpoint; port 0 is any free one.
        :param options: more options, as on the command line.
        :param environment: variables on top of those of the tests.
        :param descriptors: open files of the tests' own that it gets, too.
        :raise AssertionError: it ended, or did not listen within `START_DEADLINE_S`; with all it printed.
        """
        self.directory = directory
        self.broker = broker or f"sqlite:{directory / 'broker.sqlite3'}"
        self._printed: list[str] = []
        self._ended = False
        self._news = threading.Condition()
        self.process = subprocess.Popen(
            [
                *command,
                "--listen",
                listen,
                "--broker",
                self.broker,
                *options,
            ],
            cwd=directory,
            env={**environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="backslashreplace",
            # Ctrl-C in the terminal of the tests is for the tests, which then stop the service.
            start_new_session=True,
            pass_fds=descriptors,
        )
        record_output("options of processes", " ".join(map(str, self.process.args)))
        self._access_log = _option("--access-log", options)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.url = self.wait_for_output(LISTENING, deadline_s=START_DEADLINE_S).group(1)
        except BaseException:
            self.kill()
            raise
        if not self.url.endswith("/"):
            self.url += "/"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.process.poll() is None:
                self.stop()
        finally:
            self.kill()
            if error is not None:
                # pytest shows what a failing test has printed.
                sys.stdout.write(f"--- the service printed:\n{self.output}")

    @property
    def output(self) -> str:
        """All that it has printed until now, on stdout and stderr."""
        with self._news:
            return "".join(self._printed)

    def wait_for_output(self, pattern: str | re.Pattern[str], *, deadline_s: float = 10.0) -> re.Match[str]:
        """
        Wait until something that it printed, now or before, matches.

        :raise AssertionError: it ended without, or the time is over; with all that it printed.
        """
        expression = re.compile(pattern)
        until = time.monotonic() + deadline_s
        with self._news:
            while True:
                printed = "".join(self._printed)
                found = expression.search(printed)
                if found is not None:
                    return found
                remaining_s = until - time.monotonic()
                assert not self._ended, f"the service ended without {expression.pattern!r}:\n{printed}"
                assert remaining_s > 0, f"no {expression.pattern!r} in {deadline_s} s:\n{printed}"
                self._news.wait(remaining_s)

    def stop(self, *, deadline_s: float = 15.0) -> int:
        """
        Ask it to end, with SIGTERM, and wait until it has.

        :return: its exit code; negative for the signal that ended it.
        :raise AssertionError: it did not end in time (and was killed); with all that it printed.
        """
        self.process.terminate()
        try:
            self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still there {deadline_s} s after SIGTERM:\n{self.output}") from None
        return self._released()

    def kill(self) -> int:
        """
        End it at once, with SIGKILL, as a crash would; harmless when it has already ended.

        :return: its exit code, -9 when this call ended it.
        """
        self.process.kill()
        self.process.wait()
        return self._released()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            record_output("output of the service", line)
            with self._news:
                self._printed.append(line)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _released(self) -> int:
        """Close what the ended process leaves here: a pipe that is collected open is a warning."""
        self._reader.join()
        if self._access_log is not None and (self.directory / self._access_log).is_file():
            for line in (self.directory / self._access_log).read_text(errors="backslashreplace").splitlines():
                record_output("files of the service", line)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.returncode


def _option(name: str, options: Sequence[str]) -> str | None:
    return options[options.index(name) + 1] if name in options else None
