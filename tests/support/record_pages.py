"""Pages of records through the real site, of a memory broker with faults."""

from __future__ import annotations

import json
from functools import partial
from typing import NamedTuple

from tests.support.faulty_broker import FaultyBroker
from tests.support.in_memory import InMemoryService, request_bytes

__all__ = ["PageService"]

PATH = "/topics/t/records"


class Page(NamedTuple):
    """One answer."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def records(self):
        """The records, as JSON."""
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def places(self):
        """Partition and offset of each record."""
        return [(each["partition"], each["offset"]) for each in self.records]

    @property
    def problem(self):
        """The problem document."""
        return json.loads(self.body)

    @property
    def kind(self):
        """The last part of the type of the problem."""
        return self.problem["type"].rpartition(":")[2]

    @property
    def position(self):
        return self.headers[b"position"].decode()

    @property
    def is_up_to_date(self):
        return self.headers.get(b"up-to-date") == b"true"

    @property
    def next(self):
        """The target of the next page."""
        reference, _, relation = self.headers[b"link"].decode().partition("; ")
        assert relation == 'rel="next"'
        assert reference[:2] == "<?"
        assert reference[-1] == ">"
        return PATH + reference[1:-1]


class Asked:
    """A request that may not be answered yet."""

    def __init__(self, service, connection, method):
        self.service = service
        self.connection = connection
        self.method = method

    @property
    def is_answered(self):
        return bool(self.connection.sent)

    @property
    def page(self):
        (answer,) = self.connection.responses([self.method])
        return Page(*answer)


class PageService(InMemoryService):
    """The whole service, with a memory broker that has faults unless another is given."""

    def __init__(self, *, broker=None, partitions=1, **options):
        self.make_broker = partial(FaultyBroker, partitions=partitions)
        super().__init__(broker=broker, **options)
        self.topic = self.broker

    def ask(self, target=PATH, *, method="GET", headers=(), settle_s=0.2):
        """Send a request, and let time pass."""
        connection = self.connect()
        connection.send(request_bytes(method, PATH + target if target[:1] in ("", "?") else target, headers))
        asked = Asked(self, connection, method)
        if settle_s:
            self.run(settle_s, until=lambda: asked.is_answered)
        return asked

    def page(self, target="", **more):
        """Return the answer to a request."""
        return self.ask(target, **more).page

    def run(self, seconds, *, step=0.001, until=lambda: False):
        """Let time pass."""
        for _ in range(int(seconds / step)):
            if until():
                return
            self.clock.advance(step)

    def walk(self, query=""):
        """Read pages until one is up to date; return all records, and the last page."""
        records = []
        page = self.page(query)
        while True:
            assert page.status == (200 if page.records else 204), page
            records += page.records
            if page.is_up_to_date:
                return records, page
            page = self.page(page.next)
