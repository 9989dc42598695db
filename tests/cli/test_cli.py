"""The ``sampleapp`` command: its parts in memory, and all of it against a live service."""

from __future__ import annotations

import base64
import contextlib
import importlib.metadata
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import pytest_twisted
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, succeed

from sampleapp.cli import main
from sampleapp.cli._file_publisher import publish_lines
from sampleapp.cli._lines import LineSource, LineSplitter
from sampleapp.cli._printer import printable
from sampleapp.client import RequestTimedOut, ServiceUnreachable
from sampleapp.model import ConsumerRecord, RecordMetadata
from tests.support import strategies
from tests.support.live_service import LiveService

COMMAND = str(Path(sys.executable).with_name("sampleapp"))
DEADLINE_S = 20.0


def split(chunks, *, max_bytes=1000):
    splitter = LineSplitter(max_bytes=max_bytes)
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    return lines + splitter.end()


# Short alphabets make line feeds, and lines that repeat, likely.
files = st.lists(st.sampled_from([b"\n", b"\r", b"a", b"bc", b"\xff", b"\xc3\xa4"]), max_size=30).map(
    b"".join
)


@given(file=files, data=st.data())
def test_however_a_file_is_cut_up_its_lines_are_the_same(file, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(file)), max_size=5)))
    bounds = [0, *cuts, len(file)]
    chunks = [file[start:end] for start, end in itertools.pairwise(bounds)]
    expected = file.removesuffix(b"\n").split(b"\n") if file else []
    for pieces in (chunks, [file], [file[i : i + 1] for i in range(len(file))]):
        lines = split(pieces)
        assert [line.content for line in lines] == expected
        assert [line.number for line in lines] == list(range(1, len(expected) + 1))
        assert sum(line.size for line in lines) == len(file)


def test_a_line_that_is_too_long_is_left_out_and_the_next_one_is_whole():
    lines = split([b"12345\n", b"123", b"456", b"789\n", b"12345"], max_bytes=5)
    assert [line.content for line in lines] == [b"12345", None, b"12345"]
    assert [line.size for line in lines] == [6, 10, 5]


class Publisher:
    """Stands for a client; its answers come when a test says so."""

    def __init__(self):
        self.waiting = []
        self.contents = []

    def publish(self, *, topic, content, key):
        answer = Deferred()
        self.contents.append(content)
        self.waiting.append(answer)
        return answer

    def acknowledge(self):
        self.waiting.pop(0).callback(RecordMetadata(topic="t", partition=0, offset=0))


def publishing(publisher, *chunks, in_flight=2):
    """Begin to publish the lines of a file; the end of the file is where the chunks end."""
    unread = [*chunks, b""]
    return Deferred.fromCoroutine(
        publish_lines(
            client=publisher,
            topic="t",
            key=None,
            source=LineSource(lambda: succeed(unread.pop(0))),
            in_flight=in_flight,
            progress=lambda _: None,
        )
    )


def reported(publishing):
    results = []
    publishing.addBoth(results.append)
    (report,) = results
    return list(report.sentences())


def test_no_more_messages_are_in_flight_than_allowed():
    publisher = Publisher()
    ended = publishing(publisher, b"1\n2\n3\n4\n5\n", in_flight=2)
    assert publisher.contents == ["1", "2"]
    publisher.acknowledge()
    assert publisher.contents == ["1", "2", "3"]
    while publisher.waiting:
        assert len(publisher.waiting) <= 2
        publisher.acknowledge()
    assert reported(ended) == ["Published 5 lines, 0 failed."]


def test_lines_are_read_only_when_they_can_be_sent():
    publisher = Publisher()
    chunks = [b"1\n", b"2\n", b"3\n", b""]
    Deferred.fromCoroutine(
        publish_lines(
            client=publisher,
            topic="t",
            key=None,
            source=LineSource(lambda: succeed(chunks.pop(0))),
            in_flight=1,
            progress=lambda _: None,
        )
    )
    assert chunks == [b"2\n", b"3\n", b""]


def test_one_at_a_time_keeps_the_order_of_the_lines():
    publisher = Publisher()
    publishing(publisher, b"1\n2", b"\n3\n", in_flight=1)
    while publisher.waiting:
        publisher.acknowledge()
    assert publisher.contents == ["1", "2", "3"]


