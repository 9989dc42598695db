"""
Clusters of real Kafka nodes on this machine, without ZooKeeper, for the tests or to try the service with:

    python -m tests.real_kafka.cluster --nodes 3
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

from typing_extensions import Self

from tests.real_kafka.admin import Admin, known_brokers
from tests.real_kafka.configuration import (
    CONTROLLER,
    HOST,
    PLAIN,
    SETTINGS,
    Listener,
    listener_settings,
    replication,
)
from tests.real_kafka.distribution import VERSIONS, KafkaNotAvailable, get
from tests.real_kafka.node import Node, eventually

__all__ = ["Cluster"]

CLUSTER_ID = "c2FtcGxlYXBwLXRlc3RzIQ"
# Out of these the system gives no ports to connections, so that a node that is down keeps its own
# (net.ipv4.ip_local_port_range begins with 32768).
PORTS = range(20_000, 30_000)
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
        users: Sequence[str] = (),
    ) -> None:
        """
        :param directory: for everything that the nodes write.
        :param listeners: beside PLAIN and CONTROLLER, which are always there.
        :param settings: of all nodes, on top of those that the tests need.
        :param users: with SCRAM credentials, as StorageTool's --add-scram takes them.
        """
        self.version = version
        self._users = users
        listeners = [PLAIN, CONTROLLER, *listeners]
        names = [each.name for each in listeners]
        names += [f"{each.name}-ADVERTISED" for each in listeners if each.is_behind_proxy]
        ports = free_ports(len(names) * nodes)
        places = {n: {name: next(ports) for name in names} for n in range(1, nodes + 1)}
        voters = ",".join(f"{n}@{HOST}:{each[CONTROLLER.name]}" for n, each in places.items())
        self.nodes = [
            Node(
                number=n,
                jars=get(version),
                directory=directory / f"node-{n}",
                ports=places[n],
                settings={
                    **SETTINGS,
                    **replication(nodes),
                    "node.id": str(n),
                    "controller.quorum.voters": voters,
                    **listener_settings(listeners, places[n]),
                    **(settings or {}),
                },
            )
            for n in places
        ]

    def __enter__(self) -> Self:
        try:
            # One by one this would take longer than everything else.
            with ThreadPoolExecutor() as threads:
                list(threads.map(self._format, self.nodes))
            self.start()
        except BaseException:
            self.kill9()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # Whatever there was to be found out of the files has been.
        self.kill9()

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

    def controller(self) -> Node:
        """
        The node that is the active controller.

        Clients are not told (they are given any broker in its place), so its log has to tell.
        """
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

    def _format(self, node: Node) -> None:
        node.format(cluster_id=CLUSTER_ID, users=self._users)

    def _wait_until(self, node: Node, expected: set[int]) -> None:
        address = self.address(node.number)

        def knows_all() -> bool:
            node.check_alive()
            return known_brokers(address) == expected

        eventually(
            knows_all, f"node {node.number} of Kafka {self.version} is ready", deadline_s=START_DEADLINE_S
        )


def free_ports(count: int) -> Iterator[int]:
    """Ports that nobody listens on now."""
    found = []
    # Another run of the tests takes others.
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            found.append(port)
        if len(found) == count:
            break
    return iter(found)


def _lines_with(path: Path, text: str) -> list[str]:
    return [line for line in path.read_text(errors="backslashreplace").splitlines() if text in line]


def main() -> None:
    """Run a cluster until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Run Apache Kafka on this machine, until Ctrl-C.")
    parser.add_argument("--version", default=VERSIONS[-1], help="of Kafka (default: %(default)s)")
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
            cluster = Cluster(version=arguments.version, nodes=arguments.nodes, directory=Path(directory))
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
