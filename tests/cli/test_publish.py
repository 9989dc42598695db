"""``sampleapp publish`` against a live service."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import termios
import time
from array import array

import pytest

from tests.support.command import Watched, consumed, sampleapp, shown_on_a_terminal, stored
from tests.support.free_ports import rejecting_port


def test_a_published_message_is_answered_and_consumed(service):
    stdout, stderr = sampleapp(service, "publish", "one", "--key", "k", "ä")
    assert (json.loads(stdout), stderr) == ({"topic": "one", "partition": 0, "offset": 0}, "")
    sampleapp(service, "publish", "one", "-", stdin=b"no key\n")
    sampleapp(service, "publish", "one", "--key", "", "--", "--dashes")
    sampleapp(service, "publish", "one", "-5.5", "--key", "cellar")
    found = [(record["offset"], record.get("key"), record["content"]) for record in consumed(service, "one")]
    assert found == [(0, "k", "ä"), (1, None, "no key\n"), (2, "", "--dashes"), (3, "cellar", "-5.5")]


def test_each_line_of_a_file_is_published_once_and_those_that_cannot_be_are_named(service):
    file = service.directory / "lines.txt"
    file.write_bytes(b"".join(b"%d\n" % n for n in range(300)) + b"\xff\n\n" + b"last")
    _, stderr = sampleapp(service, "publish", "many", "--lines", str(file), code=1)
    assert stderr == "Line 301: not UTF-8.\nPublished 302 lines, 1 failed.\n"
    expected = sorted([*map(str, range(300)), "", "last"])
    assert sorted(content for _, content in stored(service, "many")) == expected


def test_a_file_that_is_published_again_with_idempotency_keys_adds_nothing(service):
    file = service.directory / "again.txt"
    file.write_bytes(b"".join(b"%d\n" % n for n in range(2500)) + b"\xff\n")
    for in_flight, before in (("1", ""), ("4", "At least 2500 of them had been published before, ")):
        arguments = ["publish", "again", "--lines", str(file), "--idempotent", "--in-flight", in_flight]
        _, stderr = sampleapp(service, *arguments, code=1)
        first, counts, *published_before, advice = stderr.splitlines()
        assert (first, counts) == ("Line 2501: not UTF-8.", "Published 2500 lines, 1 failed.")
        assert [each.startswith(before) for each in published_before] == [True] * bool(before)
        assert advice == (
            "You can run the same command again: if neither the file nor a limit of the service has changed, "
            "no line is published twice."
        )
    assert [content for _, content in stored(service, "again")] == [str(n) for n in range(2500)]


def test_with_idempotency_keys_nothing_is_said_about_publishing_a_pipe_again(service):
    arguments = ["publish", "piped", "--lines", "-", "--idempotent"]
    _, stderr = sampleapp(service, *arguments, stdin=b"1\n\xff\n", code=1)
    assert stderr == "Line 2: not UTF-8.\nPublished 1 line, 1 failed.\n"


def test_equal_lines_of_two_pipes_are_published_twice(service):
    for _ in range(2):
        sampleapp(service, "publish", "heartbeat", "--lines", "-", "--idempotent", stdin=b"alive\n")
    assert [content for _, content in stored(service, "heartbeat")] == ["alive"] * 2


def test_records_have_the_headers_the_time_the_bytes_and_the_keys_that_they_were_given(service):
    arguments = ["--header", "a=1=2", "--header", "ä=", "--timestamp", "2026-11-21T08:00:00.5+01:00"]
    sampleapp(service, "publish", "given", *arguments, "--lines", "-", stdin=b"c")
    sampleapp(service, "publish", "given", "--raw", "-", "--key", "k", stdin=b"\0\xff\n")
    stdout, stderr = sampleapp(service, "delete", "given", b"\xff")
    assert (json.loads(stdout), stderr) == ({"topic": "given", "partition": 0, "offset": 2}, "")
    one, two, three = consumed(service, "given")
    assert (one["content"], one["timestamp"]) == ("c", 1795244400500)
    assert one["headers"] == {"a": "1=2", "ä": ""}
    assert (two["key"], two["content_base64"]) == ("k", "AP8K")
    assert (three["key_base64"], three["content"]) == ("/w==", None)


@pytest.mark.parametrize(
    ("time", "timestamp_ms"),
    [
        ("1970-01-01T00:00:00.005Z", 5),
        ("100000000000", 10**11),
        ("1795363727918", 1_795_363_727_918),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
    ],
)
def test_a_time_of_any_year_is_that_of_the_record(service, time, timestamp_ms):
    topic = f"times-{timestamp_ms}"
    sampleapp(service, "publish", topic, "alone", "--timestamp", time)
    sampleapp(service, "publish", topic, "--lines", "-", "--timestamp", time, stdin=b"line")
    assert [record["timestamp"] for record in consumed(service, topic)] == [timestamp_ms] * 2


def test_bytes_are_given_in_base64(service):
    sampleapp(service, "publish", "bytes", "--key-base64", "/w==", "--base64", "AP8=", "--header", "a=1")
    # Tools that encode end lines.
    sampleapp(service, "publish", "bytes", "--key", "k", "--base64", "-", stdin=b"AP\n8=\n")
    sampleapp(service, "publish", "bytes", "--key-base64", "AP8=", "--raw", "-", stdin=b"raw")
    lines = b"AP8=\r\nAP8\n\nQQ=="
    _, stderr = sampleapp(service, "publish", "bytes", "--base64", "--lines", "-", stdin=lines, code=1)
    assert stderr == (
        "Line 2: not base64 with padding (RFC 4648, section 4).\nPublished 3 lines, 1 failed.\n"
    )
    one, two, three, *others = consumed(service, "bytes")
    assert (one["key_base64"], one["content_base64"]) == ("/w==", "AP8=")
    assert one["headers"] == {"a": "1"}
    assert (two["key"], two["content_base64"]) == ("k", "AP8=")
    assert (three["key_base64"], three["content"]) == ("AP8=", "raw")
    assert sorted(each.get("content", each.get("content_base64")) for each in others) == ["", "A", "AP8="]


def test_what_is_not_base64_is_rejected(service):
    stdout, stderr = sampleapp(service, "publish", "bytes", "--base64", "-", stdin=b"AP8", code=1)
    assert (stdout, stderr) == (
        "",
        "Error: CONTENT is not base64 with padding (RFC 4648, section 4). Nothing was published.\n",
    )


def test_lines_come_from_stdin_as_well_and_keep_their_order_one_at_a_time(service):
    arguments = ["publish", "ordered", "--key", "k", "--lines", "-", "--in-flight", "1"]
    _, stderr = sampleapp(service, *arguments, stdin=b"3\n1\n2\n")
    assert stderr == "Published 3 lines, 0 failed.\n"
    assert stored(service, "ordered") == [("k", "3"), ("k", "1"), ("k", "2")]


def test_the_lines_of_a_file_keep_their_order_if_they_have_a_key(service):
    lines = [f"line {n}" for n in range(50)]
    stdin = "\n".join(lines).encode()
    sampleapp(service, "publish", "keyed", "--key", "k", "--lines", "-", stdin=stdin)
    assert stored(service, "keyed") == [("k", line) for line in lines]


def test_a_rejected_message_is_one_sentence_on_stderr_and_ends_with_1(service):
    stdout, stderr = sampleapp(service, "publish", "t", "-", stdin=b"x" * 1_100_000, code=1)
    assert stdout == ""
    assert stderr.startswith("Error: Body too large (413): ")
    assert stderr.count("\n") == 1


def test_where_nothing_listens_it_is_said_how_to_start_the_service(service):
    with rejecting_port() as port:
        url = f"http://127.0.0.1:{port}/"
        for arguments in (["publish", "t", "c"], ["readings"]):
            _, stderr = sampleapp(service, *arguments, url=url, code=1)
            assert stderr.endswith(
                "Connection refused. Is the service running? Start it with: sampleapp serve. "
                "Or correct the URL in SAMPLEAPP_URL.\n"
            )


def test_ctrl_c_while_waiting_for_lines_reports_what_was_published(service):
    with Watched(service, "publish", "typed", "--lines", "-", "--results") as publish:
        publish.process.stdin.write("a\nb\n")
        publish.process.stdin.flush()
        publish.wait_for('{"line":2,"topic":"typed"')
        code, lines = publish.interrupt()
    assert (code, lines[-2:]) == (
        130,
        ["Interrupted after line 2: the lines that follow were not sent.", "Published 2 lines, 0 failed."],
    )


SLOW_END = """
import time
from sampleapp.cli import _output

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.2)

slow = Slow()
_output.GRACE_S = 0.01
_output.interrupt_output()
raise SystemExit(130)
"""


def test_an_interrupted_command_that_takes_long_to_end_keeps_its_exit_status():
    assert subprocess.run([sys.executable, "-c", SLOW_END], check=False, timeout=60).returncode == 130


def test_ctrl_c_while_waiting_for_content_publishes_nothing(service):
    with Watched(service, "publish", "typed-alone", "-") as publish:
        publish.process.stdin.write("a")
        publish.process.stdin.flush()
        unread = array("i", [1])
        # It waits for more, once it has read what is in the pipe.
        while unread[0]:
            fcntl.ioctl(publish.process.stdin, termios.FIONREAD, unread)
            time.sleep(0.01)
        assert publish.interrupt() == (130, ["Interrupted. Nothing was published."])


def test_a_progress_bar_is_drawn_on_a_terminal(service):
    file = service.directory / "progress.txt"
    file.write_text("line\n" * 200)
    shown = shown_on_a_terminal(
        "publish",
        "progress",
        "--lines",
        str(file),
        "--url",
        service.url,
        directory=service.directory,
        stream="stderr",
    )
    assert "100%" in shown
    assert "200 published, 0 failed" in shown
