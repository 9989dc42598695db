"""The callers of a long run: who publishes, who reads, and what each of them expects of an answer."""

from __future__ import annotations

import base64
import gzip
import hashlib
import hmac
import json
import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec

from long_run_http import Connection, Event, EventStream, Loop, Response, request
from long_run_ledger import PAGED, STREAMED, Faults, Ledger, Readings

__all__ = [
    "HOOKS",
    "Batches",
    "Changes",
    "Collection",
    "Hooks",
    "KeyedMessages",
    "Messages",
    "Pages",
    "Published",
    "Scraper",
    "Sender",
    "Stream",
    "Traffic",
    "Values",
    "Visitor",
]

HOOKS = ("github", "standard")
V2 = "application/vnd.sampleApp.v2+json"
BATCH = 50
Check = Callable[[Response], None]


class Traffic:
    """The things that all callers share: the loop, the service's ports, tokens, and counts of answers."""

    def __init__(self, *, port: int, admin_port: int, tokens: dict[str, str], faults: Faults) -> None:
        self.loop = Loop()
        self.port = port
        self.admin_port = admin_port
        self.faults = faults
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.waited_s: defaultdict[str, list[float]] = defaultdict(list)
        self.is_disturbed: Callable[[], bool] = lambda: False
        """Whether 503 and 504 are permitted, since a broker is or was down."""
        self._tokens = tokens

    def headers(self, caller: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._tokens[caller]}"}

    def connection(self) -> Connection:
        return Connection(self.loop, self.port, self.faults.add)

    def count(self, kind: str, answer: Response, *expected: int) -> None:
        """Count an answer, and check that its status is one of these, or permitted at the moment."""
        self.statuses[kind, answer.status] += 1
        # 0 has been told of already.
        if answer.status in expected or answer.status == 0:
            return
        if answer.status not in (503, 504) or not self.is_disturbed():
            self.faults.add(f"{kind}: {answer.status} {answer.body!r}")
        elif answer.status == 503 and not (answer.header("Retry-After") or "").isdecimal():
            self.faults.add(f"{kind}: 503 without Retry-After: {answer.head!r}")


class Requests(Protocol):
    """A kind of requests, with a check of each answer."""

    kind: str

    def new(self) -> tuple[bytes, Check]: ...


class Sender:
    """Sends requests at a steady rate, each when it is due, or as soon as a connection is free."""

    def __init__(self, traffic: Traffic, requests: Requests, *, per_s: float, connections: int) -> None:
        self._traffic = traffic
        self._requests = requests
        self._interval_s = 1 / per_s
        self._free = deque(traffic.connection() for _ in range(connections))
        self._connections = connections
        self._next_s = time.perf_counter() + self._interval_s
        self._is_stopped = False
        self._is_timed = False
        self._is_measured = requests.kind == "single"
        self._send()

    @property
    def is_idle(self) -> bool:
        return len(self._free) == self._connections

    def stop(self) -> None:
        self._is_stopped = True

    def _send(self) -> None:
        self._is_timed = False
        now_s = time.perf_counter()
        while self._free and self._next_s <= now_s and not self._is_stopped:
            asked, check = self._requests.new()
            connection = self._free.popleft()
            connection.ask(asked, partial(self._take, check, self._next_s, connection))
            self._next_s += self._interval_s
        if self._free and not self._is_stopped:
            self._is_timed = True
            self._traffic.loop.call_at(self._next_s, self._send)

    def _take(self, check: Check, due_s: float, connection: Connection, answer: Response) -> None:
        check(answer)
        if self._is_measured:
            self._traffic.waited_s["single"].append(time.perf_counter() - due_s)
        self._free.append(connection)
        if not self._is_timed:
            self._send()


class Published:
    """Takes the answers to requests that publish into the ledger of their topic."""

    def __init__(self, traffic: Traffic, ledger: Ledger, kind: str) -> None:
        self.kind = kind
        self.traffic = traffic
        self.ledger = ledger

    def take(self, n: int, answer: Response) -> None:
        """The answer to a single record."""
        self.traffic.count(self.kind, answer, 200)
        if answer.status == 200:
            self.place(n, json.loads(answer.body))
        elif answer.status in (0, 504):
            self.ledger.unknown(n)
        else:
            self.ledger.rejected(n)

    def place(self, n: int, found: dict[str, object]) -> None:
        if set(found) != {"topic", "partition", "offset"} or found["topic"] != self.ledger.topic:
            self.traffic.faults.add(f"{self.kind}: not an answer: {found}")
        self.ledger.responded(n, (found["partition"], found["offset"]))

    def message(self, n: int) -> bytes:
        message = {"topic": self.ledger.topic, "content": self.ledger.content(n)}
        key = self.ledger.key(n)
        if key is not None:
            message["key"] = key
        return json.dumps(message).encode()


