"""The workers of a long run, who share the messages of a topic, and a check of each message that they get."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from long_run_http import Response, request
from long_run_ledger import Ledger
from long_run_traffic import Traffic

__all__ = ["Tasks", "add_workers"]

GROUP = "workers"
ATTEMPTS = 5
"""So often a message is given before it is given up, by default."""
BACKLOG_S = 120
"""The backlog has no more than what was sent in this time."""
POLL_S = 10
LATE_S = 2
"""So long after the end of its lease a worker that was too slow acknowledges it."""


class Tasks:
    """
    The messages of a group: each must be accepted or rejected once, and be with one worker at a time.

    Where the outcome of an acknowledgement is not known, both are right for its messages.
    """

    def __init__(self, traffic: Traffic, ledger: Ledger, *, per_s: float) -> None:
        self.traffic = traffic
        self.path = f"/topics/{ledger.topic}/groups/{GROUP}"
        self.headers = {**traffic.headers("worker"), "Content-Type": "application/json"}
        self.accepted = self.released = self.rejected = self.leases = self.late = self.again = 0
        self.backlog: int | None = None
        self.most_backlog = 0
        self._ledger = ledger
        self._limit = max(BACKLOG_S * per_s, 100)
        self._done: set[int] = set()
        self._unknown: set[int] = set()
        self._attempts: dict[int, int] = {}
        self._ends_s: dict[int, float] = {}
        self._connection = traffic.connection()
        self._ask()

    @property
    def are_done(self) -> bool:
        """All messages are accepted, rejected, or may be."""
        return self.backlog == 0 and len(self._done | self._unknown) == self._ledger.published

    def totals(self) -> dict[str, int | None]:
        return {
            "Leases": self.leases,
            "Tasks accepted": self.accepted,
            "Tasks released": self.released,
            "Tasks rejected": self.rejected,
            "Tasks of which that is not known": len(self._unknown - self._done),
            "Tasks given more than once": self.again,
            "Acknowledgements after the end of their lease": self.late,
            "Largest backlog": self.most_backlog,
            "Backlog at the end": self.backlog,
        }

    def not_yet(self) -> tuple[int, ...]:
        """SQLite makes a topic with its first record, and the first pull makes the group."""
        return () if self.leases else (404,)

    def give(self, message: dict[str, Any], ends_s: float) -> int:
        """Check that a message may be given; returns its number."""
        place, attempts = (message["partition"], message["offset"]), message["attempts"]
        n = int(message["content"][:10])
        told = f"task {n} at {place}, attempt {attempts}"
        if (message.get("key"), message["content"]) != (self._ledger.key(n), self._ledger.content(n)):
            self._fault(f"{told}: was never sent: {message}")
        if message["id"] != f"{place[0]}-{place[1]}" or not 0 < attempts <= ATTEMPTS:
            self._fault(f"{told}: {message}")
        if n in self._done:
            self._fault(f"{told}: is given again after it was done")
        if not self.traffic.is_disturbed():
            if self._ends_s.get(n, 0) > time.time():
                self._fault(f"{told}: is given while it is with another worker")
            if attempts <= self._attempts.get(n, 0):
                self._fault(f"{told}: was attempt {self._attempts[n]} before")
        if attempts == 1 and n not in self._attempts:
            self.traffic.waited_s["task given"].append(time.time() - message["timestamp"] / 1000)
        self.again += n in self._attempts
        self._attempts[n] = attempts
        self._ends_s[n] = ends_s
        return n

    def extended(self, numbers: list[int], ends_s: float) -> None:
        self._ends_s.update(dict.fromkeys(numbers, ends_s))

    def free(self, numbers: list[int]) -> None:
        """They may be given again, to any worker."""
        for n in numbers:
            self._ends_s.pop(n, None)

    def finish(self, numbers: list[int], *, is_known: bool) -> None:
        self.free(numbers)
        if is_known:
            self._done.update(numbers)
            for n in numbers:
                self._attempts.pop(n, None)
        else:
            self._unknown.update(numbers)

    def _fault(self, text: str) -> None:
        self.traffic.faults.add(text)

    def _ask(self) -> None:
        self._connection.ask(request("GET", self.path, self.headers), self._take)

    def _take(self, answer: Response) -> None:
        self.traffic.count("backlog", answer, 200, *self.not_yet())
        if answer.status == 200:
            self.backlog = json.loads(answer.body)["backlog"]
            self.most_backlog = max(self.most_backlog, self.backlog)
            if self.backlog > self._limit and not self.traffic.is_disturbed():
                self._fault(f"The backlog is {self.backlog}.")
        self.traffic.loop.call_later(POLL_S, self._ask)


class Worker:
    """
    Pulls 1, 10 or 100 messages, and accepts most of them; others are released once, or rejected.

    Now and then it extends a lease, some several times beyond its first end, or acknowledges too late.
    """

    WAIT_S = 10
    _PAUSE_S = 0.5

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._traffic = tasks.traffic
        self._connection = tasks.traffic.connection()
        self._pulls = 0
        self._lease = ""
        self._ends_s = 0.0
        self._results: dict[str, list[str]] = {}
        self._numbers: dict[str, list[int]] = {}
        self._pull()

    @property
    def _all(self) -> list[int]:
        return [n for numbers in self._numbers.values() for n in numbers]

    def _post(self, action: str, body: dict[str, Any], take: Callable[[Response], None]) -> None:
        path = f"{self._tasks.path}/{action}"
        began_s = time.perf_counter()

        def timed(answer: Response) -> None:
            if action != "pull":
                self._traffic.waited_s[action].append(time.perf_counter() - began_s)
            take(answer)

        self._connection.ask(request("POST", path, self._tasks.headers, json.dumps(body).encode()), timed)

    def _pull(self) -> None:
        self._pulls += 1
        self._post("pull", {"max": (1, 10, 100)[self._pulls % 3], "wait": self.WAIT_S}, self._take)

    def _take(self, answer: Response) -> None:
        self._traffic.count("pull", answer, 200, 204, *self._tasks.not_yet())
        if answer.status != 200:
            self._later(0 if answer.status == 204 else self._PAUSE_S, self._pull)
            return
        lease = json.loads(answer.body)
        self._set_end(lease)
        self._results = {"accept": [], "release": [], "reject": []}
        self._numbers = {"accept": [], "release": [], "reject": []}
        for message in lease["messages"]:
            n = self._tasks.give(message, self._ends_s)
            is_first = message["attempts"] == 1
            result = "release" if n % 20 == 0 and is_first else "reject" if n % 25 == 1 else "accept"
            self._results[result].append(message["id"])
            self._numbers[result].append(n)
        number = self._tasks.leases = self._tasks.leases + 1
        if number % 200 == 99:
            self._later(self._ends_s - time.time() + LATE_S, self._acknowledge_late)
        elif number % 200 == 49:
            self._later(10, lambda: self._extend(4))
        elif number % 10 == 5:
            self._later(0.2, lambda: self._extend(1))
        else:
            self._later(number % 7 * 0.05, self._acknowledge)

    def _set_end(self, lease: dict[str, Any]) -> None:
        self._lease = lease["lease"]
        self._ends_s = datetime.fromisoformat(lease["expires"]).timestamp()

    def _extend(self, times: int) -> None:
        def take(answer: Response) -> None:
            self._traffic.count("extend", answer, 200, *self._if_disturbed)
            if answer.status != 200:
                self._leave()
                return
            self._set_end(json.loads(answer.body))
            self._tasks.extended(self._all, self._ends_s)
            if times > 1:
                self._later(10, lambda: self._extend(times - 1))
            else:
                self._later(0.2, self._acknowledge)

        self._post("extend", {"lease": self._lease}, take)

    def _acknowledge(self) -> None:
        # Another worker may have them before the answer is here.
        self._tasks.free(self._numbers["release"])
        self._post("ack", {"lease": self._lease, **self._results}, self._take_counts)

    def _take_counts(self, answer: Response) -> None:
        self._traffic.count("ack", answer, 200, *self._if_disturbed)
        if answer.status == 200:
            names = {"accept": "accepted", "release": "released", "reject": "rejected"}
            counts = {names[result]: len(ids) for result, ids in self._results.items()}
            if json.loads(answer.body) != counts:
                self._traffic.faults.add(f"ack: {answer.body!r} for {counts}")
            self._tasks.accepted += counts["accepted"]
            self._tasks.released += counts["released"]
            self._tasks.rejected += counts["rejected"]
        if answer.status != 409:
            for result in ("accept", "reject"):
                self._tasks.finish(self._numbers[result], is_known=answer.status == 200)
        self._leave()

    def _acknowledge_late(self) -> None:
        def take(answer: Response) -> None:
            self._traffic.count("ack after the end", answer, 409)
            self._tasks.late += 1
            self._pull()

        self._tasks.free(self._all)
        self._post("ack", {"lease": self._lease, "accept": "all"}, take)

    @property
    def _if_disturbed(self) -> tuple[int, ...]:
        """Kafka gives the messages of a partition again when it has another leader."""
        return (409,) if self._traffic.is_disturbed() else ()

    def _leave(self) -> None:
        self._tasks.free(self._all)
        self._pull()

    def _later(self, delay_s: float, function: Callable[[], None]) -> None:
        self._traffic.loop.call_later(delay_s, function)


def add_workers(tasks: Tasks, count: int) -> None:
    for _ in range(count):
        Worker(tasks)
