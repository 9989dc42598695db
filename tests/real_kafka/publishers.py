"""Clients that publish over HTTP all the time, and what must be true of their answers afterwards."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple, Self
from urllib.parse import urlsplit

import pytest

from tests.real_kafka.reading import Stored
from tests.support.waiting import wait_until

__all__ = ["RECOVERY", "Figures", "Publishers", "Response", "check_answers", "figures", "report_recovery"]

RECOVERY = "recovery"
"""The property of a test with a row of the table at the end: the version, what happened, and `Figures`."""

CLIENTS = 24
"""Of those who publish message by message."""
BATCH_CLIENTS = 6
"""Of those who publish many messages at once."""
BATCH_KEYS = 5
"""Of each of them."""
BATCH = 8
"""Messages of each key in one request."""
# With all of them, about two hundred messages alone and two thousand in batches in a second.
PAUSE_S = 0.1
MOST_PAUSE_S = 1.5
"""Of clients whose batches are large."""
# Far beyond the delivery timeout: every request has to be answered.
ANSWER_DEADLINE_S = 60


class Response(NamedTuple):
    """What became of one message: ``KEY:NUMBER``, where the numbers of a key rise."""

    key: str
    number: int
    status: int
    body: dict
    """Of the answer; of one to many messages, the part about this one."""
    sent: int
    """How many messages the request had."""
    asked_at_s: float
    answered_at_s: float

    @property
    def content(self) -> str:
        return f"{self.key}:{self.number}"


class Publishers:
    """
    Thirty clients on connections of their own, each with a key, or some keys, of its own.

    Each sends the next message of its key, or some messages of its keys in one request, once what came before
    is answered, so that the order of the answers of a key is the one that its records have to have. Whatever
    is not answered with 200 is not sent again.
    """

    def __init__(self, url: str, topic: str, *, batches: Sequence[int] = (BATCH,) * BATCH_CLIENTS) -> None:
        """:param batches: how many messages of each key one request has, for each client of batches."""
        self.answers: list[Response] = []
        self.broken: list[str] = []
        self._address = urlsplit(url)
        self._topic = topic
        self._stopping = threading.Event()
        alone = [[f"key-{n}"] for n in range(CLIENTS)]
        together = [[f"batch-{n}-{key}" for key in range(BATCH_KEYS)] for n in range(len(batches))]
        self._keys = sum(map(len, alone + together))
        sends = [(keys, PAUSE_S, self._send_one) for keys in alone]
        for keys, batch in zip(together, batches, strict=True):
            pause_s = min(PAUSE_S * max(1, batch / BATCH), MOST_PAUSE_S)
            sends.append((keys, pause_s, partial(self._send_many, batch)))
        self._threads = [threading.Thread(target=self._publish, args=each, daemon=True) for each in sends]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(ANSWER_DEADLINE_S)

    def until_all_are_accepted(self, times: int = 5) -> None:
        """Wait until every client had that many further messages accepted, one after the other."""
        begun = len(self.answers)

        def all_accepted() -> bool:
            in_a_row = Counter()
            for each in self.answers[begun:]:
                in_a_row[each.key] = in_a_row[each.key] + 1 if each.status == http.HTTPStatus.OK else 0
            return len(in_a_row) == self._keys and min(in_a_row.values()) >= times

        wait_until(all_accepted, "all clients are answered with 200", deadline_s=90)

    def _publish(self, keys, pause_s, send) -> None:
        host, port = self._address.hostname, self._address.port
        connection = http.client.HTTPConnection(host, port, timeout=ANSWER_DEADLINE_S)
        number = 0
        try:
            while not self._stopping.wait(pause_s):
                number = send(connection, keys, number)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.broken.append(f"{keys}:{number} was not answered: {error!r}")
        finally:
            connection.close()

    def _send_one(self, connection, keys, number):
        """Send one message; return the number of the next one."""
        [key] = keys
        asked_at_s = time.monotonic()
        status, body = self._post(connection, "application/json", [(key, number)])
        answer = Response(key, number, status, json.loads(body), 1, asked_at_s, time.monotonic())
        self.answers.append(answer)
        return number + 1

    def _send_many(self, batch, connection, keys, first):
        """Send some messages of each key; return the number of the next one of each."""
        numbers = range(first, first + batch)
        sent = [(key, number) for number in numbers for key in keys]
        asked_at_s = time.monotonic()
        status, body = self._post(connection, "application/x-ndjson", sent)
        if status == http.HTTPStatus.OK:
            results = [json.loads(line) for line in body.splitlines()]
        else:
            problem = json.loads(body)
            # Where some are published, each has a result of its own.
            results = problem.get("results", [problem] * len(sent))
        now_s = time.monotonic()
        self.answers += [
            Response(*each, result.get("status", 200), result, len(sent), asked_at_s, now_s)
            for each, result in zip(sent, results, strict=True)
        ]
        return numbers.stop

    def _post(self, connection, content_type, sent):
        messages = [
            json.dumps({"topic": self._topic, "key": key, "content": f"{key}:{number}"})
            for key, number in sent
        ]
        connection.request("POST", "/messages", "\n".join(messages), {"Content-Type": content_type})
        response = connection.getresponse()
        return response.status, response.read()


def check_answers(answers: Sequence[Response], stored: Sequence[Stored]) -> None:
    """
    What the answers promise, against what is in the topic.

    :raise AssertionError: a record answered 200 is not there exactly once, where the answer says; one that
        was answered 503 is there; one is there twice; or those of a key are not in order.
    """
    places = defaultdict(list)
    for each in stored:
        places[each.value.decode()].append((each.partition, each.offset))
    others = [each for each in answers if each.status not in (200, 503, 504)]
    assert not others, others[:3]
    for each in answers:
        found = places[each.content]
        if each.status == http.HTTPStatus.OK:
            assert found == [(each.body["partition"], each.body["offset"])], each
        elif each.status == http.HTTPStatus.SERVICE_UNAVAILABLE:
            assert found == [], each
        else:
            assert len(found) <= 1, each
    assert sum(map(len, places.values())) == len(stored)
    last = {}
    for each in sorted(stored):
        key, _, number = each.value.decode().rpartition(":")
        assert each.key == key.encode()
        assert int(number) > last.get(key, -1), f"{each} comes after {last[key]}"
        last[key] = int(number)


class Figures(NamedTuple):
    """What a fault cost those who published."""

    accepted: int
    unavailable: int
    unknown: int
    silence_s: float
    """The longest time without any 200."""
    recovery_s: float
    """The longest time in which one partition accepted nothing."""
    slowest_s: float
    """The longest that anybody waited for a 200."""


def figures(answers: Sequence[Response]) -> Figures:
    """Count and measure."""
    statuses = Counter(each.status for each in answers)
    accepted = [each for each in answers if each.status == http.HTTPStatus.OK]
    by_partition = defaultdict(list)
    for each in accepted:
        by_partition[each.body["partition"]].append(each.answered_at_s)
    return Figures(
        accepted=statuses[200],
        unavailable=statuses[503],
        unknown=statuses[504],
        silence_s=_longest_gap([each.answered_at_s for each in accepted]),
        recovery_s=max(map(_longest_gap, by_partition.values())),
        slowest_s=max(each.answered_at_s - each.asked_at_s for each in accepted),
    )


def report_recovery(test: pytest.Item, version: str, fault: str, found: Figures) -> None:
    """Have a row in the table at the end of the run; the processes of pytest-xdist pass on plain values."""
    test.user_properties.append((RECOVERY, (version, fault, *found)))


def _longest_gap(times_s: Sequence[float]) -> float:
    return max((later - earlier for earlier, later in pairwise(sorted(times_s))), default=0.0)
