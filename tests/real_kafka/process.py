"""One process that runs Java: started, stopped, killed, frozen, and started again."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.real_kafka.distribution import get, java

__all__ = ["JavaProcess", "java_command"]

# Small and soon there rather than fast: the tests wait for starts more than for anything else.
_JVM = (
    "-Xms64m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    # ZooKeeper looks for parts of log4j, which is not there.
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)
_LOG_LEVELS = dict.fromkeys(
    # All settings, in hundreds of lines, and one line for each of the partitions.
    (
        "kafka.server.KafkaConfig",
        "org.apache.kafka.common.config.AbstractConfig",
        "org.apache.kafka.common.utils.AppInfoParser",
        "kafka.log",
        "org.apache.kafka.storage.internals.log",
        "org.apache.zookeeper",
        "state.change.logger",
    ),
    "warn",
)
_STOP_DEADLINE_S = 60


def java_command(version: str, log_levels: Mapping[str, str]) -> list[str]:
    """The command that runs a class of one version of Kafka; its name and arguments are to follow."""
    levels = {**_LOG_LEVELS, **log_levels}
    logging = [f"-Dorg.slf4j.simpleLogger.log.{name}={level}" for name, level in levels.items()]
    return [java(), *_JVM, *logging, "-cp", f"{get(version)}/*"]


class JavaProcess:
    """A program in a process of its own, which ends with the tests."""

    def __init__(self, name: str, command: Sequence[str], *, log: Path) -> None:
        self.log = log
        self._name = name
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def run(command: Sequence[str]) -> None:
        """Run a command to its end. :raise AssertionError: it failed; with what it printed."""
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stdout + answer.stderr

    @property
    def is_running(self) -> bool:
        """Whether there is a process, frozen or not."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Begin to start. Only on the main thread: see `_die_with_me`."""
        assert not self.is_running
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*_die_with_me(), *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the tests, which then end the processes.
                start_new_session=True,
            )
        atexit.register(self.kill9)

    def stop(self) -> None:
        """End it with SIGTERM, in order."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(_STOP_DEADLINE_S)

    def kill9(self) -> None:
        """End it as a crash would; harmless where it has ended."""
        atexit.unregister(self.kill9)
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        """Keep it from doing anything, with SIGSTOP, while its connections stay open."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on after `freeze`."""
        self._signal(signal.SIGCONT)

    def check_alive(self) -> None:
        """:raise AssertionError: it has ended by itself; with the end of its log."""
        if self._process is not None and self._process.poll() is not None:
            raise AssertionError(
                f"{self._name} ended with {self._process.returncode}:\n{self.last_lines(30)}"
            )

    def last_lines(self, count: int) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="backslashreplace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-count:])

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)


def _die_with_me() -> list[str]:
    """
    What to put before a command so that it ends with this process, however that ends.

    The kernel sends the signal when the thread that started the command ends, so that has to be the main one.
    """
    setpriv = shutil.which("setpriv")
    return [] if setpriv is None else [setpriv, "--pdeathsig", "KILL", "--"]
