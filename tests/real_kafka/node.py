"""One Kafka node as a process: started, stopped, killed, frozen, and started again on the same data."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.real_kafka.distribution import java

__all__ = ["Node", "eventually"]

# Small and soon there rather than fast: the tests wait for starts more than for anything else.
_JVM = (
    "-Xms128m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
    # All settings, in hundreds of lines, and one line for each of the partitions.
    *(
        f"-Dorg.slf4j.simpleLogger.log.{name}=warn"
        for name in (
            "kafka.server.KafkaConfig",
            "org.apache.kafka.common.config.AbstractConfig",
            "org.apache.kafka.common.utils.AppInfoParser",
            "kafka.log",
            "org.apache.kafka.storage.internals.log",
        )
    ),
)
_STOP_DEADLINE_S = 60


def eventually(condition, what, *, deadline_s=60.0):
    """
    Wait until a condition holds, and return what it gave.

    :raise AssertionError: it did not in time.
    """
    until = time.monotonic() + deadline_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < until, f"not within {deadline_s} s: {what}"
        time.sleep(0.05)


class Node:
    """A broker that is a controller as well, and the files that it keeps."""

    def __init__(
        self,
        *,
        number: int,
        jars: Path,
        directory: Path,
        ports: Mapping[str, int],
        settings: Mapping[str, str],
    ) -> None:
        """
        :param directory: for its settings, its log and its data.
        :param ports: of each of its listeners, by name; it keeps them as long as it lives.
        """
        self.number = number
        self.ports = ports
        self.log = directory / "log"
        self._java = [java(), *_JVM, "-cp", f"{jars}/*"]
        self._properties = directory / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True)
        lines = {**settings, "log.dirs": str(directory / "data")}
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    @property
    def is_running(self) -> bool:
        """Whether there is a process, frozen or not."""
        return self._process is not None and self._process.poll() is None

    def format(self, *, cluster_id: str, users: Iterable[str]) -> None:
        """Make its empty storage. :param users: as StorageTool's --add-scram takes them."""
        subprocess.run(
            [
                *[*self._java, "kafka.tools.StorageTool", "format"],
                *["--cluster-id", cluster_id, "--config", str(self._properties)],
                *(f"--add-scram={user}" for user in users),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def start(self) -> None:
        """Begin to start; see `Cluster.wait_until_ready`. Only on the main thread: see `_die_with_me`."""
        assert not self.is_running
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*_die_with_me(), *self._java, "kafka.Kafka", str(self._properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the tests, which then end the nodes.
                start_new_session=True,
            )
        atexit.register(self.kill9)

    def stop(self) -> None:
        """End it with SIGTERM, which lets it hand over what it leads."""
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
                f"node {self.number} ended with {self._process.returncode}:\n{self.last_lines(30)}"
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
