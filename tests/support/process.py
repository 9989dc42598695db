"""What tests of the service as a process share: HTTP by the standard library, and a look into its file."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.secrets import record_output
from tests.support.waiting import wait_until

DEADLINE_S = 60
"""Much more than anything takes, also on a busy machine, where a process may start in 20."""


TWISTD = [sys.executable, str(Path(sys.executable).with_name("twistd"))]


def connect(service):
    url = urlsplit(service.url)
    return http.client.HTTPConnection(url.hostname, url.port, timeout=DEADLINE_S)


def get(port, path):
    """Ask a port of this machine; returns the status and the body."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()


def publish(connection, content, *, topic="t", key=None):
    """Publish one message; returns the status and the answer."""
    send_message(connection, content, topic=topic, key=key)
    return answer_on(connection)


def send_message(connection, content, *, topic="t", key=None):
    body = json.dumps({"topic": topic, "content": content} | ({} if key is None else {"key": key}))
    connection.request("POST", "/messages", body, {"Content-Type": "application/json"})


def publish_lines(connection, contents, *, topic="t", key=None):
    """Publish messages in one request; returns the status and the lines of the answer."""
    lines = [json.dumps({"topic": topic, "key": key, "content": each}) for each in contents]
    connection.request("POST", "/messages", "\n".join(lines), {"Content-Type": "application/x-ndjson"})
    response = connection.getresponse()
    body = response.read()
    record_output("answers", body)
    return response.status, [json.loads(line) for line in body.splitlines()]


def answer_on(connection):
    response = connection.getresponse()
    body = response.read()
    record_output("answers", str(response.headers))
    record_output("answers", body)
    return response.status, json.loads(body)


def records(directory, topic="t"):
    """What is in a topic, read from the file by SQLite alone: a list of (offset, content)."""
    with closing(sqlite3.connect(directory / "broker.sqlite3")) as database:
        rows = database.execute(
            'SELECT "offset", value FROM record JOIN topic ON topic.id = record.topic_id'
            ' WHERE topic.name = ? ORDER BY "offset"',
            [topic],
        ).fetchall()
    return [(offset, value.decode()) for offset, value in rows]


@contextmanager
def locked(directory):
    """While this lasts, the service can write nothing."""
    with closing(sqlite3.connect(directory / "broker.sqlite3", isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("ROLLBACK")


@contextmanager
def one_held_up(service, connection, directory):
    """While this lasts, a message that was sent on a connection cannot be stored, and has no answer."""
    assert publish(connection, "first")[0] == 200
    with locked(directory):
        send_message(connection, "second")
        wait_until(lambda: has_read_all_of(service, 1), "the request has come in")
        yield


class Publisher(threading.Thread):
    """A client that publishes one message after the other until the service is gone."""

    def __init__(self, service, name):
        super().__init__()
        self.connection = connect(service)
        self.prefix = name
        self.acknowledged = []
        self.sent = 0

    def run(self):
        try:
            while True:
                content = f"{self.prefix}-{self.sent}"
                self.sent += 1
                status, answer = publish(self.connection, content)
                assert status == 200, answer
                self.acknowledged.append((answer["offset"], content))
        except (OSError, http.client.HTTPException):
            self.connection.close()


class BatchPublisher(threading.Thread):
    """A client that publishes one batch of lines after the other until the service is gone."""

    def __init__(self, service, name, *, lines):
        super().__init__()
        self.connection = connect(service)
        self.name_of_records = name
        self.lines = lines
        self.responded = []
        """Of each batch that was answered, its contents with their offsets."""
        self.unanswered = []
        """The contents of the batch whose answer did not come any more."""

    def run(self):
        try:
            for number in itertools.count():
                contents = [f"{self.name_of_records}-{number}-{n}" for n in range(self.lines)]
                self.unanswered = contents
                status, places = publish_lines(self.connection, contents, key=self.name_of_records)
                assert status == 200, places
                self.responded.append([(each["offset"], c) for each, c in zip(places, contents, strict=True)])
                self.unanswered = []
        except (OSError, http.client.HTTPException):
            self.connection.close()


def assert_nothing_lost(publishers, directory):
    stored = records(directory)
    assert [offset for offset, _ in stored] == list(range(len(stored))), "a gap or a repeat"
    acknowledged = [pair for publisher in publishers for pair in publisher.acknowledged]
    assert len(acknowledged) == len(set(acknowledged))
    assert set(acknowledged) <= set(stored)
    # What was not acknowledged may be there or not, but nothing is there twice.
    contents = [content for _, content in stored]
    assert len(contents) == len(set(contents))
    # One message of each was on its way at the most.
    assert len(stored) <= len(acknowledged) + len(publishers)


def wait_for_readings(service, body):
    answers = []

    def read():
        with closing(connect(service)) as connection:
            connection.request("GET", "/")
            response = connection.getresponse()
            answers.append((response.read(), response.getheader("ETag")))
        return answers[-1][0] == body

    wait_until(read, f"readings {body}")
    return answers[-1][1]


def has_read_all_of(service, connections):
    """Whether the service has so many connections, and has read what was sent on them."""
    port = urlsplit(service.url).port
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    # Columns: number, local address, remote address, state (01 is established), tx_queue:rx_queue.
    ours = [row for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01"]
    return len(ours) == connections and all(row[4].endswith(":00000000") for row in ours)


def rejects(service):
    try:
        with socket.create_connection((urlsplit(service.url).hostname, urlsplit(service.url).port)):
            return False
    except OSError:
        return True


def run(arguments, environment, directory):
    ended = subprocess.run(
        [*TWISTD, *arguments],
        check=False,
        cwd=directory,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
    )
    record_output("output of the service", ended.stdout)
    return ended
