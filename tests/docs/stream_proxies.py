"""nginx and HAProxy in front of streams, with the configurations of the page about them."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import socket
import subprocess

import pytest

from tests.docs.event_source import SITE
from tests.support.certificates import Authority
from tests.support.waiting import wait_until

__all__ = ["haproxy", "nginx", "running", "through"]

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


def nginx(project, directory, *, port, service_port, site):
    """Write its files; returns the command that runs it."""
    configuration = (project / "docs/howto/nginx.conf").read_text()
    certificate = Authority(directory).server("proxy")
    configuration = replaced(
        configuration,
        **{
            "listen 443 ssl;": f"listen 127.0.0.1:{port};",
            "/etc/ssl/example.org.pem": str(certificate.certificate),
            "/etc/ssl/private/example.org.key": str(certificate.key),
            "127.0.0.1:8080": f"127.0.0.1:{service_port}",
            SITE: site,
            "retry: 3000": "retry: 200",
        },
    )
    (directory / "site.conf").write_text(configuration)
    # Its workers have another user, who may not enter the directory of the test.
    user = "user root;" if os.geteuid() == 0 else ""
    (directory / "nginx.conf").write_text(NGINX_CONF.format(directory=directory, user=user))
    return [NGINX, "-p", str(directory), "-c", "nginx.conf"]


def haproxy(project, directory, *, port, service_port, site):
    """Write its files; returns the command that runs it."""
    page = (project / "docs/howto/proxies.rst").read_text()
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
            SITE: site,
        },
    )
    (directory / "haproxy.cfg").write_text(configuration)
    return [HAPROXY, "-db", "-f", "haproxy.cfg"]


def through(proxy, *marks):
    """A parameter of a test that is skipped where the proxy is not installed."""
    program = {nginx: NGINX, haproxy: HAPROXY}[proxy]
    needs = pytest.mark.skipif(program is None, reason=f"needs {proxy.__name__}")
    return pytest.param(proxy, marks=[needs, *marks])


@contextlib.contextmanager
def running(proxy, project, directory, *, port, service_port, site=SITE):
    """
    Run a proxy on a port of this machine, in front of the service on another one, which is running.

    :param site: the origin of the pages of another site that may read.
    """
    # A service that has not read its readings yet is not ready: HAProxy would take it out for two seconds.
    wait_until(lambda: is_ready(service_port), "the service is ready")
    command = proxy(project, directory, port=port, service_port=service_port, site=site)
    with (directory / "proxy.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: not is_free(port), "the proxy listens")
        yield
        assert process.poll() is None, (directory / "proxy.log").read_text()
    finally:
        process.terminate()
        process.wait(10)


def is_ready(service_port):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", service_port, timeout=20)) as connection:
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200


def is_free(port):
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) != 0
