"""
Clients of event streams, in a process of their own: reads all streams, and prints figures as JSON.

    python benchmarks/stream_load.py PORT PATH CLIENTS SECONDS

It prints ``open`` as soon as all streams have begun, and reads for the given number of seconds from then on.
With ``--slow``, one client in twenty reads only once a second.
An event may have the time when it was made in its data, as ``@`` and 19 digits: nanoseconds of the clock that
all processes share (``time.monotonic_ns``). Latencies are from one stream in twenty.
"""

from __future__ import annotations

import argparse
import json
import re
import selectors
import socket
import time
from collections import Counter

__all__ = ["quantile"]

_TIME = re.compile(rb"@(\d{19})")
_AT_ONCE = 50
"""The most connections that are opened before their answers are awaited."""
_SLOW_INTERVAL_S = 1.0


def quantile(values: list[float], share: float) -> float | None:
    """The value that this share of them does not exceed; ``None`` without values."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


class Streams:
    """The streams of all clients."""

    def __init__(self, port: int, path: str) -> None:
        self._address = "127.0.0.1", port
        self._request = (
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n"
            "User-Agent: stream_load/1\r\n\r\n"
        ).encode()
        self._selector = selectors.DefaultSelector()
        self._slow = selectors.DefaultSelector()
        self.sockets: list[socket.socket] = []
        self.events = self.bytes = self.ended = 0
        self.latencies_ms: list[float] = []
        self.statuses: Counter[str] = Counter()

    def open(self, count: int) -> None:
        while len(self.sockets) < count:
            for _ in range(min(_AT_ONCE, count - len(self.sockets))):
                self._open_one()
            while sum(self.statuses.values()) < len(self.sockets):
                self.read(0.1)
        self.events = self.bytes = 0
        self.latencies_ms.clear()

    def _open_one(self) -> None:
        connection = socket.create_connection(self._address)
        connection.sendall(self._request)
        connection.settimeout(0)
        number = len(self.sockets)
        self.sockets.append(connection)
        self._selector.register(connection, selectors.EVENT_READ, [number % 20 == 0, False])

    def make_slow(self) -> None:
        """Let one client in twenty read only once a second; latencies are not from those."""
        for connection in self.sockets[10::20]:
            key = self._selector.unregister(connection)
            self._slow.register(key.fileobj, key.events, key.data)

    def read(self, timeout_s: float) -> None:
        self._read_from(self._selector, timeout_s)

    def _read_from(self, selector: selectors.BaseSelector, timeout_s: float) -> None:
        for key, _ in selector.select(timeout_s):
            try:
                data = key.fileobj.recv(1 << 18)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            is_timed, has_begun = key.data
            if not has_begun:
                key.data[1] = True
                self.statuses[data[9:12].decode()] += 1
            if not data:
                self.ended += 1
                selector.unregister(key.fileobj)
                key.fileobj.close()
                continue
            self.bytes += len(data)
            # Each event ends with an empty line.
            self.events += data.count(b"\ndata:")
            if is_timed:
                now_ns = time.monotonic_ns()
                self.latencies_ms += [(now_ns - int(made)) / 1e6 for made in _TIME.findall(data)]

    def read_for(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        slow_at_s = 0.0
        while (left_s := until_s - time.monotonic()) > 0:
            self.read(min(left_s, _SLOW_INTERVAL_S))
            if time.monotonic() >= slow_at_s:
                slow_at_s = time.monotonic() + _SLOW_INTERVAL_S
                self._read_from(self._slow, 0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("port", type=int)
    parser.add_argument("path")
    parser.add_argument("clients", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--slow", action="store_true", help="one client in twenty reads once a second")
    options = parser.parse_args()
    streams = Streams(options.port, options.path)
    streams.open(options.clients)
    if options.slow:
        streams.make_slow()
    print("open", flush=True)
    streams.read_for(options.seconds)
    figures = {
        "events": streams.events,
        "bytes": streams.bytes,
        "ended": streams.ended,
        "statuses": streams.statuses,
        "p50_ms": quantile(streams.latencies_ms, 0.5),
        "p99_ms": quantile(streams.latencies_ms, 0.99),
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