def test_failed_lines_are_told_by_their_reasons_and_numbers():
    publisher = Publisher()
    ended = publishing(publisher, b"1\n\xff\n3\n4\n\xff\n\xff\n\xff\n", in_flight=1)
    publisher.acknowledge()
    publisher.waiting.pop(0).errback(RequestTimedOut("It took too long."))
    publisher.acknowledge()
    assert reported(ended) == [
        "Lines 2, 5-7: not UTF-8.",
        "Line 3: It took too long. May have been published.",
        "Published 2 lines, 5 failed.",
    ]


def test_when_the_service_is_unreachable_the_rest_of_the_file_is_not_sent():
    publisher = Publisher()
    ended = publishing(publisher, b"1\n2\n3\n4\n", in_flight=2)
    publisher.waiting.pop(0).errback(ServiceUnreachable("Nothing there."))
    publisher.acknowledge()
    assert publisher.contents == ["1", "2"]
    first, second, third = reported(ended)
    assert first == "Line 1: Nothing there."
    assert second.startswith("Stopped after line 2: what follows was not sent.")
    assert third == "Published 1 line, 1 failed."


def test_an_interrupted_publishing_accounts_for_what_was_under_way():
    publisher = Publisher()
    ended = publishing(publisher, b"1\n2\n3\n4\n5\n", in_flight=2)
    publisher.acknowledge()
    ended.cancel()
    assert reported(ended) == [
        "Lines 2-3: interrupted before the answer. May have been published.",
        "Interrupted after line 3: what follows was not sent.",
        "Published 1 line, 2 failed.",
    ]


@pytest_twisted.ensureDeferred
async def test_a_mistake_of_the_program_is_not_taken_for_a_failed_line():
    class Broken:
        def publish(self, **_):
            raise ZeroDivisionError

    with pytest.raises(Exception, match="ZeroDivisionError"):
        await publishing(Broken(), b"1\n")


def consumer_record(key, value):
    return ConsumerRecord(topic="t", partition=1, offset=2, timestamp_ms=3, key=key, value=value)


@given(key=st.none() | strategies.texts.map(str.encode), value=st.none() | st.binary())
def test_what_is_printed_of_a_record_is_exact(key, value):
    document = json.loads(json.dumps(printable(consumer_record(key, value))))
    assert (document["topic"], document["partition"], document["offset"], document["timestamp"]) == (
        "t",
        1,
        2,
        3,
    )

    def recovered(name):
        if f"{name}_base64" in document:
            assert name not in document
            return base64.b64decode(document[f"{name}_base64"])
        return None if document[name] is None else document[name].encode()

    assert (recovered("key"), recovered("value")) == (key, value)


def test_bytes_that_are_not_utf8_are_printed_in_base64():
    document = printable(consumer_record(b"\xff", b"text"))
    assert document["key_base64"] == "/w=="
    assert document["value"] == "text"


@pytest.mark.parametrize("arguments", [[], ["publish"], ["readings"], ["consume"]])
def test_every_command_has_help_with_examples(arguments):
    shown = CliRunner().invoke(main, [*arguments, "--help"])
    assert shown.exit_code == 0
    assert "Examples:" in shown.output


def test_the_command_line_itself_needs_no_twisted():
    script = "import sys, sampleapp.cli; print(sorted({'twisted', 'treq', 'klein'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "[]\n"


