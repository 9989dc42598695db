"""
Two hours with everything on: does memory grow, does anything fail, is every answer true?

Callers with tokens and signatures publish single messages, batches, hooks and messages with
Idempotency-Key, and read everything back, in pages and in streams. Workers share the messages of a topic:
they accept, release and reject them, extend leases, and are too slow now and then. The service writes an
access log in JSON and gets another callers file each minute, its metrics are read each second, and now and
then a node of Kafka is killed or stopped in order, and started again. Messages come at a steady rate,
whether or not the ones before are answered: what a message waits is counted from the moment at which it was
due.

Each acknowledged record must be read at its place, with its content, once in pages and once in a stream; a
rejected one must not be there. Each message for workers must be done once, and be with one of them at a
time. From the end of a node until all replicas are in sync again, 503 and 504 are permitted, and for workers
also a lease that is lost; no other failure is. The exit status is 1 if any check failed.

    python benchmarks/long_run.py [--minutes 120] [--rate 1000] [--restart-minutes 10] [--broker kafka|sqlite]
    python benchmarks/long_run.py --quick       to see that it works
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import json
import os
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from clusters import three_nodes
from long_run_http import Loop
from long_run_ledger import Faults, Ledger, Readings
from long_run_traffic import (
    BATCH,
    HOOKS,
    Batches,
    Changes,
    Collection,
    Hooks,
    KeyedMessages,
    Messages,
    Pages,
    Scraper,
    Sender,
    Stream,
    Traffic,
    Values,
    Visitor,
)
from long_run_work import Tasks, add_workers
from servers import HERE, Server, free_port

RIGHTS = {
    "publisher": 'publish = ["messages", "tasks"]',
    "collector": 'publish = ["batches"]',
    "payer": 'publish = ["payments"]',
    "thermometer": 'publish = ["readings"]',
    "worker": 'work = ["tasks/*"]',
    "reader": 'read = true\nconsume = ["*"]',
}
TOPICS = ("messages", "batches", "payments", "hooks", "tasks")
SINGLE, BATCHED, HOOKED, WORKED = 0.6, 0.2, 0.1, 0.1
"""The shares of the records that are sent each second, beside those with Idempotency-Key."""
KEYED_PER_S = 5
WORKERS = 12
DOWN_S = 20
SETTLING_S = 15
"""So long 503 and 504 are permitted after all replicas are in sync again."""
CATCH_UP_S = 120
HANG_UP_S = 45
LOG, OBJECTS = "service.log", "objects"
RELOAD_S = 10
"""The service reads a callers file again within 5 s of a change."""


class Callers:
    """A callers file: those of the traffic, the hooks, and one caller that is another each time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.tokens = {name: self._new_token() for name in RIGHTS}
        self.secrets = {
            "github": secrets.token_hex(32),
            "standard": f"whsec_{base64.b64encode(secrets.token_bytes(24)).decode()}",
        }
        for name, secret in self.secrets.items():
            self._secret_file(name).touch(0o600)
            self._secret_file(name).write_text(secret)
        self.visitor = self._new_token()
        self.renew()

    def renew(self) -> None:
        self.visitor, self.visitor_before = self._new_token(), self.visitor
        new = self._path.with_suffix(".new")
        new.write_text(
            "".join(self._entry(name, self.tokens[name], rights) for name, rights in RIGHTS.items())
            + self._entry(f"visitor-{time.time_ns()}", self.visitor, 'publish = ["*"]')
            + "".join(self._hook(name) for name in HOOKS)
        )
        new.rename(self._path)

    def _new_token(self) -> str:
        return f"sampleapp_{secrets.token_urlsafe(32)}"

    def _secret_file(self, name: str) -> Path:
        return self._path.with_name(f"{name}.secret")

    def _entry(self, name: str, token: str, rights: str) -> str:
        digest = hashlib.sha256(token.encode()).hexdigest()
        return f'[callers.{name}]\n{rights}\n[[callers.{name}.tokens]]\nsha256 = "{digest}"\n'

    def _hook(self, name: str) -> str:
        files = f'secret_files = ["{self._secret_file(name)}"]'
        return f'[hooks.{name}]\ntopic = "hooks"\nscheme = "{name}"\n{files}\n'


