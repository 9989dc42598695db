"""``sampleapp publish --lines`` while the service goes away, and comes back."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter

import pytest

from tests.support.command import DEADLINE_S, Watched, stored
from tests.support.command import publish as publish_by_hand
from tests.support.free_ports import free_port
from tests.support.live_service import LiveService

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


def wait_for_more(service, before):
    until = time.monotonic() + DEADLINE_S
    while len(stored(service, "t")) <= before and time.monotonic() < until:
        time.sleep(0.01)
    assert len(stored(service, "t")) > before


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
    in_doubt, refused = set(), set()
    for line in shown:
        if found := re.match(r"Lines? ([-\d, ]+): (.*)", line):
            (in_doubt if found[2].endswith("May have been published.") else refused).update(numbers(found[1]))
    counts = Counter(int(content) for _, content in stored(first, "t"))
    assert refused == set()
    assert set(counts.values()) == {1}
    assert set(range(1, 4 * PART + 1)) - in_doubt <= counts.keys()
    assert shown[-1] == f"Published {4 * PART - len(in_doubt)} lines, {len(in_doubt)} failed."
    assert code == (1 if in_doubt else 0)
