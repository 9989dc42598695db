"""The service under systemd: what it tells, and the sockets that it is given."""

from __future__ import annotations

import http.client
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.free_ports import free_port
from tests.support.live_service import TWISTD_SAMPLEAPP, LiveService
from tests.support.process import DEADLINE_S, connect, get, publish, records, send_message
from tests.support.systemd import NotifySocket, with_sockets
from tests.support.waiting import wait_until


@pytest.fixture
def under_systemd(installed, tmp_path):
    with ExitStack() as stack:

        def start(*, is_abstract=False, variables=None, **arguments):
            systemd = stack.enter_context(NotifySocket(tmp_path, is_abstract=is_abstract))
            environment = {**installed, "NOTIFY_SOCKET": systemd.address, **(variables or {})}
            service = LiveService(directory=tmp_path, environment=environment, **arguments)
            stack.callback(service.kill)
            return systemd, service

        yield start


@pytest.mark.parametrize(
    "is_abstract",
    [pytest.param(False, id="path"), pytest.param(True, id="abstract name", marks=pytest.mark.slow)],
)
def test_systemd_is_told_when_it_serves_and_when_it_reads_files_again_and_when_it_stops(
    under_systemd, is_abstract
):
    systemd, service = under_systemd(is_abstract=is_abstract)
    assert systemd.receive() == ["READY=1"]
    with closing(connect(service)) as connection:
        connection.request("GET", "/live")
        assert connection.getresponse().status == 200
    systemd.wait_for("STATUS=Ready.")
    service.process.send_signal(signal.SIGHUP)
    kind, at = systemd.wait_for("RELOADING=1")
    assert kind == "RELOADING=1"
    assert int(at.removeprefix("MONOTONIC_USEC=")) > 0
    assert systemd.receive() == ["READY=1"]
    service.process.terminate()
    assert systemd.wait_for("STOPPING=1") == ["STOPPING=1"]
    systemd.wait_for("STATUS=Not ready: The service is stopping.")
    assert service.stop() == -signal.SIGTERM
    assert not any(message == ["WATCHDOG=1"] for message in systemd.messages)


def test_the_watchdog_gets_signs_of_life_until_the_reactor_is_stuck(under_systemd):
    systemd, service = under_systemd(variables={"WATCHDOG_USEC": "200000"})
    systemd.wait_for("WATCHDOG=1", count=3)
    service.process.send_signal(signal.SIGSTOP)
    # Those that are under way come at once.
    assert systemd.falls_silent()
    service.process.send_signal(signal.SIGCONT)
    systemd.wait_for("WATCHDOG=1")


def test_the_watchdog_gets_signs_of_life_again_after_its_socket_was_away(under_systemd, tmp_path):
    systemd, service = under_systemd(variables={"WATCHDOG_USEC": "200000"})
    systemd.wait_for("WATCHDOG=1")
    systemd.close()
    Path(systemd.address).unlink()
    service.wait_for_output("systemd cannot be notified of the state of the service; trying again")
    with NotifySocket(tmp_path) as after:
        after.wait_for("WATCHDOG=1", count=3)
    assert service.output.count("systemd cannot be notified") == 1


def test_a_watchdog_for_another_process_is_not_its_own(under_systemd):
    systemd, service = under_systemd(variables={"WATCHDOG_USEC": "200000", "WATCHDOG_PID": "1"})
    systemd.wait_for("STATUS=Ready.")
    assert service.stop() == -signal.SIGTERM
    systemd.wait_for("STATUS=Not ready")
    assert not any(message == ["WATCHDOG=1"] for message in systemd.messages)


def test_systemd_hears_why_the_service_is_not_ready(under_systemd, tmp_path):
    systemd, _ = under_systemd(broker="kafka://127.0.0.1:1")
    (status,) = systemd.wait_for("STATUS=Not ready: ")
    assert "127.0.0.1" not in status


@pytest.mark.parametrize(
    ("address", "line"),
    [
        ("vsock:2:1", "NOTIFY_SOCKET is neither a path nor an abstract name"),
        ("/nowhere", "cannot be notified"),
    ],
)
def test_a_service_that_cannot_tell_systemd_serves(start, address, line):
    service = start(command=("/usr/bin/env", f"NOTIFY_SOCKET={address}", *TWISTD_SAMPLEAPP))
    assert get(urlsplit(service.url).port, "/live")[0] == 200
    service.wait_for_output(line)
    assert "Traceback" not in service.output


def listening(stack):
    listening = stack.enter_context(socket.socket())
    listening.bind(("127.0.0.1", 0))
    listening.listen(10)
    return listening, listening.getsockname()[1]


def test_sockets_of_systemd_are_served_by_their_names_and_outlive_the_service(start):
    with ExitStack() as stack:
        public, port = listening(stack)
        admin, admin_port = listening(stack)
        sockets = {"http": public, "admin": admin}

        def started():
            return start(
                command=with_sockets(sockets, TWISTD_SAMPLEAPP),
                listen="systemd:domain=INET:name=http",
                options=["--admin", "systemd:domain=INET:name=admin"],
                descriptors=[each.fileno() for each in sockets.values()],
            )

        service = started()
        assert service.url == f"http://127.0.0.1:{port}/"
        service.wait_for_output(f"Listening for operators at http://127.0.0.1:{admin_port}/")
        assert "network" not in service.output
        with closing(connect(service)) as connection:
            assert publish(connection, "first")[0] == 200
        assert get(admin_port, "/live")[0] == 200
        assert get(admin_port, "/")[0] == 404
        assert queue_of(public) == int(Path("/proc/sys/net/core/somaxconn").read_text())
        assert service.stop() == -signal.SIGTERM
        # Whoever comes in between waits for the next one.
        client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
        client.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        started()
        assert client.recv(12) == b"HTTP/1.1 200"


