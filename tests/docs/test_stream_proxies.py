"""The proxies of the page about streams, with the real programs and the configurations on the page."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import time

import pytest

from tests.support import process
from tests.support.event_source import SITE, EventSource
from tests.support.free_ports import free_port
from tests.support.live_service import LiveService
from tests.support.waiting import wait_until

pytestmark = pytest.mark.page

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
HAPROXY = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

# The configuration around that of the site, with all files in the directory of the test.
NGINX_CONF = """
daemon off; {user} worker_processes 1; pid {directory}/nginx.pid; error_log {directory}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {directory}/b; proxy_temp_path {directory}/p; fastcgi_temp_path {directory}/f;
    uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;
    include site.conf;
}}
"""


def replaced(text, **changes):
    """Replace each text that the page shows, which must be there, by that of the test."""
    for shown, here in changes.items():
        assert shown in text, shown
        text = text.replace(shown, here)
    return text


def nginx(project, directory, port, service_port):
    site = (project / "docs/howto/nginx-streams.conf").read_text()
    site = replaced(
        site,
        **{
            "listen 80;": f"listen 127.0.0.1:{port};",
            "127.0.0.1:8080": f"127.0.0.1:{service_port}",
            "retry: 3000": "retry: 200",
        },
    )
    (directory / "site.conf").write_text(site)
    # Its workers have another user, who may not enter the directory of the test.
    user = "user root;" if os.geteuid() == 0 else ""
    (directory / "nginx.conf").write_text(NGINX_CONF.format(directory=directory, user=user))
    return [NGINX, "-p", str(directory), "-c", "nginx.conf"]


def haproxy(project, directory, port, service_port):
    page = (project / "docs/howto/stream_proxies.rst").read_text()
    (block,) = re.findall(r"^   (printf '%s\\r\\n'.*?^   echo [^\n]*)", page, re.MULTILINE | re.DOTALL)
    away = directory / "away.http"
    script = replaced(
        block,
        **{"/etc/haproxy/away.http": str(away), "retry: 3000": "retry: 200", "Length: 14": "Length: 13"},
    )
    subprocess.run(["sh", "-e", "-c", script], check=True)
    configuration = replaced(
        (project / "docs/howto/haproxy-streams.cfg").read_text(),
        **{
            "bind :80": f"bind 127.0.0.1:{port}",
            "127.0.0.1:8080": f"127.0.0.1:{service_port}",
            "/etc/haproxy/away.http": str(away),
        },
    )
    (directory / "haproxy.cfg").write_text(configuration)
    return [HAPROXY, "-db", "-f", "haproxy.cfg"]


@contextlib.contextmanager
def running(command, directory, port):
    with (directory / "proxy.log").open("wb") as log:
        proxy = subprocess.Popen(command, cwd=directory, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: not is_free(port), "the proxy listens")
        yield
        assert proxy.poll() is None, (directory / "proxy.log").read_text()
    finally:
        proxy.terminate()
        proxy.wait(10)


def is_free(port):
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) != 0


def publish(port, content):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        return process.publish(connection, content, topic="orders")[0]


def status_of_post(port):
    """The status of a POST whose sender also accepts a stream."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("POST", "/topics/orders", b"lost", {"Accept": "*/*, text/event-stream"})
        return connection.getresponse().status


@pytest.mark.parametrize(
    "proxy",
    [
        pytest.param(nginx, marks=pytest.mark.skipif(NGINX is None, reason="needs nginx")),
        pytest.param(haproxy, marks=pytest.mark.skipif(HAPROXY is None, reason="needs haproxy")),
    ],
)
def test_a_browser_of_another_site_reads_on_through_the_proxy_when_the_service_comes_back(
    project, tmp_path, proxy
):
    port, service_port = free_port(), free_port()
    service = {
        "directory": tmp_path,
        "listen": f"tcp:{service_port}:interface=127.0.0.1",
        "options": ["--allow-origin", SITE],
    }
    url = f"http://127.0.0.1:{port}/topics/orders/records?from=earliest"
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(LiveService(**service))
        stack.enter_context(running(proxy(project, tmp_path, port, service_port), tmp_path, port))
        wait_until(lambda: publish(port, "0") == 200, "the proxy has found the service")
        reader = stack.enter_context(EventSource(url))

        def seen(count):
            reader.wait_for(lambda: len(reader.events) >= count)
            return [json.loads(data)["content"] for _, data, _ in reader.events]

        assert seen(1) == ["0"]
        # An event is passed on at once: a proxy with a buffer would keep it for minutes.
        for content in ("1", "2"):
            before_s = time.monotonic()
            assert publish(port, content) == 200
            assert seen(int(content) + 1)[-1] == content
            assert reader.events[-1][2] - before_s < 20
        first.kill()
        count = len(reader.answers)
        # Nothing is there: it is told to come back, more than once.
        reader.wait_for(lambda: len(reader.answers) >= count + 2)
        assert {status for status, _ in reader.answers} == {200}
        assert status_of_post(port) in {502, 503}
        stack.enter_context(LiveService(**service))
        wait_until(lambda: publish(service_port, "3") == 200, "the service is back")
        assert seen(4) == ["0", "1", "2", "3"]
    assert reader.failure is None
