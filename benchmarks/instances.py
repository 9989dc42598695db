"""
Several instances on one listening socket, as `sampleapp@.service` has them: what the second one adds.

One and two, in turns: the rate, CPU of the instances for each request, and how connections and requests are
shared out, also with a socket for each instance (``ReusePort=`` of systemd). Then both are restarted under
load, one after the other, and every record that was acknowledged is looked up. The load and the broker run
on the same cores: where there are two, the rate cannot double.

    python benchmarks/instances.py            on librdkafka's mock cluster and on SQLite, about three minutes
    python benchmarks/instances.py --quick    to see that it works
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

import batch_load
from clusters import PROJECT, TOPIC, mock_cluster
from load import REQUESTS, Connection, keep_busy
from servers import DEADLINE_S, Server, free_port
from tables import Figures, Rounds, heading, lines, medians, ratio

sys.path.append(PROJECT)
from tests.support.systemd import with_sockets

__all__ = ["compare", "restart", "share_out"]

BIN = Path(sys.executable).parent
CONNECTIONS = 64
CLIENTS = 16
BATCH = 1000
QUEUE = 4096
PAUSE_S = 0.005
UNEVEN = 0.7
SOCKETS = {False: "one socket", True: "a socket each"}
SQLITE = "sqlite:records.sqlite3"
# Each request, and how many times fewer of them are made.
KINDS = {
    "a message": (REQUESTS["post"][0], 1),
    f"a batch of {BATCH}": (batch_load.request("ndjson", BATCH, "few"), 40),
}
COUNTS = [
    re.compile(rf"^{name}{{[^}}]*{label}[^}}]*}} (\S+)$", re.MULTILINE)
    for name, label in (("sampleapp_connections", ""), ("sampleapp_http_requests_total", 'route="/messages"'))
]


class Instance(Server):
    """One of those that share a socket; its port is that of its ``--admin``, as in the unit."""

    def __init__(self, listening: socket.socket, *, broker: str, directory: str) -> None:
        port = free_port()
        command = [str(BIN / "twistd"), "-n", "--pidfile=", "sampleapp", "--broker", broker]
        command += ["--listen", "systemd:domain=INET:name=http", "--admin", f"tcp:{port}:interface=127.0.0.1"]
        super().__init__(
            with_sockets({"http": listening}, command),
            port=port,
            directory=directory,
            path="ready",
            descriptors=[listening.fileno()],
        )

    def counts(self) -> list[int]:
        """Return how many connections it has, and how many requests it has answered until now."""
        with urllib.request.urlopen(f"{self.url}metrics") as response:
            page = response.read().decode()
        return [sum(int(float(count)) for count in pattern.findall(page)) for pattern in COUNTS]


@contextlib.contextmanager
def instances(count: int, broker: str, *, each_its_own: bool = False) -> Iterator[Instances]:
    """
    Instances behind one port.

    :param count: how many.
    :param each_its_own: not one socket for all, but one for each instance (``ReusePort=`` of systemd).
    """
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        address = ("127.0.0.1", 0)
        sockets = []
        for _ in range(count if each_its_own else 1):
            listening = socket.create_server(address, backlog=QUEUE, reuse_port=each_its_own)
            sockets.append(stack.enter_context(listening))
            address = listening.getsockname()
        running = Instances(sockets, broker, directory)
        stack.callback(running.stop)
        for place in range(count):
            running.start(place)
        yield running


class Instances:
    """Those behind one port."""

    def __init__(self, sockets: Sequence[socket.socket], broker: str, directory: str) -> None:
        self.port: int = sockets[0].getsockname()[1]
        self._sockets = sockets
        self._broker = broker
        self._directory = directory
        self._running: dict[int, Instance] = {}

    def start(self, place: int) -> None:
        listening = self._sockets[place % len(self._sockets)]
        self._running[place] = Instance(listening, broker=self._broker, directory=self._directory)

    def restart(self, place: int) -> None:
        self._running[place].stop()
        self.start(place)

    def stop(self) -> None:
        for each in self._running.values():
            each.stop()

    def counts(self) -> list[list[int]]:
        """Return how many connections each has, and how many requests each has answered until now."""
        return [list(each) for each in zip(*(each.counts() for each in self._running.values()), strict=True)]

    def connect(self, request: bytes, pause_s: float) -> list[Connection]:
        """Open connections, with a pause after each, and wait until all are accepted."""
        made = []
        for _ in range(CONNECTIONS):
            made.append(Connection(self.port, request, {}))
            time.sleep(pause_s)
        while sum(self.counts()[0]) < CONNECTIONS:
            time.sleep(0.01)
        return made

    def load(self, kind: str, *, requests: int) -> Figures:
        """Make requests on connections that came one by one; returns rates, CPU, and the largest shares."""
        request, fewer = KINDS[kind]
        requests //= fewer
        made = self.connect(request, PAUSE_S)
        connections, before = self.counts()
        psutil.cpu_percent()
        load_s, cpu_s = time.process_time(), self._cpu_s()
        figures = keep_busy(made, requests)
        load_s, cpu_s = time.process_time() - load_s, self._cpu_s() - cpu_s
        busy_cores = psutil.cpu_percent() / 100 * (os.cpu_count() or 1)
        responded = [after - each for after, each in zip(self.counts()[1], before, strict=True)]
        self.close(made)
        took_s = requests / figures["requests_per_s"]
        return {
            **figures,
            "cpu_us": 1e6 * cpu_s / requests,
            "cores": cpu_s / took_s,
            "load_cores": load_s / took_s,
            "busy_cores": busy_cores,
            "connections": max(connections) / CONNECTIONS,
            "requests": max(responded) / requests,
        }

    def close(self, made: Sequence[Connection]) -> None:
        for each in made:
            each.socket.close()
        while sum(self.counts()[0]):
            time.sleep(0.01)

    def records(self) -> Counter[str]:
        """Return how often the topic has each content."""
        command = [str(BIN / "sampleapp"), "consume", TOPIC, "--broker", self._broker, "--timeout", "5"]
        done = subprocess.run(command, cwd=self._directory, check=True, stdout=subprocess.PIPE)
        return Counter(json.loads(line)["value"] for line in done.stdout.splitlines())

    def _cpu_s(self) -> float:
        return sum(each.cpu_s() for each in self._running.values())


def compare(broker: str, *, rounds: int, requests: int) -> None:
    names = ("1 instance", "2 instances")
    with contextlib.ExitStack() as stack:
        measured = {
            name: stack.enter_context(instances(count, broker)) for count, name in enumerate(names, 1)
        }
        for kind in KINDS:
            heading(f"{kind}, {broker.partition(':')[0]}, {CONNECTIONS} connections")
            found: Rounds = {name: [] for name in names}
            # In turns; the first round is to warm up.
            for round_ in range(rounds + 1):
                for name, each in measured.items():
                    figures = each.load(kind, requests=requests)
                    if round_:
                        found[name].append(figures)
            lines(found)
            for name, each in found.items():
                shown = medians(each)
                print(
                    f"{name}: {shown['cores']:.2f} cores, the load {shown['load_cores']:.2f}, the machine "
                    f"{shown['busy_cores']:.2f}; one has {shown['connections']:.0%} of the connections, "
                    f"{shown['requests']:.0%} of the requests"
                )
            ratio(found, names[1], names[0], figure="requests_per_s", aim="none")


def share_out(*, rounds: int) -> None:
    print(f"\nThe larger share of {CONNECTIONS} connections to 2 instances, in {rounds} rounds")
    for each_its_own, name in SOCKETS.items():
        with instances(2, "memory:", each_its_own=each_its_own) as running:
            for pause_s, described in ((0, "at once"), (PAUSE_S, f"one every {1000 * PAUSE_S:.0f} ms")):
                shares = []
                for _ in range(rounds):
                    made = running.connect(REQUESTS["post"][0], pause_s)
                    shares.append(max(running.counts()[0]) / CONNECTIONS)
                    running.close(made)
                uneven = sum(share > UNEVEN for share in shares) / rounds
                print(
                    f"{name}, {described}: {statistics.median(shares):.0%}, at most {max(shares):.0%}; "
                    f"above {UNEVEN:.0%} in {uneven:.0%} of the rounds",
                    flush=True,
                )


def restart(broker: str, *, each_its_own: bool = False) -> None:
    """Restart both, one after the other, while clients publish on connections that they keep; look all up."""
    with instances(2, broker, each_its_own=each_its_own) as running:
        clients = [Client(running.port, str(number)) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        for place in range(2):
            time.sleep(1)
            running.restart(place)
        time.sleep(1)
        connections, _ = running.counts()
        for client in clients:
            client.is_over = True
            client.join()
        acknowledged = [content for client in clients for content in client.acknowledged]
        stored = running.records()
    name = "a socket each" if each_its_own else "one socket"
    print(
        f"\nBoth of 2 restarted, {name}, {broker.partition(':')[0]}, {CLIENTS} clients with a connection each"
    )
    print(f"requests answered with 200: {len(acknowledged)}, failed: {sum(each.failed for each in clients)}")
    print(f"acknowledged but not there: {sum(content not in stored for content in acknowledged)}")
    print(f"more than once there: {sum(count > 1 for count in stored.values())}")
    print(f"longest answer: {max(each.longest_s for each in clients):.2f} s")
    print(f"connections of each afterwards: {connections}", flush=True)


class Client(threading.Thread):
    """Publishes messages of its own, one after the other; connects again after ``Connection: close``."""

    def __init__(self, port: int, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.acknowledged: list[str] = []
        self.failed = 0
        self.longest_s = 0.0
        self.is_over = False
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)

    def run(self) -> None:
        for number in itertools.count():
            if self.is_over:
                break
            began_s = time.perf_counter()
            self._publish(f"{self.name}-{number}")
            self.longest_s = max(self.longest_s, time.perf_counter() - began_s)
        self._connection.close()

    def _publish(self, content: str) -> None:
        body = json.dumps({"topic": TOPIC, "key": content, "content": content})
        try:
            self._connection.request("POST", "/messages", body, {"Content-Type": "application/json"})
            with self._connection.getresponse() as response:
                response.read()
                is_stored = response.status == 200
        except (OSError, http.client.HTTPException) as error:
            print(f"failed: {error!r}", flush=True)
            self._connection.close()
            is_stored = False
        if is_stored:
            self.acknowledged.append(content)
        else:
            self.failed += 1


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure several instances on one socket.")
    parser.add_argument("--quick", action="store_true", help="few requests")
    rounds, requests = (1, 800) if parser.parse_args().quick else (5, 8_000)
    print(f"{os.cpu_count()} cores for the instances, the load and the broker; load {os.getloadavg()[0]:.1f}")
    with mock_cluster() as mock:
        for broker in (f"kafka://{mock.bootstrap}", SQLITE):
            compare(broker, rounds=rounds, requests=requests)
    share_out(rounds=10 * rounds)
    # The mock cluster keeps 5 MiB of each partition, so these get one of their own.
    with mock_cluster() as mock:
        restart(f"kafka://{mock.bootstrap}")
        restart(SQLITE)
        restart(SQLITE, each_its_own=True)


if __name__ == "__main__":
    main()
