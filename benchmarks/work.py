"""
The cost of groups of workers: a pull and its acknowledgement, with 64 workers.

    python benchmarks/work.py [--seconds 10] [--nodes 1] [--only kafka|sqlite|memory]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

from clusters import PARTITIONS, TOPIC, NotAvailable, one_node, three_nodes
from servers import HERE, Server, sampleapp
from tables import Figures, heading, line

__all__ = ["measure_work"]

WORKERS = 64
PAUSE_S = 0.5
"""How long a worker works on a message, where it does so."""
AIM_MS = 20
MESSAGES_PER_S = {1: 3_000, 10: 15_000, 100: 50_000}
"""More than what is given, by the most messages of a pull."""


def measure_work(*, seconds: float, nodes: int = 1, only: str | None = None) -> None:
    for name in ("kafka", "sqlite", "memory"):
        if only in (None, name):
            try:
                with _broker(name, nodes) as broker, sampleapp(broker=broker) as server:
                    _measure(server, name, seconds)
            except NotAvailable as error:
                print(f"Apache Kafka: not measured: {error}")


@contextlib.contextmanager
def _broker(name: str, nodes: int) -> Iterator[str]:
    if name != "kafka":
        yield {"sqlite": "sqlite:records.sqlite3", "memory": "memory:"}[name]
    elif nodes == 1:
        with one_node() as cluster:
            yield f"kafka://{cluster.bootstrap}"
    else:
        with three_nodes() as cluster:
            cluster.admin.create("readings", partitions=1)
            cluster.admin.create(TOPIC, partitions=PARTITIONS)
            yield f"kafka://{cluster.bootstrap}"


def _measure(server: Server, name: str, seconds: float) -> None:
    print(f"\nload of the machine: {os.getloadavg()[0]:.1f}")
    heading(f"Work on {name}, {WORKERS} workers", unit="messages")
    _fill(server, 20_000)
    # To make the group, and to warm up.
    _work(server, most=1, seconds=max(5, seconds / 2))
    paced = _work(server, most=1, seconds=seconds, pause_s=PAUSE_S)
    line(f"max 1, {1000 * PAUSE_S:.0f} ms of work for each message", paced)
    for most in (1, 10, 100):
        _fill(server, int(MESSAGES_PER_S[most] * seconds))
        line(f"max {most}, no pause", _work(server, most=most, seconds=seconds))
    print(f"A pull and its acknowledgement at p99: {paced['p99_ms']:.1f} ms (the aim: at most {AIM_MS})")


def _fill(server: Server, count: int) -> None:
    """Publish messages, so that no pull has to wait."""
    lines = b"".join(
        b'{"topic":"bench","key":"room-%02d","content":"a value of about a hundred bytes in all, as sent"}\n'
        % (n % 100)
        for n in range(1000)
    )
    for _ in range(count // 1000):
        headers = {"Content-Type": "application/x-ndjson"}
        with urllib.request.urlopen(
            urllib.request.Request(f"{server.url}messages", lines, headers)
        ) as answer:
            answer.read()


def _work(server: Server, *, most: int, seconds: float, pause_s: float = 0) -> Figures:
    before_s = server.cpu_s()
    done = subprocess.run(
        [sys.executable, HERE / "work_load.py", *map(str, (server.port, WORKERS, most, seconds, pause_s))],
        check=True,
        stdout=subprocess.PIPE,
    )
    figures: Figures = json.loads(done.stdout)
    return {**figures, "cpu_us": 1e6 * (server.cpu_s() - before_s) / max(1, figures["messages"])}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10, help="of each figure (default: %(default)s)")
    parser.add_argument("--nodes", type=int, choices=[1, 3], default=1, help="of Kafka")
    parser.add_argument("--only", choices=["kafka", "sqlite", "memory"])
    options = parser.parse_args()
    measure_work(seconds=options.seconds, nodes=options.nodes, only=options.only)


if __name__ == "__main__":
    main()
