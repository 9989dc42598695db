"""ZooKeeper as a process, for the versions of Kafka before KRaft."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.real_kafka.configuration import HOST
from tests.real_kafka.process import JavaProcess
from tests.support.waiting import wait_until

__all__ = ["ZooKeeper"]

# A broker that was killed is registered until its session ends, after 18 s by default, and a little more.
_SESSION_DEADLINE_S = 60
_ANSWER_S = 5


class ZooKeeper:
    """One ZooKeeper; it is never hurt, so that what the tests see is what Kafka does."""

    def __init__(self, *, java: Sequence[str], directory: Path, port: int) -> None:
        """:param java: the command that runs a class of Kafka's jars."""
        directory.mkdir(parents=True)
        self.address = f"{HOST}:{port}"
        self._port = port
        settings = {
            "dataDir": str(directory / "data"),
            "clientPortAddress": HOST,
            "clientPort": str(port),
            "maxClientCnxns": "0",
            "4lw.commands.whitelist": "ruok,dump",
            "admin.enableServer": "false",
        }
        properties = directory / "zookeeper.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        command = [*java, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(properties)]
        self._java = list(java)
        self._process = JavaProcess("ZooKeeper", command, log=directory / "log")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process.start()

        def is_ready() -> bool:
            self._process.check_alive()
            return self._asked("ruok") == "imok"

        wait_until(is_ready, "ZooKeeper is ready")

    def kill9(self) -> None:
        """End it at once; harmless where it has ended."""
        self._process.kill9()

    def add_scram_users(self, users: Mapping[str, str]) -> None:
        """Store SCRAM credentials: the passwords of users."""
        for user, password in users.items():
            added = ",".join(f"{each}=[password={password}]" for each in ("SCRAM-SHA-256", "SCRAM-SHA-512"))
            JavaProcess.run(
                [
                    *[*self._java, "kafka.admin.ConfigCommand", "--zookeeper", self.address, "--alter"],
                    *["--entity-type", "users", "--entity-name", user, "--add-config", added],
                ]
            )

    def wait_until_unregistered(self, broker: int) -> None:
        """Wait until the session of a broker that was killed has ended: before, it cannot come back."""
        registered = re.compile(rf"/brokers/ids/{broker}$", re.MULTILINE)
        wait_until(
            lambda: not registered.search(self._asked("dump")),
            f"broker {broker} is registered no more",
            deadline_s=_SESSION_DEADLINE_S,
        )

    def _asked(self, word: str) -> str:
        """What is answered to one of the commands of four letters."""
        try:
            with socket.create_connection((HOST, self._port), timeout=_ANSWER_S) as connection:
                connection.sendall(word.encode())
                return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        except OSError:
            return ""
