"""``/topics/{topic}/groups/{group}``: a group of workers shares the messages of a topic."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.access import AccessError, Caller
from sampleapp.concurrency.failures import forget_frames_of
from sampleapp.concurrency.slices import TimeSlices
from sampleapp.errors import (
    BrokerStopped,
    Fault,
    InvalidParameters,
    LeaseLost,
    SampleAppError,
    UnknownIds,
    WorkNotSupported,
    forget_frames,
)
from sampleapp.interfaces import IBroker, IWorkBroker
from sampleapp.messages.work_bodies import (
    MAX_BODY,
    AckCounts,
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
from sampleapp.web.access_control import TO_WORK, AuthorizedTopic
from sampleapp.web.errors import NotJSON, UnknownGroup
from sampleapp.web.publish.messages import media_type_of
from sampleapp.web.read.pages import memory_of
from sampleapp.web.read.records import response_if_gone
from sampleapp.web.read.registry import OpenStreams, WaitingPull
from sampleapp.web.responses import Headers, Response, json_line
from sampleapp.web.routing import Variant
from sampleapp.web.server import Limits, Request
from sampleapp.web.work.leases import Leases, WorkCounts

_ENCODED_AT_ONCE: Final = 256 * 1024
"""Bytes of messages that are encoded in one turn of the reactor, with `_MESSAGE_BYTES` for each."""
_MESSAGE_BYTES: Final = 1024
_ENDED_AT_ONCE: Final = 20
"""Pulls that are answered in one turn of the reactor when the service stops: two milliseconds."""
_NO_STORE: Final = (b"Cache-Control", b"no-store")
_HEADERS: Final[Headers] = ((b"Content-Type", b"application/json"), _NO_STORE)
_NOTHING: Final = Response(HTTPStatus.NO_CONTENT, (_NO_STORE,))


class _Wait:
    """A pull that waits for a message, while its caller has the right."""

    def __init__(self) -> None:
        self._waiting: Deferred[Lease | None] | None = None
        self._error: AccessError | None = None
        self.ended_by = ""
        """The reason for the end, for metrics; empty while it waits."""

    def lose_right(self, error: AccessError) -> None:
        """End the wait with an error."""
        self._error = error
        self.end("right")

    def end(self, reason: str) -> None:
        """
        End the wait early, as if its time were over.

        :param reason: for metrics.
        """
        self.ended_by = reason
        if self._waiting is not None:
            self._waiting.cancel()

    async def until(self, waiting: Deferred[Lease | None]) -> Lease | None:
        """
        Wait for a lease.

        :return: ``None`` if none has come in time, or the wait has ended.
        :raise AccessError: the caller has lost its right.
        """
        self._waiting = waiting
        try:
            lease = await waiting
        except CancelledError as error:
            # Frames of its traceback refer to it.
            forget_frames(error)
            if self._error is not None:
                raise self._error from None
            if not self.ended_by:
                self.ended_by = "client"
                raise
            return None
        except SampleAppError:
            self.ended_by = "error"
            raise
        self.ended_by = "time" if lease is None else "record"
        return lease


class WorkGroups:
    """Gives the messages of topics to workers, and takes their results."""

    _log = Logger()

    def __init__(
        self,
        broker: IBroker,
        *,
        streams: OpenStreams,
        slices: TimeSlices,
        clock: IReactorTime,
        limits: Limits,
        now: Callable[[], float],
    ) -> None:
        """
        :param broker: gives messages if it provides `IWorkBroker`.
        :param streams: limits the number of pulls that wait.
        :param slices: for encoding many messages.
        :param now: returns the time of day, in seconds since the epoch.
        """
        self._broker: IWorkBroker | None = IWorkBroker(broker, None)
        self._streams = streams
        self._slices = slices
        self.leases: Final = Leases(limits.max_leases, clock=clock, now=now)
        """The leases of this instance."""
        self.counts: Final = WorkCounts(clock)
        """The numbers of messages."""
        self._backlogs: dict[tuple[str, str], int] = {}
        self._waits: set[_Wait] = set()
        self._is_stopping = False
        max_body = min(MAX_BODY, limits.max_body)
        self.pull: Final = Variant(self._pull, check_head=_check_pull, max_body=max_body)
        """Serves requests for messages."""
        self.acknowledge: Final = Variant(
            _handler(self._acknowledge), check_head=_check_body, max_body=max_body
        )
        """Serves results."""
        self.extend: Final = Variant(_handler(self._extend), check_head=_check_body, max_body=max_body)
        """Serves requests for more time."""

    def stop(self) -> Deferred[None]:
        """
        Answer the pulls that wait, gradually, since the service stops. Later ones are rejected.

        :return: fires with ``None`` when the leases of this instance have ended. Cancelling it stops the
            waiting only.
        """
        self._is_stopping = True
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        while self._waits:
            await self._slices.next()
            for _ in range(min(_ENDED_AT_ONCE, len(self._waits))):
                self._waits.pop().end("drain")
        await self.leases.wait_until_ended()

    def backlogs(self) -> dict[tuple[str, str], int]:
        """
        Return the last known backlogs by topic and group, and ask the broker for new ones.

        Groups have one if a worker has pulled from this instance; a hundred at most.
        """
        known = dict(self._backlogs)
        if not self._is_stopping:
            for topic, group in self.counts.groups:
                counting = Deferred.fromCoroutine(self._ask_backlog(topic, group))
                counting.addErrback(self._forget_backlog, (topic, group))
        return known

    async def _ask_backlog(self, topic: str, group: str) -> None:
        backlog = await self._work_broker().backlog(topic, group)
        if backlog is not None:
            self._backlogs[topic, group] = backlog

    def _forget_backlog(self, failure: Failure, labels: tuple[str, str]) -> None:
        failure.trap(SampleAppError)
        forget_frames_of(failure)
        self._backlogs.pop(labels, None)

    def _work_broker(self) -> IWorkBroker:
        if self._broker is None:
            raise WorkNotSupported("The broker of this service has no groups of workers.")
        return self._broker

    def _pull(self, request: Request, *, topic: AuthorizedTopic, group: str) -> Deferred[Response]:
        """Return a Deferred that, if cancelled, fires with a response for metrics and logs."""
        pulling = Deferred.fromCoroutine(self._give(request, topic, group))
        return pulling.addErrback(response_if_gone, request)

    async def _give(self, request: Request, topic: AuthorizedTopic, group: str) -> Response:
        wanted = _read(request, PullRequest)
        broker = self._work_broker()
        if self._is_stopping:
            raise BrokerStopped("The service is stopping. Pull from another instance, or later.")
        with self.leases.pulling():
            wait_s = 0 if request.client_has_finished else wanted.wait
            pull = partial(broker.pull, topic, group, most=wanted.max, wait_s=wait_s)
            lease = await (self._wait(request, f"{topic}/{group}", pull) if wait_s else pull())
            if lease is None:
                return _NOTHING
            self.leases.add(lease.token, lease.ends_ms)
        self.counts.add_given(topic, group, len(lease.messages))
        try:
            return await self._encode(request, lease)
        except (CancelledError, SampleAppError):
            self._give_back(topic, group, lease)
            raise

    async def _wait(
        self, request: Request, group: str, pull: Callable[[], Deferred[Lease | None]]
    ) -> Lease | None:
        """
        Wait for messages.

        :param group: as the caller is granted it.
        :raise TooManyStreams: too many pages and pulls wait.
        :raise AccessError: the caller has too many of them, or has lost its right.
        """
        wait = _Wait()
        slot = WaitingPull(self._streams, request, None, wait.lose_right, may=partial(_may_work, group))
        self._waits.add(wait)
        request.end_wait = partial(wait.end, "client")
        try:
            return await wait.until(pull())
        finally:
            request.end_wait = None
            self._waits.discard(wait)
            slot.close(wait.ended_by)

    async def _encode(self, request: Request, lease: Lease) -> Response:
        """
        Encode a lease.

        :raise BodyMemoryFull: other requests leave too little memory.
        :raise BodyMemoryOfCallerFull: the caller's other requests leave too little of its part.
        :raise BodyNeedsTooMuchMemory: no request may have as much.
        """
        if request.reservation is not None:
            # Records and lines are there at the same time.
            request.reservation.resize(2 * memory_of([message.record for message in lease.messages]))
        head = json_line(new_lease(lease.token, lease.ends_ms)).removesuffix(b"}\n")
        lines = []
        unpaused = 0
        for message in lease.messages:
            if unpaused >= _ENCODED_AT_ONCE:
                unpaused = 0
                await self._slices.next()
            lines.append(leased_line(message))
            unpaused += _MESSAGE_BYTES + len(lines[-1])
        body = b'%b,"messages":[%b]}\n' % (head, b",".join(lines))
        if request.reservation is not None:
            request.reservation.resize(len(body))
        return Response(HTTPStatus.OK, _HEADERS, body)

    def _give_back(self, topic: str, group: str, lease: Lease) -> None:
        """Release the messages of a lease that its worker does not get."""
        self.leases.discard(lease.token)
        releasing = self._work_broker().acknowledge(topic, group, lease.token, Verdicts(release=ALL))
        releasing.addCallbacks(partial(self.counts.add_done, topic, group), self._not_given_back)

    def _not_given_back(self, failure: Failure) -> None:
        failure.trap(SampleAppError)
        forget_frames_of(failure)
        self._log.info(
            "Messages of a worker that has gone stay with it until its lease ends: {reason}",
            reason=str(failure.value),
        )

    async def _acknowledge(self, request: Request, topic: AuthorizedTopic, group: str) -> Response:
        results = _read(request, AckRequest)
        token = token_of(results.lease)
        try:
            done = await self._work_broker().acknowledge(topic, group, token, results.verdicts)
        except UnknownIds as error:
            raise results.naming(error.ids) from error
        except LeaseLost:
            self.leases.discard(token)
            raise
        self.leases.discard(token)
        self.counts.add_done(topic, group, done)
        return _response(AckCounts(done.accepted, done.released, done.rejected))

    async def _extend(self, request: Request, topic: AuthorizedTopic, group: str) -> Response:
        token = token_of(_read(request, ExtendRequest).lease)
        try:
            extended = await self._work_broker().extend(topic, group, token)
        except LeaseLost:
            self.leases.discard(token)
            raise
        self.leases.discard(token)
        self.leases.add(extended.token, extended.ends_ms)
        return _response(new_lease(extended.token, extended.ends_ms))

    async def backlog(self, topic: AuthorizedTopic, group: str) -> Response:
        """
        Return the number of messages that a group has not finished.

        :raise UnknownGroup: no worker has pulled in it yet.
        """
        backlog = await self._work_broker().backlog(topic, group)
        if backlog is None:
            raise UnknownGroup(topic, group)
        return _response(Backlog(topic, group, backlog))


def _response(value: object) -> Response:
    return Response(HTTPStatus.OK, _HEADERS, json_line(value))


def _handler(serve: Callable[..., Coroutine[Any, Any, Response]]) -> Callable[..., Deferred[Response]]:
    return lambda request, **variables: Deferred.fromCoroutine(serve(request, **variables))


def _may_work(group: str, caller: Caller) -> bool:
    return TO_WORK.is_granted(caller, group)


def check_group(_request: Request, *, topic: str, group: str) -> None:
    """:raise InvalidParameters: names all faults of the path."""
    faults = [
        Fault(f"/{name}", f"The {name} in the path must be {TOPIC_RULE}.")
        for name, value in (("topic", topic), ("group", group))
        if not is_legal_topic(value)
    ]
    if faults:
        raise InvalidParameters(faults)


def _check_body(request: Request, *, topic: str, group: str) -> None:
    """
    Check the head of a request with a body.

    :raise InvalidParameters: the path is not valid.
    :raise NotJSON: the body is of another type.
    """
    check_group(request, topic=topic, group=group)
    content_types = request.fields.all(b"content-type")
    if content_types and (len(content_types) > 1 or media_type_of(content_types[0]) != b"application/json"):
        raise NotJSON


def _check_pull(request: Request, *, topic: str, group: str) -> None:
    _check_body(request, topic=topic, group=group)
    # Its messages are for others, once it has gone.
    request.ends_with_client = True


def _read(request: Request, kind: type[WorkBody]) -> WorkBody:
    """
    Read the body of a request.

    :raise NotJSON: there is a body without a type.
    :raise MessageError: the body is not what it must be.
    """
    if request.body and not request.fields.all(b"content-type"):
        raise NotJSON
    return read_work_request(request.body, kind)
