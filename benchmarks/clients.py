"""
What clients can cost the service: slow ones, idle ones, many at once, and more than the broker takes.

While they do, another client makes ordinary requests, each on a connection of its own, and what is said of
"others" is how long those took. Nothing is sent but to a service on loopback that this starts and ends.

    python benchmarks/clients.py                 everything, about five minutes
    python benchmarks/clients.py idle overload   some of it
"""

from __future__ import annotations

import argparse
import errno
import json
import math
import multiprocessing
import resource
import selectors
import socket
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

from clusters import TOPIC, mock_cluster
from servers import Server, sampleapp

__all__ = ["PARTS"]

HOST = "127.0.0.1"
HEAD = b"POST /messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GET_V2 = b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: application/vnd.sampleApp.v2+json\r\n\r\n"
READINGS = 50_000
DEADLINE_S = 120.0


def message(size: int = 60) -> bytes:
    start, end = b'{"topic":"%b","content":"' % TOPIC.encode(), b'"}'
    return start + b"x" * (size - len(start) - len(end)) + end


def post(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


class Others:
    """An ordinary client, in a process of its own, which opens a connection for each of its requests."""

    def __init__(self, port: int) -> None:
        self._ours, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.Process(target=make_requests, args=(port, theirs), daemon=True)
        self._found: dict[str, list[float]] = {}

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.send(None)
        self._found = self._ours.recv()
        self._process.join()

    def __str__(self) -> str:
        found = (f"{len(each)} x {name}: {milliseconds(each)}" for name, each in sorted(self._found.items()))
        return "others: " + "; ".join(found)


def make_requests(port: int, end: Connection) -> None:
    """Make one after the other, until told to stop, and tell then how long they took."""
    requests = {
        "OPTIONS": b"OPTIONS / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        "POST": post(message()),
    }
    found: dict[str, list[float]] = {}
    while not end.poll(0.02):
        for method, request in requests.items():
            began_s = time.perf_counter()
            try:
                with socket.create_connection((HOST, port), timeout=DEADLINE_S) as client:
                    client.sendall(request)
                    status = client.recv(65536)[9:12].decode()
            except OSError as error:
                status = errno.errorcode.get(error.errno or 0, "timeout")
            found.setdefault(f"{method} {status}", []).append(time.perf_counter() - began_s)
    end.recv()
    end.send(found)


def milliseconds(took_s: Sequence[float]) -> str:
    ordered = sorted(took_s)
    p99 = ordered[min(len(ordered) - 1, math.ceil(0.99 * len(ordered)))]
    return f"p50 {1e3 * statistics.median(ordered):.1f} ms, p99 {1e3 * p99:.1f}, max {1e3 * ordered[-1]:.1f}"


class Measured:
    """What a service has used since the measurement began."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.began_s = time.perf_counter()
        self.cpu_s = server.cpu_s()
        self.resident_mib = server.resident_mib()
        self.kernel_mib = kernel_mib()

    def __str__(self) -> str:
        took_s = time.perf_counter() - self.began_s
        cpu_s = self.server.cpu_s() - self.cpu_s
        return (
            f"{took_s:.1f} s, CPU {cpu_s:.2f} s, resident {self.resident_mib:.0f} -> "
            f"{self.server.resident_mib():.0f} MiB (at most {peak_mib(self.server):.0f} so far), "
            f"TCP buffers {self.kernel_mib:.0f} -> {kernel_mib():.0f} MiB"
        )


def peak_mib(server: Server) -> float:
    for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return math.nan


def kernel_mib() -> float:
    """What all TCP sockets of the machine hold in buffers."""
    words = Path("/proc/net/sockstat").read_text().split()
    return int(words[words.index("mem") + 1]) * resource.getpagesize() / 2**20


def raise_own_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def opened(port: int, count: int, *, receive_buffer: int | None = None) -> Iterator[list[socket.socket]]:
    """Connections, all of them there."""
    raise_own_limit()
    with ExitStack() as stack:
        clients = []
        for _ in range(count):
            client = stack.enter_context(closing(socket.socket()))
            if receive_buffer is not None:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            client.connect((HOST, port))
            client.settimeout(0)
            clients.append(client)
        yield clients


def slow(kind: str, server: Server, *, count: int, rest_s: float = 1.0) -> None:
    """Let clients be as slow as they are allowed to be, and slower, until all of them are closed."""
    first, more, reads = {
        "slow header": (b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"X-A: b\r\n", False),
        "slow body": (HEAD + b"Content-Length: 1000000\r\n\r\n", b"x" * 100, False),
        "slow reader": (GET_V2, b"", True),
        "stuck reader": (GET_V2, b"", False),
        "idle": (b"", b"", False),
    }[kind]
    ended: Counter[str] = Counter()
    measured = Measured(server)
    with (
        Others(server.port) as others,
        opened(server.port, count, receive_buffer=4096 if "reader" in kind else None) as clients,
    ):
        for client in clients:
            client.send(first)
        left = set(clients)
        closed_s: list[float] = []
        while left and time.perf_counter() - measured.began_s < DEADLINE_S:
            time.sleep(rest_s)
            for client in list(left):
                how = _go_on(client, more, is_reading=reads, is_looking="reader" not in kind)
                if how is not None:
                    left.remove(client)
                    ended[how] += 1
                    closed_s.append(time.perf_counter() - measured.began_s)
            if "reader" in kind and measured.began_s + 45 < time.perf_counter():
                break
        still = sum(_is_open(client) for client in left) if "reader" in kind else len(left)
        if "reader" in kind:
            ended["cut"] += len(left) - still
        used = str(measured)
    when = f", closed after {min(closed_s):.0f} to {max(closed_s):.0f} s" if closed_s else ""
    print(f"{count} x {kind}: {dict(ended)}, still open {still}{when}\n    {others}\n    {used}")


def _go_on(client: socket.socket, more: bytes, *, is_reading: bool, is_looking: bool) -> str | None:
    """Send or read a little; how it ended, if it has."""
    try:
        if more:
            client.send(more)
        if is_reading or is_looking:
            data = client.recv(2048)
            if not is_reading:
                return data[9:12].decode() or "closed"
            if not data:
                return "closed"
    except BlockingIOError:
        pass
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return None


def _is_open(client: socket.socket) -> bool:
    return client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0


def slow_clients() -> None:
    with sampleapp(broker="memory:") as server, with_many_readings(server):
        for kind in ("slow header", "slow body", "stuck reader", "slow reader", "idle"):
            slow(kind, server, count=1000)


@contextmanager
def with_many_readings(server: Server) -> Iterator[None]:
    """Make `GET /` large."""
    with closing(socket.create_connection((HOST, server.port))) as client:
        reader = client.makefile("rb")
        for first in range(0, READINGS, 500):
            client.sendall(
                b"".join(
                    post(b'{"topic":"readings","key":"sensor-%d","content":"%d.5"}' % (n, n))
                    for n in range(first, first + 500)
                )
            )
            for _ in range(500):
                _read_answer(reader)
    yield


def _read_answer(reader: object) -> tuple[int, bytes]:
    line = reader.readline()  # type: ignore[attr-defined]
    length = 0
    while (field := reader.readline()) != b"\r\n":  # type: ignore[attr-defined]
        if field.lower().startswith(b"content-length:"):
            length = int(field[15:])
    return int(line[9:12]), reader.read(length)  # type: ignore[attr-defined]


def idle() -> None:
    count = 10_000
    with sampleapp(broker="memory:") as server:
        began = Measured(server)
        with Others(server.port) as others, opened(server.port, count) as clients:
            time.sleep(1)
            new_mib = server.resident_mib()
            for client in clients:
                client.send(b"OPTIONS / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            time.sleep(3)
            used_mib = server.resident_mib()
            cpu_s = server.cpu_s()
            time.sleep(5)
            rest = (server.cpu_s() - cpu_s) / 5
            used = str(began)
        for name, mib in (("new", new_mib), ("after a request each", used_mib)):
            kib = 1024 * (mib - began.resident_mib) / count
            print(f"{count} idle connections, {name}: {kib:.2f} KiB")
        print(f"    CPU at rest: {100 * rest:.1f} % of a core (with the others)\n    {others}\n    {used}")


def burst() -> None:
    raise_own_limit()
    count = 1000
    with sampleapp(broker="memory:") as server:
        for attempt in range(3):
            took_s: list[float] = []
            with selectors.DefaultSelector() as selector, ExitStack() as stack:
                began_s = time.perf_counter()
                for _ in range(count):
                    client = stack.enter_context(closing(socket.socket()))
                    client.settimeout(0)
                    with suppress(BlockingIOError):
                        client.connect((HOST, server.port))
                    selector.register(client, selectors.EVENT_WRITE)
                while len(took_s) < count:
                    for key, events in selector.select():
                        client = key.fileobj  # type: ignore[assignment]
                        if events & selectors.EVENT_WRITE:
                            client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                            selector.modify(client, selectors.EVENT_READ)
                        elif client.recv(65536)[9:12] == b"200":
                            took_s.append(time.perf_counter() - began_s)
                            selector.unregister(client)
                        else:
                            raise SystemExit("A connection was not answered with 200.")
            print(f"{count} connections opened at once, run {attempt + 1}: {milliseconds(took_s)}")


def uploads() -> None:
    count, body = 200, message(2**20)
    request = post(body)
    for broker, runs in (("memory:", 1), (None, 3)):
        with sampleapp(broker=broker) as server:
            for attempt in range(runs):
                measured = Measured(server)
                statuses: Counter[int] = Counter()
                with Others(server.port) as others, opened(server.port, count) as clients:
                    left = {client: memoryview(request)[:-1] for client in clients}
                    while left:
                        for client, data in list(left.items()):
                            with suppress(BlockingIOError):
                                left[client] = data[client.send(data) :]
                            if not left[client]:
                                del left[client]
                    for client in clients:
                        client.settimeout(None)
                        client.send(request[-1:])
                    for client in clients:
                        statuses[_read_answer(client.makefile("rb"))[0]] += 1
                print(f"{count} x 1 MiB on {broker or 'sqlite'}, run {attempt + 1}: {dict(statuses)}")
                print(f"    {others}\n    {measured}")


def overload() -> None:
    with mock_cluster() as mock:
        mock.set_round_trip(1000)
        # A partition has one request under way: so much in a second, whatever comes.
        broker = f"kafka://{mock.bootstrap}"
        with sampleapp(broker=f"{broker}?buffer_bytes=1048576", readings=False) as server:
            _overload(server, "Kafka that is slow, and buffer_bytes of 1 MiB", size=10_000)
        with sampleapp(broker=broker, readings=False, options=["--max-waiting", "100"]) as server:
            _overload(server, "Kafka that is slow, and --max-waiting 100", size=10_000)


def _overload(server: Server, name: str, *, size: int, rate: int = 1_000, seconds: int = 15) -> None:
    """Make requests at a rate, whatever becomes of those before."""
    measured = Measured(server)
    request = post(message(size))
    took_s: dict[int, list[float]] = {}
    places: list[tuple[int, int]] = []
    free: list[socket.socket] = []
    sent_s: dict[socket.socket, float] = {}
    received: dict[socket.socket, bytes] = {}
    skipped = 0
    with selectors.DefaultSelector() as selector, opened(server.port, 600) as clients:
        free.extend(clients)
        for client in clients:
            selector.register(client, selectors.EVENT_READ)
        began_s = time.perf_counter()
        due = 0
        while due < rate * seconds or sent_s:
            now_s = time.perf_counter()
            while due < min(rate * seconds, (now_s - began_s) * rate):
                due += 1
                if not free:
                    skipped += 1
                    continue
                client = free.pop()
                sent_s[client] = time.perf_counter()
                client.send(request)
            for key, _ in selector.select(0.001):
                client = key.fileobj  # type: ignore[assignment]
                received[client] = received.get(client, b"") + client.recv(65536)
                head, found, body = received[client].partition(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]) if found else 1
                if len(body) < length:
                    continue
                status = int(head[9:12])
                took_s.setdefault(status, []).append(time.perf_counter() - sent_s.pop(client))
                if status == 200:
                    answer = json.loads(body)
                    places.append((answer["partition"], answer["offset"]))
                del received[client]
                free.append(client)
    if len(set(places)) != len(places):
        raise SystemExit("Two messages were answered with the same place.")
    print(f"{name}: {rate}/s of {size} bytes for {seconds} s, {skipped} not sent for want of a connection")
    for status, each in sorted(took_s.items()):
        print(f"    {status}: {len(each)}, {milliseconds(each)}")
    print(f"    {measured}")


def descriptors() -> None:
    """Let the process have 100 files open, and open more connections than that."""
    raise_own_limit()
    with tempfile.NamedTemporaryFile("r") as log:
        twistd_log = ["--logfile", log.name]
        with sampleapp(prefix=["prlimit", "--nofile=100:100"], twistd=twistd_log) as server:
            measured = Measured(server)
            with opened(server.port, 1) as first, ExitStack() as stack:
                for _ in range(500):
                    client = stack.enter_context(closing(socket.socket()))
                    client.connect((HOST, server.port))
                time.sleep(5)
                first[0].settimeout(None)
                first[0].sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                status, _ = _read_answer(first[0].makefile("rb"))
                print(f"100 descriptors, 501 connections: one that was there before gets {status}")
                print(f"    {measured}")
            began_s = time.perf_counter()
            while True:
                with suppress(OSError), urllib.request.urlopen(server.url):
                    break
            print(f"    answered again {1e3 * (time.perf_counter() - began_s):.0f} ms after they were closed")
        lines = [line.partition("] ")[2] for line in log.read().splitlines()]
        print("    " + "\n    ".join(line for line in lines if "onnection" in line or "EMFILE" in line))


PARTS: dict[str, Callable[[], None]] = {
    "burst": burst,
    "descriptors": descriptors,
    "idle": idle,
    "uploads": uploads,
    "overload": overload,
    "slow": slow_clients,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these: {', '.join(PARTS)}")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    print(f"Python {sys.version.split()[0]}, somaxconn {socket.SOMAXCONN}")
    for name, measure in PARTS.items():
        if not options.parts or name in options.parts:
            measure()


if __name__ == "__main__":
    main()
