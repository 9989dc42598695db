"""
Half an hour with everything switched on: does memory grow, does anything fail, does anybody wait?

The service asks each caller for its token, writes an access log in JSON, and gets another callers
file each minute. Its metrics are read each second. Messages come at a steady rate, whether or not the
ones before are answered: what a message waits is counted from the moment at which it was due.

    python benchmarks/long_run.py [--minutes 30] [--rate 5000] [--broker mock|kafka|sqlite]
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import secrets
import selectors
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from clusters import TOPIC, mock_cluster, one_node
from load import LENGTH, Connection
from servers import Server, free_port

CONNECTIONS = 32
KEYS = 100


class Sender(Connection):
    """A connection that sends its messages when they are due."""

    def __init__(self, port: int, request: bytes, *, due_s: float, interval_s: float) -> None:
        super().__init__(port, request, {})
        self.due_s = due_s
        self.is_waiting = False
        self._answer = b""
        self._interval_s = interval_s

    def send_if_due(self, now_s: float) -> None:
        if not self.is_waiting and now_s >= self.due_s:
            self.is_waiting = True
            self.socket.sendall(self.request)

    def answer(self) -> tuple[bytes, float] | None:
        """Take what has come; the status and how long the message has waited, when its answer is whole."""
        data = self.socket.recv(65536)
        if not data:
            raise SystemExit("The service closed a connection.")
        self._answer += data
        head, separator, body = self._answer.partition(b"\r\n\r\n")
        length = LENGTH.search(head + b"\r\n")
        if not separator or length is None or len(body) < int(length[1]):
            return None
        waited_s = time.perf_counter() - self.due_s
        self._answer = b""
        self.is_waiting = False
        self.due_s += self._interval_s
        return head[9:12], waited_s


def request(token: str, n: int) -> bytes:
    message = b'{"topic":"%b","key":"key-%d","content":"%b"}' % (TOPIC.encode(), n % KEYS, b"x" * 90)
    return (
        b"POST /messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b" % (token.encode(), len(message), message)
    )


class Callers:
    """A callers file: one that publishes, and one that is another each time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.token = self._new_token()
        self.renew()

    def renew(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(
            self._entry("publisher", self.token) + self._entry(f"visitor-{time.time_ns()}", self._new_token())
        )
        new.rename(self._path)

    def _new_token(self) -> str:
        return f"sampleapp_{secrets.token_urlsafe(32)}"

    def _entry(self, name: str, token: str) -> str:
        digest = hashlib.sha256(token.encode()).hexdigest()
        return f'[callers.{name}]\npublish = ["*"]\n[[callers.{name}.tokens]]\nsha256 = "{digest}"\n'


@contextlib.contextmanager
def scraped(url: str) -> Iterator[Counter[str]]:
    """Looks at the metrics each second, and counts how that went."""
    stopping = threading.Event()
    outcomes: Counter[str] = Counter()

    def scrape() -> None:
        while not stopping.wait(1):
            outcomes[_read(url)] += 1

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    yield outcomes
    stopping.set()
    thread.join()


def _read(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            answer.read()
    except OSError as error:
        return str(error)
    return "ok"


@contextlib.contextmanager
def broker_url(kind: str, directory: str) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:{directory}/records.sqlite3"
        return
    with mock_cluster() if kind == "mock" else one_node() as cluster:
        yield f"kafka://{cluster.bootstrap}"


def publish(server: Server, callers: Callers, *, rate: int, minutes: float) -> None:
    interval_s = CONNECTIONS / rate
    began_s = time.perf_counter()
    selector = selectors.DefaultSelector()
    senders = [
        Sender(server.port, request(callers.token, n), due_s=began_s + n / rate, interval_s=interval_s)
        for n in range(CONNECTIONS)
    ]
    for sender in senders:
        selector.register(sender.socket, selectors.EVENT_READ, sender)
    statuses: Counter[str] = Counter()
    waited_s: list[float] = []
    minute, cpu_s = 0, server.cpu_s()
    print(
        f"{'minute':>6} {'messages/s':>10} {'p50 ms':>7} {'p99 ms':>7} {'max ms':>7} {'CPU %':>6} {'MiB':>6}"
    )
    while minute < minutes:
        now_s = time.perf_counter()
        for sender in senders:
            sender.send_if_due(now_s)
        for key, _ in selector.select(0.001):
            answered = key.data.answer()
            if answered is not None:
                statuses[answered[0].decode()] += 1
                waited_s.append(answered[1])
        if now_s - began_s >= 60 * (minute + 1):
            minute += 1
            callers.renew()
            used_s, cpu_s = server.cpu_s() - cpu_s, server.cpu_s()
            waited_s.sort()
            p50, p99 = (1000 * waited_s[int(len(waited_s) * share)] for share in (0.5, 0.99))
            print(
                f"{minute:6} {len(waited_s) / 60:10.0f} {p50:7.1f} {p99:7.1f} {1000 * waited_s[-1]:7.0f} "
                f"{100 * used_s / 60:6.0f} {server.resident_mib():6.1f}",
                flush=True,
            )
            waited_s.clear()
    print(f"Statuses: {dict(statuses)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--rate", type=int, default=5000, help="messages a second")
    parser.add_argument("--broker", choices=["mock", "kafka", "sqlite"], default="kafka")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, broker_url(options.broker, directory) as broker:
        callers = Callers(Path(directory) / "callers.toml")
        port, admin = free_port(), free_port()
        command = [str(Path(sys.executable).with_name("sampleapp")), "serve", "--broker", broker]
        command += [
            "--listen",
            f"tcp:{port}:interface=127.0.0.1",
            "--admin",
            f"tcp:{admin}:interface=127.0.0.1",
        ]
        command += ["--callers", f"{directory}/callers.toml", "--log-format", "json"]
        command += ["--access-log", f"{directory}/access.log", "--access-log-format", "json"]
        server = Server(command, port=port, path="live", directory=directory)
        try:
            with scraped(f"http://127.0.0.1:{admin}/metrics") as scrapes:
                publish(server, callers, rate=options.rate, minutes=options.minutes)
            print(f"Scrapes: {dict(scrapes)}")
            print(f"Access log: {(Path(directory) / 'access.log').stat().st_size / 2**20:.0f} MiB")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
