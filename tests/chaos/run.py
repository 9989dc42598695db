"""
Two gateways on three Kafka nodes, clients that publish, read and work, and faults that a seed draws.

    make chaos
    make chaos CHAOS='--minutes 30 --seed 7 --kafka 3.9.2'

At the end all faults are healed, every reader gets the rest, and a checker compares all responses with the
topics, which librdkafka reads. It ends with status 1 if a promise was broken, says which, and keeps the logs
of the nodes and of the gateways.
"""

from __future__ import annotations

import argparse
import pickle
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from random import SystemRandom

import confluent_kafka

from tests.chaos.checker import check, check_reader, check_readings
from tests.chaos.clients import fetch
from tests.chaos.clock import set_ahead
from tests.chaos.logs import Logs
from tests.chaos.nemesis import CUT, KEYS, SHORT, Nemesis, create_topics
from tests.chaos.work_checker import check_work, count_work
from tests.chaos.workers import SETTINGS, WORK, Workers
from tests.chaos.workload import Workload
from tests.real_kafka.cluster import Cluster
from tests.real_kafka.distribution import VERSIONS, KafkaNotAvailable
from tests.real_kafka.dropping_proxy import DroppingProxy
from tests.real_kafka.listeners import PROXIED
from tests.real_kafka.service import kafka_url
from tests.real_kafka.versions import SHARE_GROUPS
from tests.real_kafka.world import ReturningService
from tests.support.waiting import wait_until

__all__ = ["Chaos", "main"]

_DELIVERY_TIMEOUT_S = 5
"""Of the gateways: less than their clients wait."""
_MOST = {"MB of memory": 300, "descriptors": 200}
_PROJECT = Path(__file__).parents[2]
_FAULTS_IN_LOGS = ("Traceback", "Unhandled", "#critical]")
_SHOWN = 20
_OUT_OF_SYNC = re.compile(r"coordinator __share_group_state-\d+ is out of sync with the underlying log")
_WORK_PARTITIONS = 4


