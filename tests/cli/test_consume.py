"""``sampleapp consume`` on the file of a live service."""

from __future__ import annotations

import json
import subprocess

from tests.support.command import COMMAND, DEADLINE_S, Watched, sampleapp


def test_a_topic_without_records_is_said_to_have_none(service):
    stdout, stderr = sampleapp(service, "consume", "none", "--broker", service.broker)
    assert (stdout, stderr) == ("", "There are no records in 'none'.\n")


def test_a_file_that_is_no_broker_is_an_error_and_stays_as_it_is(service):
    file = service.directory / "notes.txt"
    file.write_text("not a database, " * 100)
    _, stderr = sampleapp(service, "consume", "t", "--broker", f"sqlite:{file}", code=1)
    assert "is not a SQLite database" in stderr
    assert file.read_text() == "not a database, " * 100


def test_a_reader_that_has_seen_enough_ends_consume_quietly(service):
    # More than a pipe holds, so that there is something left to write when it is closed.
    lines = b"".join(b"%0200d\n" % n for n in range(1000))
    sampleapp(service, "publish", "much", "--lines", "-", stdin=lines)
    with subprocess.Popen(
        [COMMAND, "consume", "much", "--broker", service.broker],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=service.directory,
    ) as process:
        assert json.loads(process.stdout.readline())["topic"] == "much"
        process.stdout.close()
        assert (process.stderr.read(), process.wait(DEADLINE_S)) == (b"", 0)


def test_consume_follow_prints_what_is_added_later_and_ends_with_ctrl_c(service):
    sampleapp(service, "publish", "live", "first")
    arguments = ["consume", "live", "--follow", "--broker", service.broker]
    with Watched(service, *arguments) as following:
        following.wait_for('"value":"first"')
        sampleapp(service, "publish", "live", "second")
        following.wait_for('"value":"second"')
        code, lines = following.interrupt()
    assert (code, [json.loads(line)["offset"] for line in lines]) == (0, [0, 1])
