"""Daemons that send logs, alerts and metrics over HTTP, with the service as their destination."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from contextlib import ExitStack, closing
from http import HTTPStatus
from http.client import HTTPConnection

import pytest

from tests.support.live_service import LiveService
from tests.support.process import connect
from tests.support.waiting import wait_until

# Most of their time is that of starts and of pauses before another try.
pytestmark = pytest.mark.slow

DEADLINE_S = 60

SYSLOG_NG = """
@version: 3.38
@module affile
@module http
@module json-plugin
options { time-reopen(1); stats-freq(0); };
source lines { file("@DIRECTORY@/in.log" follow-freq(0.1) flags(no-parse)); };
destination service {
    http(url("@URL@messages") method("POST") headers("Content-Type: application/x-ndjson")
        body('$(format-json topic="logs" content="$MESSAGE")') delimiter("\\n")
        batch-lines(3) batch-timeout(100) retries(1000000)
        response-action(413 => drop, 504 => disconnect));
};
log { source(lines); destination(service); flags(flow-control); };
"""

ALERTMANAGER = """
route: {receiver: service, group_wait: 0s, group_interval: 1s}
receivers:
- name: service
  webhook_configs:
  - url: @URL@topics/alerts
"""

COLLECTD = """
Hostname "web1"
BaseDir "@DIRECTORY@"
PIDFile "@DIRECTORY@/collectd.pid"
Interval 0.1
LoadPlugin uptime
LoadPlugin write_http
<Plugin write_http>
  <Node "service">
    URL "@URL@topics/metrics"
    Format "JSON"
    BufferSize 1024
  </Node>
</Plugin>
"""


def program(name):
    return shutil.which(name) or shutil.which(name, path="/usr/sbin")


def needs(name):
    return pytest.mark.skipif(program(name) is None, reason=f"this machine has no {name}")


def free_port():
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        return listening.getsockname()[1]


class Services:
    """One service after the other, on the same files and the same port."""

    def __init__(self, directory, stack):
        self._directory, self._stack = directory, stack
        self._listen = f"tcp:{free_port()}:interface=127.0.0.1"
        self.service = self.start()

    def start(self):
        self.service = self._stack.enter_context(
            LiveService(directory=self._directory, listen=self._listen, options=["--max-body", "5000"])
        )
        return self.service

    def values_of(self, topic):
        with closing(connect(self.service)) as connection:
            connection.request("GET", f"/topics/{topic}/records")
            response = connection.getresponse()
            lines = response.read().splitlines()
        # Not found until the first record is there.
        return [json.loads(line)["content"] for line in lines] if response.status == HTTPStatus.OK else []


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def services(tmp_path, stack):
    return Services(tmp_path, stack)


@pytest.fixture
def start(tmp_path, services, stack):
    """Starts a daemon with its configuration in a file; it is ended with the test."""

    def start_daemon(name, configuration, arguments):
        path = tmp_path / f"{name}.conf"
        text = configuration.replace("@DIRECTORY@", str(tmp_path)).replace("@URL@", services.service.url)
        path.write_text(text)
        command = [program(name), *(argument.replace("@FILE@", str(path)) for argument in arguments)]
        with (tmp_path / f"{name}.txt").open("wb") as output:
            daemon = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output)
        stack.callback(daemon.wait)
        stack.callback(daemon.terminate)
        return daemon

    return start_daemon


@needs("syslog-ng")
def test_syslog_ng_loses_no_line_while_the_service_is_away_and_passes_a_line_that_is_too_long(
    services, start, tmp_path
):
    lines = tmp_path / "in.log"
    lines.touch()

    def write(*texts):
        with lines.open("a") as file:
            file.writelines(f"{text}\n" for text in texts)

    def wait_for(*texts):
        wait_until(
            lambda: services.values_of("logs") == list(texts), f"{texts[-1]} is stored", deadline_s=DEADLINE_S
        )

    arguments = [
        "-F",
        "-e",
        "--no-caps",
        "-f",
        "@FILE@",
        "-R",
        "persist",
        "-c",
        "control",
        "--pidfile",
        "pid",
    ]
    start("syslog-ng", SYSLOG_NG, arguments)
    write('a "b" \\', "c", "d", "e")
    wait_for('a "b" \\', "c", "d", "e")
    services.service.stop()
    write("f", "g")
    services.start()
    wait_for('a "b" \\', "c", "d", "e", "f", "g")
    # Alone in its batch: 413.
    write("x" * 6000)
    wait_until(
        lambda: "dropped while sending" in (tmp_path / "syslog-ng.txt").read_text(),
        "the line is dropped",
        deadline_s=DEADLINE_S,
    )
    write("h")
    wait_for('a "b" \\', "c", "d", "e", "f", "g", "h")


@needs("prometheus-alertmanager")
def test_alertmanager_tells_an_alert_again_until_the_service_takes_it(services, start):
    port = free_port()
    address = f"127.0.0.1:{port}"
    arguments = ["--config.file=@FILE@", "--storage.path=data", f"--web.listen-address={address}"]
    start("prometheus-alertmanager", ALERTMANAGER, [*arguments, "--cluster.listen-address="])

    def ask(method, path, body=None):
        with closing(HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)) as connection:
            try:
                connection.request(method, path, body, {"Content-Type": "application/json"})
                return connection.getresponse().status == HTTPStatus.OK
            except OSError:
                return False

    wait_until(lambda: ask("GET", "/-/ready"), "Alertmanager is ready", deadline_s=DEADLINE_S)
    services.service.stop()
    assert ask("POST", "/api/v2/alerts", json.dumps([{"labels": {"alertname": "Down", "instance": "a"}}]))
    services.start()
    wait_until(lambda: services.values_of("alerts"), "the alert is stored", deadline_s=DEADLINE_S)
    (alert,) = json.loads(services.values_of("alerts")[0])["alerts"]
    assert (alert["status"], alert["labels"]["alertname"]) == ("firing", "Down")


@needs("collectd")
def test_a_buffer_of_collectd_is_one_record(services, start):
    start("collectd", COLLECTD, ["-f", "-C", "@FILE@"])
    wait_until(lambda: services.values_of("metrics"), "a buffer is stored", deadline_s=DEADLINE_S)
    values = json.loads(services.values_of("metrics")[0])
    assert {(each["host"], each["plugin"]) for each in values} == {("web1", "uptime")}
