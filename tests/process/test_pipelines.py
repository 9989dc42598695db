"""
Long pipelines of requests to every route, with every broker, and clients that leave in the middle.

``SAMPLEAPP_PIPELINE_REQUESTS`` is the number of requests in the longest ones. 5,000 take eight minutes.
"""

from __future__ import annotations

import json
import re
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from os import environ
from threading import Thread
from urllib.parse import urlsplit

import pytest

from tests.support.mock_cluster import MockCluster
from tests.support.process import DEADLINE_S, connect, get
from tests.support.waiting import wait_until

LONGEST = int(environ.get("SAMPLEAPP_PIPELINE_REQUESTS", "1000"))
VARIABLES = {"hook": "h", "partition": "0", "file": "a.js"}
"""The values of variables in paths; of any other, and of a new one, it is a topic."""


@pytest.fixture(params=["memory", "sqlite", "kafka"])
def service(request, start):
    # Leases of the pulls that were left unanswered end soon, or the service would wait for them at its stop.
    options = ["--drain-timeout", "600", "--work-lease", "1"]
    if request.param != "kafka":
        yield start(broker="memory:" if request.param == "memory" else None, options=options)
        return
    with MockCluster(brokers=1) as mock:
        for topic in ("readings", "t"):
            mock.create_topic(topic)
        yield start(broker=f"kafka://{mock.bootstrap}", options=options)


def operations(service):
    """Method, target, content type, body of every described operation, and whether it is only a stream."""
    with closing(connect(service)) as connection:
        connection.request("GET", "/openapi.json")
        document = json.loads(connection.getresponse().read())
    for path, item in document["paths"].items():
        target = re.sub("{(.*?)}", lambda found: VARIABLES.get(found[1], "t"), path)
        for method, operation in item.items():
            contents = operation["responses"].get("200", {}).get("content", {})
            is_stream = method == "get" and set(contents) == {"text/event-stream"}
            bodies = operation.get("requestBody", {}).get("content", {}) or {"": {}}
            for media_type, content in bodies.items():
                examples = [each["value"] for each in content.get("examples", {}).values()] or ["x"]
                body = examples[0] if isinstance(examples[0], str) else json.dumps(examples[0])
                yield method.upper(), target, media_type, body, is_stream


def requests(operation, count):
    """Requests of one operation: right ones, and such that are rejected or fail."""
    method, target, media_type, body, _ = operation
    key = "?key=k" if method == "DELETE" else ""
    variants = []
    for query, content in (*[(key, body)] * 8, (key, "{"), ("?unknown=1", body), (key, "")):
        head = f"{method} {target}{query} HTTP/1.1\r\nHost: localhost\r\n"
        if method == "POST":
            kind = f"Content-Type: {media_type}\r\n" if media_type and "*" not in media_type else ""
            head += f"{kind}Content-Length: {len(content.encode())}\r\n\r\n{content}"
        else:
            head += "\r\n"
        variants.append(head.encode())
    return b"".join(variants[number % len(variants)] for number in range(count))


def read_answers(client, count, *, has_content):
    """Read so many answers, and return their statuses."""
    statuses, data, position = [], b"", 0
    while len(statuses) < count:
        end = data.find(b"\r\n\r\n", position)
        length = 0
        if end >= 0:
            head = data[position:end]
            found = re.search(rb"\r\nContent-Length: (\d+)", head)
            length = int(found[1]) if found and has_content else 0
        if end < 0 or len(data) < end + 4 + length:
            more = client.recv(1 << 18)
            assert more, f"the connection ended after {len(statuses)} of {count} answers"
            data, position = data[position:] + more, 0
            continue
        status = int(head[9:12])
        statuses.append(status)
        position = end + 4 + (0 if status in (204, 304) else length)
    assert position == len(data)
    return statuses


def open_connection(service):
    url = urlsplit(service.url)
    return socket.create_connection((url.hostname, url.port), timeout=DEADLINE_S)


def ask(service, operation, count):
    with open_connection(service) as client:
        sending = Thread(target=client.sendall, args=(requests(operation, count),))
        sending.start()
        statuses = read_answers(client, count, has_content=operation[0] != "HEAD")
        sending.join()
    return statuses


def leave(service, operation, count, way):
    """Leave in the middle of a pipeline: reset, close, close only the client's side, or read nothing."""
    with open_connection(service) as client:
        client.settimeout(0.5)
        try:
            client.sendall(requests(operation, count))
            # A stream takes no further requests.
            if way != "unread":
                client.recv(1000)
            if way == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if way == "its side":
                client.shutdown(socket.SHUT_WR)
                client.settimeout(DEADLINE_S)
                while client.recv(1 << 18):
                    pass
        except (TimeoutError, ConnectionError):
            return


@pytest.mark.slow
def test_every_route_answers_a_whole_pipeline_and_nothing_is_left_of_its_clients(service):
    check(service, 230)


@pytest.mark.slow
def test_every_route_answers_a_pipeline_of_thousands_of_requests(service):
    check(service, LONGEST)


def check(service, count):
    every = list(operations(service))
    assert len(every) > 20
    with ThreadPoolExecutor(len(every)) as pool:
        asked = {each: pool.submit(ask, service, each, count) for each in every if not each[-1]}
        for operation, answers in asked.items():
            statuses = answers.result(DEADLINE_S * 5)
            assert 500 not in statuses, operation
            assert len(statuses) == count, operation
        ways = ("reset", "closed", "its side", "unread")
        left = [pool.submit(leave, service, each, count // 5, way) for each in every for way in ways]
        for each in left:
            each.result(DEADLINE_S * 5)
    port = urlsplit(service.url).port

    def is_quiet():
        metrics = get(port, "/metrics")[1].decode()
        values = re.findall(
            r"^sampleapp_(?:connections\{.*?\}|http_requests_waiting) (\d+)", metrics, re.MULTILINE
        )
        # The connection that asks is one.
        return sum(map(int, values)) == 1

    wait_until(is_quiet, "no connection is left, and no request waits")
    assert service.stop() == -15
    assert "Traceback" not in service.output
    assert "unfinished" not in service.output