class Messages(Published):
    """Single messages."""

    def __init__(self, traffic: Traffic, ledger: Ledger) -> None:
        super().__init__(traffic, ledger, "single")
        self._headers = {**traffic.headers("publisher"), "Content-Type": "application/json"}

    def new(self) -> tuple[bytes, Check]:
        n = self.ledger.new()
        return request("POST", "/messages", self._headers, self.message(n)), partial(self.take, n)


class Batches(Published):
    """Lines of JSON; every second batch is compressed."""

    def __init__(self, traffic: Traffic, ledger: Ledger) -> None:
        super().__init__(traffic, ledger, "batch")
        self._headers = {**traffic.headers("collector"), "Content-Type": "application/x-ndjson"}

    def new(self) -> tuple[bytes, Check]:
        numbers = [self.ledger.new() for _ in range(BATCH)]
        body = b"\n".join(map(self.message, numbers))
        headers = self._headers
        if numbers[0] // BATCH % 2:
            body, headers = gzip.compress(body, 1), {**headers, "Content-Encoding": "gzip"}
        return request("POST", "/messages", headers, body), partial(self._take_all, numbers)

    def _take_all(self, numbers: list[int], answer: Response) -> None:
        self.traffic.count(self.kind, answer, 200)
        if answer.status == 200:
            results = [json.loads(line) for line in answer.body.splitlines()]
        else:
            problem = json.loads(answer.body or b"{}")
            results = problem.get("results", [{"status": answer.status}] * len(numbers))
        if len(results) != len(numbers):
            self.traffic.faults.add(f"{self.kind}: {len(results)} results for {len(numbers)} messages")
        for n, result in zip(numbers, results, strict=False):
            if "partition" in result:
                self.place(n, result)
            elif result["status"] == 503:
                self.ledger.rejected(n)
            else:
                self.ledger.unknown(n)


class Hooks(Published):
    """Signed requests of two schemes in turn; one in a hundred has a wrong signature."""

    def __init__(self, traffic: Traffic, ledger: Ledger, secrets: dict[str, str]) -> None:
        super().__init__(traffic, ledger, "hook")
        self._secrets = secrets

    def new(self) -> tuple[bytes, Check]:
        n = self.ledger.new()
        scheme = HOOKS[n % 2]
        body = self.ledger.content(n).encode()
        is_wrong = n % 100 == 99
        signed = (self._github if scheme == "github" else self._standard)(n, body)
        asked = request("POST", f"/hooks/{scheme}", signed, body + b"!" if is_wrong else body)
        return asked, partial(self._take_rejection if is_wrong else self.take, n)

    def _github(self, _: int, body: bytes) -> dict[str, str]:
        digest = hmac.new(self._secrets["github"].encode(), body, hashlib.sha256).hexdigest()
        return {"X-Hub-Signature-256": f"sha256={digest}", "X-GitHub-Event": "push"}

    def _standard(self, n: int, body: bytes) -> dict[str, str]:
        message, timestamp = f"msg_{n}", str(int(time.time()))
        key = base64.b64decode(self._secrets["standard"].removeprefix("whsec_"))
        digest = hmac.new(key, f"{message}.{timestamp}.".encode() + body, hashlib.sha256).digest()
        signature = base64.b64encode(digest).decode()
        return {
            "webhook-id": message,
            "webhook-timestamp": timestamp,
            "webhook-signature": f"v1,{signature}",
        }

    def _take_rejection(self, n: int, answer: Response) -> None:
        self.traffic.count("hook with a wrong signature", answer, 401)
        self.ledger.rejected(n)


