"""
Keeps a number of HTTP connections busy, and says how that went as one line of JSON.

Each connection sends its next request when it has the answer to the last one. It is a process of its
own, so that what is measured of the service is the service's alone.

    python benchmarks/load.py PORT CONNECTIONS REQUESTS KIND

KIND is one of `REQUESTS`.
"""

from __future__ import annotations

import itertools
import json
import re
import secrets
import selectors
import socket
import sys
import time
from collections.abc import Mapping, Sequence

__all__ = ["REQUESTS", "Connection", "keep_busy"]

TRACE_ID = b"4bf92f3577b34da6a3ce929d0e0e4736"
"""Stands for one that is new in each request."""
NEW_KEY = b"an-idempotency-key-that-is-new"
"""Stands for one that is new in each request."""


def post(key: bytes, field: bytes = b"", topic: bytes = b"bench") -> bytes:
    message = b'{"topic":"%b","key":"%b","content":"a value of about one hundred bytes in all, as sent"}'
    message %= (topic, key)
    return (
        b"POST /messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"%bContent-Length: %d\r\n\r\n%b" % (field, len(message), message)
    )


# Each connection sends one of them, again and again.
REQUESTS = {
    "get": [b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n"],
    "post": [post(b"kitchen")],
    "post-elsewhere": [post(b"kitchen", topic=b"bench-elsewhere")],
    "post-keys": [post(b"room-%02d" % n) for n in range(100)],
    # As they come through a proxy that traces: no head is like another.
    "post-traced": [post(b"room-00", b"traceparent: 00-%b-00f067aa0ba902b7-01\r\n" % TRACE_ID)],
    "post-numbered": [post(b"kitchen", b"X-Number: %b\r\n" % NEW_KEY)],
    "post-identified": [post(b"kitchen", b"Idempotency-Key: %b\r\n" % NEW_KEY)],
    "post-again": [post(b"kitchen", b"Idempotency-Key: sent-by-connection-%d\r\n" % n) for n in range(64)],
}
LENGTH = re.compile(rb"\r\nContent-Length: ([0-9]+)\r\n", re.IGNORECASE)


numbers = itertools.count(1)


class Connection:
    """One connection, and what it has of the current answer."""

    def __init__(self, port: int, request: bytes, new: Mapping[bytes, bytes]) -> None:
        """:param new: what stands for a number that is new in each request, with how that is written."""
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request = request
        self.sent_s = 0.0
        self._new = new
        self._received: list[bytes] = []
        self._missing = 0

    def send(self) -> None:
        request = self.request
        for stands_for, written in self._new.items():
            if stands_for in request:
                request = request.replace(stands_for, written % next(numbers))
        self.sent_s = time.perf_counter()
        self.socket.sendall(request)

    def receive(self) -> bool:
        """Take what has come; True when the answer is whole."""
        data = self.socket.recv(1 << 20)
        if not data:
            raise SystemExit("The service closed a connection.")
        self._received.append(data)
        if len(self._received) > 1 and self._missing > len(data):
            self._missing -= len(data)
            return False
        received = b"".join(self._received)
        self._received = [received]
        head, separator, body = received.partition(b"\r\n\r\n")
        if not separator:
            return False
        length = LENGTH.search(head + b"\r\n")
        if length is None or not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"Not an answer to measure: {received[:2000]!r}")
        self._missing = int(length[1]) - len(body)
        if self._missing > 0:
            return False
        self._received = []
        return True


def keep_busy(connections: Sequence[Connection], requests: int) -> dict[str, float]:
    """Let each send its next request when it has its answer, until there are so many."""
    selector = selectors.DefaultSelector()
    latencies_s = []
    for connection in connections:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
    began_s = time.perf_counter()
    to_send = requests
    for connection in connections[:requests]:
        connection.send()
        to_send -= 1
    while len(latencies_s) < requests:
        for key, _ in selector.select():
            if key.data.receive():
                latencies_s.append(time.perf_counter() - key.data.sent_s)
                if to_send > 0:
                    to_send -= 1
                    key.data.send()
    took_s = time.perf_counter() - began_s
    latencies_s.sort()
    return {
        "requests_per_s": requests / took_s,
        "p50_ms": 1000 * latencies_s[len(latencies_s) // 2],
        "p99_ms": 1000 * latencies_s[len(latencies_s) * 99 // 100],
        "max_ms": 1000 * latencies_s[-1],
    }


def main(port: int, connections: int, requests: int, kind: str) -> None:
    choices = REQUESTS[kind]
    # Not the keys of another run.
    new = {TRACE_ID: b"%032x", NEW_KEY: secrets.token_hex(8).encode() + b"-%d"}
    made = [Connection(port, choices[n % len(choices)], new) for n in range(connections)]
    print(json.dumps(keep_busy(made, requests)))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
