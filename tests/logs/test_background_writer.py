"""Lines that a thread writes, while its callers go on."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import capturedLogs, formatEvent

from sampleapp.logs import BackgroundWriter
from tests.support.waiting import wait_until

MOST_WAITING = 1024 * 1024


class Sink:
    """A pipe that takes a limited size at a time, and nothing while it is held."""

    def __init__(self, *takes):
        self.written = b""
        self.takes = list(takes)
        self.is_free = threading.Event()
        self.is_free.set()
        self.is_asked = threading.Event()
        self.lost = Counter()
        self.writer = BackgroundWriter("The log", self.write, lost=self.lost, label="service")

    def write(self, data):
        self.is_asked.set()
        self.is_free.wait()
        taken = self.takes.pop() if self.takes else len(data)
        if isinstance(taken, Exception):
            raise taken
        self.written += data[:taken]
        return len(data[:taken])

    def hold(self):
        """Let the thread begin to write a line, and not end."""
        self.is_free.clear()
        self.is_asked.clear()
        self.writer.write(b"held\n")
        assert self.is_asked.wait(20)


@pytest.fixture
def sink():
    sink = Sink()
    sink.writer.start()
    yield sink
    sink.is_free.set()
    sink.writer.finish(20)
    sink.writer.stop()


@given(st.lists(st.integers(0, 400_000), max_size=12), st.lists(st.integers(1, 300_000), max_size=20))
def test_in_their_order_all_lines_are_written_or_counted(lengths, takes):
    sink = Sink(*takes)
    sink.writer.start()
    sink.hold()
    lines = [b"%d " % number + b"x" * length + b"\n" for number, length in enumerate(lengths)]
    for line in lines:
        sink.writer.write(line)
    with capturedLogs():
        sink.is_free.set()
        sink.writer.finish(20)
    sink.writer.stop()
    written = sink.written.splitlines(keepends=True)
    numbers = [int(line.split()[0]) for line in written[1:]]
    assert written == [b"held\n", *(lines[number] for number in numbers)]
    assert numbers == sorted(numbers)
    assert sink.lost == {"service": len(lines) - len(numbers)}
    assert (sum(map(len, lines)) <= MOST_WAITING - 5) == (sink.lost["service"] == 0)


def test_before_its_thread_starts_a_line_is_written_at_once():
    sink = Sink()
    sink.writer.write(b"starting\n")
    assert sink.written == b"starting\n"
    assert sink.lost == {"service": 0}
    sink.takes = [OSError(32, "Broken pipe")]
    sink.writer.write(b"gone\n")
    assert sink.lost == {"service": 1}


def test_the_end_waits_no_longer_than_it_may_and_neither_does_what_is_logged_then(sink):
    sink.hold()
    began_s = time.monotonic()
    sink.writer.finish(0.2)
    for _ in range(100):
        sink.writer.write(b"Main loop terminated.\n")
    sink.writer.finish(20)
    assert 0.2 <= time.monotonic() - began_s < 10


def test_each_reason_why_it_cannot_be_written_is_told_once():
    full, broken = OSError(28, "No space left on device"), OSError(5, "Input/output error")
    sink = Sink(full, broken, full, full)
    sink.writer.start()
    with capturedLogs() as events:
        sink.writer.write(b"1\n")
        wait_until(lambda: sink.written, "it can be written to again", deadline_s=20)
        sink.writer.finish(20)
    sink.writer.stop()
    failures = [line for line in map(formatEvent, events) if "cannot be written to" in line]
    assert [line.partition(".")[0] for line in failures] == [
        "The log cannot be written to: No space left on device",
        "The log cannot be written to: Input/output error",
    ]


def test_what_is_logged_after_the_end_is_written_before_the_process_ends(sink):
    sink.writer.finish(20)
    sink.writer.write(b"Main loop terminated.\n")
    assert sink.written == b"Main loop terminated.\n"


def test_what_cannot_be_written_at_the_end_is_lost_and_does_not_keep_the_end_waiting():
    sink = Sink(*[OSError(32, "Broken pipe")] * 10)
    sink.writer.start()
    with capturedLogs() as events:
        sink.writer.write(b"1\n2\n")
        wait_until(lambda: events, "it is said that it cannot be written", deadline_s=10)
        sink.writer.finish(20)
    sink.writer.stop()
    (event,) = events
    assert formatEvent(event) == (
        "The log cannot be written to: Broken pipe. Up to 1 MiB of lines wait, and more are lost; requests "
        "are still answered."
    )
    assert sink.lost == {"service": 2}


def test_a_signal_whose_handler_logs_may_come_at_any_moment(sink):
    handled = []

    def log(_number, _frame):
        handled.append(True)
        sink.writer.write(b"handled\n")

    before = signal.signal(signal.SIGALRM, log)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
        for number in range(20_000):
            sink.writer.write(b"%d\n" % number)
        signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    sink.writer.finish(20)
    lines = sink.written.splitlines()
    assert lines.count(b"handled") == len(handled) > 0
    assert [line for line in lines if line != b"handled"] == [b"%d" % number for number in range(20_000)]


def test_lines_are_written_after_a_call_in_the_thread_has_failed(sink, no_failure_is_lost):
    def fail():
        raise MemoryError

    sink.writer.call(fail)
    sink.writer.write(b"a line\n")
    wait_until(lambda: sink.written.startswith(b"a line\n"), "the line is written")
    assert [failure.type for failure in no_failure_is_lost] == [MemoryError]
    no_failure_is_lost.clear()
