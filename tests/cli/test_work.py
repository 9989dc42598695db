"""``sampleapp work``: a command for each message of a group."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred

from sampleapp.cli._work import handle, variables_of
from sampleapp.client import Rejected, Released
from sampleapp.model import ConsumerRecord, LeasedRecord
from tests.support.command import (
    COMMAND,
    DEADLINE_S,
    publish,
    sampleapp,
    shown_on_a_terminal,
)
from tests.support.waiting import wait_until

DUMP = """
import json, os, sys
variables = {name: value for name, value in os.environ.items() if name.startswith("SAMPLEAPP_")}
with open(os.environ["OUT"], "a") as out:
    out.write(json.dumps([sys.stdin.read(), variables]) + "\\n")
"""


def message(**members):
    place = {"topic": "orders", "partition": 1, "offset": 2, "timestamp_ms": 5, "key": None, "value": b"v"}
    return LeasedRecord(ConsumerRecord(**{**place, **members}), 3)


# Input and environment of the command


def test_a_command_gets_the_key_and_headers_of_its_message_in_its_environment():
    headers = (("X-Trace-Id", b"\xff"), ("gone", None), ("a b", b"1"), ("A.B", b"2"))
    found = variables_of(message(key=b"\xff", headers=headers), {b"PATH": b"/bin"})
    assert found == {
        b"PATH": b"/bin",
        b"SAMPLEAPP_TOPIC": b"orders",
        b"SAMPLEAPP_ID": b"1-2",
        b"SAMPLEAPP_ATTEMPTS": b"3",
        b"SAMPLEAPP_KEY": b"\xff",
        b"SAMPLEAPP_HEADER_X_TRACE_ID": b"\xff",
        b"SAMPLEAPP_HEADER_A_B": b"2",
    }


def test_variables_of_another_message_are_left_out_and_settings_are_not():
    outer = {b"SAMPLEAPP_KEY": b"k", b"SAMPLEAPP_HEADER_A": b"1", b"SAMPLEAPP_URL": b"http://h"}
    found = variables_of(message(), outer)
    assert b"SAMPLEAPP_KEY" not in found
    assert b"SAMPLEAPP_HEADER_A" not in found
    assert found[b"SAMPLEAPP_URL"] == b"http://h"


@given(
    st.none() | st.binary(max_size=5),
    st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
)
def test_every_variable_is_one_that_the_system_takes(key, headers):
    for name, value in variables_of(message(key=key, headers=tuple(headers)), {}).items():
        assert b"\0" not in name + value
        assert b"=" not in name


# Results


class Process:
    """A process that ends when the test says so."""

    pid = 4711

    def __init__(self):
        self.go_on = threading.Event()
        self.content = self.code = None
        self.killed = []

    def start(self, _command, *, stdin, **_arguments):
        self.content = stdin.read()
        return self

    def wait(self):
        self.go_on.wait(DEADLINE_S)
        return self.code


@pytest.fixture
def process(monkeypatch):
    process = Process()
    monkeypatch.setattr(subprocess, "Popen", process.start)
    monkeypatch.setattr(os, "killpg", lambda *call: process.killed.append(call))
    return process


class Run:
    """A command that is run for a message."""

    def __init__(self, process, **members):
        self.process = process
        self.outcomes = []
        self.calls = queue.Queue()
        self.handling = Deferred.fromCoroutine(handle(message(**members), command=("bill",), reactor=self))
        self.handling.addBoth(lambda outcome: self.outcomes.append(getattr(outcome, "type", outcome)))

    def callFromThread(self, function, *arguments):
        self.calls.put((function, arguments))

    def end(self, code):
        self.process.code = code
        self.process.go_on.set()
        function, arguments = self.calls.get(timeout=DEADLINE_S)
        function(*arguments)


@pytest.mark.parametrize(
    ("code", "outcome"), [(0, None), (65, Rejected), (1, Released), (-signal.SIGKILL, Released)]
)
def test_the_exit_status_decides(process, code, outcome):
    run = Run(process, value=b"paid")
    assert run.outcomes == []
    run.end(code)
    assert (process.content, run.outcomes) == (b"paid", [outcome])


def test_a_tombstone_is_an_empty_input(process):
    Run(process, value=None).end(0)
    assert process.content == b""


def test_a_command_that_is_cancelled_is_ended_and_waited_for(process):
    run = Run(process)
    run.handling.cancel()
    assert (process.killed, run.outcomes) == ([(4711, signal.SIGTERM)], [])
    run.end(0)
    assert run.outcomes == [CancelledError]


def test_a_command_that_cannot_be_run_releases_its_message(monkeypatch, capsys):
    def fail(command, **arguments):
        raise OSError(7, "Argument list too long")

    monkeypatch.setattr(subprocess, "Popen", fail)
    assert Run(None).outcomes == [Released]
    assert (
        "bill cannot be run: Argument list too long. The message is given again." in capsys.readouterr().err
    )


# With a service


def test_a_command_is_run_for_each_message_with_its_content(service, tmp_path):
    for content in ("a", "b"):
        sampleapp(service, "publish", "each", content, "--key", "k", "--header", "trace=1")
    out = tmp_path / "out"
    command = ["env", f"OUT={out}", sys.executable, "-c", DUMP]
    stdout, stderr = sampleapp(service, "work", "each", "billing", "--max", "2", "--", *command)
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [content for content, _ in found] == ["a", "b"]
    assert found[0][1]["SAMPLEAPP_HEADER_TRACE"] == "1"
    assert (stdout, stderr.splitlines()[-1]) == ("", "2 accepted, 0 rejected, 0 released")


def test_a_message_whose_command_fails_is_given_again_and_one_that_is_rejected_is_not(service):
    publish(service, "given-again", "a")
    script = 'test "$SAMPLEAPP_ATTEMPTS" = 1 && exit 1; exit 65'
    _, stderr = sampleapp(service, "work", "given-again", "billing", "--max", "2", "--", "sh", "-c", script)
    assert stderr.splitlines()[-1] == "0 accepted, 1 rejected, 1 released"


def test_a_command_may_ignore_its_input_and_its_output_is_passed_on(service, capfd):
    for _ in range(2):
        publish(service, "large", "x" * 900_000)
    # The second one reads a part.
    script = 'test "$SAMPLEAPP_ID" = 0-0 || head -c 3'
    _, stderr = sampleapp(service, "work", "large", "billing", "--max", "2", "--", "sh", "-c", script)
    assert (capfd.readouterr().out, stderr) == ("xxx", "2 accepted, 0 rejected, 0 released\n")


def test_a_child_in_the_background_that_keeps_the_input_open_is_not_waited_for(service, tmp_path):
    publish(service, "kept-open", "x" * 900_000)
    pid = tmp_path / "pid"
    script = f"exec 3<&0; sleep 300 <&3 >{os.devnull} 2>&1 & echo $! >{pid}"
    try:
        _, stderr = sampleapp(service, "work", "kept-open", "billing", "--max", "1", "--", "sh", "-c", script)
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)
    assert stderr == "1 accepted, 0 rejected, 0 released\n"


def test_progress_is_shown_on_a_terminal(service):
    for content in ("a", "b"):
        publish(service, "shown", content)
    arguments = ["work", "shown", "billing", "--max", "2", "--url", service.url, "--", "true"]
    shown = shown_on_a_terminal(*arguments, directory=service.directory, stream="stderr")
    one, two = "1 accepted, 0 rejected, 0 released\r", "2 accepted, 0 rejected, 0 released\r"
    assert shown == f"{one}{two}{two}\n"


def test_a_program_that_is_not_there_is_said_before_a_message_is_taken(service):
    _, stderr = sampleapp(service, "work", "none", "billing", "--", "no-such-program", code=2)
    assert "there is no program 'no-such-program'." in stderr


def test_a_third_ctrl_c_does_not_wait_for_a_command_that_ignores_sigterm(service, tmp_path):
    publish(service, "stubborn", "a")
    begun, asked, go_on = tmp_path / "begun", tmp_path / "asked", tmp_path / "go-on"
    script = f"trap 'touch {asked}' TERM; touch {begun}; while ! test -e {go_on}; do sleep 0.05; done"
    command = [COMMAND, "work", "stubborn", "billing", "--url", service.url, "--", "sh", "-c", script]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            wait_until(begun.exists, "the command has begun", deadline_s=DEADLINE_S)
            process.send_signal(signal.SIGINT)
            assert b"Ending after" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            wait_until(asked.exists, "the command has got SIGTERM", deadline_s=DEADLINE_S)
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_S) == 130
        finally:
            go_on.touch()


@pytest.mark.parametrize(
    ("signals", "results"),
    [(1, "1 accepted, 0 rejected, 0 released"), (2, "0 accepted, 0 rejected, 1 released")],
)
def test_ctrl_c_ends_after_the_commands_that_run_and_twice_ends_them(service, tmp_path, signals, results):
    topic = f"interrupted-{signals}"
    publish(service, topic, "a")
    begun, go_on = tmp_path / "begun", tmp_path / "go-on"
    script = f"touch {begun}; while ! test -e {go_on}; do sleep 0.05; done"
    command = [COMMAND, "work", topic, "billing", "--url", service.url, "--", "sh", "-c", script]
    with subprocess.Popen(command, stderr=subprocess.PIPE, encoding="utf-8") as process:
        wait_until(begun.exists, "the command has begun", deadline_s=DEADLINE_S)
        process.send_signal(signal.SIGINT)
        assert "Ending after the messages in progress." in process.stderr.readline()
        if signals == 1:
            go_on.touch()
        else:
            process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == results


def test_a_topic_that_is_not_there_is_a_failure(service):
    _, stderr = sampleapp(service, "work", "none", "billing", "--", "cat", code=1)
    assert "Unknown topic (404)" in stderr
