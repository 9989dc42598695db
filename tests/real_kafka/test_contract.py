"""The broker's contract, unchanged, on each version of Kafka."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from twisted.internet import reactor

from sampleapp.brokers import from_url
from sampleapp.testing.broker_contract import BrokerContract
from tests.real_kafka.service import for_each_version, in_thread, kafka_url


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
        return from_url(self.url, reactor=reactor)
