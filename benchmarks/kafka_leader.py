"""For how long a partition takes nothing when its leader is killed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection
from typing import Any

from clusters import PARTITIONS, TOPIC, NotAvailable, mock_cluster, three_nodes
from servers import sampleapp
from steady import Steady

__all__ = ["measure_kill_of_leader"]


def measure_kill_of_leader(*, rounds: int) -> None:
    print("\nA leader is killed: the longest time without a 200 on its partitions, and all answers")
    with mock_cluster() as mock, sampleapp(broker=f"kafka://{mock.bootstrap}", readings=False) as service:
        for election_s in (0.0, 2.0):
            found = [_on_mock(mock, service, victim=1 + n % 3, election_s=election_s) for n in range(rounds)]
            gap_s = statistics.median(gap_s for gap_s, _ in found)
            statuses = {status: sum(each.get(status, 0) for _, each in found) for status in (200, 503, 504)}
            _line(f"mock cluster, the next one leads {election_s:.0f} s later", gap_s, statuses)
    try:
        with three_nodes() as cluster:
            _on_kafka(cluster)
    except NotAvailable as error:
        print(f"Apache Kafka: not measured: {error}")


def _on_mock(mock: Any, service: Any, *, victim: int, election_s: float) -> tuple[float, dict[int, int]]:
    leaders = {partition: 1 + partition % 3 for partition in range(PARTITIONS)}
    for partition, leader in leaders.items():
        mock.set_leader(TOPIC, partition, leader)
    orphans = [partition for partition, leader in leaders.items() if leader == victim]
    with Steady(port=service.port, topic=TOPIC) as clients:
        clients.wait_until_accepted()
        killed_s = time.monotonic()
        mock.broker_down(victim)
        time.sleep(election_s)
        for partition in orphans:
            mock.set_leader(TOPIC, partition, 1 + victim % 3)
        clients.wait_until_accepted()
    mock.broker_up(victim)
    return clients.longest_gap_s(orphans, since_s=killed_s), clients.statuses()


def _on_kafka(cluster: Any) -> None:
    admin = cluster.admin
    admin.create(TOPIC, partitions=PARTITIONS)
    admin.wait_until_in_sync(TOPIC, 3)
    # On a busy machine a node may have lost what it led at first.
    admin.elect(TOPIC, partitions=range(PARTITIONS))
    leaders, controller = admin.leaders(TOPIC), cluster.controller().number
    # Without the controller the others would have to agree on a new one first.
    victim = next(leader for leader in leaders.values() if leader != controller)
    orphans = [partition for partition, leader in leaders.items() if leader == victim]
    with (
        sampleapp(broker=f"kafka://{cluster.bootstrap}", readings=False) as service,
        Steady(port=service.port, topic=TOPIC) as clients,
    ):
        clients.wait_until_accepted()
        killed_s = time.monotonic()
        cluster.node(victim).kill9()
        election_s = _time_of_election(admin, orphans, victim=victim) - killed_s
        clients.wait_until_accepted()
    gap_s = clients.longest_gap_s(orphans, since_s=killed_s)
    _line(f"Apache Kafka {cluster.version}, three nodes", gap_s, clients.statuses())
    print(f"Kafka itself took {election_s:.1f} s of that (broker.session.timeout.ms is 9 s)")


def _time_of_election(admin: Any, partitions: Collection[int], *, victim: int) -> float:
    while True:
        leaders = admin.leaders(TOPIC)
        if all(leaders.get(partition, victim) != victim for partition in partitions):
            return time.monotonic()
        time.sleep(0.05)


def _line(name: str, gap_s: float, statuses: dict[int, int]) -> None:
    counts = ", ".join(f"{statuses.get(status, 0)} times {status}" for status in (200, 503, 504))
    print(f"{name:46}{gap_s:9.2f} s   {counts}", flush=True)
