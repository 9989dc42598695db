"""Workers of one group: through the gateways, with the client of the project, and Java's own."""

from __future__ import annotations

import http.client
import json
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from http import HTTPStatus
from pathlib import Path

from tests.chaos.clients import Client, fetch
from tests.chaos.history import Place
from tests.chaos.work_history import (
    ACCEPT,
    JAVA,
    REJECT,
    RELEASE,
    Acknowledgement,
    Given,
    Held,
    Trouble,
    WorkHistory,
)
from tests.real_kafka.cluster import Cluster
from tests.real_kafka.process import JavaProcess, java_command
from tests.real_kafka.share_groups import ShareGroup, free_sessions
from tests.support.waiting import wait_until

__all__ = ["SETTINGS", "WORK", "Workers"]

WORK = "work"
"""The topic whose messages they share."""
_GROUP = "workers"
_PATH = f"/topics/{WORK}/groups/{_GROUP}"
_LOCK_S = 6
_LEASE_S = _LOCK_S - 1
_SESSIONS = 120
_ATTEMPTS = 5
SETTINGS = {
    "group.share.max.share.sessions": str(_SESSIONS),
    "group.share.max.size": str(_SESSIONS),
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": str(1000 * _LOCK_S),
    "group.share.delivery.count.limit": str(_ATTEMPTS),
}
"""Of the nodes."""
_BAD = 97
"""A message whose offset can be divided by it is never accepted."""
_WORKERS = 6
_MOST = (1, 1, 5, 20)
_WAITS_S = (0, 1, 5)
_BACK_OFF_S = 0.3
_LATE_S = 0.2
_LOOK_S = 0.2
_NOT_SENT = 0
"""In place of the status of a response."""
_SESSIONS_END_S = 30
"""Within which the sessions of workers that are stopped have ended: a lease, and time for the broker."""


_STATUSES = {"done": HTTPStatus.OK, "InvalidRecordStateException": HTTPStatus.CONFLICT}
"""What the outcomes would be called by a gateway; others are not known."""


