"""
Measure what sampleapp costs, on this machine, now.

Everything runs on loopback, with the records in a temporary directory: on a real disk, if what is said
of syncs is to mean anything (TMPDIR chooses another). Figures of different runs, or different machines,
cannot be compared; the ratios within a run can. CPU time is that of the service's process alone. The load
comes from one process, which is what bounds the requests a second of the cheapest answers.

    make bench                          everything, about three minutes
    python benchmarks/run.py --quick    to see that it works
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil

from readings import READINGS

HERE = Path(__file__).parent
DEADLINE_S = 60


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """A process that serves HTTP on a port of its own."""

    def __init__(self, command: list[str], *, port: int, directory: str) -> None:
        self.port = port
        self.began_s = time.perf_counter()
        self.popen = subprocess.Popen(
            command, cwd=directory, stdout=subprocess.DEVNULL, start_new_session=True
        )
        self.first_answer_s = self._wait_for_answer() - self.began_s
        self.process = self._serving_process()

    def _wait_for_answer(self) -> float:
        while time.perf_counter() - self.began_s < DEADLINE_S:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/"):
                return time.perf_counter()
            if self.popen.poll() is not None:
                raise SystemExit(f"The server ended with status {self.popen.returncode}.")
            time.sleep(0.005)
        raise SystemExit("The server does not answer.")

    def _serving_process(self) -> psutil.Process:
        process = psutil.Process(self.popen.pid)
        # Under strace the server is the child.
        return (process.children() or [process])[0]

    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system

    def resident_mib(self) -> float:
        return self.process.memory_info().rss / 2**20

    def load(self, kind: str, *, connections: int, requests: int) -> dict[str, float]:
        """Make requests; returns rates, latencies, and µs of CPU a request."""
        before_s = self.cpu_s()
        done = subprocess.run(
            [sys.executable, HERE / "load.py", str(self.port), str(connections), str(requests), kind],
            check=True,
            stdout=subprocess.PIPE,
        )
        figures = json.loads(done.stdout)
        return {**figures, "cpu_us": 1e6 * (self.cpu_s() - before_s) / requests}

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.popen.wait(DEADLINE_S)


@contextlib.contextmanager
def sampleapp(*, broker: str | None = None, prefix: list[str] | None = None) -> Iterator[Server]:
    """The service as an operator starts it, with a hundred readings."""
    with tempfile.TemporaryDirectory() as directory:
        port = free_port()
        twistd = [str(Path(sys.executable).with_name("twistd")), "-n", "--pidfile=", "sampleapp"]
        options = ["--listen", f"tcp:{port}:interface=127.0.0.1"] + (["--broker", broker] if broker else [])
        server = Server([*(prefix or []), *twistd, *options], port=port, directory=directory)
        try:
            for key, value in READINGS.items():
                publish(port, key, value)
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def stock_klein() -> Iterator[Server]:
    port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, str(HERE / "stock_klein.py"), str(port)]
        server = Server(command, port=port, directory=directory)
        try:
            yield server
        finally:
            server.stop()


def publish(port: int, key: str, value: float) -> None:
    body = json.dumps({"topic": "readings", "key": key, "content": str(value)}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/messages", body, {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request).close()


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def line(name: str, figures: dict[str, float]) -> None:
    print(
        f"{name:42}{figures['cpu_us']:9.1f}{figures['requests_per_s']:12.0f}"
        f"{figures['p50_ms']:9.2f}{figures['p99_ms']:9.2f}",
        flush=True,
    )


def heading(title: str) -> None:
    print(f"\n{title:42}{'µs CPU':>9}{'requests/s':>12}{'p50 ms':>9}{'p99 ms':>9}")


def compare_get(*, rounds: int, requests: int) -> None:
    heading("GET /, 100 readings, 64 connections")
    ours, theirs = [], []
    with sampleapp() as service, stock_klein() as klein:
        for server in (service, klein):
            server.load("get", connections=64, requests=requests // 4)
        for _ in range(rounds):
            ours.append(service.load("get", connections=64, requests=requests))
            theirs.append(klein.load("get", connections=64, requests=requests))
        one = medians([service.load("get", connections=1, requests=requests // 4) for _ in range(rounds)])
    line("sampleapp", medians(ours))
    line("stock Klein", medians(theirs))
    line("sampleapp, 1 connection", one)
    ratio = medians(ours)["cpu_us"] / medians(theirs)["cpu_us"]
    print(f"sampleapp / stock Klein, CPU: {ratio:.2f} (the aim: at most 0.54, which is 60 / 112)")


def measure_post(*, rounds: int, requests: int) -> None:
    heading("POST /messages, about 100 bytes")
    with contextlib.ExitStack() as servers:
        services = {
            name: servers.enter_context(sampleapp(broker=broker))
            for name, broker in (("sqlite", "sqlite:records.sqlite3"), ("memory", "memory:"))
        }
        klein = servers.enter_context(stock_klein())
        figures: dict[str, list[dict[str, float]]] = {}
        # In turns, so that a machine that becomes slower meanwhile does so for all of them.
        for _ in range(rounds + 1):
            for name, service in services.items():
                for connections, share in ((1, 8), (64, 1)):
                    figures.setdefault(f"{name}, {connections} connection(s)", []).append(
                        service.load("post", connections=connections, requests=requests // share)
                    )
            figures.setdefault("for comparison: GET of stock Klein, 64", []).append(
                klein.load("get", connections=64, requests=requests)
            )
    # The first of each was to warm up.
    results = {name: medians(each[1:]) for name, each in figures.items()}
    for name, each in results.items():
        line(name, each)
    yardstick = results["for comparison: GET of stock Klein, 64"]["cpu_us"]
    for name in services:
        ratio = results[f"{name}, 64 connection(s)"]["cpu_us"] / yardstick
        print(f"POST on {name} / GET of stock Klein, CPU: {ratio:.2f}")


def count_fsyncs(*, requests: int) -> None:
    print("\nfsyncs a message, sqlite, 64 connections")
    strace = shutil.which("strace")
    if strace is None:
        print("not measured: it takes strace (Debian: apt-get install strace)")
        return
    with tempfile.NamedTemporaryFile() as summary:
        prefix = [strace, "-f", "-c", "-e", "trace=fsync,fdatasync", "-o", summary.name]
        with sampleapp(prefix=prefix) as service:
            service.load("post", connections=64, requests=requests)
        rows = [row.split() for row in Path(summary.name).read_text().splitlines()]
    calls = sum(int(row[3]) for row in rows if row and row[-1] in ("fsync", "fdatasync"))
    # Each of the readings was published alone: one fsync each.
    calls -= len(READINGS)
    print(f"{calls} fsyncs for {requests} messages: {requests / calls:.1f} messages a fsync (the floor: 10)")


def measure_process(*, messages: int, starts: int) -> None:
    print("\nThe process")
    firsts = []
    for _ in range(starts):
        with sampleapp() as service:
            firsts.append(service.first_answer_s)
    print(f"from start to first answer: {1000 * statistics.median(firsts):.0f} ms")
    with sampleapp() as service:
        print(f"resident, idle with 100 readings: {service.resident_mib():.1f} MiB")
        service.load("post", connections=64, requests=messages)
        print(f"resident, after {messages} messages: {service.resident_mib():.1f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few requests: to see that it works")
    scale = 10 if parser.parse_args().quick else 1
    rounds = 5 if scale == 1 else 1
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    compare_get(rounds=rounds, requests=20_000 // scale)
    measure_post(rounds=rounds, requests=20_000 // scale)
    count_fsyncs(requests=20_000 // scale)
    measure_process(messages=100_000 // scale, starts=rounds)


if __name__ == "__main__":
    main()