def test_the_version_is_that_of_the_distribution():
    version = importlib.metadata.version("sampleapp")
    assert CliRunner().invoke(main, ["--version"]).output == f"sampleapp, version {version}\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["publish", "t"], "either CONTENT"),
        (["publish", "t", "c", "--lines", "-"], "either CONTENT"),
        (["publish", "t", "--lines", "no-such-file"], "does not exist"),
        (["publish", "t", "--lines", "-", "--in-flight", "0"], "not in the range"),
        (["publish", "t", "\udcff"], "it is not UTF-8."),
        (["publish", "t", "--kye", "k", "c"], "No such option"),
        (["publish", "t", "--kye", "k", "-5.5"], "unexpected extra argument"),
        (["publish", "t", "-x"], "No such option"),
        (["publish", "t", "c", "--url", "localhost:8080"], "is not a URL such as"),
        (["readings", "--version", "3"], "is not one of"),
        (["consume", "t", "--broker", "sqlite:no-such-file"], "there is no file 'no-such-file'"),
        (["consume", "t", "--broker", "memory:"], "only in the service itself"),
    ],
)
def test_a_command_line_that_makes_no_sense_ends_with_2_and_a_reason(
    arguments, reason, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert reason in " ".join(result.output.split())
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with LiveService(directory=tmp_path_factory.mktemp("cli")) as service:
        yield service


def sampleapp(service, *arguments, stdin=b"", url=None, code=0):
    """Run a command to its end, and return what it printed: stdout, stderr."""
    ended = subprocess.run(
        [COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        check=False,
        cwd=service.directory,
        env={**os.environ, "SAMPLEAPP_URL": url or service.url},
        timeout=30,
    )
    assert ended.returncode == code, ended
    return ended.stdout.decode(), ended.stderr.decode()


def consumed(service, topic):
    stdout, _ = sampleapp(service, "consume", topic, "--broker", service.broker)
    return [json.loads(line) for line in stdout.splitlines()]


def test_a_published_message_is_answered_and_consumed(service):
    stdout, stderr = sampleapp(service, "publish", "one", "--key", "k", "ä")
    assert (json.loads(stdout), stderr) == ({"topic": "one", "partition": 0, "offset": 0}, "")
    sampleapp(service, "publish", "one", "-", stdin=b"no key\n")
    sampleapp(service, "publish", "one", "--key", "", "--", "--dashes")
    sampleapp(service, "publish", "one", "-5.5", "--key", "cellar")
    found = [(record["key"], record["value"]) for record in consumed(service, "one")]
    assert found == [("k", "ä"), (None, "no key\n"), ("", "--dashes"), ("cellar", "-5.5")]
    assert [record["offset"] for record in consumed(service, "one")] == [0, 1, 2, 3]


def test_each_line_of_a_file_is_published_once_and_those_that_cannot_be_are_named(service):
    file = service.directory / "lines.txt"
    file.write_bytes(b"".join(b"%d\n" % n for n in range(300)) + b"\xff\n\n" + b"last")
    _, stderr = sampleapp(service, "publish", "many", "--lines", str(file), code=1)
    assert stderr == "Line 301: not UTF-8.\nPublished 302 lines, 1 failed.\n"
    expected = sorted([*map(str, range(300)), "", "last"])
    assert sorted(record["value"] for record in consumed(service, "many")) == expected


def test_lines_come_from_stdin_as_well_and_keep_their_order_one_at_a_time(service):
    arguments = ["publish", "ordered", "--key", "k", "--lines", "-", "--in-flight", "1"]
    _, stderr = sampleapp(service, *arguments, stdin=b"3\n1\n2\n")
    assert stderr == "Published 3 lines, 0 failed.\n"
    found = [(record["key"], record["value"]) for record in consumed(service, "ordered")]
    assert found == [("k", "3"), ("k", "1"), ("k", "2")]


def test_the_lines_of_a_file_keep_their_order_if_they_have_a_key(service):
    lines = [f"line {n}" for n in range(50)]
    stdin = "\n".join(lines).encode()
    sampleapp(service, "publish", "keyed", "--key", "k", "--lines", "-", stdin=stdin)
    assert [record["value"] for record in consumed(service, "keyed")] == lines


def test_a_refused_message_is_one_sentence_on_stderr_and_ends_with_1(service):
    stdout, stderr = sampleapp(service, "publish", "bad/topic", "c", code=1)
    assert stdout == ""
    assert stderr.startswith("Error: Body is not a message (422): ")
    assert stderr.count("\n") == 1


def test_where_nothing_listens_it_is_said_how_to_start_the_service(service):
    with socket.socket() as unused:
        # Bound, but not listening: nobody else can be there.
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        for arguments in (["publish", "t", "c"], ["readings"]):
            _, stderr = sampleapp(service, *arguments, url=url, code=1)
            assert "Connection refused. Is the service running? Start it with: twistd -n sampleapp" in stderr


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


class Watched:
    """A command that goes on, and what it has printed so far, stdout and stderr in one."""

    def __init__(self, service, *arguments):
        self.process = subprocess.Popen(
            [COMMAND, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=service.directory,
            env={**os.environ, "SAMPLEAPP_URL": service.url},
            text=True,
        )
        self._lines = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self._news:
                self._lines.append(line.rstrip("\n"))
                self._news.notify_all()

    def wait_for(self, wanted):
        with self._news:
            seen = self._news.wait_for(lambda: any(wanted in line for line in self._lines), DEADLINE_S)
            assert seen, (wanted, self._lines)

    def interrupt(self):
        """Press Ctrl-C; return the exit code and all that was printed."""
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self):
        code = self.process.wait(DEADLINE_S)
        self._reader.join()
        return code, self._lines

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdin.close()
        self.process.stdout.close()


def test_a_watch_prints_each_change_and_survives_the_service_being_away(tmp_path):
    with LiveService(directory=tmp_path) as service, Watched(service, "readings", "--watch") as watch:
        watch.wait_for("[]")
        sampleapp(service, "publish", "readings", "--key", "kitchen", "1")
        watch.wait_for("[1.0]")
        service.kill()
        watch.wait_for("Asking again until there is an answer.")
        port = service.url.rstrip("/").rpartition(":")[2]
        with LiveService(directory=tmp_path, listen=f"tcp:{port}:interface=127.0.0.1") as again:
            watch.wait_for("The service answers again.")
            sampleapp(again, "publish", "readings", "--key", "cellar", "2.5")
            watch.wait_for("[1.0,2.5]")
            code, lines = watch.interrupt()
    assert code == 0
    assert [line for line in lines if line.startswith("[")] == ["[]", "[1.0]", "[1.0,2.5]"]
    assert len([line for line in lines if "Asking again" in line]) == 1


def test_readings_are_printed_in_both_versions(tmp_path):
    with LiveService(directory=tmp_path) as service:
        sampleapp(service, "publish", "readings", "--key", "kitchen", "21.5")
        until = time.monotonic() + DEADLINE_S
        while (printed := sampleapp(service, "readings")[0]) == "[]\n" and time.monotonic() < until:
            pass
        assert printed == "[21.5]\n"
        assert sampleapp(service, "readings", "--version", "2")[0] == '[{"id":"kitchen","value":21.5}]\n'


def test_consume_follow_prints_what_is_added_later_and_ends_with_ctrl_c(service):
    sampleapp(service, "publish", "live", "first")
    arguments = ["consume", "live", "--follow", "--broker", service.broker]
    with Watched(service, *arguments) as following:
        following.wait_for('"value":"first"')
        sampleapp(service, "publish", "live", "second")
        following.wait_for('"value":"second"')
        code, lines = following.interrupt()
    assert (code, [json.loads(line)["offset"] for line in lines]) == (0, [0, 1])


def test_ctrl_c_while_waiting_for_lines_reports_what_was_published(service):
    with Watched(service, "publish", "typed", "--lines", "-") as publish:
        publish.process.stdin.write("a\nb\n")
        publish.process.stdin.flush()
        until = time.monotonic() + DEADLINE_S
        while len(consumed(service, "typed")) < 2 and time.monotonic() < until:
            pass
        code, lines = publish.interrupt()
    assert (code, lines[-2:]) == (
        130,
        ["Interrupted after line 2: what follows was not sent.", "Published 2 lines, 0 failed."],
    )


def test_a_progress_bar_is_drawn_on_a_terminal(service):
    controller, terminal = os.openpty()
    file = service.directory / "progress.txt"
    file.write_text("line\n" * 200)
    with subprocess.Popen(
        [COMMAND, "publish", "progress", "--lines", str(file), "--url", service.url], stderr=terminal
    ) as process:
        os.close(terminal)
        shown = b""
        # EIO: this is how the end of a terminal is read.
        with contextlib.suppress(OSError):
            while data := os.read(controller, 65536):
                shown += data
        os.close(controller)
    assert process.returncode == 0
    assert b"100%" in shown
    assert b"200 published, 0 failed" in shown
