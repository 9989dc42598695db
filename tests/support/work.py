"""A broker with groups of workers, whose every answer is up to the test."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred
from zope.interface import implementer

from sampleapp.interfaces import IWorkBroker
from sampleapp.model import ConsumerRecord, Lease, LeasedRecord
from tests.support.in_memory import InMemoryService, PromptBroker, request_bytes

JSON = (b"Content-Type", b"application/json")
NOW_MS = 1_700_000_000_000


class Asked(NamedTuple):
    """One call of the broker."""

    method: str
    arguments: tuple[Any, ...]
    answer: Deferred[Any]


def leased(offset: int, *, attempts: int = 1, value: bytes = b"v", topic: str = "orders") -> LeasedRecord:
    record = ConsumerRecord(topic=topic, partition=0, offset=offset, timestamp_ms=5, key=None, value=value)
    return LeasedRecord(record, attempts)


def lease_of(*messages: LeasedRecord, token: bytes = b"lease", lasts_ms: int = 30_123) -> Lease:
    return Lease(token=token, ends_ms=NOW_MS + lasts_ms, messages=messages or (leased(0),))


@implementer(IWorkBroker)
class WorkerBroker(PromptBroker):
    """Remembers the calls, and the methods of those that were cancelled."""

    def __init__(self):
        super().__init__()
        self.asked: list[Asked] = []
        self.cancelled: list[str] = []
        self.work = self
        self.leases = self.given_up = 0

    def _ask(self, method, *arguments):
        answer = Deferred(lambda _: self.cancelled.append(method))
        self.asked.append(Asked(method, arguments, answer))
        return answer

    def pull(self, topic, group, *, most, wait_s):
        return self._ask("pull", topic, group, most, wait_s)

    def acknowledge(self, topic, group, lease, verdicts):
        return self._ask("acknowledge", topic, group, lease, verdicts)

    def extend(self, topic, group, lease):
        return self._ask("extend", topic, group, lease)

    def backlog(self, topic, group):
        return self._ask("backlog", topic, group)


def pull_request(body=None, *, action="pull", headers=(JSON,), group="orders/billing") -> bytes:
    """A request of a worker as it is sent."""
    topic, name = group.split("/")
    text = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    return request_bytes("POST", f"/topics/{topic}/groups/{name}/{action}", headers, text)


class WorkService(InMemoryService):
    """The service with a `WorkerBroker`, and requests of its workers."""

    def __init__(self, *, broker=None, **settings):
        super().__init__(broker=WorkerBroker() if broker is None else broker, **settings)

    def begin(self, action, body=None, *, headers=(JSON,), group="orders/billing"):
        """Send a request, and return its connection."""
        connection = self.connect()
        connection.send(pull_request(body, action=action, headers=headers, group=group))
        return connection

    def ask(self, action, body=None, *, answer=None, **request):
        """Send a request, let the broker answer its call, and return the response."""
        connection = self.begin(action, body, **request)
        if answer is not None:
            self.answer(answer)
        (response,) = connection.responses(["POST"])
        return response

    def answer(self, answer):
        """Let the broker answer its last call."""
        last = self.broker.asked[-1].answer
        if isinstance(answer, Exception):
            last.errback(answer)
        else:
            last.callback(answer)

    def pull(self, *messages, token=b"lease", lasts_ms=30_123, **request):
        """Give messages to a worker."""
        lease = lease_of(*messages, token=token, lasts_ms=lasts_ms)
        return self.ask("pull", answer=lease, **request)


def token_in(response) -> bytes:
    lease = json.loads(response.body)["lease"]
    return urlsafe_b64decode(lease + "=" * (-len(lease) % 4))
