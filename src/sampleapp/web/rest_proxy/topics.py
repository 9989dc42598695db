"""Which topics there are, and where their partitions are kept, as REST Proxy tells it."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from twisted.internet.defer import Deferred

from sampleapp.access import NotGranted, Right
from sampleapp.errors import BrokerUnavailable, UnknownPartition, UnknownTopic
from sampleapp.interfaces import IBroker
from sampleapp.model import PartitionDescription, TopicDescription
from sampleapp.rest_proxy import ANSWER, answer_type, embedded_format
from sampleapp.web.answers import Answer
from sampleapp.web.descriptions import CACHE_CONTROL, TOPIC, VARY, Content, Description, Parameter, Success
from sampleapp.web.error_objects import ErrorObject
from sampleapp.web.publishing import Publisher
from sampleapp.web.request_errors import NotAcceptable, UnsupportedEmbeddedFormat
from sampleapp.web.rest_proxy.produce import (
    PRODUCE_BODIES,
    PRODUCE_ERRORS,
    PRODUCE_PARAMETERS,
    PRODUCE_REFUSALS,
    PRODUCED,
    admit,
    max_body,
    publish,
)
from sampleapp.web.routing import Routes
from sampleapp.web.server import Request

__all__ = ["RestProxy"]

_PARTITION_NUMBER: Final = re.compile("[0-9]{1,10}")
_NO_LEADER: Final = -1
"""As in REST Proxy."""


class Replica(Struct):
    """One copy of a partition."""

    broker: Annotated[int, Meta(description="The id of the node that keeps it.")]
    leader: bool
    in_sync: Annotated[bool, Meta(description="Whether it has all of the partition.")]


class Partition(Struct):
    """One partition of a topic."""

    partition: int
    leader: Annotated[int, Meta(description="The id of the node that leads it; -1 if there is none.")]
    replicas: list[Replica]


class Topic(Struct):
    """One topic."""

    name: str
    configs: Annotated[
        dict[str, str], Meta(description="Always empty: the service does not ask for the topic's settings.")
    ]
    partitions: list[Partition]


_EXAMPLE: Final = {
    "partition": 0,
    "leader": 1,
    "replicas": [
        {"broker": 1, "leader": True, "in_sync": True},
        {"broker": 2, "leader": False, "in_sync": True},
    ],
}
_PARTITION: Final = Parameter(
    name="partition", place="path", meaning="The number of the partition, from 0 on.", kind=int
)
_AS_FAR_AS: Final = (
    "As in REST Proxy's API v2. A caller sees the topics that it may publish to; with the right to read, all."
)


def _success(meaning: str, kind: object, example: object) -> Success:
    return Success(
        meaning=meaning,
        contents=(Content(media_type=ANSWER.decode("ascii"), kind=kind, example=example),),
        fields=(VARY, CACHE_CONTROL),
    )


_LIST: Final = Description(
    tag="Topics",
    summary="Which topics there are",
    text=_AS_FAR_AS,
    successes=(_success("Their names.", list[str], ["events", "readings"]),),
    refusals=(NotAcceptable, BrokerUnavailable),
    error_objects=(ErrorObject,),
)
_ONE: Final = Description(
    tag="Topics",
    summary="Where a topic is kept",
    text=_AS_FAR_AS,
    parameters=(TOPIC,),
    successes=(_success("The topic.", Topic, {"name": "readings", "configs": {}, "partitions": [_EXAMPLE]}),),
    refusals=(NotAcceptable, NotGranted, UnknownTopic, BrokerUnavailable),
    error_objects=(ErrorObject,),
)
_PARTITIONS: Final = Description(
    tag="Topics",
    summary="Where the partitions of a topic are kept",
    text=_AS_FAR_AS,
    parameters=(TOPIC,),
    successes=(_success("Its partitions.", list[Partition], [_EXAMPLE]),),
    refusals=(NotAcceptable, NotGranted, UnknownTopic, BrokerUnavailable),
    error_objects=(ErrorObject,),
)
_ONE_PARTITION: Final = Description(
    tag="Topics",
    summary="Where a partition is kept",
    text=_AS_FAR_AS,
    parameters=(TOPIC, _PARTITION),
    successes=(_success("The partition.", Partition, _EXAMPLE),),
    refusals=(NotAcceptable, NotGranted, UnknownTopic, UnknownPartition, BrokerUnavailable),
    error_objects=(ErrorObject,),
)
_PRODUCE: Final = Description(
    tag="Messages",
    summary="Publish records to a partition",
    text=(
        "As in REST Proxy's API v2: a record that names a partition itself goes there. First everything is "
        "checked, then anything is published."
    ),
    parameters=(TOPIC, _PARTITION, *PRODUCE_PARAMETERS),
    bodies=PRODUCE_BODIES,
    successes=(Success(meaning="All records are stored, and where.", contents=(PRODUCED,)),),
    refusals=PRODUCE_REFUSALS,
    error_objects=PRODUCE_ERRORS,
)


def _admit_look(request: Request, **_: object) -> None:
    """:raise NotAcceptable: who sends it would not understand the answer."""
    if answer_type(request.fields.joined(b"accept")) is None:
        raise NotAcceptable


def _admit_produce(request: Request, *, topic: str, partition: str) -> None:
    content_types = request.fields.all(b"content-type")
    if len(content_types) != 1 or embedded_format(content_types[0]) is None:
        raise UnsupportedEmbeddedFormat(content_types)
    admit(request, topic)
    _number(partition)


class RestProxy:
    """What REST Proxy has beside publishing to a topic."""

    routes = Routes()

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    @property
    def _broker(self) -> IBroker:
        return self._publisher.broker

    @routes.route("/topics", "GET", "HEAD", admit=_admit_look, description=_LIST)
    def list_topics(self, request: Request) -> Deferred[Answer]:
        """Tell the names of the topics that the caller may see."""
        return Deferred.fromCoroutine(self._list_topics(request))

    async def _list_topics(self, request: Request) -> Answer:
        topics = await self._broker.describe_topics()
        return _answer(request, [topic.name for topic in topics if _may_see(request, topic.name)])

    @routes.route("/topics/<topic>", "GET", "HEAD", admit=_admit_look, description=_ONE)
    def describe_topic(self, request: Request, *, topic: str) -> Deferred[Answer]:
        """Tell where a topic is kept."""
        return Deferred.fromCoroutine(self._describe_topic(request, topic))

    async def _describe_topic(self, request: Request, topic: str) -> Answer:
        description = await self._look_for(request, topic)
        return _answer(request, Topic(description.name, {}, _partitions(description)))

    @routes.route("/topics/<topic>/partitions", "GET", "HEAD", admit=_admit_look, description=_PARTITIONS)
    def list_partitions(self, request: Request, *, topic: str) -> Deferred[Answer]:
        """Tell where the partitions of a topic are kept."""
        return Deferred.fromCoroutine(self._list_partitions(request, topic))

    async def _list_partitions(self, request: Request, topic: str) -> Answer:
        return _answer(request, _partitions(await self._look_for(request, topic)))

    @routes.route(
        "/topics/<topic>/partitions/<partition>",
        "GET",
        "HEAD",
        admit=_admit_look,
        description=_ONE_PARTITION,
    )
    def describe_partition(self, request: Request, *, topic: str, partition: str) -> Deferred[Answer]:
        """Tell where a partition is kept."""
        return Deferred.fromCoroutine(self._describe_partition(request, topic, partition))

    async def _describe_partition(self, request: Request, topic: str, partition: str) -> Answer:
        description = await self._look_for(request, topic)
        number = _number(partition)
        for each in description.partitions:
            if each.partition == number:
                return _answer(request, _partition(each))
        raise UnknownPartition(
            f"The topic {topic} has no partition {number}; it has {len(description.partitions)}, from 0 on."
        )

    def _max_body(self, request: Request, **_: object) -> int | None:
        return max_body(self._publisher, request)

    @routes.route(
        "/topics/<topic>/partitions/<partition>",
        "POST",
        admit=_admit_produce,
        right=Right.PUBLISH,
        description=_PRODUCE,
        max_body=_max_body,
    )
    def produce_to_partition(self, request: Request, *, topic: str, partition: str) -> Deferred[Answer]:
        """Publish the records of a request to one partition, but for those that name another one."""
        return publish(self._publisher, request, topic, partition=_number(partition))

    async def _look_for(self, request: Request, topic: str) -> TopicDescription:
        """
        Look for a topic.

        :raise NotGranted: the caller may not know whether there is one.
        :raise UnknownTopic: there is none.
        """
        if not _may_see(request, topic):
            raise NotGranted(f"This caller may not see the topic {topic}.")
        for description in await self._broker.describe_topics([topic]):
            return description
        raise UnknownTopic(f"There is no topic {topic}.")


def _number(partition: str) -> int:
    """:raise UnknownPartition: it is not the number of any partition."""
    if _PARTITION_NUMBER.fullmatch(partition) is None:
        raise UnknownPartition("A partition has a number from 0 to 2147483647, as in /topics/t/partitions/0.")
    return int(partition)


def _may_see(request: Request, topic: str) -> bool:
    caller = request.caller
    return caller is None or caller.has(Right.READ) or caller.may_publish(topic)


def _partitions(description: TopicDescription) -> list[Partition]:
    return [_partition(each) for each in description.partitions]


def _partition(description: PartitionDescription) -> Partition:
    leader = description.leader
    return Partition(
        description.partition,
        _NO_LEADER if leader is None else leader,
        [Replica(broker, broker == leader, broker in description.in_sync) for broker in description.replicas],
    )


def _answer(request: Request, value: object) -> Answer:
    return Answer(
        HTTPStatus.OK,
        (
            (b"Content-Type", answer_type(request.fields.joined(b"accept")) or ANSWER),
            (b"Vary", b"Accept"),
            (b"Cache-Control", b"no-cache"),
        ),
        msgspec.json.encode(value),
    )
