"""What the tests against real Kafka share."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

import pytest
from twisted.internet import reactor
from twisted.internet.threads import deferToThread

from sampleapp.brokers import from_url
from tests.real_kafka.configuration import PLAIN
from tests.real_kafka.distribution import VERSIONS
from tests.support.brokers import eventually, within
from tests.support.process import get
from tests.support.waiting import wait_until

__all__ = [
    "Response",
    "connect",
    "consume",
    "for_each_version",
    "get_readings",
    "in_thread",
    "kafka_url",
    "post",
    "post_on",
    "ready",
    "running",
    "wait_for_line",
    "wait_for_readings",
    "wait_until_ready",
]

DEADLINE_S = 60
VERSION_2 = "application/vnd.sampleApp.v2+json"


def kafka_url(cluster, listener=PLAIN.name, *, tls=False, addresses=None, **options):
    """The URL of one kind of listener of a cluster, as it is given to ``--broker``."""
    scheme = "kafka+tls" if tls else "kafka"
    query = f"?{urlencode(options)}" if options else ""
    return f"{scheme}://{addresses or cluster.addresses(listener)}{query}"


@asynccontextmanager
async def running(url):
    """Our broker, started; stopped at the end."""
    broker = from_url(url, reactor=reactor)
    broker.check()
    broker.start()
    try:
        yield broker
    finally:
        await within(broker.stop(deadline_s=20))


async def ready(broker):
    """Wait until a broker says that it is ready."""
    await eventually(lambda: broker.health().ready)


def in_thread(function, *arguments, **options):
    """Do what blocks while the reactor goes on."""
    return deferToThread(function, *arguments, **options).addTimeout(DEADLINE_S, reactor)


def connect(service):
    """A connection to a live service."""
    url = urlsplit(service.url)
    return http.client.HTTPConnection(url.hostname, url.port, timeout=DEADLINE_S)


def post_on(connection, topic, content, *, key=None):
    """Publish one message; returns the status and the body of the answer."""
    message = {"topic": topic, "content": content} | ({} if key is None else {"key": key})
    connection.request("POST", "/messages", json.dumps(message), {"Content-Type": "application/json"})
    response = connection.getresponse()
    return response.status, json.load(response)


def post(service, topic, content, *, key=None):
    """Publish one message on a connection of its own."""
    connection = connect(service)
    try:
        return post_on(connection, topic, content, key=key)
    finally:
        connection.close()


class Response(NamedTuple):
    """What ``GET /`` was answered with."""

    status: int
    etag: str | None
    body: bytes

    @property
    def readings(self):
        """The value of each id, in order."""
        return {each["id"]: each["value"] for each in json.loads(self.body)}

    @property
    def detail(self):
        """What a problem document says."""
        return json.loads(self.body)["detail"]


def get_readings(service):
    """Version 2 of the readings."""
    connection = connect(service)
    try:
        connection.request("GET", "/", headers={"Accept": VERSION_2})
        response = connection.getresponse()
        return Response(response.status, response.getheader("ETag"), response.read())
    finally:
        connection.close()


def wait_until_ready(service):
    """Wait until the service says that it reaches Kafka."""
    port = urlsplit(service.url).port
    wait_until(lambda: get(port, "/ready")[0] == HTTPStatus.OK, "the service reaches Kafka")


def wait_for_readings(service, expected):
    """
    Wait until exactly these are served; returns the answer.

    :raise AssertionError: they were not in time; with what is served in their place.
    """
    until_s = time.monotonic() + DEADLINE_S
    while True:
        found = get_readings(service)
        if found.status == HTTPStatus.OK and (found.readings == expected or time.monotonic() > until_s):
            assert found.readings == expected, f"{found.readings} instead of {expected}"
            return found
        assert time.monotonic() < until_s, found
        time.sleep(0.1)


def wait_for_line(service, *words, deadline_s=30.0):
    """Wait until one line of the log has all these words, in any case and order."""
    wanted = "".join(rf"(?=.*(?<!\w){re.escape(word)}(?!\w))" for word in words)
    service.wait_for_output(re.compile(rf"^{wanted}.*$", re.IGNORECASE | re.MULTILINE), deadline_s=deadline_s)


def consume(cluster, topic, *options):
    """Run ``sampleapp consume`` to its end."""
    return subprocess.run(
        [
            Path(sys.executable).with_name("sampleapp"),
            "consume",
            topic,
            *options,
            "--broker",
            kafka_url(cluster),
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def for_each_version(cls):
    """
    Make one subclass with tests for each version, in place of a parameter.

    A property cannot have one: pytest-twisted wraps the function in it once for each item that it runs.
    """
    for version in VERSIONS:
        name = f"Test{cls.__name__}{version.replace('.', '_')}"
        mark = pytest.mark.parametrize("version", [version], indirect=True)
        body = {"__module__": cls.__module__, "pytestmark": mark, "version": version}
        setattr(sys.modules[cls.__module__], name, type(name, (cls,), body))
    return cls
