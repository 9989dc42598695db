"""Standard streams that are closed, full, terminals, or read by nobody."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import threading

import pytest

from tests.support.command import (
    COMMAND,
    DEADLINE_S,
    Watched,
    publish,
    redirected,
    sampleapp,
    shown_on_a_terminal,
    stored,
)

MORE_THAN_A_PIPE_HOLDS = ["x" * 10_000] * 20


def test_with_stdout_closed_a_message_is_published_and_that_is_a_success(service):
    assert redirected(service, ">&-", "publish", "closed-out", "c") == (0, "", "")
    assert stored(service, "closed-out") == [(None, "c")]


def test_with_stderr_closed_an_error_is_still_an_exit_code(service):
    assert redirected(service, "2>&-", "publish", "bad/topic", "c") == (2, "", "")


def test_with_every_stream_closed_a_message_is_published(service):
    assert redirected(service, "<&- >&- 2>&-", "publish", "closed-all", "c") == (0, "", "")
    assert stored(service, "closed-all") == [(None, "c")]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-"], "Error: Stdin cannot be read: Bad file descriptor. Nothing was published.\n"),
        (
            ["--lines", "-"],
            "Stopped after line 0: reading failed (Bad file descriptor).\nPublished 0 lines, 0 failed.\n",
        ),
    ],
)
def test_with_stdin_closed_there_is_nothing_to_publish(service, arguments, sentence):
    assert redirected(service, "<&-", "publish", "closed-in", *arguments) == (1, "", sentence)


def test_on_a_full_disk_it_is_said_that_the_message_was_published(service):
    code, _, stderr = redirected(service, ">/dev/full", "publish", "full", "c")
    assert code == 3
    assert stderr == (
        "Error: The message was published (partition 0, offset 0). The output cannot be written: No space "
        "left on device.\n"
    )
    assert stored(service, "full") == [(None, "c")]


def test_on_a_full_disk_results_that_change_nothing_are_a_failure(service):
    publish(service, "full-too", "c")
    sentence = "Error: The output cannot be written: No space left on device.\n"
    for arguments in (["readings"], ["consume", "full-too", "--broker", service.broker]):
        assert redirected(service, ">/dev/full", *arguments) == (1, "", sentence)
    assert redirected(service, ">/dev/full", "--help")[0] == 1
    assert redirected(service, ">&-", "--help") == (0, "", "")


def test_a_terminal_is_shown_escapes_and_a_file_gets_the_bytes_themselves(service):
    content = "a\x9b31m\x7f\u202eb\x1bé"
    sampleapp(service, "publish", "controls", "-", stdin=content.encode())
    arguments = ["consume", "controls", "--broker", service.broker]
    shown = shown_on_a_terminal(*arguments, directory=service.directory)
    assert r'"a\u009b31m\u007f\u202eb\u001bé"' in shown
    assert json.loads(shown)["content"] == content
    assert '"a\x9b31m\x7f\u202eb' in sampleapp(service, *arguments)[0]


@contextlib.contextmanager
def one_answer(answer):
    """A server that has one answer to one request; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            with connection, contextlib.suppress(ConnectionResetError):
                connection.recv(65536)
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                # Closed with a part of the request unread, it would be reset, and the answer lost.
                while connection.recv(65536):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"
        thread.join(DEADLINE_S)


def test_what_a_hostile_server_says_is_escaped_on_stderr(service):
    body = b'{"title": "\\u001b]0;x\\u0007", "status": 422, "detail": "\\u202egod"}'
    answer = b"HTTP/1.0 422 No\r\nContent-Type: application/problem+json\r\n\r\n" + body
    with one_answer(answer) as url:
        _, stderr = sampleapp(service, "publish", "t", "c", url=url, code=1)
    assert stderr == "Error: \\x1b]0;x\\x07 (422): \\u202egod\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_reader_that_does_not_read_does_not_keep_a_signal_from_ending_it(service, number):
    topic = f"unread-{number}"
    publish(service, topic, *MORE_THAN_A_PIPE_HOLDS)
    with subprocess.Popen(
        [COMMAND, "consume", topic, "--broker", service.broker],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=service.directory,
    ) as process:
        assert json.loads(process.stdout.readline())["topic"] == topic
        process.send_signal(number)
        assert (process.wait(DEADLINE_S), process.stderr.read()) == (130, b"")


def test_sigterm_ends_a_following_with_a_whole_last_line(service):
    publish(service, "terminated", "first")
    with Watched(service, "consume", "terminated", "--follow", "--broker", service.broker) as following:
        following.wait_for('"content":"first"')
        following.process.terminate()
        code, lines = following.end()
    assert (code, [json.loads(line)["content"] for line in lines]) == (0, ["first"])
