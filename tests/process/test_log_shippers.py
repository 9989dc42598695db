"""Daemons that send logs, alerts and metrics over HTTP, with the service as their destination."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from contextlib import ExitStack, closing
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.live_service import LiveService
from tests.support.process import connect
from tests.support.waiting import wait_until

# Most of their time is that of starts and of pauses before another try.
pytestmark = pytest.mark.slow

DEADLINE_S = 60

CONFIGURATIONS = Path(__file__).parents[2] / "docs/howto/log-shippers"
"""Those of the page for log shippers."""


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
            LiveService(
                directory=self._directory,
                listen=self._listen,
                options=["--max-body", "5000", "--max-batch-body", "5000"],
            )
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
    """Starts a daemon with a configuration of the page; it is ended with the test."""

    def start_daemon(name, file, arguments, **changes):
        text = (CONFIGURATIONS / file).read_text(encoding="utf-8")
        port = str(urlsplit(services.service.url).port)
        for before, after in {"8080": port, **changes}.items():
            assert before in text
            text = text.replace(before, after)
        path = tmp_path / file
        path.write_text(text)
        command = [program(name), *(argument.replace("@FILE@", str(path)) for argument in arguments)]
        with (tmp_path / f"{name}.txt").open("wb") as output:
            daemon = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output)
        stack.callback(daemon.wait)
        stack.callback(daemon.terminate)
        return daemon

    return start_daemon


# Each has its file, its arguments, what the test changes in the file, and its words for a line that it drops.
SHIPPERS = {
    "syslog-ng": (
        "syslog-ng.conf",
        "-F -e --no-caps -f @FILE@ -R persist -c control --pidfile pid",
        {
            "source s_lines": "options { time-reopen(1); };\nsource s_lines",
            "reliable(yes)": 'reliable(yes) dir(".")',
        },
        "dropped while sending",
    ),
    "fluent-bit": (
        "fluent-bit.conf",
        "-c @FILE@",
        {
            "/var/lib/fluent-bit": "state",
            "scheduler.cap    60": "scheduler.cap    1\n    scheduler.base   1\n    flush            0.2",
        },
        "HTTP status=413",
    ),
    "rsyslogd": (
        "rsyslog.conf",
        "-n -i pid -f @FILE@",
        {
            "/var/spool/rsyslog": ".",
            "/var/log/sampleapp-errors.json": "errors.json",
            'action.resumeRetryCount="-1"': 'action.resumeRetryCount="-1" action.resumeInterval="1"',
        },
        "code: 413",
    ),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in SHIPPERS])
def test_a_shipper_loses_no_line_while_the_service_is_away_and_passes_a_line_that_is_too_long(
    services, start, tmp_path, name
):
    configuration, arguments, changes, dropped = SHIPPERS[name]
    lines = tmp_path / "in.log"
    lines.touch()

    def write(*texts):
        with lines.open("a") as file:
            file.writelines(f"{text}\n" for text in texts)

    def wait_for(*texts):
        wait_until(
            lambda: services.values_of("logs") == list(texts), f"{texts[-1]} is stored", deadline_s=DEADLINE_S
        )

    start(name, configuration, arguments.split(), **{"/var/log/app.log": str(lines), **changes})
    write('a "b" \\', "c", "d", "e")
    wait_for('a "b" \\', "c", "d", "e")
    services.service.stop()
    write("f", "g")
    services.start()
    wait_for('a "b" \\', "c", "d", "e", "f", "g")
    # 413, although it is alone in its batch.
    write("x" * 6000)
    wait_until(
        lambda: dropped in (tmp_path / f"{name}.txt").read_text(),
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
    changes = {"group_interval: 1m": "group_wait: 0s\n  group_interval: 1s"}
    start(
        "prometheus-alertmanager",
        "alertmanager.yml",
        [*arguments, "--cluster.listen-address="],
        **changes,
    )

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
def test_a_buffer_of_collectd_is_one_record(services, start, tmp_path):
    changes = {
        "LoadPlugin load": f'BaseDir "{tmp_path}"\nPIDFile "{tmp_path}/pid"\nInterval 0.1\nLoadPlugin load',
        'Format "JSON"': 'Format "JSON"\n    BufferSize 1024',
    }
    start("collectd", "collectd.conf", ["-f", "-C", "@FILE@"], **changes)
    wait_until(lambda: services.values_of("collectd"), "a buffer is stored", deadline_s=DEADLINE_S)
    values = json.loads(services.values_of("collectd")[0])
    assert {each["plugin"] for each in values} == {"load"}