class Chaos:
    """A run: all of its processes and clients, and its findings."""

    def __init__(
        self,
        *,
        version: str,
        seed: int,
        directory: Path,
        catch_up_s: float = 180.0,
        before: Callable[[str], str] = lambda url: url,
    ) -> None:
        """
        :param directory: for the logs and the data of all processes.
        :param catch_up_s: within which everything is answered and read when all faults are healed.
        :param before: puts something before a gateway, and returns its URL.
        """
        self.findings: list[str] = []
        self.counts: dict[str, Counter] = {}
        """How often there was what, by title."""
        self._version, self._seed, self._directory, self._before = version, seed, directory, before
        self._catch_up_s = catch_up_s
        self._most: Counter[str] = Counter()
        self._has_work = SHARE_GROUPS.is_in(version)
        self._workers: Workers | None = None

    def run(self, *, seconds: float) -> Sequence[str]:
        """Have faults for a time, heal them, and check; return a sentence for each broken promise."""
        with ExitStack() as ends:
            self._start(ends)
            self._suffer(seconds)
            self._finish()
        for each in self._gateways:
            bad = [line for line in each.output.splitlines() if any(word in line for word in _FAULTS_IN_LOGS)]
            self.findings += [f"{each.url} logged: {line}" for line in bad[:3]]
        for name, most in _MOST.items():
            if self._most[name] > most:
                self.findings.append(f"a gateway has {self._most[name]} {name}, more than {most}")
        return self.findings

    def _start(self, ends: ExitStack) -> None:
        self._cluster = ends.enter_context(
            Cluster(
                version=self._version,
                nodes=3,
                directory=self._directory / "kafka",
                listeners=[PROXIED],
                settings={
                    "log.retention.check.interval.ms": "2000",
                    **(SETTINGS if self._has_work else {}),
                },
            )
        )
        proxies = [
            DroppingProxy(
                port=each.ports["PROXIED-ADVERTISED"],
                target=each.ports["PROXIED"],
                seed=self._seed + each.number,
            )
            for each in self._cluster.nodes
        ]
        for each in proxies:
            ends.callback(each.close)
        self._logs = Logs(self._cluster.bootstrap)
        create_topics(self._cluster, self._logs)
        if self._has_work:
            self._cluster.admin.create(WORK, partitions=_WORK_PARTITIONS)
            self._logs.add(WORK)
        url = kafka_url(
            self._cluster,
            addresses=",".join(each.address for each in proxies),
            delivery_timeout=_DELIVERY_TIMEOUT_S,
        )
        clocks = [self._directory / f"clock-{n}" for n in range(2)]
        self._gateways: list[ReturningService] = []
        for each in clocks:
            self._gateways.append(self._gateway(url, each))
            ends.callback(self._end, self._gateways[-1])
        self._urls = [self._before(each.url) for each in self._gateways]
        wait_until(lambda: all(map(_is_ready, self._urls)), "the gateways are ready")
        self._workload = Workload(self._urls, seed=self._seed, has_work=self._has_work)
        self._workload.start()
        ends.callback(self._workload.stop)
        if self._has_work:
            self._workers = Workers(self._cluster, self._urls, self._directory, seed=self._seed)
            self._workers.start()
            ends.callback(self._workers.stop)
        self._nemesis = Nemesis(
            self._cluster,
            proxies,
            self._gateways,
            clocks,
            self._logs,
            remaking=self._workload.remaking,
            seed=self._seed,
            java=self._workers and self._workers.java,
        )

    def _gateway(self, url: str, clock: Path) -> ReturningService:
        set_ahead(clock, 0)
        return ReturningService(
            clock.with_name(clock.name.replace("clock", "gateway")),
            url,
            options=["--idempotent-topic", KEYS, "--idempotency-rate", "1000000"],
            command=[sys.executable, "-m", "tests.chaos.clock", str(clock), "-n", "--pidfile=", "sampleapp"],
            environment={"PYTHONPATH": str(_PROJECT)},
        )

    def _end(self, gateway: ReturningService) -> None:
        gateway.kill()
        (self._directory / f"gateway-{self._gateways.index(gateway)}" / "log").write_text(gateway.output)

    def _suffer(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0 and not self._broken():
            names = self._nemesis.turn()
            for each in (SHORT, CUT):
                self._logs.look(each)
            self._measure()
            print(f"{left_s:6.0f} s left, {self._workload.requests} requests: {', '.join(names)}", flush=True)

    def _broken(self) -> list[str]:
        of_workers = self._workers.broken if self._workers else []
        return [*self._workload.broken, *self._logs.broken, *of_workers]

    def _measure(self) -> None:
        for each in self._gateways:
            process = each.live.process
            if process.poll() is not None:
                self.findings.append(f"{each.url} has ended with {process.returncode}")
                continue
            status = Path(f"/proc/{process.pid}/status").read_text()
            memory_mb = int(status.partition("VmRSS:")[2].split()[0]) // 1024
            descriptors = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
            self._most |= Counter({"MB of memory": memory_mb, "descriptors": descriptors})
        for node in self._cluster.nodes:
            node.check_alive()

    def _finish(self) -> None:
        """Have everything healed, answered, read and checked."""
        self._nemesis.heal()
        self._cluster.admin.configure(SHORT, retention_ms=-1)
        self._workload.finish_publishing(deadline_s=self._catch_up_s)
        self.findings += [
            f"{url} is not ready: {fetch(url, '/ready')[2]!r}"
            for url in self._urls
            if not self._in_time(lambda url=url: _is_ready(url))
        ]
        if self._workers:
            self._workers.drain(deadline_s=self._catch_up_s)
        for each in self._logs.topics:
            self._logs.look(each)
        self._in_time(self._is_all_read)
        self._measure()
        history = self._workload.add_readings(self._workload.history(self._logs))
        self._workload.stop()
        self.findings += [*self._broken(), *check(history)]
        self.counts = {
            "faults": self._nemesis.happened,
            **self._workload.counts(history),
            "records in the topics": Counter(
                {name: sum(map(len, topic.generations)) for name, topic in self._logs.topics.items()}
            ),
            "most of a gateway": self._most,
        }
        if self._workers:
            self._finish_work(self._workers)
        for each in self._gateways:
            each.stop()

    def _finish_work(self, workers: Workers) -> None:
        urls = {each.url: url for each, url in zip(self._gateways, self._urls, strict=True)}
        troubles = self._nemesis.troubles
        for each in troubles:
            each.gateway = urls.get(each.gateway, each.gateway)
        history, topic = workers.history(troubles), self._logs.topics[WORK]
        (self._directory / "work.pickle").write_bytes(pickle.dumps((history, topic)))
        self.findings += [f"{WORK}: {each}" for each in check_work(history, topic)]
        self.findings += workers.check_sessions()
        self.counts |= {**workers.counts(), "work": count_work(history, topic)}

    def _is_all_read(self) -> bool:
        history = self._workload.add_readings(self._workload.history(self._logs))
        is_read = not any(check_reader(history, *each) for each in history.readers.values())
        return is_read and not list(check_readings(history))

    def _in_time(self, condition: Callable[[], bool]) -> bool:
        """Wait until a condition holds; return whether it did. What does not hold, the checker says."""
        try:
            return bool(wait_until(condition, "", deadline_s=self._catch_up_s))
        except AssertionError:
            return False


def _nodes_without_state(directory: Path) -> list[str]:
    """The nodes that say that the state of share groups in their memory was not that of the log."""
    logs = sorted(directory.glob("kafka/*/log"))
    return [each.parent.name for each in logs if _OUT_OF_SYNC.search(each.read_text())]


def _is_ready(url: str) -> bool:
    try:
        return fetch(url, "/ready")[0] == HTTPStatus.OK
    except OSError:
        return False


def main(arguments: list[str] | None = None) -> int:
    """Run for the time that is asked for; returns the status to exit with."""
    parser = argparse.ArgumentParser(description="Have faults of Kafka, and check every answer.")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long faults come (default: 5)")
    parser.add_argument("--seed", type=int, help="what chooses the faults (default: another each time)")
    parser.add_argument(
        "--kafka", default=VERSIONS[-1], metavar="VERSION", help="which Kafka (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    seed = SystemRandom().randrange(2**32) if options.seed is None else options.seed
    again = f"make chaos CHAOS='--minutes {options.minutes:g} --seed {seed} --kafka {options.kafka}'"
    directory = Path(tempfile.mkdtemp(prefix="sampleapp-chaos-"))
    print(f"Kafka {options.kafka}, seed {seed}; logs in {directory}; stop with Ctrl-C.", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    chaos = Chaos(version=options.kafka, seed=seed, directory=directory)
    try:
        findings = chaos.run(seconds=60 * options.minutes)
    except KafkaNotAvailable as error:
        sys.exit(f"No Kafka: {error}.")
    except KeyboardInterrupt:
        return 130
    for title, counts in chaos.counts.items():
        print(f"\n{title}:")
        for name, count in sorted(counts.items(), key=str):
            print(f"{count:>9}  {name}")
    versions = f"librdkafka {confluent_kafka.libversion()[0]}, Python {sys.version.split()[0]}"
    print(f"\nKafka {options.kafka}, {versions}, seed {seed}, {options.minutes:g} minutes of faults.")
    if findings:
        print(f"\n{len(findings)} promises were broken:")
        for each in findings[:_SHOWN]:
            print(f"  {each}")
        for node in _nodes_without_state(directory):
            print(f"\n{node} of Kafka has read a wrong state of share groups: it may give messages again.")
        print(f"\nThe logs are in {directory}. Again with:\n\n  {again}")
        return 1
    print(f"\nEvery promise was kept. Again with:\n\n  {again}")
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
