"""How the service ends when it is asked to."""

from __future__ import annotations

import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from tests.support.live_service import TWISTD_SAMPLEAPP
from tests.support.process import (
    DEADLINE_S,
    answer_on,
    connect,
    has_read_all_of,
    locked,
    one_held_up,
    publish,
    records,
    rejects,
    send_message,
)
from tests.support.waiting import wait_until

COMMANDS = {
    "twistd": TWISTD_SAMPLEAPP,
    "serve": (str(Path(sys.executable).with_name("sampleapp")), "serve"),
}
ENDING = (signal.SIGINT, signal.SIGTERM)
ONE_OF_EACH = {("twistd", signal.SIGTERM), ("serve", signal.SIGINT)}
SAME_SIGNAL_S = 0.5
STUCK = """
import sys
from twisted.internet import reactor
from sampleapp.cli import main

def be_stuck():
    print("stuck")
    while True:
        pass

reactor.callWhenRunning(reactor.callLater, 0, be_stuck)
sys.argv[0] = "sampleapp"
main()
"""


def test_sigterm_while_requests_run_loses_none_of_them(start, tmp_path):
    service = start()
    connections = [connect(service) for _ in range(20)]
    idle = connect(service)
    assert publish(idle, "first")[0] == 200
    with ThreadPoolExecutor(len(connections)) as pool:
        with locked(tmp_path):
            for n, connection in enumerate(connections):
                send_message(connection, f"m{n}")
            answers = [pool.submit(answer_on, connection) for connection in connections]
            wait_until(lambda: has_read_all_of(service, 21), "20 requests have come in")
            service.process.terminate()
            service.wait_for_output("Received SIGTERM")
            # It takes nobody new,
            wait_until(lambda: rejects(service), "the port is closed")
            # but those that it has, it keeps.
            assert not any(answer.done() for answer in answers)
        outcomes = [answer.result(DEADLINE_S) for answer in answers]
    assert {status for status, _ in outcomes} == {200}
    assert service.stop() == -15
    responded = sorted((answer["offset"], f"m{n}") for n, (_, answer) in enumerate(outcomes))
    assert responded == records(tmp_path)[1:]
    for connection in (*connections, idle):
        connection.close()


def test_what_still_runs_at_the_deadline_is_answered_with_what_is_known_of_it(start, tmp_path):
    service = start(options=["--drain-timeout", "0.5"])
    with (
        closing(connect(service)) as connection,
        ThreadPoolExecutor(1) as pool,
        one_held_up(service, connection, tmp_path),
    ):
        answer = pool.submit(answer_on, connection)
        assert service.stop() == -15
        status, problem = answer.result(DEADLINE_S)
    assert status == 503, problem
    assert records(tmp_path) == [(0, "first")]


@pytest.mark.parametrize(
    ("command", "first", "second"),
    [
        pytest.param(
            command,
            first,
            second,
            marks=[] if (command, first) in ONE_OF_EACH and first == second else [pytest.mark.slow],
        )
        for command, first, second in product(COMMANDS, ENDING, ENDING)
    ],
)
def test_a_second_signal_ends_it_at_once_and_says_what_is_cut_off(start, tmp_path, command, first, second):
    service = start(command=COMMANDS[command], options=["--drain-timeout", "600"])
    with closing(connect(service)) as connection, one_held_up(service, connection, tmp_path):
        service.process.send_signal(first)
        service.wait_for_output(f"Received {first.name}")
        time.sleep(SAME_SIGNAL_S)
        service.process.send_signal(second)
        assert service.process.wait(DEADLINE_S) == -second
        with pytest.raises(ConnectionError):
            answer_on(connection)
    service.wait_for_output(
        rf"Second signal \({second.name}\): ending at once; 1 unfinished request\(s\) are cut off\."
    )
    assert "Traceback" not in service.output


def test_a_second_signal_ends_it_also_when_its_reactor_is_stuck(start):
    service = start(command=(sys.executable, "-c", STUCK, "serve"))
    service.wait_for_output("stuck")
    service.process.terminate()
    service.wait_for_output("Received SIGTERM")
    time.sleep(SAME_SIGNAL_S)
    service.process.send_signal(signal.SIGINT)
    assert service.process.wait(DEADLINE_S) == -signal.SIGINT


def test_two_signals_at_the_same_moment_are_one_and_leave_no_traceback(start, tmp_path):
    service = start()
    with closing(connect(service)) as connection:
        with one_held_up(service, connection, tmp_path):
            service.process.send_signal(signal.SIGSTOP)
            service.process.send_signal(signal.SIGINT)
            service.process.terminate()
            service.process.send_signal(signal.SIGCONT)
            wait_until(lambda: rejects(service), "the port is closed")
        assert answer_on(connection)[0] == 200
    assert service.process.wait(DEADLINE_S) in (-signal.SIGINT, -signal.SIGTERM)
    service.kill()
    assert service.output.count("Received SIG") == 1
    assert "Second signal" not in service.output
    assert "Traceback" not in service.output


def test_an_interrupt_that_the_shell_has_ignored_does_not_keep_the_service_from_being_stopped(start):
    code = (
        "import os, signal, sys; "
        "signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    service = start(command=(sys.executable, "-c", code, *TWISTD_SAMPLEAPP))
    service.wait_for_output("Serving 0 readings")
    service.process.send_signal(signal.SIGINT)
    assert service.stop() == -signal.SIGTERM
    assert "SIGINT" not in service.output


def test_sighup_ends_nothing_not_even_a_request(start, tmp_path):
    service = start()
    with closing(connect(service)) as connection:
        with one_held_up(service, connection, tmp_path):
            for _ in range(3):
                service.process.send_signal(signal.SIGHUP)
        assert answer_on(connection)[0] == 200
        assert publish(connection, "third")[0] == 200
    assert service.stop() == -15
