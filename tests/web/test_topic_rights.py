"""A handler with a topic in its path is only ever called for a topic that the caller may use."""

from __future__ import annotations

import json
from functools import partial
from itertools import product

import pytest
from twisted.internet.defer import succeed
from twisted.web.resource import Resource
from twisted.web.server import Site
from zope.interface import implementer

from sampleapp.interfaces import IWorkBroker
from sampleapp.model import (
    Acknowledged,
    ConsumerRecord,
    Extended,
    PartitionDescription,
    ReadResult,
    TopicDescription,
)
from sampleapp.web.access_control import TO_SEE
from sampleapp.web.routing import App
from tests.support.callers import FULL, by, caller
from tests.support.in_memory import Connection, InMemoryService, PromptBroker, request_bytes
from tests.support.work import lease_of, leased
from tests.web.http import JSON, MESSAGE

GRANTED, OTHER = "granted", "other"
QUERIES = ("", "?key=k")
CONTENT_TYPES = (None, b"application/json", b"application/vnd.kafka.json.v2+json")
BODIES = (b"", b'{"records":[{"value":1}]}', b"[]", b'{"lease":"bGVhc2U"}')


@implementer(IWorkBroker)
class AskedBroker(PromptBroker):
    """A broker that has every topic, and remembers for which it was asked."""

    def __init__(self):
        super().__init__()
        self.topics = set()
        self.work = self

    def publish(self, record):
        self.topics.add(record.topic)
        return super().publish(record)

    def check_topics(self, topics, *, create=True, identified=False):
        self.topics.update(topics)
        return succeed({})

    def read(self, request):
        topic = request.topic
        self.topics.add(topic)
        record = ConsumerRecord(topic=topic, partition=0, offset=0, timestamp_ms=0, key=b"k", value=b"v")
        return succeed(
            ReadResult(topic_id="x", records=[record], positions={0: 1}, ends={0: 1}, partitions=1)
        )

    def describe_topics(self, topics):
        self.topics.update(topics)
        partition = PartitionDescription(partition=0, leader=1, replicas=(1,), in_sync=(1,))
        return succeed([TopicDescription(name=topic, partitions=(partition,)) for topic in topics])

    def pull(self, topic, group, *, most, wait_s):
        self.topics.add(topic)
        return succeed(lease_of(leased(0, topic=topic)))

    def acknowledge(self, topic, group, lease, verdicts):
        self.topics.add(topic)
        return succeed(Acknowledged(accepted=0, released=0, rejected=0))

    def extend(self, topic, group, lease):
        self.topics.add(topic)
        return succeed(Extended(token=lease, ends_ms=0))

    def backlog(self, topic, group):
        self.topics.add(topic)
        return succeed(0)


VALUES = {"partition": "0", "group": "g"}
"""Of the other variables of paths."""


def topic_routes():
    """Return the method and the path of every route of the service that has a topic in its path."""
    found = set()
    for app in InMemoryService().table.apps:
        for rule in app.url_map.iter_rules():
            if "topic" in rule.arguments:
                assert rule.arguments <= VALUES.keys() | {"topic"}, "give the new variable a value here"
                path = rule.rule
                for name, value in VALUES.items():
                    path = path.replace(f"<{name}>", value)
                found.update((method, path) for method in rule.methods)
    return sorted(found)


def answers(method, path, *, topic):
    """Send every kind of request to a route in both ways, and return statuses and the topics in use."""
    statuses, broker = set(), AskedBroker()
    service = InMemoryService(
        broker=broker,
        callers=caller(
            "one", f'publish = ["{GRANTED}"]', f'consume = ["{GRANTED}"]', f'work = ["{GRANTED}/g"]'
        ),
        schemas={GRANTED: True, OTHER: True},
    )
    servers = (service.site, Site(service.gateway.app.resource(), reactor=service.clock))
    for server, query, content_type, body in product(servers, QUERIES, CONTENT_TYPES, BODIES):
        headers = [by("one"), *([(b"Content-Type", content_type)] if content_type else [])]
        connection = Connection(server)
        connection.send(request_bytes(method, path.replace("<topic>", topic) + query, headers, body))
        # Long work goes on in later turns of the reactor.
        service.clock.pump([0, 0, 0])
        (answer,) = connection.responses([method])
        statuses.add(answer.status)
        if answer.status == 403 and method != "HEAD":
            assert f"topic {topic}." in json.loads(answer.body).get("detail", answer.body.decode())
    return statuses, broker.topics


def test_there_are_routes_with_topics():
    assert {method for method, _ in topic_routes()} >= {"GET", "HEAD", "POST", "DELETE"}


@pytest.mark.parametrize(("method", "path"), topic_routes())
def test_no_route_is_served_for_a_topic_that_the_caller_may_not_use(method, path):
    statuses, topics = answers(method, path, topic=OTHER)
    assert 403 in statuses
    assert all(400 <= status < 500 for status in statuses), statuses
    assert topics == set()


@pytest.mark.parametrize(("method", "path"), topic_routes())
def test_every_route_is_served_for_a_topic_that_the_caller_may_use(method, path):
    statuses, topics = answers(method, path, topic=GRANTED)
    assert 200 in statuses
    # No broker knows the schema of a topic.
    assert topics == (set() if path.endswith("/schema") else {GRANTED})


@pytest.mark.parametrize(
    ("target", "rewritten", "credentials"),
    [("xmessages", None, [by("full")]), ("/hooks/x", [b"messages"], [])],
)
def test_a_site_serves_no_path_but_the_one_whose_right_was_checked(target, rewritten, credentials):
    service = InMemoryService(broker=PromptBroker(), callers=FULL)
    resource = service.gateway.app.resource()

    class Rewriting(Resource):
        isLeaf = True

        def render(self, request):
            request.postpath = rewritten or request.postpath
            return resource.render(request)

    connection = Connection(Site(Rewriting(), reactor=service.clock))
    connection.send(request_bytes("POST", target, [*JSON, *credentials], MESSAGE))
    (answer,) = connection.responses(["POST"])
    assert answer.status == 404
    assert service.broker.records == []


@pytest.mark.parametrize("has_variants", [False, True])
def test_a_route_with_a_topic_cannot_be_declared_without_its_use(has_variants):
    declare = partial(App().route, methods=["GET"], has_variants=has_variants)
    with pytest.raises(ValueError, match="must have the variable <topic> and topic_use"):
        declare("/things/<topic>")
    with pytest.raises(ValueError, match="must have the variable <topic> and topic_use"):
        declare("/things/<name>", topic_use=TO_SEE)