class KeyedMessages(Published):
    """
    Messages with `Idempotency-Key`: one in four is sent again after its answer.

    After 503, 504 or a cut connection each is sent again until it is published. All of that makes one record.
    """

    def __init__(self, traffic: Traffic, ledger: Ledger, *, run: str) -> None:
        """:param run: a part of all keys."""
        super().__init__(traffic, ledger, "keyed")
        self._run = run
        self._headers = {**traffic.headers("payer"), "Content-Type": "application/json"}
        self._again: deque[tuple[int, bytes | None]] = deque()
        self.replayed = 0

    @property
    def is_published(self) -> bool:
        """All records that had to be sent again for want of an answer have been sent."""
        return all(first is not None for _, first in self._again)

    def new(self) -> tuple[bytes, Check]:
        is_again = bool(self._again)
        n, first = self._again.popleft() if is_again else (self.ledger.new(), None)
        headers = {**self._headers, "Idempotency-Key": f"{self._run}-{n}"}
        asked = request("POST", "/messages", headers, self.message(n))
        return asked, partial(self._take_keyed, n, first, is_again=is_again)

    def _take_keyed(self, n: int, first: bytes | None, answer: Response, *, is_again: bool) -> None:
        self.traffic.count("keyed again" if is_again else "keyed", answer, 200)
        if answer.status != 200:
            self._again.append((n, first))
            return
        is_replayed = answer.header("Idempotent-Replayed") == "true"
        self.replayed += is_replayed
        if first is not None:
            if not is_replayed or answer.body != first:
                self.traffic.faults.add(f"keyed {n}: {first!r} at first, and then {answer}")
            return
        if is_replayed and not is_again:
            self.traffic.faults.add(f"keyed {n}: its first answer is said to be a replay: {answer}")
        self.place(n, json.loads(answer.body))
        if n % 4 == 0:
            self._again.append((n, answer.body))


class Values:
    """Readings that are published, one after the other on one connection, so that their order is known."""

    kind = "reading"

    def __init__(self, traffic: Traffic, readings: Readings) -> None:
        self._traffic = traffic
        self._readings = readings
        self._headers = {**traffic.headers("thermometer"), "Content-Type": "application/json"}

    def new(self) -> tuple[bytes, Check]:
        n = self._readings.new()
        message = {"topic": "readings", "key": self._readings.key(n), "content": self._readings.content(n)}
        return request("POST", "/messages", self._headers, json.dumps(message).encode()), partial(
            self._take, n
        )

    def _take(self, n: int, answer: Response) -> None:
        self._traffic.count(self.kind, answer, 200)
        if answer.status == 200:
            self._readings.responded(n)


class Collection:
    """`GET /` in both versions in turn."""

    kind = "GET /"

    def __init__(self, traffic: Traffic, readings: Readings) -> None:
        self._traffic = traffic
        self._readings = readings
        self._headers = traffic.headers("reader")
        self._version = 0

    def new(self) -> tuple[bytes, Check]:
        self._version = self._version % 2 + 1
        accept = {"Accept": V2} if self._version == 2 else {}
        return request("GET", "/", {**self._headers, **accept}), partial(self._take, self._version)

    def _take(self, version: int, answer: Response) -> None:
        self._traffic.count(self.kind, answer, 200)
        if answer.status != 200:
            return
        expected = V2 if version == 2 else "application/json"
        if answer.header("Content-Type") != expected or not answer.header("ETag"):
            self._traffic.faults.add(f"GET /: not version {version}: {answer.head!r}")
        for each in json.loads(answer.body):
            if version == 2:
                self._readings.see("version 2", each["value"], each["id"])
            else:
                self._readings.see("version 1", each)


class Visitor:
    """A caller whose token is in the callers file for a minute only."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._new, self._old = traffic.connection(), traffic.connection()

    def visit(self, new_token: str, old_token: str) -> None:
        """Try both tokens: only the new one is valid."""
        self._ask(self._new, "visitor", new_token, 200)
        self._ask(self._old, "visitor of the minute before", old_token, 401)

    def _ask(self, connection: Connection, kind: str, token: str, expected: int) -> None:
        asked = request("GET", "/topics", {"Authorization": f"Bearer {token}"})
        connection.ask(asked, lambda answer: self._traffic.count(kind, answer, expected))


class Changes:
    """The stream of the readings."""

    def __init__(self, traffic: Traffic, readings: Readings) -> None:
        self._readings = readings
        self._faults = traffic.faults
        self.stream = EventStream(
            traffic.loop,
            traffic.port,
            path="/changes",
            headers=traffic.headers("reader"),
            on_event=self._take,
            on_rejected=lambda answer: traffic.count("GET /changes", answer),
            on_fault=traffic.faults.add,
        )

    def _take(self, event: Event) -> None:
        data = json.loads(event.data)
        if event.type not in ("readings", "reading"):
            self._faults.add(f"GET /changes: {event}")
            return
        for each in data if event.type == "readings" else [data]:
            self._readings.see("changes", each["value"], each["id"])


class Record(msgspec.Struct, forbid_unknown_fields=True):
    """A line of a page or the data of an event."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    content: str | None
    key: str | None = None
    headers: dict[str, str] = {}
    headers_base64: list[tuple[str, str | None]] = []


