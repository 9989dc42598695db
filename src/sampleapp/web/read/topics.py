"""
The topics of the broker, as in REST Proxy's API v2.

Queries about topics are coalesced for all requests that wait for the same response.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from itertools import islice
from typing import Final, TypeVar

import msgspec
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from sampleapp.access import Caller
from sampleapp.access.caller import TopicPatterns
from sampleapp.concurrency.slices import TimeSlices
from sampleapp.errors import BrokerUnavailable, UnknownPartition, UnknownTopic
from sampleapp.interfaces import IBroker
from sampleapp.model import PartitionDescription, TopicDescription
from sampleapp.web.access_control import AuthorizedTopic
from sampleapp.web.responses import Response
from sampleapp.web.rest_proxy_documents import (
    RESPONSE,
    Partition,
    Replica,
    Topic,
    partition_number,
    response_type,
)
from sampleapp.web.server import MemoryReservation, Request

KEPT_S: Final = 2.0
"""The names of all topics are cached for this time, in seconds."""
_NAMES_AT_ONCE: Final = 2000
"""Names that are filtered and encoded in one slice: a millisecond."""
_DESCRIBED_AT_ONCE: Final = 500

T = TypeVar("T")


class TopicQueries:
    """
    Coalesced queries about the topics of a broker.

    At most one load of all names runs at a time. Its result serves all requests that wait for it or arrive
    within `KEPT_S` after it. Queries about single topics are batched: those that arrive during a query are
    sent together after it.
    """

    def __init__(self, broker: IBroker, slices: TimeSlices, clock: IReactorTime) -> None:
        """
        :param slices: for encoding many names.
        :param clock: measures the age of the names.
        """
        self._broker = broker
        self._slices = slices
        self._clock = clock
        self._names: Sequence[str] | None = None
        self._encoded: Sequence[bytes] | None = None
        self._waiting: list[Deferred[Sequence[str]]] = []
        self._is_loading = False
        self._wanted: dict[str, list[Deferred[TopicDescription | None]]] = {}
        self._asked: dict[str, list[Deferred[TopicDescription | None]]] = {}
        self._is_describing = False

    async def encoded_names(
        self, visible: TopicPatterns | None = None, *, reservation: MemoryReservation | None = None
    ) -> Sequence[bytes]:
        """
        Return the names of topics as a JSON array, in parts.

        :param visible: the topics to return; all by default.
        :param reservation: as for `encode_array`.
        :raise BrokerUnavailable: the broker cannot be reached.
        :raise RequestError: as `encode_array`.
        """
        if visible is None and self._encoded is not None:
            return self._encoded
        names = await self._load()
        if visible is not None:
            at_once = max(1, _NAMES_AT_ONCE // (1 + sum(1 for _ in visible)))
            return await encode_array(
                names,
                _unchanged,
                at_once=at_once,
                slices=self._slices,
                reservation=reservation,
                is_wanted=visible.__contains__,
            )
        encoded = await encode_array(
            names, _unchanged, at_once=_NAMES_AT_ONCE, slices=self._slices, reservation=reservation
        )
        if names is self._names:
            self._encoded = encoded
        return encoded

    def describe(self, topic: AuthorizedTopic) -> Deferred[TopicDescription | None]:
        """
        Describe one topic.

        :return: fires with ``None`` if it does not exist; fails with `sampleapp.errors.BrokerUnavailable` if
            the broker cannot be reached.
        """
        described: Deferred[TopicDescription | None] = Deferred()
        waiting = self._asked.get(topic)
        if waiting is None:
            waiting = self._wanted.setdefault(topic, [])
        waiting.append(described)
        if not self._is_describing:
            self._is_describing = True
            Deferred.fromCoroutine(self._describe_wanted())
        return described

    def _load(self) -> Deferred[Sequence[str]]:
        if self._names is not None:
            return succeed(self._names)
        loaded: Deferred[Sequence[str]] = Deferred()
        self._waiting.append(loaded)
        if not self._is_loading:
            self._is_loading = True
            Deferred.fromCoroutine(self._load_names())
        return loaded

    async def _load_names(self) -> None:
        names: Sequence[str] | Exception
        try:
            names = self._names = await self._broker.list_topics()
        except Exception as error:  # noqa: BLE001 -- nothing cancels this, and every waiter gets a response
            names = error
        else:
            self._clock.callLater(KEPT_S, self._forget)
        self._is_loading = False
        waiting, self._waiting = self._waiting, []
        _fire(waiting, names)

    def _forget(self) -> None:
        self._names = self._encoded = None

    async def _describe_wanted(self) -> None:
        while self._wanted:
            names = list(islice(self._wanted, _DESCRIBED_AT_ONCE))
            self._asked = {name: self._wanted.pop(name) for name in names}
            descriptions: dict[str, TopicDescription] = {}
            failed: Exception | None = None
            try:
                descriptions = {each.name: each for each in await self._broker.describe_topics(names)}
            except Exception as error:  # noqa: BLE001 -- nothing cancels this, and every waiter gets a response
                failed = error
            asked, self._asked = self._asked, {}
            for name, waiting in asked.items():
                _fire(waiting, failed or descriptions.get(name))
        self._is_describing = False


async def encode_array(
    values: Sequence[T],
    convert: Callable[[T], object],
    *,
    at_once: int,
    slices: TimeSlices,
    reservation: MemoryReservation | None,
    is_wanted: Callable[[T], bool] | None = None,
) -> list[bytes]:
    """
    Encode a JSON array in parts, one in each slice.

    :param convert: makes the JSON value of an item.
    :param at_once: the number of values in one slice.
    :param reservation: of the request; the parts are counted as they are made.
    :param is_wanted: returns True for the values to encode; all by default.
    :raise RequestError: as `MemoryReservation.resize`.
    """
    parts = [b"["]
    for start in range(0, len(values), at_once):
        if start:
            await slices.next()
        some: Iterable[T] = values[start : start + at_once]
        if is_wanted is not None:
            some = filter(is_wanted, some)
        part = msgspec.json.encode([convert(value) for value in some])[1:-1]
        if part:
            parts.append(part if len(parts) == 1 else b"," + part)
            if reservation is not None:
                reservation.resize(reservation.size + len(parts[-1]))
    parts.append(b"]")
    return [b"".join(parts)] if len(values) <= at_once else parts


def _unchanged(value: T) -> T:
    return value


def _fire(waiting: Iterable[Deferred[T]], result: T | Exception) -> None:
    traceback = result.__traceback__ if isinstance(result, Exception) else None
    for each in waiting:
        if each.called:
            # The waiter was cancelled.
            continue
        if isinstance(result, BrokerUnavailable):
            # A new one for each waiter, which may raise and chain it.
            each.errback(BrokerUnavailable(*result.args))
        elif isinstance(result, Exception):
            # With the original traceback, to which each waiter adds its own.
            each.errback(Failure(result, type(result), traceback))
        else:
            each.callback(result)


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
            return _response(request, *await self._topics.encoded_names(reservation=request.reservation))
        visible = caller.topics
        if not visible:
            return _response(request, b"[]")
        return _response(request, *await self._topics.encoded_names(visible, reservation=request.reservation))

    async def topic(self, request: Request, topic: AuthorizedTopic) -> Response:
        """
        Return a topic with its partitions.

        :raise UnknownTopic: the topic does not exist.
        """
        description = await self._describe(topic)
        # Encoded without its partitions, which may be thousands, it ends in "[]}".
        topic_without = msgspec.json.encode(Topic(description.name, {}, []))[: -len(b"[]}")]
        return _response(request, topic_without, *await self._partitions(request, description), b"}")

    async def partitions(self, request: Request, topic: AuthorizedTopic) -> Response:
        """
        Return the partitions of a topic.

        :raise UnknownTopic: the topic does not exist.
        """
        return _response(request, *await self._partitions(request, await self._describe(topic)))

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

    async def _partitions(self, request: Request, description: TopicDescription) -> list[bytes]:
        return await encode_array(
            description.partitions,
            _partition,
            at_once=_PARTITIONS_AT_ONCE,
            slices=self._slices,
            reservation=request.reservation,
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