def instance_that_publishes(port, content):
    """Publish on a new connection; returns which process has answered."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)) as connection:
        send_message(connection, content)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        return response.headers["X-Request-Id"].partition("-")[0]


def test_instances_share_a_socket_and_restart_one_after_the_other_without_a_failed_request(start, tmp_path):
    with ExitStack() as stack:
        public, port = listening(stack)

        def started():
            return start(
                command=with_sockets({"http": public}, TWISTD_SAMPLEAPP),
                listen="systemd:domain=INET:name=http",
                options=["--admin", "tcp:0:interface=127.0.0.1"],
                descriptors=[public.fileno()],
            )

        instances = [started(), started()]
        admin_ports = {
            int(each.wait_for_output(r"Listening for operators at http://127\.0\.0\.1:(\d+)/")[1])
            for each in instances
        }
        assert len(admin_ports) == 2
        assert [get(each, "/live")[0] for each in admin_ports] == [200, 200]
        contents = (str(number) for number in itertools.count())
        published, responded = [], set()

        def publish_one():
            published.append(next(contents))
            responded.add(instance_that_publishes(port, published[-1]))
            return responded

        wait_until(lambda: len(publish_one()) == 2, "both have answered")
        for instance in instances:
            instance.process.terminate()
            has_ended = instance.process.poll
            wait_until(lambda has_ended=has_ended: publish_one() and has_ended() is not None, "it has ended")
            # The other one answers all.
            for _ in range(20):
                publish_one()
            started()
            count = len(responded)
            wait_until(lambda count=count: len(publish_one()) > count, "the new one has answered")
    assert sorted(content for _, content in records(tmp_path)) == sorted(published)


@pytest.mark.parametrize(
    ("family", "address"), [("INET", "0.0.0.0"), pytest.param("INET6", "::", marks=pytest.mark.slow)]
)
def test_a_socket_that_others_can_reach_is_rejected_as_long_as_nothing_says_who_may_call(
    start, tmp_path, family, address
):
    with ExitStack() as stack:
        public = stack.enter_context(socket.socket(getattr(socket, f"AF_{family}")))
        public.bind((address, 0))
        public.listen()
        arguments = {
            "command": with_sockets({"http": public}, TWISTD_SAMPLEAPP),
            "listen": f"systemd:domain={family}:name=http",
            "descriptors": [public.fileno()],
        }
        with pytest.raises(AssertionError, match="it needs a callers file"):
            start(**arguments)
        service = start(options=["--open-to-everybody"], **arguments)
        assert get(public.getsockname()[1], "/live")[0] == 200
        assert service.stop() == -signal.SIGTERM


def queue_of(listening):
    """How many connections may wait to be accepted, as Linux has it (tcp_info.tcpi_sacked)."""
    information = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
    return int.from_bytes(information[28:32], sys.byteorder)


@pytest.mark.parametrize(
    ("endpoint", "sentence"),
    [
        ("systemd:domain=INET:name=http", "systemd has not passed such a socket"),
        ("systemd:domain=UNIX:name=http", "a Unix socket from systemd cannot be used"),
        # The same with a number for its name.
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in [
                ("systemd:domain=INET:index=0", "systemd has not passed such a socket"),
                ("systemd:UNIX:0", "a Unix socket from systemd cannot be used"),
            ]
        ),
    ],
)
def test_without_such_a_socket_it_does_not_start_and_says_what_to_do(tmp_path, endpoint, sentence):
    ended = subprocess.run(
        [*TWISTD_SAMPLEAPP, "--listen", endpoint],
        cwd=tmp_path,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=20,
    )
    assert ended.returncode == 1
    assert f"--listen {endpoint}: {sentence}" in ended.stdout


ACTIVATE = shutil.which("systemd-socket-activate")


@pytest.mark.skipif(ACTIVATE is None, reason="this machine has no systemd-socket-activate")
def test_systemd_itself_hands_over_a_socket(tmp_path, installed):
    port = free_port()
    listen = f"127.0.0.1:{port}"
    activate = [ACTIVATE, "--listen", listen, "--fdname", "http"]
    activate += [f"--setenv={name}={value}" for name, value in installed.items()]
    activate += [f"--setenv=PATH={os.environ['PATH']}"]
    process = subprocess.Popen(
        [*activate, *TWISTD_SAMPLEAPP, "--listen", "systemd:domain=INET:name=http", "--broker", "memory:"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:

        def answers():
            try:
                return get(port, "/live")[0] == 200
            except ConnectionError:
                return False

        wait_until(answers, "the service was started by a connection, and answers")
        process.terminate()
        assert process.wait(20) == -signal.SIGTERM
    finally:
        process.kill()
        process.wait()
