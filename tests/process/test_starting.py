"""How the service starts under twistd, and what keeps it from starting."""

from __future__ import annotations

import http.client
import os
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.process import (
    DEADLINE_S,
    connect,
    has_read_all_of,
    locked,
    publish,
    run,
    send_message,
    wait_for_readings,
)
from tests.support.waiting import wait_until


def test_every_option_has_its_effect(start, tmp_path):
    options = ["--readings-topic", "temperatures", "--max-body", "100", "--drain-timeout", "0.25"]
    service = start(options=options)
    with closing(connect(service)) as connection:
        assert publish(connection, "1", topic="readings", key="a")[0] == 200
        assert publish(connection, "2", topic="temperatures", key="a")[0] == 200
        wait_for_readings(service, b"[2.0]")
        assert publish(connection, "x" * 100)[0] == 413
    with closing(connect(service)) as connection, locked(tmp_path):
        send_message(connection, "late")
        wait_until(lambda: has_read_all_of(service, 1), "the request has come in")
        assert service.stop() == -15
    assert "are unfinished after 0.125 of 0.25 seconds" in service.output


def newer_file(directory):
    with closing(sqlite3.connect(directory / "newer.sqlite3")) as database:
        schema = Path(__file__).parents[2] / "src/sampleapp/brokers/sqlite/schema.sql"
        database.executescript(schema.read_text())
        database.execute("PRAGMA user_version = 999")


def corrupt_file(directory):
    (directory / "corrupt.sqlite3").write_bytes(b"not a database " * 1000)


# Status 2 is for what a look at the command line shows.
MISTAKES = [
    (["--listen", "tcp:TAKEN:interface=127.0.0.1"], 1, "Cannot listen on tcp:TAKEN"),
    (["--listen", "nonsense:1"], 2, "not an endpoint that Twisted understands"),
    (["--listen", "8080"], 2, "--listen takes a Twisted endpoint"),
    (["--listen", "ssl:0:privateKey=nowhere.pem"], 1, "cannot read"),
    (["--broker", "http://localhost"], 2, "--broker: The scheme of this broker's URL is not known"),
    (["--broker", "sqlite:"], 2, "--broker: The path of the file is missing"),
    (["--broker", "sqlite:nowhere/b.sqlite3"], 1, "nowhere/b.sqlite3"),
    (["--broker", "sqlite:newer.sqlite3"], 1, "another version of sampleapp"),
    (["--broker", "sqlite:corrupt.sqlite3"], 1, "corrupt.sqlite3"),
    (["--readings-topic", "no/topic"], 2, "--readings-topic takes the name of a topic"),
    (["--max-body", "1k"], 2, "--max-body takes a whole number of bytes"),
    (["--drain-timeout", "soon"], 2, "--drain-timeout takes a number of seconds"),
    (["surplus"], 2, "Unexpected argument 'surplus'"),
]


def attempt(options, environment, directory):
    """Try to start it; TAKEN stands for a port that is taken. Returns how that ended, the port, and where."""
    newer_file(directory)
    corrupt_file(directory)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        options = [option.replace("TAKEN", port) for option in options]
        if "--listen" not in options:
            options += ["--listen", "tcp:0:interface=127.0.0.1"]
        done = run(["-n", "sampleapp", *options], environment, directory)
    return done, port, directory


@pytest.fixture(scope="module")
def attempts(installed, tmp_path_factory, two_at_a_time):
    return [
        two_at_a_time.submit(attempt, options, installed, tmp_path_factory.mktemp("attempt"))
        for options, _, _ in MISTAKES
    ]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=[sentence for _, _, sentence in MISTAKES])
def test_what_keeps_it_from_starting_is_said_in_a_sentence(attempts, number):
    done, port, directory = attempts[number].result()
    _, status, sentence = MISTAKES[number]
    assert done.returncode == status
    assert sentence.replace("TAKEN", port) in done.stdout
    assert "Traceback" not in done.stdout
    assert not (directory / "twistd.pid").exists()


@pytest.fixture(
    params=[
        "refuses",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("accepts and is silent", "has no address", "is silent in its handshake")
        ),
    ]
)
def unreachable_broker(request):
    """A URL of Kafka, where no Kafka will ever answer."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        if "silent" in request.param:
            # The system accepts connections; the test never reads from them.
            bound.listen()
        host = "no-such-host.invalid" if request.param == "has no address" else "127.0.0.1"
        scheme = "kafka+tls" if "handshake" in request.param else "kafka"
        yield f"{scheme}://{host}:{bound.getsockname()[1]}?delivery_timeout=86400"


def test_a_record_that_comes_at_once_is_rejected_when_kafka_was_never_reached(start, unreachable_broker):
    service = start(broker=unreachable_broker)
    with closing(connect(service)) as connection:
        # Kafka counts as unreachable after 5 s; without that, this would wait for a day.
        status, answer = publish(connection, "1")
    assert (status, answer["type"]) == (503, "urn:sampleapp:problem:broker-unavailable")


def test_twistd_lists_it_and_its_help_teaches(installed, tmp_path):
    assert "sampleapp" in run(["--help"], installed, tmp_path).stdout
    helped = run(["sampleapp", "--help"], installed, tmp_path)
    assert helped.returncode == 0
    for option in ("--listen", "--broker", "--readings-topic", "--max-body", "--drain-timeout"):
        assert option in helped.stdout
    assert "  curl http://127.0.0.1:8080/\n" in helped.stdout


def test_as_a_daemon_it_leaves_no_trace_when_it_has_stopped(installed, tmp_path):
    arguments = ["--pidfile=d.pid", "--logfile=d.log", "sampleapp", "--listen", "tcp:0:interface=127.0.0.1"]
    assert run(arguments, installed, tmp_path).returncode == 0
    pid = int((tmp_path / "d.pid").read_text())
    try:
        log = tmp_path / "d.log"
        wait_until(lambda: "Listening at" in log.read_text(), "the log says that it listens")
        port = int(log.read_text().split("Listening at http://127.0.0.1:")[1].split("/")[0])
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)) as connection:
            assert publish(connection, "c")[0] == 200
    finally:
        os.kill(pid, 15)
    wait_until(lambda: not (tmp_path / "d.pid").exists(), "the daemon has ended")
    assert (tmp_path / "sampleapp.sqlite3").exists()
    assert not (tmp_path / "sampleapp.sqlite3-wal").exists()
