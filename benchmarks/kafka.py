"""What publishing to Kafka costs, beside other ways to do it, on librdkafka's mock cluster."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from clusters import TOPIC, NotAvailable, mock_cluster, one_node
from servers import Server, aiohttp_librdkafka, name_of_aiohttp, sampleapp
from tables import Rounds, heading, lines, ratio

__all__ = ["compare_post_on_kafka", "compare_producers", "measure_unknown_topic"]

PRODUCER = Path(__file__).with_name("kafka_producer.py")
ENGINES = {
    "own": "sampleapp",
    "afkak": "afkak's Producer",
    "bridged": "librdkafka, bridged to Deferreds",
    "raw": "librdkafka, raw",
}
MOST = 1000
"""Outstanding messages where it is measured how much a producer can do."""
DEADLINE_S = 120


def compare_producers(*, rounds: int, messages: int) -> None:
    with mock_cluster() as mock:
        for outstanding, count in ((MOST, messages), (64, messages // 5)):
            for keys in ([], ["--keyed"]):
                shape = ["--messages", str(count), "--outstanding", str(outstanding), *keys]
                found: Rounds = {name: [] for name in ENGINES.values()}
                for _ in range(rounds):
                    for engine, name in ENGINES.items():
                        found[name].append(_producer(engine, mock.bootstrap, *shape))
                with_keys = "16-byte keys" if keys else "no keys"
                heading(f"100 bytes, {with_keys}, {outstanding} outstanding", unit="messages")
                lines(found)
                if outstanding == MOST:
                    ratio(found, "sampleapp", "afkak's Producer", figure="requests_per_s", aim="at least 3")
                    ratio(found, "sampleapp", "librdkafka, raw", figure="cpu_us", aim="at most 2")


def _producer(engine: str, bootstrap: str, *options: str) -> dict[str, float]:
    command = [sys.executable, str(PRODUCER), engine, bootstrap, *options]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=DEADLINE_S)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def compare_post_on_kafka(*, rounds: int, requests: int) -> None:
    with mock_cluster() as mock:
        _compare_post("librdkafka's mock cluster", mock.bootstrap, rounds=rounds, requests=requests)
    try:
        with one_node() as cluster:
            _compare_post(
                f"Apache Kafka {cluster.version}", cluster.bootstrap, rounds=rounds, requests=requests
            )
    except NotAvailable as error:
        print(f"Apache Kafka: not measured: {error}")


def _compare_post(where: str, bootstrap: str, *, rounds: int, requests: int) -> None:
    shapes = {
        "1 connection": ("post", 1, requests // 8),
        "64 connections, 1 key": ("post", 64, requests),
        "64 connections, 64 keys": ("post-keys", 64, requests),
        "64, each with a traceparent of its own": ("post-traced", 64, requests),
    }
    with contextlib.ExitStack() as running:
        servers = {
            "sampleapp": running.enter_context(sampleapp(broker=f"kafka://{bootstrap}")),
            "sampleapp on memory": running.enter_context(sampleapp(broker="memory:")),
            "sampleapp on sqlite": running.enter_context(sampleapp()),
        }
        aiohttp = name_of_aiohttp()
        theirs = None if aiohttp is None else f"{aiohttp}, librdkafka"
        if theirs is not None:
            servers[theirs] = running.enter_context(aiohttp_librdkafka(bootstrap=bootstrap))
        print(f"\nPOST on {where}")
        for shape, (kind, connections, count) in shapes.items():
            found: Rounds = {name: [] for name in servers}
            for each in range(rounds + 1):
                for name, server in servers.items():
                    figures = server.load(kind, connections=connections, requests=count)
                    # The first of each was to warm up.
                    if each:
                        found[name].append(figures)
            heading(shape)
            lines(found)
            if theirs is not None:
                aim = "at most 0.6" if connections == 1 else "at most 0.40"
                ratio(found, "sampleapp", theirs, figure="cpu_us", aim=aim)
        if theirs is None:
            print("not compared with aiohttp and librdkafka: there is no aiohttp here (pip install aiohttp)")


def measure_unknown_topic(*, rounds: int) -> None:
    with mock_cluster() as mock, sampleapp(broker=f"kafka://{mock.bootstrap}", readings=False) as service:
        service.publish(topic=TOPIC, key="a", content="b")
        took_s = statistics.median(_time_to_404(service, topic=f"unknown-{n}") for n in range(rounds))
    print(
        f"\nFrom a message for an unknown topic to its 404: {took_s:.2f} s (the aim: at most 2)", flush=True
    )


def _time_to_404(service: Server, *, topic: str) -> float:
    began_s = time.perf_counter()
    status, answer = service.publish(topic=topic, key="a", content="b")
    if status != 404:
        raise SystemExit(f"A topic that does not exist was answered with {status}: {answer!r}")
    return time.perf_counter() - began_s
