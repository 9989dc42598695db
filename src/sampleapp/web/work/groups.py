"""``/topics/{topic}/groups/{group}``: a group of workers shares the messages of a topic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import Any, Final, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from sampleapp.concurrency.failures import forget_frames_of
from sampleapp.concurrency.slices import TimeSlices
from sampleapp.errors import (
    BrokerStopped,
    Fault,
    InvalidParameters,
    SampleAppError,
    TooManyLeases,
    UnknownIds,
    WorkNotSupported,
    forget_frames,
)
from sampleapp.interfaces import IBroker, IWorkBroker
from sampleapp.messages.work_bodies import (
    MAX_BODY,
    AckRequest,
    Backlog,
    ExtendRequest,
    PullRequest,
    WorkBody,
    new_lease,
    read_work_request,
    token_of,
)
from sampleapp.model import ALL, TOPIC_RULE, Lease, Verdicts, is_legal_topic
from sampleapp.records.record_lines import leased_line
from sampleapp.web.access_control import AuthorizedTopic
from sampleapp.web.errors import NotJSON, UnknownGroup
from sampleapp.web.publish.messages import media_type_of
from sampleapp.web.publish.publisher import IDEMPOTENCY_KEY
from sampleapp.web.read.pages import memory_of, slices_of
from sampleapp.web.read.records import response_if_gone
from sampleapp.web.read.registry import LongPoll, OpenStreams, StreamKind
from sampleapp.web.responses import Response, json_line
from sampleapp.web.routing import Variant
from sampleapp.web.server import Limits, Request
from sampleapp.web.server.writer import LARGEST_PART
from sampleapp.web.work.counts import WorkCounts

_LOOK_S: Final = 0.5
"""How often the number of leases is checked while the service stops."""
_HEADERS: Final = ((b"Content-Type", b"application/json"), (b"Cache-Control", b"no-store"))

T = TypeVar("T")


class WorkGroups:
    """Gives the messages of topics to workers, and takes their results."""

    def __init__(
        self,
        broker: IBroker,
        *,
        streams: OpenStreams,
        slices: TimeSlices,
        clock: IReactorTime,
        limits: Limits,
    ) -> None:
        """
        :param broker: gives messages if it has `IBroker.work`.
        :param streams: limits the number of pulls that wait.
        :param slices: for encoding many messages.
        """
        self._broker = broker
        self._streams = streams
        self._slices = slices
        self._clock = clock
        self.max_leases: Final = limits.max_leases
        """The most leases of this instance; the broker rejects more."""
        self.rejections = 0
        """Requests that were rejected since the start, because of that limit."""
        self.counts: Final = WorkCounts(clock)
        """The numbers of messages."""
        self._backlogs: dict[tuple[str, str], int] = {}
        self._asked: set[tuple[str, str]] = set()
        """The groups whose backlog was asked for, without an answer yet."""
        self._is_stopping = False
        self._room = min(2 * limits.max_body, limits.max_body_memory // 8)
        max_body = min(MAX_BODY, limits.max_body)
        self.pull: Final = Variant(self._pull, _check_pull, max_body)
        """Serves requests for messages."""
        self.acknowledge: Final = Variant(_handler(self._acknowledge), _check_head, max_body)
        """Serves results."""
        self.extend: Final = Variant(_handler(self._extend), _check_head, max_body)
        """Serves requests for more time."""

    async def stop(self) -> None:
        """
        Answer the pulls that wait, gradually, since the service stops. Later ones are rejected.

        Returns when the leases of this instance have ended.
        """
        self._is_stopping = True
        await self._streams.end_waits(StreamKind.PULL, self._slices)
        while self.leases:
            await deferLater(self._clock, _LOOK_S)

    @property
    def leases(self) -> int:
        """The leases of this instance that go on."""
        return 0 if self._broker.work is None else self._broker.work.leases

    @property
    def given_up(self) -> int:
        """The messages that this instance has given up after their last attempt."""
        return 0 if self._broker.work is None else self._broker.work.given_up

    def backlogs(self) -> Mapping[tuple[str, str], int]:
        """Return the last known backlogs by topic and group, and ask the broker for new ones."""
        known = dict(self._backlogs)
        # At most one question for each group, if many scrapes come or the broker is slow.
        for labels in self.counts.groups - self._asked:
            self._asked.add(labels)
            Deferred.fromCoroutine(self._ask_backlog(*labels))
        return known

    async def _ask_backlog(self, topic: str, group: str) -> None:
        try:
            backlog = await self._work.backlog(topic, group)
        except SampleAppError as error:
            forget_frames(error)
            backlog = None
        finally:
            self._asked.remove((topic, group))
        self._backlogs.pop((topic, group), None)
        if backlog is not None:
            self._backlogs[topic, group] = backlog

    async def backlog(self, topic: AuthorizedTopic, group: str) -> Response:
        """
        Return the number of messages that a group has not finished.

        :raise UnknownGroup: no worker has pulled in it yet.
        """
        backlog = await self._work.backlog(topic, group)
        if backlog is None:
            raise UnknownGroup(topic, group)
        return _response(Backlog(topic, group, backlog))

    @property
    def _work(self) -> IWorkBroker:
        if self._broker.work is None:
            raise WorkNotSupported("The broker of this service has no groups of workers.")
        return self._broker.work

    def _pull(self, request: Request, *, topic: AuthorizedTopic, group: str) -> Deferred[Response]:
        """Return a Deferred that, if cancelled, fires with a response for metrics and logs."""
        pulling = Deferred.fromCoroutine(self._give(request, topic, group))
        return pulling.addErrback(response_if_gone, request)

    async def _give(self, request: Request, topic: AuthorizedTopic, group: str) -> Response:
        wanted = _read(request, PullRequest)
        if self._is_stopping:
            raise BrokerStopped("The service is stopping. Pull from another instance, or later.")
        if request.reservation is not None:
            # Messages that do not fit would be given back, and lose an attempt.
            request.reservation.require_room(self._room)
        wait_s = 0 if request.client_has_finished else wanted.wait
        pull = partial(self._work.pull, topic, group, most=wanted.max, wait_s=wait_s)
        lease = await self._counted(self._wait(request, f"{topic}/{group}", pull) if wait_s else pull())
        if lease is None:
            return Response(HTTPStatus.NO_CONTENT, _HEADERS[1:])
        self.counts.add(topic, group, given=len(lease.messages))
        try:
            return await self._encode(request, lease)
        except (CancelledError, SampleAppError):
            giving_back = self._work.acknowledge(topic, group, lease.token, Verdicts(release=ALL))
            giving_back.addCallbacks(partial(self.counts.add_done, topic, group), _leave)
            raise

    async def _counted(self, lease: Awaitable[T]) -> T:
        """Wait for a lease, and count the rejections of more than the most."""
        try:
            return await lease
        except TooManyLeases:
            self.rejections += 1
            raise

    async def _wait(
        self, request: Request, group: str, pull: Callable[[], Deferred[Lease | None]]
    ) -> Lease | None:
        """
        Wait for messages.

        :raise TooManyStreams: too many pages and pulls wait.
        :raise AccessError: the caller has too many of them, or has lost its right.
        """
        waiting = LongPoll(self._streams, kind=StreamKind.PULL, request=request, topic=group, ended_by="over")
        request.end_wait = partial(waiting.end, "client")
        try:
            return await waiting.wait(pull())
        finally:
            request.end_wait = None
            waiting.close(waiting.ended_by)

    async def _encode(self, request: Request, lease: Lease) -> Response:
        """
        Encode a lease.

        :raise BodyMemoryFull: other requests leave too little memory.
        :raise BodyMemoryOfCallerFull: the caller's other requests leave too little of its part.
        :raise BodyNeedsTooMuchMemory: no request may have as much.
        """
        records = [message.record for message in lease.messages]
        reservation = request.reservation
        if reservation is not None:
            reservation.resize(memory_of(records))
        parts = [json_line(new_lease(lease.token, lease.ends_ms)).removesuffix(b"}\n") + b',"messages":[']
        messages = iter(lease.messages)
        for some in slices_of(records):
            if len(parts) > 1:
                await self._slices.next()
                parts.append(b",")
            parts.append(b",".join(map(leased_line, islice(messages, len(some)))))
            if reservation is not None:
                # Records and lines are there at the same time.
                reservation.resize(reservation.size + len(parts[-1]))
        parts.append(b"]}\n")
        is_small = sum(map(len, parts)) < LARGEST_PART
        return Response(HTTPStatus.OK, _HEADERS, b"".join(parts) if is_small else tuple(parts))

    async def _acknowledge(self, request: Request, topic: AuthorizedTopic, group: str) -> Response:
        results = _read(request, AckRequest)
        verdicts, token = results.verdicts(), token_of(results.lease)
        try:
            done = await self._work.acknowledge(topic, group, token, verdicts)
        except UnknownIds as error:
            raise results.naming(error.ids) from error
        self.counts.add_done(topic, group, done)
        return _response(done)

    async def _extend(self, request: Request, topic: AuthorizedTopic, group: str) -> Response:
        token = token_of(_read(request, ExtendRequest).lease)
        extended = await self._counted(self._work.extend(topic, group, token))
        return _response(new_lease(extended.token, extended.ends_ms))


def _response(value: object) -> Response:
    return Response(HTTPStatus.OK, _HEADERS, json_line(value))


def _handler(serve: Callable[..., Coroutine[Any, Any, Response]]) -> Callable[..., Deferred[Response]]:
    return lambda request, **variables: Deferred.fromCoroutine(serve(request, **variables))


def _leave(failure: Failure) -> None:
    """Leave messages to a worker that has gone until the lease ends by itself."""
    failure.trap(SampleAppError)
    forget_frames_of(failure)


def _check_head(request: Request, *, topic: str, group: str) -> None:
    """
    Check the head of a request with a body.

    :raise InvalidParameters: the path is not valid, or there is ``Idempotency-Key``.
    :raise NotJSON: the body is of another type.
    """
    check_group(request, topic=topic, group=group)
    if request.fields.all(IDEMPOTENCY_KEY):
        raise InvalidParameters([Fault("/Idempotency-Key", "Requests of workers have no Idempotency-Key.")])
    content_types = request.fields.all(b"content-type")
    if content_types and [*map(media_type_of, content_types)] != [b"application/json"]:
        raise NotJSON


def check_group(_request: Request, *, topic: str, group: str) -> None:
    """:raise InvalidParameters: names all faults of the path."""
    faults = [
        Fault(f"/{name}", f"The {name} in the path must be {TOPIC_RULE}.")
        for name, value in (("topic", topic), ("group", group))
        if not is_legal_topic(value)
    ]
    if faults:
        raise InvalidParameters(faults)


def _check_pull(request: Request, *, topic: str, group: str) -> None:
    _check_head(request, topic=topic, group=group)
    # Without a type, no body can be lost: curl -X POST sends neither.
    request.needs_length = bool(request.fields.all(b"content-type"))
    # Its messages are for others, once it has gone.
    request.ends_with_client = True


def _read(request: Request, kind: type[WorkBody]) -> WorkBody:
    """
    Read the body of a request.

    :raise NotJSON: there is a body without a type.
    :raise MessageError: the body is not valid.
    """
    if request.body and not request.fields.all(b"content-type"):
        raise NotJSON
    return read_work_request(request.body, kind)
