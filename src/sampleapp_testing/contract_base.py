"""The hooks of the contract that create brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import ClassVar

import pytest
from twisted.python.failure import Failure

from sampleapp.interfaces import IBroker
from sampleapp_testing.failures import failures_collected
from sampleapp_testing.waiting import within

__all__ = ["ContractBase"]


class ContractBase:
    """Creates the brokers of the tests of a contract."""

    durable: ClassVar[bool] = False
    """Whether records are kept after the broker stops, so that the broker of `again` finds them."""

    def new_broker(self) -> AbstractContextManager[IBroker]:
        """Return a context manager that yields a broker that is not started, and cleans up afterwards."""
        raise NotImplementedError

    def again(self, broker: IBroker) -> IBroker:
        """Return another broker on the same records, after the first was stopped (only if `durable`)."""
        raise NotImplementedError

    @asynccontextmanager
    async def running(self) -> AsyncIterator[IBroker]:
        """Check and start a new broker, and stop it at the end."""
        with self.new_broker() as broker:
            broker.check()
            broker.start()
            try:
                yield broker
            finally:
                await within(broker.stop(deadline_s=20))

    @pytest.fixture(autouse=True)
    def no_failure_is_lost(self) -> Iterator[list[Failure]]:
        """Fail a test that leaves a failure unhandled in a Deferred, or logs one that it does not expect."""
        with failures_collected() as failures:
            yield failures
