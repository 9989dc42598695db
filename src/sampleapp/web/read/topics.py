"""The topics of the broker, as in REST Proxy's API v2."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec
from twisted.internet.interfaces import IReactorTime

from sampleapp.access import Caller
from sampleapp.concurrency.time_slices import TimeSlices
from sampleapp.errors import UnknownPartition, UnknownTopic
from sampleapp.interfaces import IBroker
from sampleapp.model import PartitionDescription, TopicDescription
from sampleapp.web.access_control import AuthorizedTopic
from sampleapp.web.read.topic_queries import TopicQueries, encode_array
from sampleapp.web.responses import Response
from sampleapp.web.rest_proxy_documents import (
    RESPONSE,
    Partition,
    Replica,
    Topic,
    partition_number,
    response_type,
)
from sampleapp.web.server import Request

__all__ = ["Topics"]

_PARTITIONS_AT_ONCE: Final = 500
"""Partitions that are encoded in one slice: a millisecond."""
_NO_LEADER: Final = -1
"""As in REST Proxy."""


class Topics:
    """The topics and their partitions, as REST Proxy describes them."""

    def __init__(self, broker: IBroker, slices: TimeSlices, clock: IReactorTime) -> None:
        """
        :param slices: for encoding many topics.
        :param clock: measures the age of their names.
        """
        self._slices = slices
        self._topics = TopicQueries(broker, slices, clock)

    async def names(self, request: Request) -> Response:
        """Return the names of the topics that the caller may see."""
        caller: Caller | None = request.caller
        if caller is None:
            return _response(request, *await self._topics.encoded_names())
        visible = caller.topics
        if not visible:
            return _response(request, b"[]")
        return _response(request, *await self._topics.encoded_names(visible))

    async def topic(self, request: Request, topic: AuthorizedTopic) -> Response:
        """
        Return a topic with its partitions.

        :raise UnknownTopic: the topic does not exist.
        """
        description = await self._describe(topic)
        # Encoded without its partitions, which may be thousands, it ends in "[]}".
        topic_without = msgspec.json.encode(Topic(description.name, {}, []))[: -len(b"[]}")]
        return _response(request, topic_without, *await self._partitions(description), b"}")

    async def partitions(self, request: Request, topic: AuthorizedTopic) -> Response:
        """
        Return the partitions of a topic.

        :raise UnknownTopic: the topic does not exist.
        """
        return _response(request, *await self._partitions(await self._describe(topic)))

    async def partition(self, request: Request, topic: AuthorizedTopic, partition: str) -> Response:
        """
        Return one partition of a topic.

        :param partition: its number, as in the path.
        :raise UnknownTopic: the topic does not exist.
        :raise UnknownPartition: the topic has no partition with this number.
        """
        description = await self._describe(topic)
        number = partition_number(partition)
        for each in description.partitions:
            if each.partition == number:
                return _response(request, msgspec.json.encode(_partition(each)))
        raise UnknownPartition(
            f"The topic {topic} has no partition {number}; it has {len(description.partitions)}, from 0 on."
        )

    async def _describe(self, topic: AuthorizedTopic) -> TopicDescription:
        """:raise UnknownTopic: the topic does not exist."""
        description = await self._topics.describe(topic)
        if description is None:
            raise UnknownTopic(f"The topic {topic} does not exist.")
        return description

    async def _partitions(self, description: TopicDescription) -> list[bytes]:
        return await encode_array(
            description.partitions, _partition, at_once=_PARTITIONS_AT_ONCE, slices=self._slices
        )


def _partition(description: PartitionDescription) -> Partition:
    leader = description.leader
    return Partition(
        description.partition,
        _NO_LEADER if leader is None else leader,
        [Replica(broker, broker == leader, broker in description.in_sync) for broker in description.replicas],
    )


def _response(request: Request, *parts: bytes) -> Response:
    return Response(
        HTTPStatus.OK,
        (
            (b"Content-Type", response_type(request.fields.joined(b"accept")) or RESPONSE),
            (b"Vary", b"Accept"),
            (b"Cache-Control", b"no-cache"),
        ),
        b"%b\n" % parts[0] if len(parts) == 1 else (*parts, b"\n"),
    )
