"""
Sends messages at a steady rate over a number of HTTP connections, and prints latencies as one line of JSON.

The rate does not fall when the service is slow: a latency counts from the time when a request was due. It is
a process of its own, so that its CPU is not counted as that of the service.

    python benchmarks/paced_load.py PORT CONNECTIONS REQUESTS-A-SECOND SECONDS
"""

from __future__ import annotations

import json
import selectors
import sys
import time
from collections import deque

from load import REQUESTS, Connection
from stream_load import quantile

__all__ = ["send_at_rate"]


def send_at_rate(connections: list[Connection], *, per_s: float, seconds: float) -> dict[str, float | None]:
    """Send each request when it is due, or as soon as a connection is free."""
    selector = selectors.DefaultSelector()
    free = deque(connections)
    due_s: dict[Connection, float] = {}
    latencies_ms = []
    began_s = time.perf_counter()
    sent, count = 0, int(per_s * seconds)
    for connection in connections:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
    while len(latencies_ms) < count:
        now_s = time.perf_counter()
        while free and sent < count and (next_s := began_s + sent / per_s) <= now_s:
            connection = free.popleft()
            due_s[connection] = next_s
            connection.send()
            sent += 1
        next_s = began_s + sent / per_s
        for key, _ in selector.select(max(0.0, next_s - time.perf_counter()) if free and sent < count else 1):
            if key.data.receive():
                latencies_ms.append(1000 * (time.perf_counter() - due_s[key.data]))
                free.append(key.data)
    return {
        "p50_ms": quantile(latencies_ms, 0.5),
        "p99_ms": quantile(latencies_ms, 0.99),
        "requests_per_s": count / (time.perf_counter() - began_s),
    }


def main() -> None:
    port, count = int(sys.argv[1]), int(sys.argv[2])
    per_s, seconds = float(sys.argv[3]), float(sys.argv[4])
    choices = REQUESTS["post-keys"]
    connections = [Connection(port, choices[n % len(choices)], {}) for n in range(count)]
    print(json.dumps(send_at_rate(connections, per_s=per_s, seconds=seconds)))


if __name__ == "__main__":
    main()
