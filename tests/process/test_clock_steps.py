"""The system's time is set while the service runs: nothing expires, and no deadline is late."""

from __future__ import annotations

import signal
import sqlite3
import sys
from contextlib import closing
from email.utils import parsedate_to_datetime

from tests.support.process import (
    answer_on,
    connect,
    has_read_all_of,
    locked,
    publish,
    send_message,
)
from tests.support.waiting import wait_until

HOUR_S = 3600

STEPPED = """
import signal, sys, time
real, offset_s = time.time, 0
def step(number, _):
    global offset_s
    offset_s += {forward: 3600, back: -3600}[number]
forward, back = signal.SIGUSR1, signal.SIGUSR2
time.time = lambda: real() + offset_s
for number in (forward, back):
    signal.signal(number, step)
from twisted.scripts.twistd import run
run()
"""
"""Runs twistd in a process whose time of day a signal sets an hour forward or back."""


def start_with_steps(start):
    return start(
        command=[sys.executable, "-c", STEPPED, "-n", "--pidfile=", "sampleapp"],
        options=["--header-timeout", "0.3"],
    )


def step(service, number):
    """Set the time, and wait until that is seen, and every limit was looked at since."""
    before_s = date_of(service)
    service.process.send_signal(number)
    wait_until(lambda: abs(date_of(service) - before_s) > HOUR_S / 2, "the time has changed")
    # Its own deadline comes with a sweep over all connections, although the time was set.
    with closing(connect(service)) as slow:
        slow.connect()
        slow.sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        assert slow.sock.recv(12) == b"HTTP/1.1 408"


def date_of(service):
    """The time of day, as the service tells it."""
    with closing(connect(service)) as client:
        client.request("GET", "/live")
        return parsedate_to_datetime(client.getresponse().headers["Date"]).timestamp()


def test_a_step_of_the_time_expires_nothing_and_holds_no_deadline_up(start, tmp_path):
    service = start_with_steps(start)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        with closing(connect(service)) as waiting, closing(connect(service)) as idle:
            idle.request("GET", "/live")
            idle.getresponse().read()
            socket = idle.sock
            publish(waiting, "first")
            with locked(tmp_path):
                send_message(waiting, "second")
                wait_until(lambda: has_read_all_of(service, 2), "the request has come in")
                step(service, number)
            assert answer_on(waiting)[0] == 200
            idle.request("GET", "/live")
            assert idle.getresponse().status == 200
            assert idle.sock is socket
    assert service.stop() == -signal.SIGTERM


def test_records_have_the_time_of_day_after_a_step_of_it(start, tmp_path):
    service = start_with_steps(start)
    with closing(connect(service)) as client:
        publish(client, "before")
        step(service, signal.SIGUSR1)
        publish(client, "after")
    with closing(sqlite3.connect(tmp_path / "broker.sqlite3")) as database:
        (before_ms,), (after_ms,) = database.execute('SELECT timestamp_ms FROM record ORDER BY "offset"')
    assert after_ms - before_ms >= HOUR_S * 1000
