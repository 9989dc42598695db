"""A command that waits says for what, and an interrupt tells only what may be true."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
from types import SimpleNamespace

import pytest

from tests.support.command import COMMAND, Watched
from tests.support.free_ports import rejecting_port


def service_at(port, directory):
    return SimpleNamespace(url=f"http://127.0.0.1:{port}/", directory=directory)


def test_a_repeated_request_says_so_and_was_not_published_where_nothing_listens(tmp_path):
    with (
        rejecting_port() as port,
        Watched(service_at(port, tmp_path), "publish", "t", "c", "--idempotent") as publish,
    ):
        publish.wait_for("Connection refused. Sending again for up to 60 seconds.")
        code, lines = publish.interrupt()
    assert code == 130
    assert lines[-1] == "Interrupted. Nothing was published."
    assert len([line for line in lines if "Sending again" in line]) == 1


@pytest.fixture
def silent(tmp_path):
    """A service that takes requests, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield service_at(server.getsockname()[1], tmp_path)


def test_a_service_that_does_not_answer_is_waited_for_aloud(silent):
    commands = {
        "publish t c": ["Interrupted. The message may have been published."],
        "publish t c --idempotent": ["Interrupted. The message may have been published."],
        "delete t k": ["Interrupted. The tombstone may have been published."],
        "readings": [],
        "topics": [],
        "consume t": [],
    }
    with contextlib.ExitStack() as stack:
        # All wait at the same time.
        watched = [stack.enter_context(Watched(silent, *command.split())) for command in commands]
        for command, last in zip(watched, commands.values(), strict=True):
            command.wait_for("Waiting for ")
            code, lines = command.interrupt()
            assert code == 130
            assert lines[0].endswith(" to answer.")
            assert lines[1:] == last


def test_lines_without_an_answer_are_waited_for_aloud_and_are_in_doubt(silent):
    (silent.directory / "lines").write_text("1\n2\n")
    with Watched(silent, "publish", "t", "--lines", "lines") as command:
        command.wait_for("The service has not answered yet. Waiting; 0 lines are published so far.")
        code, lines = command.interrupt()
    assert code == 130
    assert "Lines 1-2: interrupted before the answer. May have been published." in lines
    assert lines[-1] == "Published 0 lines, 0 failed, 2 may have been published."


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
    [(["--lines", "-"], "the lines"), (["-"], "the message"), (["--raw", "-"], "the message")],
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
