"""The proxies of the page about streams, with the real programs and the configurations on the page."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import time

import pytest

from sampleapp.brokers.kafka.config import parse
from sampleapp.records.read_parameters import LONGEST_WAIT_S
from sampleapp.web.server import Limits
from tests.docs.event_source import SITE, EventSource
from tests.docs.stream_proxies import haproxy, nginx, running, through
from tests.support import process
from tests.support.free_ports import free_port
from tests.support.live_service import LiveService
from tests.support.waiting import wait_until

pytestmark = pytest.mark.page


def publish(port, content):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        return process.publish(connection, content, topic="orders")[0]


def number_after(name, text):
    """The whole number after a setting, which must be there once."""
    (found,) = re.findall(rf"^ *{name} (\d+)[sm]?;?$", text, re.MULTILINE)
    return int(found)


def test_the_limits_of_the_proxies_fit_those_of_the_service(project):
    limits = Limits()
    longest_s = max(LONGEST_WAIT_S, 1.1 * parse("kafka://localhost").delivery_timeout_s)
    nginx_conf = (project / "docs/howto/nginx.conf").read_text()
    most = max(limits.max_body, limits.max_batch_body)
    assert number_after("client_max_body_size", nginx_conf) * 1024 * 1024 == most
    assert number_after("proxy_read_timeout", nginx_conf) > longest_s
    assert number_after("keepalive_timeout", nginx_conf) < limits.idle_timeout_s
    assert (
        number_after("timeout server", (project / "docs/howto/haproxy-streams.cfg").read_text()) > longest_s
    )


@pytest.mark.parametrize("proxy", [through(nginx), through(haproxy)])
def test_a_proxy_passes_on_the_largest_batch_that_the_service_takes(project, tmp_path, proxy):
    port, service_port = free_port(), free_port()
    line = json.dumps({"topic": "orders", "content": "x" * 1_000_000}).encode() + b"\n"
    most = Limits().max_batch_body
    body = line * (most // len(line))
    body += b"\n" * (most - len(body))
    listen = f"tcp:{service_port}:interface=127.0.0.1"
    with (
        LiveService(directory=tmp_path, listen=listen),
        running(proxy, project, tmp_path, port=port, service_port=service_port),
    ):
        wait_until(lambda: publish(port, "0") == 200, "the proxy has found the service")
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request("POST", "/messages", body, {"Content-Type": "application/x-ndjson"})
            response = connection.getresponse()
            assert (response.status, response.read().count(b"\n")) == (200, most // len(line))


def status_of_post(port):
    """The status of a POST whose sender also accepts a stream."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("POST", "/topics/orders", b"lost", {"Accept": "*/*, text/event-stream"})
        return connection.getresponse().status


@pytest.mark.parametrize("proxy", [through(nginx), through(haproxy)])
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
        stack.enter_context(running(proxy, project, tmp_path, port=port, service_port=service_port))
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
