"""What the tests against real Kafka share."""

from __future__ import annotations

import http.client
import json
import sys
from contextlib import asynccontextmanager
from urllib.parse import urlencode, urlsplit

import pytest
from twisted.internet import reactor
from twisted.internet.threads import deferToThread

from sampleapp.brokers import from_url
from tests.real_kafka.configuration import PLAIN
from tests.real_kafka.distribution import VERSIONS
from tests.support.brokers import eventually, within

__all__ = ["connect", "for_each_version", "in_thread", "kafka_url", "post", "post_on", "ready", "running"]

DEADLINE_S = 60


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
