"""
Clusters of real Kafka nodes on this machine, for the tests or to try the service with:

    python -m tests.real_kafka.cluster --nodes 3
    python -m tests.real_kafka.cluster --kafka 2.8.2

Before Kafka 3.0 they run with ZooKeeper, from then on with KRaft.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Self

from tests.real_kafka.admin import Admin, known_brokers
from tests.real_kafka.configuration import (
    CONTROLLER,
    HOST,
    PLAIN,
    SETTINGS,
    Listener,
    kraft_settings,
    listener_settings,
    replication,
    zookeeper_settings,
)
from tests.real_kafka.distribution import VERSIONS, KafkaNotAvailable
from tests.real_kafka.node import Node
from tests.real_kafka.process import java_command
from tests.real_kafka.versions import KRAFT, SCRAM
from tests.real_kafka.zookeeper import ZooKeeper
from tests.support.free_ports import free_ports
from tests.support.waiting import wait_until

__all__ = ["Cluster"]

CLUSTER_ID = "c2FtcGxlYXBwLXRlc3RzIQ"
START_DEADLINE_S = 60
# 2026-01-31T23:59:59.999, with which each line of a log begins.
LENGTH_OF_TIME = 23


class Cluster:
    """Nodes that know one another, and what tests do to them."""

    def __init__(
        self,
        *,
        version: str,
        nodes: int,
        directory: Path,
        listeners: Sequence[Listener] = (),
        settings: Mapping[str, str] | None = None,
        users: Mapping[str, str] | None = None,
        log_levels: Mapping[str, str] | None = None,
    ) -> None:
        """
        :param directory: for everything that the nodes write.
        :param listeners: beside PLAIN and CONTROLLER, which are always there, the latter with KRaft only.
        :param settings: of all nodes, on top of those that the tests need.
        :param users: with SCRAM credentials, if the version has any: their passwords.
        :param log_levels: of loggers of Kafka, by name.
        """
        self.version = version
        self._users = dict(users or {}) if SCRAM.is_in(version) else {}
        java = java_command(version, log_levels or {})
        has_kraft = KRAFT.is_in(version)
        listeners = [PLAIN, *([CONTROLLER] if has_kraft else []), *listeners]
        names = [each.name for each in listeners]
        names += [f"{each.name}-ADVERTISED" for each in listeners if each.is_behind_proxy]
        ports = free_ports(len(names) * nodes + 1)
        self._zookeeper = (
            None if has_kraft else ZooKeeper(java=java, directory=directory / "zookeeper", port=next(ports))
        )
        places = {n: {name: next(ports) for name in names} for n in range(1, nodes + 1)}

        def own(number: int) -> dict[str, str]:
            if self._zookeeper is not None:
                return zookeeper_settings(number, self._zookeeper.address)
            return kraft_settings(number, {n: each[CONTROLLER.name] for n, each in places.items()})

        self.nodes = [
            Node(
                number=n,
                java=java,
                directory=directory / f"node-{n}",
                ports=places[n],
                settings={
                    **SETTINGS,
                    **replication(nodes),
                    **own(n),
                    **listener_settings(listeners, places[n]),
                    **(settings or {}),
                },
                zookeeper=self._zookeeper,
            )
            for n in places
        ]

    def __enter__(self) -> Self:
        try:
            self._prepare()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # Whatever there was to be found out of the files has been.
        self.kill9()
        if self._zookeeper is not None:
            self._zookeeper.kill9()

    @property
    def bootstrap(self) -> str:
        """``HOST:PORT,…`` of the plain listeners of all nodes."""
        return self.addresses(PLAIN.name)

    def addresses(self, name: str) -> str:
        """``HOST:PORT,…`` of one kind of listener, of all nodes."""
        return ",".join(f"{HOST}:{node.ports[name]}" for node in self.nodes)

    def address(self, number: int) -> str:
        """``HOST:PORT`` of the plain listener of one node."""
        return f"{HOST}:{self.node(number).ports[PLAIN.name]}"

    @cached_property
    def admin(self) -> Admin:
        """What an administrator can do."""
        return Admin(self.bootstrap)

    def node(self, number: int) -> Node:
        """The node with that id."""
        return self.nodes[number - 1]

    def start(self) -> None:
        """Start the nodes that are not running, and wait until all are ready."""
        for node in self.nodes:
            if not node.is_running:
                node.start()
        self.wait_until_ready()

    def restore(self) -> None:
        """Have all nodes run, whatever a test has done to them."""
        for node in self.nodes:
            if node.is_running:
                node.thaw()
        self.start()

    def kill9(self) -> None:
        """End all nodes at once, as a power cut would."""
        for node in self.nodes:
            node.kill9()

    def wait_until_ready(self) -> None:
        """Wait until every node that runs knows that all of those can be reached."""
        expected = {node.number for node in self.nodes if node.is_running}
        for node in self.nodes:
            if node.is_running:
                self._wait_until(node, expected)
        wait_until(lambda: self.admin.controller() in expected, "there is a controller")

    def controller(self) -> Node:
        """
        The node that is the active controller.

        With KRaft, clients are not told (they are given any broker in its place), so its log has to tell.
        """
        if self._zookeeper is not None:
            return self.node(self.admin.controller())
        claims = {
            max(
                (line[:LENGTH_OF_TIME] for line in _lines_with(node.log, "Becoming the active controller")),
                default="",
            ): node
            for node in self.nodes
        }
        return claims[max(claims)]

    def show(self) -> str:
        """The end of every node's log, for a test that has failed."""
        return "\n".join(f"--- node {node.number}: {node.log}\n{node.last_lines(15)}" for node in self.nodes)

    def _prepare(self) -> None:
        if self._zookeeper is not None:
            self._zookeeper.start()
            self._zookeeper.add_scram_users(self._users)
            return
        # One by one this would take longer than everything else.
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda node: node.format(cluster_id=CLUSTER_ID, users=self._users), self.nodes))

    def _wait_until(self, node: Node, expected: set[int]) -> None:
        address = self.address(node.number)

        def knows_all() -> bool:
            node.check_alive()
            return known_brokers(address) == expected

        wait_until(
            knows_all, f"node {node.number} of Kafka {self.version} is ready", deadline_s=START_DEADLINE_S
        )


def _lines_with(path: Path, text: str) -> list[str]:
    return [line for line in path.read_text(errors="backslashreplace").splitlines() if text in line]


def main() -> None:
    """Run a cluster until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Run Apache Kafka on this machine, until Ctrl-C.")
    parser.add_argument(
        "--kafka", default=VERSIONS[-1], metavar="VERSION", help="which version (default: %(default)s)"
    )
    parser.add_argument(
        "--nodes", type=int, default=1, choices=(1, 3), help="how many (default: %(default)s)"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        contextlib.suppress(KeyboardInterrupt),
        tempfile.TemporaryDirectory(prefix="sampleapp-kafka-") as directory,
    ):
        try:
            cluster = Cluster(version=arguments.kafka, nodes=arguments.nodes, directory=Path(directory))
        except KafkaNotAvailable as error:
            sys.exit(f"No Kafka: {error}.")
        with cluster:
            sys.stdout.write(
                f"Kafka {cluster.version} is at {cluster.bootstrap} until Ctrl-C. The service on it:\n"
                f"  twistd -n sampleapp --broker 'kafka://{cluster.bootstrap}?auto_create=true'\n"
            )
            sys.stdout.flush()
            while True:
                signal.pause()


if __name__ == "__main__":
    main()
