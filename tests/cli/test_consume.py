"""``sampleapp consume`` on the file of a live service."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from contextlib import closing
from datetime import UTC, datetime

from tests.support.command import COMMAND, DEADLINE_S, Watched, consumed, publish, sampleapp


def test_a_topic_that_does_not_exist_is_a_failure(service):
    # The service makes the file after it has begun to listen.
    publish(service, "first", "0")
    stdout, stderr = sampleapp(service, "consume", "none", "--broker", service.broker, code=1)
    assert (stdout, stderr) == ("", "Error: There is no topic 'none'. Is its name right?\n")


def test_only_what_was_asked_for_is_printed(service):
    publish(service, "some", "0", "1", "2", "3")
    arguments = ["consume", "some", "--broker", service.broker]

    def values(*options):
        stdout, stderr = sampleapp(service, *arguments, *options)
        return [json.loads(line)["content"] for line in stdout.splitlines()], stderr

    times = [record["timestamp"] for record in consumed(service, "some")]
    third = datetime.fromtimestamp(times[2] / 1000, UTC).isoformat(timespec="milliseconds")
    since = [f"{n}" for n, time in enumerate(times) if time >= times[2]]
    assert values("--from", third.replace("+00:00", "Z"), "--partition", "0") == (since, "")
    assert values("--from", "-2", "--limit", "1") == (["2"], "")
    assert values("--follow", "--from", "offset:2", "--timeout", "0.5") == (["2", "3"], "")
    assert values("--from", "latest") == ([], "There are no records in 'some' for --from 'latest'.\n")


def test_a_damaged_file_ends_it_with_what_to_do(service, tmp_path):
    lines = b"".join(b"%0200d\n" % n for n in range(2000))
    sampleapp(service, "publish", "damaged", "--lines", "-", stdin=lines)
    file = tmp_path / "damaged.sqlite3"
    with closing(sqlite3.connect(service.directory / "broker.sqlite3")) as database:
        database.execute("VACUUM INTO ?", [str(file)])
    size = file.stat().st_size
    with file.open("r+b") as damaged:
        damaged.seek(size // 4096 // 2 * 4096)
        damaged.write(b"\xa5" * 4096 * 30)
    _, stderr = sampleapp(service, "consume", "damaged", "--broker", f"sqlite:{file}", code=1)
    assert f"Error: {file} is damaged; restore it from a backup" in stderr


def test_a_file_that_is_no_broker_is_an_error_and_stays_as_it_is(service):
    file = service.directory / "notes.txt"
    file.write_text("not a database, " * 100)
    _, stderr = sampleapp(service, "consume", "t", "--broker", f"sqlite:{file}", code=1)
    assert "is not a SQLite database" in stderr
    assert file.read_text() == "not a database, " * 100


def test_a_reader_that_has_seen_enough_ends_consume_quietly(service):
    # More than a pipe holds, so that there is something left to write when it is closed.
    publish(service, "much", *["x" * 10_000] * 20)
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
    publish(service, "live", "first")
    arguments = ["consume", "live", "--follow", "--broker", service.broker]
    with Watched(service, *arguments) as following:
        following.wait_for('"content":"first"')
        publish(service, "live", "second")
        following.wait_for('"content":"second"')
        code, lines = following.interrupt()
    assert (code, [json.loads(line)["offset"] for line in lines]) == (0, [0, 1])
