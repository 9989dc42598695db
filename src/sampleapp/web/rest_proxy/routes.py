"""Routes of REST Proxy's API v2: list and describe topics, and produce to one partition."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Final

import msgspec
from twisted.internet.defer import Deferred

from sampleapp.access import Caller, Right
from sampleapp.errors import UnknownPartition, UnknownTopic
from sampleapp.model import PartitionDescription, TopicDescription
from sampleapp.web.answers import Answer
from sampleapp.web.gate import TO_PUBLISH, TO_SEE, AuthorizedTopic
from sampleapp.web.kafka_media_types import ANSWER, answer_type, embedded_format
from sampleapp.web.publishing import Publisher
from sampleapp.web.request_errors import NotAcceptable
from sampleapp.web.rest_proxy import operations
from sampleapp.web.rest_proxy.documents import Partition, Replica, Topic
from sampleapp.web.rest_proxy.produce import UNSUPPORTED_FORMAT, admit_produce, max_body, produce
from sampleapp.web.rest_proxy.topic_queries import TopicQueries, encode_array
from sampleapp.web.routing import Plan, Routes
from sampleapp.web.server import Request

__all__ = ["RestProxy"]

_PARTITION_NUMBER: Final = re.compile("[0-9]{1,10}")
_PARTITIONS_AT_ONCE: Final = 500
"""Partitions that are encoded in one slice: a millisecond."""
_NO_LEADER: Final = -1
"""As in REST Proxy."""


def _require_acceptable(request: Request, **_: object) -> None:
    """:raise NotAcceptable: the client accepts none of the media types of the answer."""
    if answer_type(request.fields.joined(b"accept")) is None:
        raise NotAcceptable


def _admit_produce(request: Request, *, topic: str, partition: str) -> None:
    admit_produce(request, topic=topic)
    _number(partition)


class RestProxy:
    """The routes of REST Proxy, except produce requests to ``/topics/{topic}``; see `RawPublishing`."""

    routes = Routes()

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._topics = TopicQueries(publisher.broker, publisher.slices, publisher.clock)
        self._produce = Plan(self._produce_to_partition, admit=_admit_produce, max_body=max_body(publisher))

    @routes.route("/topics", "GET", "HEAD", admit=_require_acceptable, description=operations.LIST_TOPICS)
    def list_topics(self, request: Request) -> Deferred[Answer]:
        """Return the names of the topics that the caller may see."""
        return Deferred.fromCoroutine(self._list_topics(request))

    async def _list_topics(self, request: Request) -> Answer:
        caller: Caller | None = request.caller
        if caller is None:
            return _answer(request, *await self._topics.encoded_names())
        visible = caller.topics
        if not visible:
            return _answer(request, b"[]")
        return _answer(request, *await self._topics.encoded_names(visible))

    @routes.route(
        "/topics/<topic>",
        "GET",
        "HEAD",
        admit=_require_acceptable,
        topic_use=TO_SEE,
        description=operations.DESCRIBE_TOPIC,
    )
    def describe_topic(self, request: Request, *, topic: AuthorizedTopic) -> Deferred[Answer]:
        """Return a topic with its partitions."""
        return Deferred.fromCoroutine(self._describe_topic(request, topic))

    async def _describe_topic(self, request: Request, topic: AuthorizedTopic) -> Answer:
        description = await self._describe(topic)
        # Encoded without its partitions, which may be thousands, it ends in "[]}".
        topic_without = msgspec.json.encode(Topic(description.name, {}, []))[: -len(b"[]}")]
        return _answer(request, topic_without, *await self._partitions(description), b"}")

    @routes.route(
        "/topics/<topic>/partitions",
        "GET",
        "HEAD",
        admit=_require_acceptable,
        topic_use=TO_SEE,
        description=operations.LIST_PARTITIONS,
    )
    def list_partitions(self, request: Request, *, topic: AuthorizedTopic) -> Deferred[Answer]:
        """Return the partitions of a topic."""
        return Deferred.fromCoroutine(self._list_partitions(request, topic))

    async def _list_partitions(self, request: Request, topic: AuthorizedTopic) -> Answer:
        return _answer(request, *await self._partitions(await self._describe(topic)))

    @routes.route(
        "/topics/<topic>/partitions/<partition>",
        "GET",
        "HEAD",
        admit=_require_acceptable,
        topic_use=TO_SEE,
        description=operations.DESCRIBE_PARTITION,
    )
    def describe_partition(
        self, request: Request, *, topic: AuthorizedTopic, partition: str
    ) -> Deferred[Answer]:
        """Return one partition of a topic."""
        return Deferred.fromCoroutine(self._describe_partition(request, topic, partition))

    async def _describe_partition(self, request: Request, topic: AuthorizedTopic, partition: str) -> Answer:
        description = await self._describe(topic)
        number = _number(partition)
        for each in description.partitions:
            if each.partition == number:
                return _answer(request, msgspec.json.encode(_partition(each)))
        raise UnknownPartition(
            f"The topic {topic} has no partition {number}; it has {len(description.partitions)}, from 0 on."
        )

    @routes.planned_route(
        "/topics/<topic>/partitions/<partition>",
        "POST",
        right=Right.PUBLISH,
        topic_use=TO_PUBLISH,
        description=operations.PRODUCE_TO_PARTITION,
    )
    def produce_to_partition(self, request: Request) -> Plan:
        """Require one of the two formats of records that the service reads."""
        content_types = request.fields.all(b"content-type")
        if len(content_types) != 1 or embedded_format(content_types[0]) is None:
            return UNSUPPORTED_FORMAT
        return self._produce

    def _produce_to_partition(
        self, request: Request, *, topic: AuthorizedTopic, partition: str
    ) -> Deferred[Answer]:
        return produce(self._publisher, request, topic, partition=_number(partition))

    async def _describe(self, topic: AuthorizedTopic) -> TopicDescription:
        """:raise UnknownTopic: the topic does not exist."""
        description = await self._topics.describe(topic)
        if description is None:
            raise UnknownTopic(f"The topic {topic} does not exist.")
        return description

    async def _partitions(self, description: TopicDescription) -> list[bytes]:
        return await encode_array(
            description.partitions, _partition, at_once=_PARTITIONS_AT_ONCE, slices=self._publisher.slices
        )


def _number(partition: str) -> int:
    """:raise UnknownPartition: no partition can have this number."""
    if _PARTITION_NUMBER.fullmatch(partition) is None:
        raise UnknownPartition("A partition has a number from 0 to 2147483647, as in /topics/t/partitions/0.")
    return int(partition)


def _partition(description: PartitionDescription) -> Partition:
    leader = description.leader
    return Partition(
        description.partition,
        _NO_LEADER if leader is None else leader,
        [Replica(broker, broker == leader, broker in description.in_sync) for broker in description.replicas],
    )


def _answer(request: Request, *pieces: bytes) -> Answer:
    return Answer(
        HTTPStatus.OK,
        (
            (b"Content-Type", answer_type(request.fields.joined(b"accept")) or ANSWER),
            (b"Vary", b"Accept"),
            (b"Cache-Control", b"no-cache"),
        ),
        b"%b\n" % pieces[0] if len(pieces) == 1 else (*pieces, b"\n"),
    )
