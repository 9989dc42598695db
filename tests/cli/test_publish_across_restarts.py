"""``sampleapp publish --lines`` while the service goes away, and comes back."""

from __future__ import annotations

import contextlib
import re
import signal
import sqlite3
import threading
from collections import Counter
from contextlib import closing

import pytest

from tests.support.command import DEADLINE_S, Watched, stored
from tests.support.command import publish as publish_by_hand
from tests.support.free_ports import free_port
from tests.support.live_service import LiveService
from tests.support.waiting import wait_until

# More than can be on their way on all connections, when the service goes.
PART = 10_000


def numbers(told):
    """The numbers in ``Lines 1, 3-4: …``."""
    for part in told.split(", "):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


class Lines:
    """Lines that are written without waiting: what is not taken waits in the pipe, and then here."""

    def __init__(self, file):
        self._file = file
        self._written = 0
        self._threads = []

    def write_some(self):
        numbers = range(self._written + 1, self._written + PART + 1)
        text = "".join(f"{number}\n" for number in numbers)
        self._written = numbers[-1]
        thread = threading.Thread(target=lambda: (self._file.write(text), self._file.flush()))
        thread.start()
        self._threads.append(thread)

    def end(self):
        for thread in self._threads:
            thread.join()
        self._file.close()


def count_of(service, topic="t"):
    with closing(sqlite3.connect(service.directory / "broker.sqlite3")) as database:
        query = "SELECT count(*) FROM record JOIN topic ON topic.id = record.topic_id WHERE topic.name = ?"
        return database.execute(query, [topic]).fetchone()[0]


def wait_for_count(service, count):
    wait_until(lambda: count_of(service) >= count, f"{count} records")


def wait_for_more(service, before):
    wait_for_count(service, before + 1)


@pytest.mark.slow
def test_each_line_is_stored_once_or_told_when_the_service_is_stopped_killed_and_started_again(tmp_path):
    listen = f"tcp:{free_port()}:interface=127.0.0.1"
    with LiveService(directory=tmp_path, listen=listen) as first:
        # So that there are tables to look into.
        publish_by_hand(first, "t", "0")
        with Watched(first, "publish", "t", "--lines", "-") as publish:
            lines = Lines(publish.process.stdin)
            lines.write_some()
            wait_for_more(first, 1)
            first.stop()
            lines.write_some()
            publish.wait_for("Waiting; ")
            with LiveService(directory=tmp_path, listen=listen) as second:
                publish.wait_for("Sending lines again after ")
                before = len(stored(second, "t"))
                lines.write_some()
                wait_for_more(second, before)
                second.kill()
                lines.write_some()
                publish.wait_for("Waiting; ", times=2)
            with LiveService(directory=tmp_path, listen=listen):
                publish.wait_for("Sending lines again after ", times=2)
                lines.end()
                code, shown = publish.end()
    in_doubt, rejected = set(), set()
    for line in shown:
        if found := re.match(r"Lines? ([-\d, ]+): (.*)", line):
            (in_doubt if found[2].endswith("May have been published.") else rejected).update(
                numbers(found[1])
            )
    counts = Counter(int(content) for _, content in stored(first, "t"))
    assert rejected == set()
    assert set(counts.values()) == {1}
    assert set(range(1, 4 * PART + 1)) - in_doubt <= counts.keys()
    doubt = f", {len(in_doubt)} may have been published" if in_doubt else ""
    assert shown[-1] == f"Published {4 * PART - len(in_doubt)} lines, 0 failed{doubt}."
    assert code == (1 if in_doubt else 0)


LINES = 20_000
MOMENTS = (1, 3_000, 6_000, 9_000)
"""Numbers of records at which the command is killed."""


@contextlib.contextmanager
def nothing_is_stored(service):
    """While this lasts, requests that the service has read get no answer."""
    path = service.directory / "broker.sqlite3"
    with closing(sqlite3.connect(path, isolation_level=None, timeout=DEADLINE_S)) as database:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("ROLLBACK")


@pytest.mark.parametrize("in_flight", ["1", "4"])
@pytest.mark.slow
def test_a_file_with_idempotency_keys_is_completed_by_the_same_command_after_kill_9(tmp_path, in_flight):
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"{number % 7} {number}\n" for number in range(LINES)))
    command = ["publish", "t", "--lines", str(file), "--idempotent", "--in-flight", in_flight]
    service = LiveService(directory=tmp_path)
    try:
        # So that there are tables to look into.
        publish_by_hand(service, "other", "0")
        for moment, count in enumerate(MOMENTS):
            with Watched(service, *command) as killed:
                wait_for_count(service, count)
                # In every second life, the service stores the last requests after the kill.
                with nothing_is_stored(service) if moment % 2 else contextlib.nullcontext():
                    killed.process.kill()
                    assert killed.end()[0] == -signal.SIGKILL
            assert count_of(service) < LINES, "it was killed too late"
            if moment == 2:
                service.kill()
                service = LiveService(directory=tmp_path)
        with Watched(service, *command) as completing:
            status, sentences = completing.end()
            assert (status, sentences[0]) == (0, f"Published {LINES} lines, 0 failed.")
        contents = [content for _, content in stored(service, "t")]
    finally:
        service.kill()
    lines = file.read_text().splitlines()
    assert sorted(contents) == sorted(lines)
    if in_flight == "1":
        assert contents == lines
