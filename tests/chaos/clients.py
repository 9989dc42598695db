"""Clients of the gateways: they publish, send again, and read, and keep all requests and responses."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from urllib.parse import quote, urlencode, urlsplit

from tests.chaos.history import NOT_STORED, UNKNOWN, Attempt, Item, Outcome, Request, Sent
from tests.real_kafka.service import VERSION_2

__all__ = ["ANSWER_S", "Client", "PageReader", "Publisher", "ReadingsReader", "fetch"]

ANSWER_S = 12.0
"""How long a client waits for a response."""
_BACK_OFF_S = 0.5
_BATCHES = 0.2
_MOST_LINES = 8
_MOST_REPEATS = 3
_IN_MIND = 10
"""How many requests a client sends again later."""
_CUT_ONE_IN = 50
_REUSE_ONE_IN = 50
_HEADERS: Sequence[Mapping[str, str]] = [{}, {}, {"sender": "chaos", "note": "über 1 °C"}]
_PADDING = [0, 0, 10, 2000]


class Client(threading.Thread):
    """Makes requests to the gateways in a thread of its own, until it has made enough."""

    def __init__(self, name: str, urls: Sequence[str], *, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.counts: Counter[str] = Counter()
        """Responses, by kind."""
        self.broken: list[str] = []
        """What must not happen."""
        self.is_enough = threading.Event()
        self._urls = urls
        self._random = random.Random(seed)
        self._connections: dict[str, http.client.HTTPConnection] = {}

    def run(self) -> None:
        try:
            self.work()
        except Exception:  # noqa: BLE001 -- the run shows it
            self.broken.append(f"{self.name}: {traceback.format_exc()}")
        finally:
            for each in self._connections.values():
                each.close()

    def work(self) -> None:
        """Make the requests."""
        raise NotImplementedError

    def _url(self) -> str:
        return self._random.choice(self._urls)

    def _connect(self, url: str) -> http.client.HTTPConnection:
        """:raise OSError: the connection failed, so that nothing was sent."""
        if url not in self._connections:
            place = urlsplit(url)
            connection = http.client.HTTPConnection(place.hostname, place.port, timeout=ANSWER_S)
            connection.connect()
            self._connections[url] = connection
        return self._connections[url]

    def _leave(self, url: str) -> None:
        self._connections.pop(url).close()


class Publisher(Client):
    """
    Publishes to one topic: messages, batches, and requests with idempotency keys, which it sends again.

    It sends a request when the one before is answered or, without an idempotency key, given up. One with a
    key is sent until it is answered, to any gateway, at times to all at once, and later again. Now
    and then the client cuts its connection, or has another record for an idempotency key.
    """

    def __init__(
        self,
        name: str,
        urls: Sequence[str],
        topic: str,
        *,
        seed: int,
        keys: Sequence[str | None],
        pause_s: float,
        identified: float = 0.0,
        number: int | None = None,
        may_be_missing: bool = False,
        lines: int | None = None,
    ) -> None:
        """
        :param identified: which part of the requests has an idempotency key.
        :param number: makes the values numbers, and some requests tombstones, but for the first key.
        :param may_be_missing: whether the topic may not exist at times.
        :param lines: the maximum number of messages in the batch of each request.
        """
        super().__init__(name, urls, seed=seed)
        self.requests: list[Request] = []
        self.turn = threading.Lock()
        """Held while a request is made."""
        self.topic, self._keys, self._pause_s, self._identified = topic, keys, pause_s, identified
        self._first_number, self._may_be_missing = number, may_be_missing
        self._batches, self._most_lines = (_BATCHES, _MOST_LINES) if lines is None else (1.0, lines)
        self._sent = 0
        self._later: list[tuple[Request, str]] = []

    def work(self) -> None:
        while not self.is_enough.wait(self._random.uniform(0, 2 * self._pause_s)):
            with self.turn:
                self._send_new()
                self._send_again(at_most=_IN_MIND)
        self._send_again(at_most=0)

    def _send_new(self) -> None:
        count = self._random.randint(2, self._most_lines) if self._random.random() < self._batches else 1
        identity = f"{self.name}:{self._sent}" if self._random.random() < self._identified else None
        records = [self._record() for _ in range(count)]
        may_remove = self._first_number is not None and count == 1 and records[0].key != self._keys[0]
        if may_remove and self._random.random() < _BATCHES:
            records[0].value = None
        request = Request(self.topic, self.name, records, is_identified=identity is not None)
        self.requests.append(request)
        if identity is None:
            self._send(request, [self._url()], None)
            return
        self._send_until_known(request, identity)
        self._later += [(request, identity)] * self._random.randrange(_MOST_REPEATS)
        if not self._random.randrange(_REUSE_ONE_IN):
            other = Sent(f"not {records[0].value}", records[0].key)
            self.requests.append(Request(self.topic, self.name, [other], is_rejected=True))
            self._send(self.requests[-1], [self._url()], identity)

    def _record(self) -> Sent:
        self._sent += 1
        if self._first_number is not None:
            return Sent(str(self._first_number + self._sent), self._random.choice(self._keys))
        value = f"{self.name}:{self._sent}:{'x' * self._random.choice(_PADDING)}"
        return Sent(value, self._random.choice(self._keys), self._random.choice(_HEADERS))

    def _send_again(self, *, at_most: int) -> None:
        while len(self._later) > at_most:
            self._send_until_known(*self._later.pop(self._random.randrange(len(self._later))))

    def _send_until_known(self, request: Request, identity: str) -> None:
        while True:
            urls = self._urls if self._random.random() < _BATCHES else [self._url()]
            if self._send(request, urls, identity):
                return
            time.sleep(self._random.uniform(0, _BACK_OFF_S))

    def _send(self, request: Request, urls: Sequence[str], identity: str | None) -> bool:
        """Send a request to gateways at once; return whether one of them has answered with all places."""
        waiting = []
        for url in urls:
            begun_s = time.monotonic()
            try:
                connection = self._connect(url)
            except OSError:
                self._note(request, begun_s, [NOT_STORED] * len(request.records), "no connection")
                time.sleep(self._random.uniform(0, _BACK_OFF_S))
                continue
            with self._losing(request, url, begun_s):
                method, path, body, headers = self._http_request(request, identity)
                is_cut = not self._random.randrange(_CUT_ONE_IN)
                sent = body[: self._random.choice([len(body) // 2, len(body)])] if is_cut else body
                connection.request(method, path, sent, {**headers, "Content-Length": str(len(body))})
                if is_cut:
                    time.sleep(self._random.choice([0, 0.005, 0.02]))
                    raise ConnectionAbortedError
                waiting.append((url, begun_s))
        is_known = False
        for url, begun_s in waiting:
            with self._losing(request, url, begun_s):
                response = self._connections[url].getresponse()
                is_known |= self._take(request, begun_s, response, response.read())
        return is_known

    @contextlib.contextmanager
    def _losing(self, request: Request, url: str, begun_s: float):
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            self._leave(url)
            names = {TimeoutError: "not answered in time", ConnectionAbortedError: "cut by the client"}
            name = names.get(type(error), "connection lost")
            self._note(request, begun_s, [UNKNOWN] * len(request.records), name)

    def _http_request(self, request: Request, identity: str | None) -> tuple[str, str, bytes, dict[str, str]]:
        headers = {} if identity is None else {"Idempotency-Key": identity}
        if request.records[0].value is None:
            key = urlencode({"key": request.records[0].key})
            return "DELETE", f"/topics/{quote(request.topic)}?{key}", b"", headers
        messages = [
            {"topic": request.topic, "content": each.value}
            | ({} if each.key is None else {"key": each.key})
            | ({"headers": each.headers} if each.headers else {})
            for each in request.records
        ]
        kind = "application/json" if len(messages) == 1 else "application/x-ndjson"
        body = "\n".join(map(json.dumps, messages)).encode()
        return "POST", "/messages", body, {**headers, "Content-Type": kind}

    def _take(
        self, request: Request, begun_s: float, response: http.client.HTTPResponse, body: bytes
    ) -> bool:
        """Note a response; return whether it has all places."""
        kind = f"{response.status} {'' if len(request.records) == 1 else 'batch, '}"
        is_replayed = response.headers["Idempotent-Replayed"] is not None
        if response.status == http.HTTPStatus.OK:
            results = [json.loads(line) for line in body.splitlines()]
            kind += "replayed" if is_replayed else "identified" if request.is_identified else "ordinary"
        else:
            problem = json.loads(body)
            kind += problem["type"].rpartition(":")[2]
            results = problem.get("results", [problem] * len(request.records))
            expected = {503, 504} | ({404} if self._may_be_missing else set())
            is_reused = request.is_rejected and problem["type"].endswith(":idempotency-key-reused")
            if response.status not in expected and not is_reused:
                self.broken.append(f"{self.name}: {response.status} {problem} to {request.records}")
        if len(results) != len(request.records):
            self.broken.append(f"{self.name}: {len(results)} results for {len(request.records)} records")
            results = [{"status": 500}] * len(request.records)
        self._note(request, begun_s, [_outcome(each) for each in results], kind, is_replayed=is_replayed)
        return response.status == http.HTTPStatus.OK

    def _note(
        self,
        request: Request,
        begun_s: float,
        outcomes: Sequence[Outcome],
        kind: str,
        *,
        is_replayed: bool = False,
    ) -> None:
        self.counts[kind] += 1
        request.attempts.append(Attempt(begun_s, time.monotonic(), outcomes, is_replayed))


def _outcome(result: Mapping) -> Outcome:
    if "offset" in result:
        return result["partition"], result["offset"]
    return UNKNOWN if result["status"] in (500, 504) else NOT_STORED


class PageReader(Client):
    """Reads a topic page by page, each from any gateway, and now and then not for a long time."""

    def __init__(self, name: str, urls: Sequence[str], topic: str, *, seed: int, rest_s: float = 1.0) -> None:
        """:param rest_s: the longest time between two pages."""
        super().__init__(name, urls, seed=seed)
        self.topic = topic
        self.items: list[Item] = []
        self._rest_s = rest_s
        self._position = "earliest"

    def work(self) -> None:
        while not self.is_enough.is_set():
            url = self._url()
            try:
                connection = self._connect(url)
            except OSError:
                self.counts["no connection"] += 1
                self.is_enough.wait(_BACK_OFF_S)
                continue
            try:
                query = {"from": self._position, "limit": self._random.choice([1, 10, 500]), "wait": 1}
                connection.request("GET", f"/topics/{quote(self.topic)}/records?{urlencode(query)}")
                response = connection.getresponse()
                body = response.read()
            except (OSError, http.client.HTTPException):
                self._leave(url)
                self.counts["connection lost"] += 1
            else:
                self.counts[str(response.status)] += 1
                self._take(response, body)
                self.is_enough.wait(self._random.choice([0, 0, 0.1, self._random.uniform(0, self._rest_s)]))

    def hurry(self) -> None:
        """Rest no longer than needed from now on."""
        self._rest_s = 0.1

    def _take(self, response: http.client.HTTPResponse, body: bytes) -> None:
        if response.status in (200, 204):
            self.items += [Item("message", json.loads(line)) for line in body.splitlines()]
            self._position = response.headers["Position"]
        elif response.status == http.HTTPStatus.GONE:
            problem = json.loads(body)
            kind = problem["type"].rpartition(":")[2]
            if kind == "position-expired":
                self.items.append(Item("gap", {"gone": problem["gone"]}))
                self._position = problem["resume"]
            else:
                self.items.append(Item("reset", {"reason": kind}))
                self._position = "earliest"
        elif response.status not in (404, 503):
            self.broken.append(f"{self.name}: {response.status} {body!r} to {self._position}")
        else:
            self.is_enough.wait(_BACK_OFF_S)


class ReadingsReader(Client):
    """Reads the readings from any gateway, and compares them by their entity tags."""

    def __init__(self, name: str, urls: Sequence[str], *, seed: int, always: str) -> None:
        """:param always: the id of a reading that is never removed."""
        super().__init__(name, urls, seed=seed)
        self.found: dict[str, Mapping[str, float]] = {}
        """The readings, by entity tag without its quotation marks."""
        self._always = always
        self._had: set[str] = set()
        self._bodies: dict[str, bytes] = {}

    def work(self) -> None:
        while not self.is_enough.wait(_BACK_OFF_S):
            url = self._url()
            try:
                status, headers, body = fetch(url, "/", Accept=VERSION_2)
            except (OSError, http.client.HTTPException):
                self.counts["connection lost"] += 1
                continue
            self.counts[str(status)] += 1
            if status == http.HTTPStatus.OK:
                self._take(url, headers["ETag"].strip('"'), body)
            elif status != http.HTTPStatus.SERVICE_UNAVAILABLE:
                self.broken.append(f"{self.name}: {status} {body!r}")

    def _take(self, url: str, etag: str, body: bytes) -> None:
        if self._bodies.setdefault(etag, body) != body:
            self.broken.append(f"{self.name}: {etag} is {body!r}, and was {self._bodies[etag]!r}")
        found = self.found[etag] = {each["id"]: each["value"] for each in json.loads(body)}
        if self._always in found:
            self._had.add(url)
        elif url in self._had:
            self.broken.append(f"{self.name}: only a part of the readings: {body!r}")


def fetch(url: str, path: str, **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    """GET on a connection of its own. :raise OSError: no response."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=ANSWER_S)
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read()
