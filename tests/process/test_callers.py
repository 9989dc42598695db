"""A callers file under a service that runs: what it says counts, and goes on counting when it changes."""

from __future__ import annotations

import http.client
import signal
import time
from contextlib import closing

import pytest

from tests.support.callers import by, caller
from tests.support.files import by_link, by_rename, in_place
from tests.support.process import run
from tests.support.waiting import wait_until

DEADLINE_S = 5.0

READER = caller("t", "read = true")
NO_READER = caller("t", "read = false")


class Client:
    """One connection, which stays open."""

    def __init__(self, url):
        host = url.removeprefix("http://").rstrip("/")
        self.connection = http.client.HTTPConnection(host, timeout=30)

    def status(self):
        name, value = by("t")
        self.connection.request("GET", "/", headers={name.decode(): value.decode()})
        response = self.connection.getresponse()
        response.read()
        return response.status

    def close(self):
        self.connection.close()


@pytest.mark.parametrize(
    "write", [by_rename, *(pytest.param(each, marks=pytest.mark.slow) for each in (in_place, by_link))]
)
def test_a_change_counts_within_five_seconds_on_open_connections_and_a_mistake_changes_nothing(
    start, tmp_path, write
):
    directory = tmp_path / "secret"
    directory.mkdir()
    path = directory / "callers.toml"
    write(path, READER)
    service = start(broker="memory:", options=["--callers", str(path)])
    with closing(Client(service.url)) as client:
        wait_until(lambda: client.status() == 200, "200", deadline_s=DEADLINE_S)
        sock = client.connection.sock
        write(path, NO_READER)
        wait_until(lambda: client.status() == 403, "403", deadline_s=DEADLINE_S)
        write(path, READER.replace("read =", "raed ="))
        service.wait_for_output(
            r"Could not reload the callers file.*callers\.toml, line 2: callers\.t\.raed is not known",
            deadline_s=DEADLINE_S,
        )
        assert client.status() == 403
        write(path, READER)
        wait_until(lambda: client.status() == 200, "200", deadline_s=DEADLINE_S)
        assert client.connection.sock is sock
    assert service.process.poll() is None


def test_a_stream_ends_within_five_seconds_when_the_file_does_not_grant_it_any_more(start, tmp_path):
    path = tmp_path / "callers.toml"
    path.write_text(READER)
    service = start(broker="memory:", options=["--callers", str(path)])
    with closing(Client(service.url)) as client:
        wait_until(lambda: client.status() == 200, "200", deadline_s=DEADLINE_S)
        name, value = by("t")
        client.connection.request("GET", "/changes", headers={name.decode(): value.decode()})
        response = client.connection.getresponse()
        assert (response.status, response.readline()[:6]) == (200, b"retry:")
        path.write_text(NO_READER)
        began_s = time.monotonic()
        # It returns at the end of the answer.
        response.read()
        assert time.monotonic() - began_s < DEADLINE_S
        assert client.status() == 403


def test_a_signal_has_the_file_read_at_once_and_ends_nothing(start, tmp_path):
    path = tmp_path / "callers.toml"
    path.write_text(READER)
    service = start(broker="memory:", options=["--callers", str(path)])
    for _ in range(3):
        service.process.send_signal(signal.SIGHUP)
    service.wait_for_output(r"(?s)Reloaded the callers file\.", deadline_s=DEADLINE_S)
    path.unlink()
    service.process.send_signal(signal.SIGHUP)
    service.wait_for_output(r"callers\.toml: No such file or directory", deadline_s=DEADLINE_S)
    with closing(Client(service.url)) as client:
        wait_until(lambda: client.status() == 200, "200", deadline_s=DEADLINE_S)
    assert service.process.poll() is None


@pytest.mark.parametrize(
    ("options", "status", "sentence"),
    [
        (["--listen", "tcp:0"], 2, "--listen tcp:0: other machines can reach this endpoint, "),
        pytest.param(
            *(["--callers", "none.toml"], 1, "--callers: cannot read none.toml: No such file or directory."),
            marks=pytest.mark.slow,
        ),
        (["--callers", "bad.toml"], 1, "--callers: bad.toml, line 2: callers.t.raed is not known here;"),
        pytest.param(
            ["--callers", "callers.toml", "--open-to-everybody"],
            2,
            "--open-to-everybody lets every client do everything, and --callers only the callers in the ",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_would_let_in_the_wrong_ones_does_not_start(installed, tmp_path, options, status, sentence):
    (tmp_path / "callers.toml").write_text(READER)
    (tmp_path / "bad.toml").write_text(READER.replace("read", "raed"))
    done = run(["-n", "--pidfile=", "sampleapp", "--broker", "memory:", *options], installed, tmp_path)
    assert done.returncode == status
    assert f"sampleapp: {sentence}" in done.stdout
    assert "Traceback" not in done.stdout