class Restarts:
    """Ends one node of Kafka after the other, kills and orderly stops in turn, and starts each again."""

    def __init__(self, cluster: Any, loop: Loop, faults: Faults, *, interval_s: float) -> None:
        self.count = 0
        self._cluster = cluster
        self._loop = loop
        self._faults = faults
        self._settled_s: float | None = 0.0
        self._is_stopped = False
        loop.call_each(interval_s, self._take_down)

    def is_disturbed(self) -> bool:
        settled_s = self._settled_s
        return settled_s is None or time.perf_counter() < settled_s + SETTLING_S

    @property
    def is_idle(self) -> bool:
        return self._settled_s is not None

    def stop(self) -> None:
        """Begin no other one."""
        self._is_stopped = True

    def _take_down(self) -> None:
        if self._is_stopped:
            return
        if self._settled_s is None:
            print("       The node before is not back yet: the next one stays.", flush=True)
            return
        node = self._cluster.nodes[self.count % len(self._cluster.nodes)]
        is_kill = self.count % 2 == 0
        self.count += 1
        self._settled_s = None
        print(f"       node {node.number} is {'killed' if is_kill else 'stopped'}", flush=True)
        # To stop in order takes seconds.
        threading.Thread(target=node.kill9 if is_kill else node.stop, daemon=True).start()
        self._loop.call_later(DOWN_S, lambda: self._start(node))

    def _start(self, node: Any) -> None:
        if node.is_running:
            self._loop.call_later(1, lambda: self._start(node))
            return
        # On this thread: the node ends with the thread that has started it.
        node.start()
        threading.Thread(target=self._settle, args=[node.number, time.perf_counter()], daemon=True).start()

    def _settle(self, number: int, started_s: float) -> None:
        try:
            for topic in (*TOPICS, "readings"):
                self._cluster.admin.wait_until_in_sync(topic, len(self._cluster.nodes))
        except (AssertionError, KafkaException) as error:
            self._faults.add(f"After node {number} was started: {error!r}")
        self._settled_s = time.perf_counter()
        print(
            f"       node {number} is in sync {self._settled_s - started_s:.0f} s after it was started",
            flush=True,
        )


class Log:
    """The service's log, in which nothing may be that the service did not foresee."""

    def __init__(self, path: Path, faults: Faults) -> None:
        self.messages: Counter[str] = Counter()
        self._file = path.open(errors="backslashreplace")
        self._faults = faults
        self._part = ""

    def read(self) -> None:
        *lines, self._part = (self._part + self._file.read()).split("\n")
        for line in lines:
            if "Traceback" in line or "Unhandled" in line or '"level": "critical"' in line:
                self._faults.add(f"In the log of the service: {line}")
            with contextlib.suppress(ValueError, TypeError, KeyError):
                entry = json.loads(line)
                self.messages[f"{entry['level']}: {entry['event'][:110]}"] += 1


class Table:
    """A line each minute, and what the process has and how long answers took in each quarter of an hour."""

    QUARTER = 15

    def __init__(self, server: Server, traffic: Traffic, count_file: Path, *, minutes: float) -> None:
        self._server = server
        self._traffic = traffic
        self._count_file = count_file
        self._minutes = minutes
        self._minute = 0
        self._cpu_s = server.cpu_s()
        self._own_cpu_s = time.process_time()
        self._last_s = time.perf_counter()
        self._before: Counter[tuple[str, int]] = Counter()
        self._quarter: dict[str, list[float]] = {}
        self.quarters: list[str] = []
        print(
            f"{'minute':>6} {'single/s':>8} {'p50 ms':>7} {'p99 ms':>7} {'max ms':>7} {'CPU %':>6} "
            f"{'MiB':>6} {'load %':>6}  not 200"
        )
        self._count_objects()

    def add_line(self) -> None:
        self._minute += 1
        passed_s, self._last_s = time.perf_counter() - self._last_s, time.perf_counter()
        used_s, self._cpu_s = self._server.cpu_s() - self._cpu_s, self._server.cpu_s()
        own_s, self._own_cpu_s = time.process_time() - self._own_cpu_s, time.process_time()
        single = self._traffic.waited_s["single"]
        statuses = Counter(self._traffic.statuses)
        others = {
            f"{kind} {status}": count
            for (kind, status), count in (statuses - self._before).items()
            if status not in (200, 204, 401)
        }
        self._before = statuses
        print(
            f"{self._minute:6} {len(single) / passed_s:8.0f} {_latencies(single)} "
            f"{100 * used_s / passed_s:6.0f} {self._server.resident_mib():6.1f} "
            f"{100 * own_s / passed_s:6.0f}  {others or ''}",
            flush=True,
        )
        for kind, waited_s in self._traffic.waited_s.items():
            self._quarter.setdefault(kind, []).extend(waited_s)
        self._traffic.waited_s.clear()
        if self._minute % self.QUARTER == 0 or self._minute == self._minutes:
            self._count_objects()

    def _count_objects(self) -> None:
        self._count_file.unlink(missing_ok=True)
        self._server.process.send_signal(signal.SIGRTMIN)
        self._traffic.loop.call_later(1, self._end_quarter)

    def _end_quarter(self) -> None:
        process = self._server.process
        head = (
            f"minute {self._minute}: {self._server.resident_mib():.1f} MiB, {process.num_fds()} descriptors, "
            f"{self._count_file.read_text() if self._count_file.exists() else '?'} objects, "
            f"load of the machine {os.getloadavg()[0]:.1f}; ms at p50, p99 and most:"
        )
        kinds = [f"    {kind:<12}{_latencies(waited_s)}" for kind, waited_s in sorted(self._quarter.items())]
        self._quarter.clear()
        self.quarters.append("\n".join([head, *kinds]))
        print(self.quarters[-1], flush=True)


