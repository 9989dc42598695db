"""Services on a cluster, and what may happen to all of them."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.real_kafka.cluster import Cluster
from tests.support.live_service import LiveService

__all__ = ["ReturningService", "World"]


class ReturningService:
    """A service that comes back on its port."""

    def __init__(
        self, directory: Path, broker: str, *, options: Sequence[str] = (), **how_to_start: object
    ) -> None:
        """:param how_to_start: the command and the environment, as of `LiveService`."""
        directory.mkdir()
        self._directory, self._broker, self._how_to_start = directory, broker, how_to_start
        self._options = ["--drain-delay", "0", "--drain-timeout", "4", *options]
        self._listen = "tcp:0:interface=127.0.0.1"
        self.output = ""
        self.start()

    def start(self) -> None:
        self.live = LiveService(
            directory=self._directory,
            broker=self._broker,
            listen=self._listen,
            options=self._options,
            **self._how_to_start,
        )
        self.url = self.live.url
        self._listen = f"tcp:{self.url.rstrip('/').rpartition(':')[2]}:interface=127.0.0.1"

    def kill(self) -> None:
        self.live.kill()
        self.output += self.live.output

    def stop(self) -> None:
        self.live.stop()
        self.kill()

    def signal(self, number: signal.Signals) -> None:
        self.live.process.send_signal(number)


class World:
    """A cluster and services, to which faults happen that a seed chooses."""

    frozen_s = (1, 6)
    """For how long a service is frozen: at least, and at most."""

    def __init__(
        self, cluster: Cluster, services: Sequence[ReturningService], topic: str, *, seed: int
    ) -> None:
        self.cluster, self.services, self.topic = cluster, services, topic
        self.random = random.Random(seed)
        self.happened: list[str] = []
        """The names of the faults until now."""
        self._remaining: list[Callable[[], None]] = []

    def faults(self) -> list[Callable[[], None]]:
        """Return all faults that may happen."""
        return [
            self.kill_a_node,
            self.freeze_a_node,
            self.elect,
            self.kill_a_service,
            self.stop_a_service,
            self.freeze_a_service,
        ]

    def happen(self) -> None:
        """Have one more fault: each one once before any comes again."""
        self._remaining = self._remaining or self.random.sample(self.faults(), len(self.faults()))
        fault = self._remaining.pop()
        self.happened.append(fault.__name__)
        fault()

    def kill_a_node(self) -> None:
        self._node().kill9()
        time.sleep(self.random.uniform(2, 8))
        self.restore()

    def freeze_a_node(self) -> None:
        node = self._node()
        node.freeze()
        time.sleep(self.random.uniform(2, 14))
        node.thaw()
        self.restore()

    def elect(self) -> None:
        node = self._node()
        node.stop()
        node.start()
        self.restore()
        self.cluster.admin.elect(self.topic, partitions=sorted(self.cluster.admin.leaders(self.topic)))

    def kill_a_service(self) -> None:
        service = self.random.choice(self.services)
        service.kill()
        time.sleep(self.random.uniform(0, 2))
        service.start()

    def stop_a_service(self) -> None:
        service = self.random.choice(self.services)
        service.stop()
        service.start()

    def freeze_a_service(self) -> None:
        service = self.random.choice(self.services)
        service.signal(signal.SIGSTOP)
        time.sleep(self.random.uniform(*self.frozen_s))
        service.signal(signal.SIGCONT)

    def restore(self) -> None:
        """Have all nodes run, and all replicas in sync."""
        self.cluster.restore()
        self.cluster.admin.wait_until_in_sync(self.topic, 3)

    def _node(self):
        return self.random.choice(self.cluster.nodes)
