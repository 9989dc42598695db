"""What a real process writes to its logs."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.live_service import TWISTD_SAMPLEAPP
from tests.support.process import connect, run, wait_for_readings
from tests.support.waiting import wait_until

SCRIPT = str(Path(sys.executable).with_name("sampleapp"))
TO_STDOUT = {"twistd": TWISTD_SAMPLEAPP, "serve": (SCRIPT, "serve")}
LISTENING = "Listening at {url}"
FREE_PORT = ["--listen", "tcp:0:interface=127.0.0.1"]


def events(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(TO_STDOUT["twistd"], id="twistd", marks=pytest.mark.slow),
        pytest.param(TO_STDOUT["serve"], id="serve"),
    ],
)
def test_each_line_is_json_from_the_first_to_the_last(start, command):
    service = start(command=command, options=["--log-format", "json"])
    wait_for_readings(service, b"[]")
    service.stop()
    lines = events(service.output)
    assert lines[0]["event"] == "twistd {version} ({exe} {pyVersion}) starting up."
    assert lines[-1]["event"] == "Server Shut Down."
    (listening,) = [line for line in lines if line["event"] == LISTENING]
    assert listening["url"] == service.url
    assert listening["logger"] == "sampleapp.service.application.SampleAppService"
    assert {line["level"] for line in lines} == {"info"}


def test_a_log_file_of_a_daemon_has_the_same_lines(installed, tmp_path):
    log = tmp_path / "d.log"
    arguments = ["--pidfile=d.pid", "--logfile=d.log", "sampleapp", "--log-format=json", *FREE_PORT]
    assert run(arguments, installed, tmp_path).returncode == 0
    pid = int((tmp_path / "d.pid").read_text())
    try:
        wait_until(lambda: LISTENING in log.read_text(), "the log says that it listens")
        (listening,) = [line for line in events(log.read_text()) if line["event"] == LISTENING]
        # Before its reactor runs, it ends at a signal without a word.
        with urlopen(f"{listening['url']}live", timeout=60) as answer:
            assert answer.status == HTTPStatus.OK
    finally:
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: "Server Shut Down." in log.read_text(), "the log says that it has ended")
    assert events(log.read_text())[0]["event"] == "twistd {version} ({exe} {pyVersion}) starting up."


def test_sigusr1_moves_the_log_file_of_twistd_away_and_no_line_is_lost(installed, tmp_path):
    log, moved = tmp_path / "d.log", tmp_path / "d.log.1"
    arguments = ["--pidfile=d.pid", "--logfile=d.log", "sampleapp", "--broker=memory:", *FREE_PORT]
    assert run(arguments, installed, tmp_path).returncode == 0
    pid = int((tmp_path / "d.pid").read_text())
    try:
        wait_until(
            lambda: "The documentation of the HTTP interface" in log.read_text(),
            "the log says that it listens",
        )
        url = re.search(r"Listening at (\S+)", log.read_text())[1]
        with urlopen(f"{url}live", timeout=60) as answer:
            assert answer.status == HTTPStatus.OK
        before = log.read_text()
        os.kill(pid, signal.SIGUSR1)
        wait_until(moved.exists, "the file was moved")
    finally:
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: log.exists() and "Server Shut Down." in log.read_text(), "the log says that it ended")
    assert moved.read_text().startswith(before)
    assert "Received SIGTERM" in moved.read_text() + log.read_text()


@pytest.mark.parametrize("level", ["warn", pytest.param("critical", marks=pytest.mark.slow)])
def test_what_is_less_important_than_the_level_is_left_out_but_not_why_it_ends(level, installed, tmp_path):
    socket = tmp_path / "taken.sock"
    socket.mkdir()
    options = ["--log-level", level, "--broker", "memory:", "--listen", f"unix:{socket}"]
    done = run(["-n", "--pidfile=", "sampleapp", *options], {**installed, "SAMPLEAPP_X": "1"}, tmp_path)
    *warnings, rejection = done.stdout.splitlines()
    assert len(warnings) == (level == "warn")
    warning = "[sampleapp.service.tap#warn] The environment variable SAMPLEAPP_X is unknown"
    assert all(warning in each for each in warnings)
    assert "[stderr#error] sampleapp: Cannot listen on " in rejection


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGHUP,
        *(pytest.param(each, marks=pytest.mark.slow) for each in (signal.SIGUSR1, signal.SIGUSR2)),
    ],
)
def test_after_a_signal_lines_for_requests_go_to_a_new_file_and_none_is_lost(start, tmp_path, number):
    log, moved = tmp_path / "access.log", tmp_path / "access.log.1"
    service = start(options=["--access-log", "access.log", "--access-log-format", "json"])
    ids = [str(number) for number in range(30)]
    with closing(connect(service)) as connection:
        for request_id in ids:
            if request_id == "10":
                log.rename(moved)
            if request_id == "20":
                service.process.send_signal(number)
                service.wait_for_output(f"{number.name}: reloading files")
                service.wait_for_output("Reopened the access log.")
            connection.request("GET", "/nothing", headers={"X-Request-Id": request_id})
            connection.getresponse().read()
    assert service.stop() == -signal.SIGTERM
    before, after = [
        [event["request_id"] for event in events(path.read_text()) if event["path"] == "/nothing"]
        for path in (moved, log)
    ]
    assert (before, after) == (ids[:20], ids[20:])


def test_lines_for_requests_are_on_standard_output(start):
    service = start(options=["--access-log", "-"])
    with closing(connect(service)) as connection:
        connection.request("GET", "/nothing")
        connection.getresponse().read()
    service.wait_for_output(r'127\.0\.0\.1 - - \[\S+ \+0000\] "GET /nothing HTTP/1\.1" 404 \d+ ')


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["-n", "sampleapp", "--access-log=gone/a.log"],
            "cannot open gone/a.log: No such file or directory.",
        ),
        pytest.param(
            ["-n", "--syslog", "sampleapp", "--check", "--log-format=json"],
            "--log-format json cannot be used with --syslog",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["-n", "--logger=os.getcwd", "sampleapp", "--log-level=warn"],
            "--log-format and --log-level have no effect with twistd's --logger",
            marks=pytest.mark.slow,
        ),
        (
            ["sampleapp", "--access-log=-"],
            "--access-log - means standard output, which a daemon does not have.",
        ),
    ],
)
def test_logs_that_cannot_be_written_are_a_rejection_to_start(arguments, sentence, installed, tmp_path):
    done = run([*arguments, *FREE_PORT], installed, tmp_path)
    # 2 if the options contradict each other on any machine.
    assert done.returncode == (1 if "cannot open" in sentence else 2)
    assert sentence in done.stdout
    assert "Traceback" not in done.stdout
    assert list(tmp_path.iterdir()) == []