def _latencies(waited_s: list[float]) -> str:
    ordered = sorted(waited_s) or [0]
    p50, p99, most = (
        1000 * ordered[min(int(len(ordered) * share), len(ordered) - 1)] for share in (0.5, 0.99, 1)
    )
    return f"{p50:7.1f} {p99:7.1f} {most:7.0f}"


@contextlib.contextmanager
def broker(kind: str, directory: str) -> Iterator[tuple[str, Any]]:
    """The URL of the broker, and the cluster, if it is one."""
    if kind == "sqlite":
        yield f"sqlite:{directory}/records.sqlite3", None
        return
    with three_nodes() as cluster:
        cluster.admin.create("readings", partitions=1)
        for topic in TOPICS:
            cluster.admin.create(topic, partitions=6)
        yield f"kafka://{cluster.bootstrap}", cluster


def run(
    server: Server,
    callers: Callers,
    cluster: Any,
    *,
    admin_port: int,
    directory: Path,
    options: argparse.Namespace,
) -> Faults:
    faults = Faults()
    traffic = Traffic(port=server.port, admin_port=admin_port, tokens=callers.tokens, faults=faults)
    loop = traffic.loop
    service_log = Log(directory / LOG, faults)
    ledgers = {topic: Ledger(topic, faults, has_keys=topic != "hooks") for topic in TOPICS}
    readings = Readings(faults)
    table = Table(server, traffic, directory / OBJECTS, minutes=options.minutes)
    keyed = KeyedMessages(traffic, ledgers["payments"], run=secrets.token_hex(8))
    rate = options.rate
    keyed_sender = Sender(traffic, keyed, per_s=KEYED_PER_S, connections=8)
    senders = [
        Sender(traffic, Messages(traffic, ledgers["messages"]), per_s=SINGLE * rate, connections=64),
        Sender(traffic, Batches(traffic, ledgers["batches"]), per_s=BATCHED * rate / BATCH, connections=8),
        Sender(
            traffic, Hooks(traffic, ledgers["hooks"], callers.secrets), per_s=HOOKED * rate, connections=16
        ),
        Sender(traffic, Messages(traffic, ledgers["tasks"]), per_s=WORKED * rate, connections=16),
        keyed_sender,
        Sender(traffic, Values(traffic, readings), per_s=2, connections=1),
        Sender(traffic, Collection(traffic, readings), per_s=2, connections=2),
    ]
    pages = [Pages(traffic, ledger) for ledger in ledgers.values()]
    streams = [Stream(traffic, ledger) for ledger in ledgers.values()]
    changes = Changes(traffic, readings)
    tasks = Tasks(traffic, ledgers["tasks"], per_s=WORKED * rate)
    add_workers(tasks, WORKERS)
    # The others stay until the service ends them.
    loop.call_each(HANG_UP_S, streams[0].stream.hang_up)
    visitor = Visitor(traffic)
    Scraper(traffic)
    restarts = None
    if cluster is not None:
        restarts = Restarts(cluster, loop, faults, interval_s=60 * options.restart_minutes)
        traffic.is_disturbed = restarts.is_disturbed

    def each_minute() -> None:
        if server.popen.poll() is not None:
            log = (directory / LOG).read_text()[-5000:]
            raise SystemExit(f"The service ended with {server.popen.returncode}:\n{log}")
        table.add_line()
        callers.renew()
        loop.call_later(RELOAD_S, lambda: visitor.visit(callers.visitor, callers.visitor_before))
        service_log.read()
        readings.sweep()
        for ledger in ledgers.values():
            ledger.sweep()

    loop.call_each(60, each_minute)
    with contextlib.suppress(KeyboardInterrupt):
        _run_for(loop, 60 * options.minutes + 0.5)
    if restarts is not None:
        restarts.stop()
    for sender in senders:
        if sender is not keyed_sender:
            sender.stop()
    # Until all requests that failed with a key have been sent again, one record or none is right for them.
    _run_for(loop, CATCH_UP_S, until=lambda: keyed.is_published and (restarts is None or restarts.is_idle))
    keyed_sender.stop()
    _run_for(
        loop,
        CATCH_UP_S,
        until=lambda: (
            all(sender.is_idle for sender in senders)
            and not any(ledger.open for ledger in ledgers.values())
            and tasks.are_done
        ),
    )
    service_log.read()
    _check_end(ledgers.values(), tasks, faults)
    totals = {
        "Streams opened": sum(each.stream.opened for each in [*streams, changes]),
        "Records verified in pages": sum(each.records.count for each in pages),
        "Records verified in streams": sum(each.records.count for each in streams),
        "Answers replayed for an Idempotency-Key": keyed.replayed,
        **tasks.totals(),
        "Nodes ended and started again": restarts.count if restarts else 0,
        "Faults": faults.count,
    }
    _show(table, traffic, ledgers, service_log, totals)
    return faults


