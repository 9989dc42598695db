"""
Measure how the cost of a request grows with its work, one dimension at a time.

    python benchmarks/growth.py                    everything, about fifteen minutes
    python benchmarks/growth.py --quick            to see that it works
    python benchmarks/growth.py content lines      some of it

Each figure is CPU of the service, as the median of rounds in turns. Requests are published to librdkafka's
mock cluster over 64 connections, with about 150 bytes, 61 keys and one topic of 6 partitions, except for the
dimension that is measured. Pages are read from a file of SQLite. ``(!)`` marks a step whose cost for each
unit of work grows by more than 1.5: differences below that are noise on most machines.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import NamedTuple

from clusters import mock_cluster
from load import Connection, keep_busy
from servers import HERE, Server, sampleapp

__all__ = ["measure_growth"]

_NOISE = 1.5
_MOST_BYTES = 200_000_000
_BATCH = 1000


class Shape(NamedTuple):
    """The requests of all clients."""

    connections: int = 64
    topics: int = 1
    keys: int = 61
    content: int = 100
    lines: int = 0
    """In one request, as NDJSON; with 0, a request is one message."""
    partitions: int = 6

    @property
    def records(self) -> int:
        """In one request."""
        return max(1, self.lines)

    @property
    def prefix(self) -> str:
        return f"growth-{self.partitions}-{self.topics}"

    def requests(self) -> list[bytes]:
        """As many as bring each topic and each key."""
        size = self.records * self.content
        count = min(max(self.topics, self.keys) // self.records + 1, max(1, _MOST_BYTES // size))
        return [self._request(number * self.records) for number in range(count)]

    def _request(self, first: int) -> bytes:
        bodies = [
            b'{"topic":"%b-%d","key":"key-%06d","content":"%b"}'
            % (self.prefix.encode(), each % self.topics, each % self.keys, b"x" * self.content)
            for each in range(first, first + self.records)
        ]
        kind = b"x-ndjson" if self.lines else b"json"
        body = b"\n".join(bodies)
        head = b"POST /messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/%b\r\n"
        return head % kind + b"Content-Length: %d\r\n\r\n" % len(body) + body


class Sender(Connection):
    """A connection that sends one request of many after the other."""

    def __init__(self, port: int, requests: Iterator[bytes]) -> None:
        super().__init__(port, b"", {})
        self._requests = requests

    def send(self) -> None:
        self.request = next(self._requests)
        super().send()


def _load(port: int, count: int, shape: Shape) -> None:
    """Run in a process of its own."""
    requests = cycle(shape.requests())
    print(json.dumps(keep_busy([Sender(port, requests) for _ in range(shape.connections)], count)))


def _send(server: Server, shape: Shape, requests: int) -> None:
    command = [sys.executable, str(HERE / "growth.py"), "--load", str(server.port), str(requests)]
    subprocess.run([*command, json.dumps(shape)], check=True, stdout=subprocess.DEVNULL)


def _us_a_record(server: Server, shape: Shape, requests: int) -> float:
    before_s = server.cpu_s()
    _send(server, shape, requests)
    return 1e6 * (server.cpu_s() - before_s) / (requests * shape.records)


# Publishing


class Dimension(NamedTuple):
    """The shapes with one thing that grows, by their sizes."""

    shapes: dict[int, Shape]
    units: Callable[[Shape], float] = lambda _: 1
    """The units of work in a record, to compare costs by."""


def _kilobytes(shape: Shape) -> float:
    # A small record has a cost of its own, too.
    return 1 + shape.content / 10_000


DIMENSIONS = {
    "connections": Dimension({n: Shape(connections=n) for n in (1, 8, 64, 512, 4096)}),
    "partitions": Dimension({n: Shape(partitions=n) for n in (1, 6, 60, 600)}),
    "topics": Dimension({n: Shape(topics=n) for n in (1, 10, 100)}),
    "keys": Dimension({n: Shape(keys=n) for n in (1, 61, 10_000, 1_000_000)}),
    "content": Dimension({n: Shape(content=n) for n in (100, 1000, 10_000, 100_000, 900_000)}, _kilobytes),
    "lines": Dimension({n: Shape(lines=n) for n in (1, 10, 100, 1000)}),
}


def measure_publishing(name: str, *, scale: int, rounds: int) -> None:
    dimension = DIMENSIONS[name]
    with mock_cluster() as mock:
        for shape in dimension.shapes.values():
            for number in range(shape.topics):
                with contextlib.suppress(Exception):
                    mock.create_topic(f"{shape.prefix}-{number}", partitions=shape.partitions)
        options = ["--max-connections", "5000"]
        with sampleapp(broker=f"kafka://{mock.bootstrap}", readings=False, options=options) as server:
            found: dict[int, list[float]] = {size: [] for size in dimension.shapes}
            for round_ in range(rounds + 1):
                for size, shape in dimension.shapes.items():
                    work = shape.records + shape.records * shape.content // 2000
                    count = max(shape.connections, 20_000 // scale // work, 20)
                    us = _us_a_record(server, shape, count)
                    # The first one was to warm up.
                    if round_:
                        found[size].append(us)
    figures = {size: statistics.median(each) for size, each in found.items()}
    units = {size: dimension.units(shape) for size, shape in dimension.shapes.items()}
    _print(f"{name}, µs a record", figures, units)


def _print(name: str, figures: dict[int, float], units: dict[int, float]) -> None:
    parts, before = [], None
    for size, figure in figures.items():
        each = figure / units[size]
        mark = "" if before is None or each <= _NOISE * before else " (!)"
        parts.append(f"{size:,}: {figure:,.1f}{mark}")
        before = each
    print(f"{name:36}{'   '.join(parts)}", flush=True)


# Reading

_PAGES = {
    "page of 500, end": "from=-500",
    "page of a key (1 in 61)": "from=earliest&key=key-000007",
    "search for a rare key": "from=earliest&key=rare",
}
_FROM_TIME = "page from a time, first of a file"
_FROM_TIME_AGAIN = "page from a time, after a start"


def measure_reading(*, scale: int, rounds: int) -> None:
    sizes = [size // scale for size in (10_000, 100_000, 1_000_000)]
    figures: dict[str, dict[int, float]] = {name: {} for name in (*_PAGES, _FROM_TIME, _FROM_TIME_AGAIN)}
    with tempfile.TemporaryDirectory() as directory:
        broker, stored = f"sqlite:{directory}/records.sqlite3", 0
        for size in sizes:
            with sampleapp(broker=broker, readings=False) as server:
                shape = Shape(connections=8, lines=min(1000, (size - stored) // 2))
                _send(server, shape, (size - stored) // (2 * shape.lines))
                half_ms = int(time.time() * 1000)
                _send(server, shape, (size - stored) // (2 * shape.lines))
                stored = size
                for name, query in _PAGES.items():
                    _read(server, query)
                    figures[name][size] = statistics.median(_read(server, query) for _ in range(rounds))
            for name in (_FROM_TIME, _FROM_TIME_AGAIN):
                with sampleapp(broker=broker, readings=False) as server:
                    figures[name][size] = _read(server, f"from={half_ms}", times=1)
    # A page of a key has as many records as there are, up to 500; the searches look at all.
    units: dict[str, Callable[[int], float]] = {
        "page of a key (1 in 61)": lambda size: min(500, size // 61),
        "search for a rare key": lambda size: size,
        _FROM_TIME: lambda size: size,
    }
    for name, found in figures.items():
        unit = units.get(name, lambda _: 1)
        _print(f"{name}, ms", found, {size: unit(size) for size in sizes})


def _read(server: Server, query: str, *, times: int = 20) -> float:
    """Read up to the first page with records or to the end; returns ms of CPU."""
    before_s = server.cpu_s()
    for _ in range(times):
        start, _, key = query.partition("&")
        while True:
            address = f"{server.url}topics/{Shape().prefix}-0/records?limit=500&{start}&{key}".rstrip("&")
            with urllib.request.urlopen(address) as response:
                response.read()
                if response.status == 200 or "Up-To-Date" in response.headers:
                    break
                start = f"from={response.headers['Position']}"
    return 1e3 * (server.cpu_s() - before_s) / times


PARTS = [*DIMENSIONS, "reading"]


def measure_growth(parts: Sequence[str] = (), *, scale: int, rounds: int) -> None:
    for name in parts or PARTS:
        if name == "reading":
            measure_reading(scale=scale, rounds=rounds)
        else:
            measure_publishing(name, scale=scale, rounds=rounds)


def main() -> None:
    if sys.argv[1:2] == ["--load"]:
        port, count = map(int, sys.argv[2:4])
        _load(port, count, Shape(*json.loads(sys.argv[4])))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these: {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="few requests: to see that it works")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    scale, rounds = (10, 1) if options.quick else (1, 3)
    measure_growth(options.parts, scale=scale, rounds=rounds)


if __name__ == "__main__":
    main()
