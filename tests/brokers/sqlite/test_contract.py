"""The SQLite broker passes the contract."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path

from sampleapp.testing.broker_contract import BrokerContract
from tests.support.sqlite import new_broker


class TestSQLiteBroker(BrokerContract):
    one_partition = True
    first_offset = 0
    durable = True

    @contextmanager
    def new_broker(self):
        with tempfile.TemporaryDirectory() as directory:
            self.path = Path(directory, "log.sqlite3")
            yield self.again(None)

    def again(self, broker):
        return new_broker(self.path)