class RecordReader:
    """Takes the records of a topic, of which none may be left out and none may come twice."""

    def __init__(self, ledger: Ledger, faults: Faults, bit: int) -> None:
        self.count = 0
        self._ledger = ledger
        self._faults = faults
        self._bit = bit
        self._next: Counter[int] = Counter()
        self._decode = msgspec.json.Decoder(Record).decode

    @property
    def also_expected(self) -> tuple[int, ...]:
        """SQLite makes a topic with its first record."""
        return () if self.count else (404,)

    def take(self, line: bytes) -> None:
        try:
            record = self._decode(line)
        except msgspec.MsgspecError as error:
            self._faults.add(f"{self._ledger.topic}: not a record ({error}): {line!r}")
            return
        self.count += 1
        place = record.partition, record.offset
        if record.offset != self._next[record.partition]:
            self._faults.add(f"{self._ledger.topic} {place}: expected offset {self._next[record.partition]}")
        self._next[record.partition] = record.offset + 1
        self._ledger.read(place, record.key, record.content, self._bit)


class Pages:
    """Follows a topic page by page."""

    PAUSE_S = 0.5
    _WAIT_S = 10

    def __init__(self, traffic: Traffic, ledger: Ledger) -> None:
        self.records = RecordReader(ledger, traffic.faults, PAGED)
        self._traffic = traffic
        self._path = f"/topics/{ledger.topic}/records"
        self._headers = traffic.headers("reader")
        self._connection = traffic.connection()
        self._position = "earliest"
        self._ask()

    def _ask(self) -> None:
        path = f"{self._path}?from={self._position}&limit=2000&wait={self._WAIT_S}"
        self._connection.ask(request("GET", path, self._headers), self._take)

    def _take(self, answer: Response) -> None:
        self._traffic.count("page", answer, 200, 204, *self.records.also_expected)
        if answer.status in (200, 204):
            self._position = answer.header("Position")
        if answer.status == 200:
            for line in answer.body.splitlines():
                self.records.take(line)
        has_more = answer.status == 200 and answer.header("Up-To-Date") is None
        self._traffic.loop.call_later(0 if has_more else self.PAUSE_S, self._ask)


class Stream:
    """Follows a topic as a stream."""

    def __init__(self, traffic: Traffic, ledger: Ledger) -> None:
        self.records = RecordReader(ledger, traffic.faults, STREAMED)
        self._topic = ledger.topic
        self._faults = traffic.faults
        self.stream = EventStream(
            traffic.loop,
            traffic.port,
            path=f"/topics/{ledger.topic}/records?from=earliest",
            headers=traffic.headers("reader"),
            on_event=self._take,
            on_rejected=lambda answer: traffic.count("stream", answer, *self.records.also_expected),
            on_fault=traffic.faults.add,
        )

    def _take(self, event: Event) -> None:
        if event.type == "message":
            self.records.take(event.data)
        else:
            self._faults.add(f"The stream of {self._topic} has {event}.")


class Scraper:
    """`GET /metrics` each second: each line must be a comment or end in a number."""

    kind = "metrics"

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._connection = Connection(traffic.loop, traffic.admin_port, traffic.faults.add)
        self._request = request("GET", "/metrics", {})
        self._is_asking = False
        traffic.loop.call_each(1, self._ask)

    def _ask(self) -> None:
        if not self._is_asking:
            self._is_asking = True
            self._connection.ask(self._request, self._take)

    def _take(self, answer: Response) -> None:
        self._is_asking = False
        self._traffic.count(self.kind, answer, 200)
        samples = [line for line in answer.body.decode().splitlines() if not line.startswith("#")]
        try:
            numbers = [float(line.rpartition(" ")[2]) for line in samples]
        except ValueError as error:
            self._traffic.faults.add(f"/metrics: {error}")
            return
        if answer.status == 200 and not any(map(math.isfinite, numbers)):
            self._traffic.faults.add(f"/metrics has no samples: {answer}")