class GroupWorker(Client):
    """
    Works through any gateway.

    It mostly accepts. It also releases, rejects, names nothing, extends, abandons, acknowledges a second
    time, with a lease that was replaced, and too late.
    """

    def __init__(self, name: str, urls: Sequence[str], *, seed: int) -> None:
        super().__init__(name, urls, seed=seed)
        self.held: list[Held] = []
        self.lost: list[tuple[float, float]] = []
        """Pulls without a known response."""
        self._later: list[tuple[Held, str]] = []
        self._is_last = False

    def hurry(self) -> None:
        """Only accept from now on, so that the topic is soon done."""
        self._is_last = True

    def work(self) -> None:
        ways = {
            self._accept: 60,
            self._mix: 15,
            self._extend: 10,
            self._repeat: 5,
            self._abandon: 5,
            self._keep_until_late: 5,
        }
        while not self.is_enough.is_set():
            pulled = self._pull()
            if pulled is None:
                self.is_enough.wait(_BACK_OFF_S)
            elif self._is_last:
                self._accept(*pulled)
            else:
                [way] = self._random.choices([*ways], [*ways.values()])
                way(*pulled)
                self._acknowledge_late()

    def _pull(self) -> tuple[Held, str] | None:
        url = self._url()
        body = {
            "max": self._random.choice(_MOST),
            "wait": 0 if self._is_last else self._random.choice(_WAITS_S),
        }
        begun_s = time.time()
        status, answer = self._ask(url, "pull", body)
        if status != HTTPStatus.OK:
            if status not in (HTTPStatus.NO_CONTENT, _NOT_SENT):
                self.lost.append((begun_s, time.time()))
            return None
        messages = {
            _place(each["id"]): Given(each["attempts"], each.get("key"), each["content"], each["headers"])
            for each in answer["messages"]
        }
        held = Held(self.name, [url], begun_s, time.time(), messages, _time(answer["expires"]))
        self.held.append(held)
        return held, answer["lease"]

    def _accept(self, held: Held, lease: str) -> None:
        self.is_enough.wait(self._random.choice([0, 0, 0.02, 0.1]))
        self._acknowledge(held, lease, dict.fromkeys(held.messages, ACCEPT))

    def _mix(self, held: Held, lease: str) -> None:
        kinds = self._random.choices([ACCEPT, RELEASE, REJECT, None], [70, 20, 3, 7], k=len(held.messages))
        self._acknowledge(held, lease, dict(zip(held.messages, kinds, strict=True)))

    def _extend(self, held: Held, lease: str) -> None:
        last = lease
        for _ in range(self._random.randint(1, 3)):
            self.is_enough.wait(self._random.uniform(0, _LEASE_S / 2))
            url = self._url()
            held.gateways.append(url)
            status, answer = self._ask(url, "extend", {"lease": last})
            if status != HTTPStatus.OK:
                # It may be extended.
                held.expires_s = None
                return
            last, held.expires_s = answer["lease"], _time(answer["expires"])
        if self._random.random() < 0.3:
            verdicts = dict.fromkeys(held.messages, ACCEPT)
            self._acknowledge(held, lease, verdicts, is_replaced=True)
        self._accept(held, last)

    def _repeat(self, held: Held, lease: str) -> None:
        for _ in range(2):
            self._accept(held, lease)

    def _abandon(self, held: Held, lease: str) -> None:
        pass

    def _keep_until_late(self, held: Held, lease: str) -> None:
        self._later.append((held, lease))

    def _acknowledge_late(self) -> None:
        late = [each for each in self._later if time.time() > each[0].expires_s + _LATE_S]
        self._later = [each for each in self._later if each not in late]
        for held, lease in late:
            self._acknowledge(held, lease, dict.fromkeys(held.messages, ACCEPT))

    def _acknowledge(
        self, held: Held, lease: str, verdicts: Mapping[Place, str | None], *, is_replaced: bool = False
    ) -> None:
        verdicts = {
            place: RELEASE if verdict is not None and place[1] % _BAD == 0 else verdict
            for place, verdict in verdicts.items()
        }
        body = {
            name: [_id(place) for place, verdict in verdicts.items() if verdict == name]
            for name in (ACCEPT, RELEASE, REJECT)
        }
        if not is_replaced and len({*verdicts.values()}) == 1 and None not in verdicts.values():
            body = {verdicts[next(iter(verdicts))]: "all"}
        said = {place: verdict or RELEASE for place, verdict in verdicts.items()}
        url = self._url()
        noted = Acknowledgement(time.time(), url, said, is_replaced=is_replaced, expires_s=held.expires_s)
        held.acknowledgements.append(noted)
        status, answer = self._ask(url, "ack", {"lease": lease, **body})
        noted.ended_s, noted.status = time.time(), status
        if status == _NOT_SENT:
            held.acknowledgements.remove(noted)
        if status == HTTPStatus.OK:
            found = Counter(said.values())
            is_right = answer == {
                "accepted": found[ACCEPT],
                "released": found[RELEASE],
                "rejected": found[REJECT],
            }
            noted.done = frozenset(said if is_right else ())
        elif status == HTTPStatus.CONFLICT:
            noted.done = frozenset(map(_place, answer.get("done", ())))

    def _ask(self, url: str, action: str, body: Mapping) -> tuple[int | None, Mapping]:
        """:return: no status without a response, and `_NOT_SENT` without a connection."""
        try:
            connection = self._connect(url)
        except OSError:
            self.counts[f"{action}: no connection"] += 1
            return _NOT_SENT, {}
        try:
            connection.request(
                "POST", f"{_PATH}/{action}", json.dumps(body), {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException):
            self._leave(url)
            self.counts[f"{action}: connection lost"] += 1
            return None, {}
        self.counts[f"{action}: {response.status}"] += 1
        if response.status not in (200, 204, 409, 503, 504):
            self.broken.append(f"{self.name}: {response.status} {content!r} to {action} {body}")
        return response.status, json.loads(content or b"{}")


def _place(text: str) -> Place:
    partition, offset = map(int, text.split("-"))
    return partition, offset


def _id(place: Place) -> str:
    return "{}-{}".format(*place)


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


class Workers:
    """All workers of a run."""

    def __init__(self, cluster: Cluster, urls: Sequence[str], directory: Path, *, seed: int) -> None:
        """:param directory: for the logs of processes."""
        self._cluster, self._urls, self._directory = cluster, urls, directory
        self._workers = [GroupWorker(f"worker {n}", urls, seed=seed + n) for n in range(_WORKERS)]
        arguments = [WORK, _GROUP, str(_LOCK_S), str(_BAD)]
        self._clients = {
            url: JavaProcess(
                f"client of {url}",
                [sys.executable, "-m", "tests.chaos.client_worker", url, *arguments],
                log=directory / f"client-{n}.log",
            )
            for n, url in enumerate(urls)
        }
        program = Path(__file__).with_name("ShareWorker.java")
        self.java = JavaProcess(
            "KafkaShareConsumer",
            [*java_command(cluster.version, {}), str(program), cluster.bootstrap, *arguments],
            log=directory / "java.log",
        )
        """Java's consumer, which has the topic in the same group."""
        self._failed: list[str] = []
        self._backlog: int | None = None
        self._at_end: Counter[str] = Counter()

    @property
    def broken(self) -> list[str]:
        """Responses that no worker expects."""
        return [*self._failed, *(text for each in self._workers for text in each.broken)]

    def start(self) -> None:
        """Begin to work. Only on the main thread."""
        # Java's consumer would make a group that begins at the end of the topic.
        body = json.dumps({"wait": 1})
        connection = http.client.HTTPConnection(self._urls[0].split("/")[2], timeout=30)
        wait_until(lambda: self._is_made(connection, body), "there is a group")
        connection.close()
        for each in (self.java, *self._clients.values()):
            each.start()
        for each in self._workers:
            each.start()

    def _is_made(self, connection: http.client.HTTPConnection, body: str) -> bool:
        connection.request("POST", f"{_PATH}/pull", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        return response.status in (HTTPStatus.OK, HTTPStatus.NO_CONTENT)

    def stop(self) -> None:
        """End all workers, as a crash would."""
        for each in self._workers:
            each.is_enough.set()
        for process in (self.java, *self._clients.values()):
            process.kill9()

    def drain(self, *, deadline_s: float) -> None:
        """Work until nothing is left, or there is nothing new done for a time; then stop."""
        begun_s = changed_s = time.time()
        for each in self._workers:
            each.hurry()
        for each in (self.java, *self._clients.values()):
            self._stop(each)
        least = math.inf
        while time.time() < changed_s + deadline_s and not self._is_done():
            if self._backlog is not None and self._backlog < least:
                least, changed_s = self._backlog, time.time()
            time.sleep(_LOOK_S)
        self._at_end["seconds until nothing was left"] = round(time.time() - begun_s)
        for each in self._workers:
            each.is_enough.set()
        for each in self._workers:
            each.join(deadline_s)

    def _stop(self, process: JavaProcess) -> None:
        """Stop a worker in order; if it cannot, or has ended, that is a fault."""
        try:
            process.check_alive()
            process.stop()
        except (AssertionError, subprocess.TimeoutExpired) as error:
            self._failed.append(str(error))
            process.kill9()

    def _is_done(self) -> bool:
        with suppress(OSError):
            status, _, body = fetch(self._urls[0], _PATH)
            self._backlog = json.loads(body)["backlog"] if status == HTTPStatus.OK else None
        return self._backlog == 0

    def check_sessions(self) -> Iterator[str]:
        """Check that no node has a session of any worker that has stopped."""
        try:
            group = ShareGroup(self._cluster)
        except AssertionError as error:
            yield f"the sessions that are left cannot be counted: {error}"
            return
        for node in self._cluster.nodes:
            group.bootstrap = self._cluster.address(node.number)
            with suppress(AssertionError):
                wait_until(lambda: free_sessions(group) == _SESSIONS, "", deadline_s=_SESSIONS_END_S)
            free = free_sessions(group)
            self._at_end[f"sessions left on node {node.number}"] = _SESSIONS - free
            if free != _SESSIONS:
                yield f"node {node.number} has {_SESSIONS - free} share sessions that nobody uses"

    def history(self, troubles: Sequence[Trouble]) -> WorkHistory:
        """Everything until now."""
        held = [each for worker in self._workers for each in worker.held]
        for url, process in self._clients.items():
            held += _read(process.log, url)
        held += _read(self.java.log, JAVA)
        return WorkHistory(
            lease_s=_LEASE_S,
            most_attempts=_ATTEMPTS,
            held=held,
            lost=[each for worker in self._workers for each in worker.lost],
            troubles=troubles,
            backlog=self._backlog,
        )

    def counts(self) -> Mapping[str, Counter]:
        """How often there was what, for people."""
        responses = sum((each.counts for each in self._workers), Counter())
        return {"responses to workers": responses, "work at the end": self._at_end}


def _read(log: Path, gateway: str) -> Iterator[Held]:
    """Read the lines of `ShareWorker.java` or `tests.chaos.client_worker`."""
    held: dict[int, Held] = {}
    for line in log.read_text(errors="replace").splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            # Of another kind; or the worker was killed in the middle.
            continue
        if "messages" in found:
            messages = {
                (partition, offset): Given(attempts, None, value)
                for partition, offset, attempts, value in found["messages"]
            }
            new = Held(log.stem, [gateway], found["begun"], found["ended"], messages)
            held[found["lease"]] = new
            yield new
            continue
        if found["lease"] not in held:
            continue
        acknowledgements = held[found["lease"]].acknowledgements
        if "verdicts" in found:
            verdicts = {(partition, offset): name for partition, offset, name in found["verdicts"]}
            acknowledgements.append(Acknowledgement(found["begun"], gateway, verdicts))
            continue
        # The partitions have an answer each.
        whole = acknowledgements.pop()
        outcomes = dict(found["outcomes"])
        for partition in {partition for partition, _ in whole.verdicts}:
            verdicts = {place: name for place, name in whole.verdicts.items() if place[0] == partition}
            status = _STATUSES.get(outcomes.get(partition))
            done = frozenset(verdicts if status == HTTPStatus.OK else ())
            acknowledgements.append(
                Acknowledgement(whole.begun_s, gateway, verdicts, found["ended"], status, done)
            )
