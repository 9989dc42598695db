"""Clients that send requests with an idempotency key again and again."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from urllib.parse import urlsplit

from tests.real_kafka.asked import NOT_STORED, UNKNOWN, Asked, Outcome

__all__ = ["ANSWER_S", "Sender"]

ANSWER_S = 8.0
"""How long a client waits for an answer."""

_ORDINARY = 0.25
"""Which part of the requests has no key."""
_BATCHES = 0.1
_MOST_LINES = 5
_MOST_ANSWERS = 4
_IN_MIND = 100
"""How many of its requests a client will send again later."""
_TWICE_AT_ONCE_ONE_IN = 10
_CUT_ONE_IN = 50
_REUSE_ONE_IN = 200
_BACK_OFF_S = 0.3


class _Cut(Exception):
    """The client has cut its connection."""


class Sender(threading.Thread):
    """
    Sends requests to any of the services, with one record key, in a thread of its own.

    A request with an idempotency key is sent until there is an answer, at once, and in the end there are one
    to four answers: to two copies that are sent at once, or to one that is sent again much later. One without
    is sent once. Now and then the client cuts its connection, or has another record for a key.
    """

    def __init__(self, name: str, urls: Sequence[str], topic: str, *, has_key: bool, seed: int) -> None:
        """:param has_key: whether the records have a record key."""
        super().__init__(daemon=True)
        self.key = name if has_key else None
        self.asked: list[Asked] = []
        self.counts: Counter[str] = Counter()
        """Answers, by status, and what else became of requests."""
        self.broken: list[str] = []
        """What must not happen."""
        self.is_enough = threading.Event()
        self._name, self._urls, self._topic = name, urls, topic
        self._random = random.Random(seed)
        self._later: list[Asked] = []
        self._connections: dict[str, http.client.HTTPConnection] = {}
        self._number = 0

    @property
    def keys(self) -> int:
        """The number of idempotency keys that it has used."""
        return self.counts["keys"]

    def run(self) -> None:
        try:
            while not self.is_enough.is_set():
                self._send_new()
                self._send_again(at_most=_IN_MIND)
            self._send_again(at_most=0)
        except Exception as error:  # noqa: BLE001 -- the test shows it
            self.broken.append(f"{self._name}: {error!r}")
        for each in self._connections.values():
            each.close()

    def _send_new(self) -> None:
        is_ordinary = self._random.random() < _ORDINARY
        is_batch = is_ordinary or self._random.random() < _BATCHES
        count = self._random.randint(1, _MOST_LINES) if is_batch else 1
        contents = [f"{self._name}:{self._number + n}" for n in range(count)]
        self._number += count
        asked = Asked(contents, is_identified=not is_ordinary)
        self.asked.append(asked)
        if is_ordinary:
            self._send(asked, [self._random.choice(self._urls)])
            return
        self.counts["keys"] += 1
        asked.sends_before_known = self._send_until_known(asked)
        self._later += [asked] * (self._random.randint(1, _MOST_ANSWERS) - 1)
        if self._one_in(_REUSE_ONE_IN):
            self._reuse(asked)

    def _send_again(self, *, at_most: int) -> None:
        while len(self._later) > at_most:
            self._send_until_known(self._later.pop(self._random.randrange(len(self._later))))

    def _send_until_known(self, asked: Asked) -> int:
        """Return how often it was sent."""
        sends = 0
        while True:
            urls = self._urls if self._one_in(_TWICE_AT_ONCE_ONE_IN) else [self._random.choice(self._urls)]
            sends += len(urls)
            if self._send(asked, urls):
                return sends
            time.sleep(self._random.uniform(0, _BACK_OFF_S))

    def _send(self, asked: Asked, urls: Sequence[str]) -> bool:
        """Send a request to services at once; return whether one has answered with all places."""
        waiting, is_known = [], False
        for url in urls:
            with self._counting(url):
                self._begin(url, asked.contents, asked.contents[0] if asked.is_identified else None)
                waiting.append(url)
        for url in waiting:
            with self._counting(url):
                is_known |= self._take_response(url, asked)
        return is_known

    def _reuse(self, asked: Asked) -> None:
        url = self._random.choice(self._urls)
        with self._counting(url):
            self._begin(url, [f"not {asked.contents[0]}"], asked.contents[0])
            status, _, problem = self._response(url)
            self.counts[f"{status} for another record"] += 1
            if status not in (422, 503, 504) or (
                status == http.HTTPStatus.UNPROCESSABLE_ENTITY
                and json.loads(problem)["type"] != "urn:sampleapp:problem:idempotency-key-reused"
            ):
                self.broken.append(f"another record for {asked.contents[0]}: {status} {problem!r}")

    @contextlib.contextmanager
    def _counting(self, url: str):
        """Count what becomes of a request that is not answered."""
        try:
            yield
        except (_Cut, OSError, http.client.HTTPException) as error:
            names = {_Cut: "cut", TimeoutError: "not answered in time"}
            self.counts[names.get(type(error), "connection lost")] += 1
            self._connections.pop(url).close()

    def _begin(self, url: str, contents: Sequence[str], idempotency_key: str | None) -> None:
        """:raise _Cut: it has cut the connection."""
        if url not in self._connections:
            place = urlsplit(url)
            self._connections[url] = http.client.HTTPConnection(place.hostname, place.port, timeout=ANSWER_S)
        connection = self._connections[url]
        messages = [{"topic": self._topic, "key": self.key, "content": each} for each in contents]
        body = "\n".join(map(json.dumps, messages)).encode()
        kind = "application/json" if len(messages) == 1 else "application/x-ndjson"
        headers = {"Content-Type": kind, "Content-Length": str(len(body))}
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        is_cut = self._one_in(_CUT_ONE_IN)
        sent = body[: len(body) // 2] if is_cut and self._one_in(3) else body
        connection.request("POST", "/messages", sent, headers)
        if is_cut:
            time.sleep(self._random.choice([0, 0.002, 0.005, 0.02]))
            raise _Cut

    def _take_response(self, url: str, asked: Asked) -> bool:
        """Note an answer; return whether it has all places."""
        status, headers, body = self._response(url)
        if status == http.HTTPStatus.OK:
            results = [json.loads(line) for line in body.splitlines()]
            is_first = headers["Idempotent-Replayed"] is None
            asked.firsts += is_first
            ordinary = "" if asked.is_identified else ", ordinary"
            self.counts[f"200 {'first' if is_first else 'replayed'}{ordinary}"] += 1
        else:
            problem = json.loads(body)
            self.counts[f"{status} {problem['type'].rpartition(':')[2]}"] += 1
            if status not in (500, 503, 504):
                raise AssertionError(f"{asked.contents}: {status} {problem}")
            results = problem.get("results", [problem] * len(asked.contents))
        asked.answers.append([_outcome(each) for each in results])
        return status == http.HTTPStatus.OK

    def _response(self, url: str):
        response = self._connections[url].getresponse()
        return response.status, response.headers, response.read()

    def _one_in(self, count: int) -> bool:
        return not self._random.randrange(count)


def _outcome(result: dict) -> Outcome:
    if "offset" in result:
        return result["partition"], result["offset"]
    return NOT_STORED if result["status"] == http.HTTPStatus.SERVICE_UNAVAILABLE else UNKNOWN
