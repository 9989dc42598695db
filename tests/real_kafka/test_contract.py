"""The broker's contract, unchanged, on each version of Kafka."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from twisted.internet import reactor

from sampleapp.brokers import IdempotencySettings, from_url
from sampleapp_testing.broker_contract import BrokerContract, new_topic
from tests.real_kafka.service import for_each_version, in_thread, kafka_url

SETTINGS = IdempotencySettings(
    is_enabled_for=lambda topic: not topic.startswith("plain-"), records_per_s=1e6, burst=10**6
)


@for_each_version
class Kafka(BrokerContract):
    deletes = True
    durable = True

    @pytest.fixture(autouse=True)
    def _cluster(self, one_node):
        self.url = kafka_url(one_node, auto_create="true")
        self.admin = one_node.admin

    @contextmanager
    def new_broker(self):
        yield self.again(None)

    async def delete_before(self, broker, topic, partition, offset):
        await in_thread(self.admin.delete_records, topic, partition, offset)

    def again(self, broker):
        return from_url(self.url, reactor=reactor, idempotency=SETTINGS)

    def new_plain_topic(self):
        return f"plain-{new_topic()}"
