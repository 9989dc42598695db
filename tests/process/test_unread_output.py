"""The service while nobody reads what it writes to standard output."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.metrics.service import samples_in
from tests.support.free_ports import free_port
from tests.support.live_service import TWISTD_SAMPLEAPP
from tests.support.process import DEADLINE_S, get
from tests.support.secrets import record_output
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

SERVE = (str(Path(sys.executable).with_name("sampleapp")), "serve")
COMMANDS = {"twistd": TWISTD_SAMPLEAPP, "serve": SERVE}
REQUESTS = 8_000
ACCESS_LOG = ["--access-log-format", "json", "--access-log"]
FLOOD = """
import sys
from twisted.internet import reactor
from twisted.logger import Logger
from sampleapp.cli import main

def flood():
    for number in range(20_000):
        Logger(namespace="flood").warn("{number} {text}", number=number, text="x" * 200)

# Once the service has its port, and logs in the background.
reactor.callWhenRunning(reactor.callLater, 0, flood)
sys.argv[0] = "sampleapp"
main()
"""


class Unread:
    """A service whose standard output and standard error are a pipe that is read when the test does so."""

    def __init__(self, directory, environment, command, *options):
        self.port = free_port()
        self.process = subprocess.Popen(
            [*command, "--listen", f"tcp:{self.port}:interface=127.0.0.1", "--broker", "memory:", *options],
            cwd=directory,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.responded = 0
        wait_until(self._is_there, "the service answers")

    def _is_there(self):
        assert self.process.poll() is None, self.process.stdout.read()
        try:
            assert get(self.port, "/live")[0] == 200
        except ConnectionError:
            return False
        self.responded += 1
        return True

    def ask(self, times):
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)) as connection:
            for number in range(times):
                connection.request("GET", "/nothing", headers={"X-Request-Id": f"request-{number}"})
                response = connection.getresponse()
                response.read()
                assert response.status == 404
                self.responded += 1

    def lost(self, log):
        _, body = get(self.port, "/metrics")
        self.responded += 1
        return samples_in(body)["sampleapp_log_lost_lines_total", (("log", log),)]

    def stop(self, number=signal.SIGTERM):
        """Ask it to end; returns the exit code, and after how many seconds."""
        began_s = time.monotonic()
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S), time.monotonic() - began_s

    def read(self, until=None):
        """Read until something comes, or to the end; returns all that came."""
        read = b""
        while until is None or not re.search(until, read):
            part = os.read(self.process.stdout.fileno(), 65_536)
            if not part:
                assert until is None, read[-2000:]
                break
            read += part
        record_output("output of the service", read)
        return read.decode()


@pytest.fixture
def unread(installed, tmp_path):
    services = []

    def unread(command, *options):
        services.append(Unread(tmp_path, installed, command, *options))
        return services[-1]

    yield unread
    for service in services:
        service.process.kill()
        service.process.wait()
        service.process.stdout.close()


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_request_is_answered_and_each_line_is_written_or_counted(unread, command):
    service = unread(command, *ACCESS_LOG, "-")
    service.ask(REQUESTS)
    lost = service.lost("access")
    assert lost > 0
    text = service.read(until=rb"The access log - can be written to again; \d+ line\(s\) were lost\.")
    lost = service.lost("access")
    assert f"; {lost:.0f} line(s) were lost." in text
    assert service.stop()[0] == -signal.SIGTERM
    lines = [line for line in (text + service.read()).splitlines() if line.startswith("{")]
    numbers = [json.loads(line)["request_id"] for line in lines if "/nothing" in line]
    assert numbers == sorted(numbers, key=lambda each: int(each.removeprefix("request-")))
    assert len(lines) + lost == service.responded


def test_a_flood_in_the_log_keeps_nobody_waiting_and_each_line_is_written_or_counted(unread):
    service = unread((sys.executable, "-c", FLOOD, "serve"))
    service.ask(100)
    wait_until(lambda: service.lost("service") > 0, "lines are lost")
    text = service.read(until=rb"The log can be written to again; \d+ line\(s\) were lost\.")
    lost = int(re.search(r"The log can be written to again; (\d+) line", text)[1])
    assert lost == service.lost("service")
    numbers = [int(number) for number in re.findall(r"\[flood#warn\] (\d+) x{200}\n", text)]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) + lost == 20_000
    service.ask(1)
    assert service.stop()[0] == -signal.SIGTERM
    assert service.read().endswith("Server Shut Down.\n")


def test_it_ends_soon_all_the_same(unread):
    service = unread(TWISTD_SAMPLEAPP, *ACCESS_LOG, "-", "--drain-timeout", "1")
    service.ask(REQUESTS)
    code, after_s = service.stop()
    assert code == -signal.SIGTERM
    assert after_s < 10
    assert service.read()


def test_a_second_signal_ends_it_all_the_same(unread):
    service = unread(SERVE, *ACCESS_LOG, "-", "--drain-delay", "600")
    service.ask(REQUESTS)
    service.process.terminate()
    wait_until(lambda: get(service.port, "/ready")[0] == 503, "it is stopping")
    time.sleep(0.5)
    code, after_s = service.stop(signal.SIGINT)
    assert code == -signal.SIGINT
    assert after_s < 10


def test_when_the_reader_has_gone_requests_are_answered_and_it_ends_as_always(unread):
    service = unread(SERVE, *ACCESS_LOG, "-")
    service.ask(10)
    service.process.stdout.close()
    service.ask(REQUESTS)
    assert service.lost("access") > 0
    code, _ = service.stop(signal.SIGINT)
    assert code == -signal.SIGINT


def test_a_fifo_for_lines_that_is_not_read_keeps_nobody_waiting(unread, tmp_path):
    fifo = tmp_path / "access.fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        service = unread(SERVE, *ACCESS_LOG, str(fifo))
        service.ask(REQUESTS)
        assert service.lost("access") > 0
        assert "Listening" in service.read(until=b"Listening")
        assert service.stop()[0] == -signal.SIGTERM
    finally:
        os.close(reader)
