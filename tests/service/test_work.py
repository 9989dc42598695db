"""The options of groups of workers in a service."""

from __future__ import annotations

import json
import time
from datetime import datetime

from twisted.internet.testing import MemoryReactorClock

from sampleapp.service.assembly import build
from sampleapp.service.command_line import CommandLine
from tests.support.in_memory import Connection, request_bytes

JSON = (b"Content-Type", b"application/json")


class Service:
    """A service with these options, and a client."""

    def __init__(self, *options):
        line = CommandLine()
        line.parseOptions(["--broker=memory:", "--listen=tcp:8080", "--open-to-everybody", *options])
        self._reactor = MemoryReactorClock()
        build(line.config, reactor=self._reactor).privilegedStartService()
        self._client = Connection(self._reactor.tcpServers[-1][1])
        self._count = 0

    def post(self, path, body):
        self._client.send(request_bytes("POST", path, [JSON], json.dumps(body).encode()))
        self._reactor.advance(0)
        self._count += 1
        response = self._client.responses(["POST"] * self._count)[-1]
        return response.status, json.loads(response.body) if response.body else None


def test_options_set_the_time_of_a_lease_and_the_number_of_attempts():
    service = Service("--work-lease=1000", "--work-attempts=2")
    service.post("/messages", {"topic": "orders", "content": "paid"})
    for attempt in (1, 2):
        status, lease = service.post("/topics/orders/groups/billing/pull", {})
        assert status == 200
        ends_s = datetime.fromisoformat(lease["expires"]).timestamp()
        assert 990 < ends_s - time.time() < 1001
        assert [each["attempts"] for each in lease["messages"]] == [attempt]
        released = service.post("/topics/orders/groups/billing/ack", {"lease": lease["lease"]})
        assert released == (200, {"accepted": 0, "released": 1, "rejected": 0})
    assert service.post("/topics/orders/groups/billing/pull", {}) == (204, None)
