"""The SQLite broker passes the contract."""

from __future__ import annotations

import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from sampleapp.brokers.shared.deliveries import WorkSettings
from sampleapp_testing import BrokerContract, WorkContract
from tests.support.sqlite import new_broker, other_connection


class TestSQLiteBroker(BrokerContract):
    one_partition = True
    first_offset = 0
    deletes = True
    durable = True

    @contextmanager
    def new_broker(self):
        with tempfile.TemporaryDirectory() as directory:
            self.path = Path(directory, "log.sqlite3")
            yield self.again(None)

    async def delete_before(self, broker, topic, partition, offset):
        with other_connection(self.path) as connection:
            connection.execute(
                "DELETE FROM record WHERE offset < ? AND topic_id = (SELECT id FROM topic WHERE name = ?)",
                (offset, topic),
            )

    def again(self, broker):
        return new_broker(self.path)


class TestWorkOfSQLiteBroker(WorkContract):
    durable = is_shared = True

    @contextmanager
    def new_broker(self):
        self.ahead_s = 0.0
        with tempfile.TemporaryDirectory() as directory:
            self.path = Path(directory, "log.sqlite3")
            yield self.again(None)

    def again(self, broker):
        work = WorkSettings(most_leases=self.most_leases)
        return new_broker(self.path, work=work, now=lambda: time.time() + self.ahead_s)

    async def end_leases(self):
        self.ahead_s += self.lease_s
