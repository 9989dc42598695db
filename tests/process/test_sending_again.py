"""Requests with an idempotency key are sent again and again, while services on one file are killed."""

from __future__ import annotations

import http.client
import json
import random
import sqlite3
import threading
from contextlib import closing

import pytest

from tests.support.process import DEADLINE_S, connect, records
from tests.support.waiting import wait_until

CALLERS = 8
LIVES = 12
# On a busy machine, a service is rarely killed between a commit and its answer.
MOST_LIVES = 60


class Caller(threading.Thread):
    """Sends each request until it has one to four answers, each time to any of the services."""

    def __init__(self, services, name, *, seed):
        super().__init__()
        self.services = services
        self.name_of_records = name
        self.answers = {}
        """The answers for each content: place, and whether it was a replay."""
        self.again_after_a_loss = 0
        self.has_found_an_unanswered_record = False
        """Whether a first answer was a replay, as after a kill between the commit and its answer."""
        self.is_enough = threading.Event()
        self._random = random.Random(seed)
        self._connections = {}
        self._number = 0

    def run(self):
        while not self.is_enough.is_set():
            count = self._random.choice([1, 1, 1, 20])
            contents = [f"{self.name_of_records}-{self._number + n}" for n in range(count)]
            self._number += count
            for _ in range(self._random.randint(1, 4)):
                for content, found in zip(contents, self._sent_until_known(contents), strict=True):
                    self.has_found_an_unanswered_record |= found[1] and content not in self.answers
                    self.answers.setdefault(content, []).append(found)
        for connection in self._connections.values():
            connection.close()

    def _sent_until_known(self, contents):
        """Send as often as it takes; returns the place of each."""
        key = {"Idempotency-Key": contents[0]}
        while True:
            service = self._random.choice(self.services)
            try:
                connection = self._connections.setdefault(service, connect(service))
                return self._send(connection, contents, key)
            except (OSError, http.client.HTTPException):
                self.again_after_a_loss += 1
                self._connections.pop(service).close()

    def _send(self, connection, contents, key):
        messages = [json.dumps({"topic": "t", "key": self.name_of_records, "content": c}) for c in contents]
        media_type = "application/json" if len(messages) == 1 else "application/x-ndjson"
        connection.request("POST", "/messages", "\n".join(messages), {"Content-Type": media_type, **key})
        response = connection.getresponse()
        body = response.read()
        if response.status in {503, 504}:
            raise http.client.HTTPException
        assert response.status == 200, body
        is_replayed = response.getheader("Idempotent-Replayed") == "true"
        return [(json.loads(line)["offset"], is_replayed) for line in body.splitlines()]


@pytest.mark.slow
def test_after_kill_9_at_any_moment_each_record_is_once_where_every_answer_said(start, tmp_path):
    randomly = random.Random(20)
    services = [start(), start()]
    callers = [Caller(services, f"{n}", seed=n) for n in range(CALLERS)]
    for each in callers:
        each.start()
    for life in range(MOST_LIVES):
        if life >= LIVES and any(each.has_found_an_unanswered_record for each in callers):
            break
        before = sum(len(each.answers) for each in callers)
        wait_until(
            lambda before=before: sum(len(each.answers) for each in callers) > before + 100, "100 records"
        )
        # Some milliseconds more, which are other ones in each life.
        threading.Event().wait(randomly.uniform(0, 0.05))
        services[life % 2].kill()
        if life % 3 == 2:
            # Then the next one to open the file recovers its write-ahead log.
            services[1 - life % 2].kill()
            services[1 - life % 2] = start()
        services[life % 2] = start()
    for each in callers:
        each.is_enough.set()
    for each in callers:
        each.join(DEADLINE_S)
        assert not each.is_alive()
    stored = records(tmp_path)
    answers = {content: found for each in callers for content, found in each.answers.items()}
    assert [offset for offset, _ in stored] == list(range(len(stored)))
    assert len(stored) == len(answers)
    assert {content: {offset for offset, _ in found} for content, found in answers.items()} == {
        content: {offset} for offset, content in stored
    }
    for each in callers:
        mine = [content for _, content in stored if content.startswith(f"{each.name_of_records}-")]
        assert mine == list(each.answers)
    # Enough was lost, and found again.
    assert sum(each.again_after_a_loss for each in callers) >= LIVES
    assert any(each.has_found_an_unanswered_record for each in callers)
    with closing(sqlite3.connect(tmp_path / "broker.sqlite3")) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert database.execute("SELECT count(*) FROM identity").fetchall() == [(len(stored),)]
