"""
Requests with an idempotency key are sent again and again while everything goes wrong that may.

Clients send each request to either of two services, until there are one to four answers, and cut connections
now and then. Proxies before the nodes of Kafka lose Produce requests and their answers. Nodes and services
are killed and frozen, leaders change, and all nodes are killed at once. In the end, a consumer of librdkafka
that reads uncommitted finds each record once, at the place that was answered, and the records of a key in
order, also those without an idempotency key that were sent in between.

It goes on until there were ``SAMPLEAPP_AGAIN_KEYS`` keys, and each fault at least once, in an order that
``SAMPLEAPP_AGAIN_SEED`` chooses. ``SAMPLEAPP_AGAIN_PAUSE`` is the longest time in seconds between
two faults.
"""

from __future__ import annotations

import time
from collections import Counter
from os import environ

import pytest

from tests.real_kafka.admin import new_topic
from tests.real_kafka.asked import check_topic
from tests.real_kafka.dropping_proxy import DroppingProxy
from tests.real_kafka.reading import read_all
from tests.real_kafka.senders import ANSWER_S, Sender
from tests.real_kafka.service import kafka_url
from tests.real_kafka.world import ReturningService, World

SEED = int(environ.get("SAMPLEAPP_AGAIN_SEED", "1"))
KEYS = int(environ.get("SAMPLEAPP_AGAIN_KEYS", "2000"))
PAUSE_S = float(environ.get("SAMPLEAPP_AGAIN_PAUSE", "5"))

pytestmark = [pytest.mark.one_version, pytest.mark.timeout(900 + KEYS / 20)]

PARTITIONS = 6
SENDERS = 128
CATCH_UP_S = 300
LOSS_OF_ONE_IN = 300
DELIVERY_TIMEOUT_S = 5


class SendersWorld(World):
    """Services are frozen for longer than clients wait, and all nodes are killed at once."""

    frozen_s = (ANSWER_S + 1, 20)

    def faults(self):
        return [*super().faults(), self.restart_all]

    def restart_all(self):
        self.cluster.kill9()
        self.restore()


@pytest.fixture
def proxies(three_nodes):
    """One before each node."""
    made = [
        DroppingProxy(
            port=each.ports["PROXIED-ADVERTISED"],
            target=each.ports["PROXIED"],
            loss_of_one_in=LOSS_OF_ONE_IN,
            seed=SEED + each.number,
        )
        for each in three_nodes.nodes
    ]
    yield made
    for each in made:
        each.close()


@pytest.fixture
def services(three_nodes, proxies, tmp_path):
    """Two of them."""
    url = kafka_url(
        three_nodes,
        addresses=",".join(each.address for each in proxies),
        delivery_timeout=DELIVERY_TIMEOUT_S,
    )
    options = ["--idempotent-topic", "again-*", "--idempotency-rate", "1000000"]
    made = [ReturningService(tmp_path / f"service-{n}", url, options=options) for n in range(2)]
    yield made
    for each in made:
        each.kill()


def test_each_record_is_once_and_in_order_where_every_answer_said(three_nodes, proxies, services):
    topic = three_nodes.admin.create(new_topic("again"), partitions=PARTITIONS)
    three_nodes.admin.wait_until_in_sync(topic, 3)
    urls = [each.url for each in services]
    senders = [Sender(f"{n}", urls, topic, has_key=n % 8 > 0, seed=SEED + n) for n in range(SENDERS)]
    for each in senders:
        each.start()
    world = SendersWorld(three_nodes, services, topic, seed=SEED)
    while len(world.happened) < len(world.faults()) or sum(each.keys for each in senders) < KEYS:
        time.sleep(world.random.uniform(0.5, PAUSE_S))
        world.happen()
        assert [each.broken for each in senders if each.broken] == []
    for each in senders:
        each.is_enough.set()
    until_s = time.monotonic() + CATCH_UP_S
    for each in senders:
        each.join(max(0, until_s - time.monotonic()))
        assert not each.is_alive(), "requests are not answered"
        assert each.broken == []
    stored = read_all(three_nodes.bootstrap, topic, isolation="read_uncommitted")
    check_topic([(each.key, each.asked) for each in senders], stored)
    counts = sum((each.counts for each in senders), Counter())
    assert counts["200 replayed"] > counts["200 first"] / 2
    losses = {each.name: sum(proxy.losses[each] for proxy in proxies) for each in proxies[0].losses}
    for each in services:
        assert "Traceback" not in each.output, each.output
    # Shown with -s, or if the test fails.
    print(f"\nseed {SEED}: {len(stored)} records, of {dict(sorted(counts.items()))}")  # noqa: T201
    print(f"faults: {dict(Counter(world.happened))}; losses before Kafka: {losses}")  # noqa: T201
