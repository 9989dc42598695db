"""A command that waits says for what, and an interrupt tells only what may be true."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
import threading
from types import SimpleNamespace

import pytest

from sampleapp.cli import _run
from tests.support.command import COMMAND, DEADLINE_S, Watched, sampleapp
from tests.support.free_ports import rejecting_port


def service_at(port, directory):
    return SimpleNamespace(url=f"http://127.0.0.1:{port}/", directory=directory)


def test_a_repeated_request_says_so_and_was_not_published_where_nothing_listens(tmp_path):
    refused = "Connection refused. Sending again for up to 60 seconds."
    with rejecting_port() as port:
        stdout, stderr = sampleapp(
            service_at(port, tmp_path),
            *["publish", "t", "c", "--idempotent"],
            code=130,
            interrupt_when=lambda told: refused in told,
        )
    assert (stdout, stderr.count("Sending again")) == ("", 1)
    assert stderr.splitlines()[-1] == "Interrupted. Nothing was published."


@pytest.fixture
def silent(tmp_path, monkeypatch):
    """A service that takes one request and never answers, for a command that soon says so."""
    monkeypatch.setattr(_run, "SILENCE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        service = service_at(server.getsockname()[1], tmp_path)
        service.is_asked = threading.Event()

        def serve():
            connection, _ = server.accept()
            # The command resets it when it is interrupted.
            with connection, contextlib.suppress(ConnectionResetError):
                assert connection.recv(65536)
                service.is_asked.set()
                connection.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        yield service
        thread.join(DEADLINE_S)


@pytest.mark.parametrize(
    ("command", "awaited", "last"),
    [
        ("publish t c", "URL", ["Interrupted. The message may have been published."]),
        ("publish t c --idempotent", "URL", ["Interrupted. The message may have been published."]),
        ("delete t k", "URL", ["Interrupted. The tombstone may have been published."]),
        ("readings", "URL", []),
        ("topics", "URL", []),
        ("consume t", "the service", []),
    ],
)
def test_a_service_that_does_not_answer_is_waited_for_aloud(silent, command, awaited, last):
    stdout, stderr = sampleapp(
        silent,
        *command.split(),
        code=130,
        interrupt_when=lambda told: "Waiting for " in told and silent.is_asked.is_set(),
    )
    waiting = f"Waiting for {awaited.replace('URL', silent.url)} to answer."
    assert (stdout, stderr.splitlines()) == ("", [waiting, *last])


def test_lines_without_an_answer_are_waited_for_aloud_and_are_in_doubt(silent):
    file = silent.directory / "lines"
    file.write_text("1\n2\n")
    waiting = "The service has not answered yet. Waiting; 0 lines are published so far."
    _, stderr = sampleapp(
        silent,
        *["publish", "t", "--lines", str(file)],
        code=130,
        interrupt_when=lambda told: waiting in told and silent.is_asked.is_set(),
    )
    assert stderr.splitlines() == [
        waiting,
        "Lines 1-2: interrupted before the answer. May have been published.",
        "Interrupted after line 2: the lines that follow were not sent.",
        "Published 0 lines, 0 failed, 2 may have been published.",
    ]


def test_a_file_that_another_command_changes_is_waited_for_aloud(tmp_path):
    lock = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        service = service_at(1, tmp_path)
        with Watched(service, "token", "a", "--append", str(tmp_path / "callers.toml")) as command:
            command.wait_for("Waiting for another command that changes a file in ")
            fcntl.flock(lock, fcntl.LOCK_UN)
            code, lines = command.end()
    finally:
        os.close(lock)
    assert code == 0
    assert any("the caller a" in line for line in lines)


@pytest.mark.parametrize(
    ("option", "what"),
    [
        (["--lines", "-"], "the lines"),
        (["-"], "the message"),
        pytest.param(["--raw", "-"], "the message", marks=pytest.mark.slow),
    ],
)
def test_a_terminal_is_told_how_to_end_and_no_bar_is_drawn_over_it(tmp_path, option, what):
    controller, terminal = os.openpty()
    with rejecting_port() as port:
        environment = {**os.environ, "SAMPLEAPP_URL": f"http://127.0.0.1:{port}/"}
        with subprocess.Popen(
            [COMMAND, "publish", "t", *option], stdin=terminal, stderr=terminal, cwd=tmp_path, env=environment
        ) as process:
            os.close(terminal)
            shown = b""
            while b"ends the input." not in shown:
                shown += os.read(controller, 1024)
            os.write(controller, b"1\n\x04")
            with contextlib.suppress(OSError):
                while data := os.read(controller, 1024):
                    shown += data
    os.close(controller)
    assert process.returncode == 1
    assert f"Type {what}; Ctrl-D on an empty line ends the input.".encode() in shown
    assert b"Publishing" not in shown
    assert b"Is the service running?" in shown
