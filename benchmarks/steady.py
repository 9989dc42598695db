"""Clients that publish over HTTP all the time, and how long they were kept waiting."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Collection
from itertools import pairwise
from typing import NamedTuple, Self

__all__ = ["Steady"]

CLIENTS = 24
PAUSE_S = 0.02
DEADLINE_S = 60


class Response(NamedTuple):
    """What became of one message."""

    key: str
    status: int
    partition: int | None
    at_s: float


class Steady:
    """
    Two dozen clients, each with a key and a connection of its own.

    Each of them pauses when it has its answer, whatever that is, and then sends its next message.
    """

    def __init__(self, *, port: int, topic: str) -> None:
        self.answers: list[Response] = []
        self._port = port
        self._topic = topic
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._publish, args=[f"key-{n}"], daemon=True) for n in range(CLIENTS)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)

    def wait_until_accepted(self) -> None:
        """Wait until every client has had five further messages accepted, one after the other."""
        begun, until_s = len(self.answers), time.monotonic() + DEADLINE_S
        while time.monotonic() < until_s:
            in_a_row: Counter[str] = Counter()
            for answer in self.answers[begun:]:
                in_a_row[answer.key] = in_a_row[answer.key] + 1 if answer.status == 200 else 0
            if len(in_a_row) == CLIENTS and min(in_a_row.values()) >= 5:
                return
            time.sleep(0.05)
        raise SystemExit("Messages are still not accepted.")

    def longest_gap_s(self, partitions: Collection[int], *, since_s: float) -> float:
        """The longest time in which one of these partitions accepted nothing."""
        gaps_s = [0.0]
        for partition in partitions:
            accepted_s = [answer.at_s for answer in self.answers if answer.partition == partition]
            last_s = max((at_s for at_s in accepted_s if at_s < since_s), default=since_s)
            gaps_s += [
                later_s - earlier_s for earlier_s, later_s in pairwise(sorted(accepted_s)) if later_s > last_s
            ]
        return max(gaps_s)

    def statuses(self) -> dict[int, int]:
        """How many answers there were with each status."""
        return dict(Counter(answer.status for answer in self.answers))

    def _publish(self, key: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=DEADLINE_S)
        message = json.dumps({"topic": self._topic, "key": key, "content": "a value" * 10})
        while not self._stopping.wait(PAUSE_S):
            connection.request("POST", "/messages", message, {"Content-Type": "application/json"})
            response = connection.getresponse()
            stored = json.loads(response.read())
            self.answers.append(Response(key, response.status, stored.get("partition"), time.monotonic()))
        connection.close()