def _check_end(ledgers: Iterable[Ledger], tasks: Tasks, faults: Faults) -> None:
    for ledger in ledgers:
        if ledger.open:
            faults.add(f"{ledger.topic}: {ledger.open} records are incomplete at the end.")
    if not tasks.are_done:
        faults.add(f"The tasks are not done at the end: {tasks.totals()}")


def _run_for(loop: Loop, seconds: float, *, until: Callable[[], bool] = lambda: False) -> None:
    end_s = time.perf_counter() + seconds
    loop.run_while(lambda: time.perf_counter() < end_s and not until())


def _show(
    table: Table, traffic: Traffic, ledgers: dict[str, Ledger], log: Log, totals: dict[str, int | None]
) -> None:
    print("\n" + "\n".join(table.quarters))
    print("Answers:")
    for (kind, status), count in sorted(traffic.statuses.items()):
        print(f"    {kind:<27} {status:>3} {count:>10,}")
    print("Records:")
    for topic, ledger in ledgers.items():
        found = ", ".join(f"{count:,} {name}" for name, count in ledger.counts().items())
        print(f"    {topic:<10} {ledger.count:,} sent, {found}")
    print("Log of the service:")
    for message, count in log.messages.most_common(20):
        print(f"    {count:>7,} {message}")
    for name, total in totals.items():
        print(f"{name}: {total:,}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--rate", type=float, default=1000, help="records a second (default: %(default)s)")
    parser.add_argument("--restart-minutes", type=float, default=10, help="between two ends of a node")
    parser.add_argument("--broker", choices=["kafka", "sqlite"], default="kafka")
    parser.add_argument("--quick", action="store_true", help="a minute, at 100 a second")
    options = parser.parse_args()
    if options.quick:
        options.minutes, options.rate, options.restart_minutes = 1, 100, 0.3
    with tempfile.TemporaryDirectory() as directory, broker(options.broker, directory) as (url, cluster):
        callers = Callers(Path(directory) / "callers.toml")
        port, admin = free_port(), free_port()
        listen = [f"tcp:{port}:interface=127.0.0.1", "--admin", f"tcp:{admin}:interface=127.0.0.1"]
        command = [
            sys.executable,
            str(HERE / "object_probe.py"),
            f"{directory}/{OBJECTS}",
            "--broker",
            url,
            "--listen",
            *listen,
        ]
        command += ["--callers", f"{directory}/callers.toml", "--log-format", "json"]
        command += ["--access-log", f"{directory}/access.log", "--access-log-format", "json"]
        if cluster is not None:
            command += ["--idempotent-topic", "payments"]
        made = Path(directory)
        server = Server(command, port=port, path="ready", directory=directory, log=made / LOG)
        try:
            faults = run(server, callers, cluster, admin_port=admin, directory=made, options=options)
            print(f"Access log: {(made / 'access.log').stat().st_size / 2**20:.0f} MiB")
        finally:
            server.stop()
    if faults.count:
        sys.exit(1)


if __name__ == "__main__":
    main()
