"""One Kafka node: its settings, its data, and the process that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.real_kafka.process import JavaProcess
from tests.real_kafka.zookeeper import ZooKeeper

__all__ = ["Node"]


class Node(JavaProcess):
    """A broker, with KRaft a controller as well, and the files that it keeps."""

    def __init__(
        self,
        *,
        number: int,
        java: Sequence[str],
        directory: Path,
        ports: Mapping[str, int],
        settings: Mapping[str, str],
        zookeeper: ZooKeeper | None = None,
    ) -> None:
        """
        :param java: the command that runs a class of Kafka's jars.
        :param directory: for its settings, its log and its data.
        :param ports: of each of its listeners, by name; it keeps them as long as it lives.
        :param zookeeper: where it is registered; none with KRaft.
        """
        self.number = number
        self.ports = ports
        self._java = java
        self._zookeeper = zookeeper
        self._properties = directory / "server.properties"
        self.data = directory / "data"
        directory.mkdir(parents=True)
        lines = {**settings, "log.dirs": str(self.data)}
        escaped = {name: value.replace("\n", "\\n") for name, value in lines.items()}
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in escaped.items()))
        super().__init__(
            f"node {number}", [*java, "kafka.Kafka", str(self._properties)], log=directory / "log"
        )

    def start(self) -> None:
        """Begin to start; see `Cluster.wait_until_ready`. Only on the main thread."""
        if self._zookeeper is not None:
            self._zookeeper.wait_until_unregistered(self.number)
        super().start()

    def format(self, *, cluster_id: str, users: Mapping[str, str]) -> None:
        """Make its empty storage for KRaft. :param users: with SCRAM credentials, their passwords."""
        self.run(
            [
                *[*self._java, "kafka.tools.StorageTool", "format"],
                *["--cluster-id", cluster_id, "--config", str(self._properties)],
                *(
                    f"--add-scram={mechanism}=[name={user},password={password}]"
                    for user, password in users.items()
                    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
                ),
            ]
        )
