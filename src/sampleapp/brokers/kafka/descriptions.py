"""The topics of a cluster and their partitions, requested on separate connections."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Final, TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from sampleapp.brokers.kafka.cluster_client import ClusterClient, RequestFailed
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import PartitionMetadata, ProtocolError, TopicMetadata
from sampleapp.concurrency.slices import TimeSlices
from sampleapp.errors import BrokerUnavailable
from sampleapp.interfaces import CHECK_TIMEOUT_S
from sampleapp.model import PartitionDescription, TopicDescription, is_legal_topic

T = TypeVar("T")

IDLE_S: Final = 60.0
"""
Seconds after the last response until the connections are closed. Kafka closes idle ones after 10 minutes.
"""
_AT_ONCE: Final = 2000
"""The number of names sorted, or of partitions converted, in one slice: about a millisecond."""
_CHECKED: Final = 1000
_STOPPED: Final = "The service is stopping."


class Descriptions:
    """
    Lists and describes topics.

    It has a client of its own, which is made when it is needed and closed when it is idle. The response of a
    large cluster has megabytes, and a broker answers the requests of one connection in order: on the
    producer's connections, acknowledgements would wait behind it.
    """

    def __init__(self, *, new_client: Callable[[], ClusterClient], clock: IReactorTime) -> None:
        """:param new_client: makes a client, which is closed when it is idle for `IDLE_S`."""
        self._new_client = new_client
        self._clock = clock
        self._slices = TimeSlices(clock)
        self._client: ClusterClient | None = None
        self._under_way = 0
        self._idle: IDelayedCall | None = None
        self._is_stopped = False

    def list_topics(self) -> Deferred[Sequence[str]]:
        """See `sampleapp.interfaces.IBroker.list_topics`."""
        return Deferred.fromCoroutine(self._list())

    def describe_topics(self, topics: Collection[str]) -> Deferred[Sequence[TopicDescription]]:
        """See `sampleapp.interfaces.IBroker.describe_topics`."""
        # For other names a broker would only answer that they are not legal.
        legal = sorted({name for name in topics if is_legal_topic(name)})
        return Deferred.fromCoroutine(self._describe(legal))

    def topic_errors(self, topics: Collection[str]) -> Deferred[Mapping[str, int]]:
        """
        Return the error codes of topics, without creating any.

        :param topics: of more than a thousand, only a thousand are checked.
        :return: fires with the codes other than 0. Codes that are unknown after `CHECK_TIMEOUT_S` are left
            out. Never fails.
        """
        legal = [name for name in islice(topics, _CHECKED) if is_legal_topic(name)]
        asking: Deferred[Mapping[str, int]] = Deferred.fromCoroutine(self._topic_errors(legal))
        return asking.addTimeout(CHECK_TIMEOUT_S, self._clock, onTimeoutCancel=lambda *_: {})

    def stop(self) -> Deferred[None]:
        """Stop, and close the connections. Fires when they are closed; never fails."""
        self._is_stopped = True
        return self._close()

    async def _list(self) -> list[str]:
        return await self._sorted(await self._topics(None, _name))

    async def _describe(self, names: Sequence[str]) -> list[TopicDescription]:
        topics = await self._topics(names, _unchanged) if names else []
        return [await self._description(topic) for topic in sorted(topics, key=_name)]

    async def _topic_errors(self, names: Sequence[str]) -> Mapping[str, int]:
        try:
            topics = await self._topics(names, _unchanged, usable_only=False) if names else []
        except BrokerUnavailable:
            return {}
        return {topic.topic: topic.error for topic in topics if topic.error != ErrorCode.NONE}

    async def _topics(
        self, names: Sequence[str] | None, convert: Callable[[TopicMetadata], T], *, usable_only: bool = True
    ) -> list[T]:
        """
        Request topics.

        :param names: ``None`` for all topics except Kafka's internal ones.
        :param convert: converts each topic at once, since freeing a hundred thousand at the end takes long.
        :param usable_only: leave out topics with an error.
        :raise BrokerUnavailable: no broker has answered, or its response is not valid.
        """
        if self._is_stopped:
            raise BrokerUnavailable(_STOPPED)
        if self._client is None:
            self._client = self._new_client()
        topics = []
        self._busy()
        try:
            for topic in await self._client.describe_topics(names):
                if topic is None:
                    await self._slices.next()
                elif usable_only and topic.error != ErrorCode.NONE:
                    continue
                elif names is not None or not topic.is_internal:
                    topics.append(convert(topic))
        except RequestFailed as error:
            raise BrokerUnavailable(error.reason.public) from error
        except ProtocolError as error:
            raise BrokerUnavailable("The broker's answer could not be understood.") from error
        finally:
            self._done()
        return topics

    async def _sorted(self, names: Sequence[str]) -> list[str]:
        runs = []
        for start in range(0, len(names), _AT_ONCE):
            runs.append(sorted(names[start : start + _AT_ONCE]))
            await self._slices.next()
        merging = merge(*runs)
        found: list[str] = []
        while some := list(islice(merging, _AT_ONCE)):
            found += some
            await self._slices.next()
        return found

    async def _description(self, topic: TopicMetadata) -> TopicDescription:
        partitions: list[PartitionDescription] = []
        ordered = sorted(topic.partitions, key=_number)
        for start in range(0, len(ordered), _AT_ONCE):
            partitions += map(_partition, ordered[start : start + _AT_ONCE])
            await self._slices.next()
        return TopicDescription(name=topic.topic, partitions=tuple(partitions))

    def _busy(self) -> None:
        self._under_way += 1
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.cancel()

    def _done(self) -> None:
        self._under_way -= 1
        if not self._under_way and not self._is_stopped:
            self._idle = self._clock.callLater(IDLE_S, self._close_idle)

    def _close_idle(self) -> None:
        self._idle = None
        self._close()

    def _close(self) -> Deferred[None]:
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.cancel()
        client, self._client = self._client, None
        return succeed(None) if client is None else client.close()


_name: Final[Callable[[TopicMetadata], str]] = attrgetter("topic")
_number: Final = attrgetter("partition")


def _unchanged(topic: TopicMetadata) -> TopicMetadata:
    return topic


def _partition(metadata: PartitionMetadata) -> PartitionDescription:
    return PartitionDescription(
        partition=metadata.partition,
        leader=metadata.leader if metadata.leader >= 0 else None,
        replicas=metadata.replicas,
        in_sync=metadata.isr,
    )
