"""The Klein application: routes for readings, for messages, for any bytes, and for clients of REST Proxy."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import attrgetter
from typing import Final, NoReturn

from msgspec.structs import replace
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.web.resource import Resource

from sampleapp.access import HookVerifier, Right
from sampleapp.feeds import Feeds
from sampleapp.interfaces import IBroker
from sampleapp.messages.idempotency import IdempotencyScope
from sampleapp.messages.parsing import parse_message
from sampleapp.messages.queries import require_no_message
from sampleapp.messages.records import record_of
from sampleapp.messages.request_headers import RecordedFields
from sampleapp.readings.changes import Changes
from sampleapp.web import operations
from sampleapp.web.answers import Answer, Event
from sampleapp.web.batches import BatchPublisher
from sampleapp.web.changes import ChangesResource
from sampleapp.web.cross_site import CrossSiteRule
from sampleapp.web.gate import Gate
from sampleapp.web.hooks import Hooks
from sampleapp.web.idempotency import IDEMPOTENCY_KEY, IdempotentRecords, admit_key
from sampleapp.web.open_streams import OpenStreams
from sampleapp.web.preconditions import match_fails
from sampleapp.web.publishing import Publisher, trace_of
from sampleapp.web.raw_publishing import RawPublishing
from sampleapp.web.readings_resource import GetRepresentation, readings_resource
from sampleapp.web.record_pages import RecordPages
from sampleapp.web.record_reading import RecordReading
from sampleapp.web.record_streams import RecordStreams
from sampleapp.web.request_errors import PathNotFound, PreconditionFailed, UnsupportedContentType
from sampleapp.web.rest_proxy import RestProxy
from sampleapp.web.routing import GET_PUBLISHES_NOTHING, Plan, Routes, RouteTable
from sampleapp.web.server import Limits, Request
from sampleapp.web.topic_reads import TopicReads

__all__ = ["FrontDoor"]

_MEDIA_TYPE: Final = re.compile(rb"[ \t]*([!-+\--:<-~]+)[ \t]*(?:;.*)?", re.DOTALL)


class FrontDoor:
    """The HTTP interface of the service."""

    routes = Routes()
    routes.include(RawPublishing.routes, attrgetter("raw_publishing"))
    routes.include(Hooks.routes, attrgetter("hooks"))
    routes.include(RestProxy.routes, attrgetter("rest_proxy"))
    routes.include(RecordReading.routes, attrgetter("record_reading"))

    def __init__(
        self,
        *,
        broker: IBroker,
        get_representation: GetRepresentation,
        clock: IReactorTime,
        changes: Changes | None = None,
        gate: Gate | None = None,
        allowed_origins: Iterable[str] = (),
        limits: Limits | None = None,
        recorded: RecordedFields | None = None,
        hooks: HookVerifier | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """
        :param broker: receives the messages.
        :param get_representation: returns the readings.
        :param clock: schedules long work in slices.
        :param changes: of the readings; without them there is no ``/changes``.
        :param gate: authenticates and authorizes requests; by default any caller has all rights.
        :param allowed_origins: the other sites whose pages may publish, each in the form that
            `sampleapp.web.cors.check_origin` accepts. Pages of this service always may.
        :param limits: for the lengths of bodies.
        :param recorded: chooses the header fields of requests that become headers of records; by default
            only ``Content-Type``.
        :param hooks: verifies the requests of hooks; by default there are none.
        :param now: returns the time of day, in seconds since the epoch, for the timestamps of records.
        """
        self._limits = Limits() if limits is None else limits
        self._gate = gate
        self._cross_site = CrossSiteRule(allowed_origins)
        self.streams = OpenStreams(clock=clock, gate=gate, limits=self._limits)
        """The open streams and waiting pages."""
        self.reads = TopicReads(broker)
        """The reads of topics."""
        self._changes = None if changes is None else ChangesResource(changes, streams=self.streams)
        self._readings = readings_resource(get_representation)
        self._publisher = Publisher(broker, clock, self._limits, now=now)
        self._batches = BatchPublisher(
            broker,
            self._publisher.slices,
            max_line=self._limits.max_body,
            idempotent_records=self.idempotent_records,
        )
        many = Plan(self._publish_many, max_body=self._limits.max_batch_body)
        self._plans = {
            b"application/json": Plan(self._publish_one),
            b"application/x-ndjson": many,
            b"application/jsonl": many,
        }
        self._plans_with_key = {
            media_type: replace(plan, admit=admit_key) for media_type, plan in self._plans.items()
        }
        recorded = RecordedFields() if recorded is None else recorded
        self.raw_publishing = RawPublishing(self._publisher, self._batches, recorded, hooks=hooks)
        self.hooks = Hooks(self._publisher, hooks, recorded)
        self.rest_proxy = RestProxy(self._publisher)
        self.feeds = Feeds(broker, clock, make_event=Event, most=self._limits.max_followed_topics)
        """The shared following of topics; to be stopped with the service."""
        self.record_reading = RecordReading(
            RecordPages(
                self.reads, self.feeds, clock=clock, slices=self._publisher.slices, streams=self.streams
            ),
            RecordStreams(self.reads, self.feeds, streams=self.streams, clock=clock),
        )

    @property
    def idempotent_records(self) -> IdempotentRecords:
        """Counts the records of requests with ``Idempotency-Key``."""
        return self._publisher.idempotent_records

    def table(self, *others: tuple[Routes, object]) -> RouteTable:
        """
        Return the route table for the service's own connections.

        :param others: more routes to serve; see `RouteTable`.
        """
        return RouteTable(self.routes, self, *others, gate=self._gate, cross_site=self._cross_site)

    def resource(self, *, max_body: int | None = None) -> Resource:
        """
        Return the root of a site, or a part of one, for any program with twisted.web.

        :param max_body: the limit for a compressed body once it is decoded, in bytes; 1 MiB by default. The
            site itself limits bodies as they arrive.
        """
        return self.routes.resource(self, gate=self._gate, cross_site=self._cross_site, max_body=max_body)

    @routes.route("/", "GET", "HEAD", takes_query=True, right=Right.READ, description=operations.READINGS)
    def readings(self, request: Request) -> Answer | Deferred[Answer]:
        """
        Serve the readings in the version that ``Accept`` chooses.

        :return: a Deferred if the readings must be encoded first; it fails with the errors named here.
        :raise PreconditionFailed: by ``If-Match``, which is evaluated before ``If-None-Match`` (RFC 9110,
            section 13.2.2).
        :raise InvalidParameters: the query has a part of a message. Any other query is ignored.
        """
        if request.query:
            require_no_message(request.query, GET_PUBLISHES_NOTHING)
        answer = self._readings.answer(request)
        tags = request.fields.joined(b"If-Match")
        if tags is None:
            return answer
        if isinstance(answer, Deferred):
            return answer.addCallback(_require_match, tags)
        return _require_match(answer, tags)

    @routes.route(
        "/changes", "GET", "HEAD", takes_query=True, right=Right.READ, description=operations.CHANGES
    )
    def changes(self, request: Request) -> Answer:
        """
        Serve the readings as they change, as an event stream.

        :raise PathNotFound: the service has no changes.
        :raise InvalidParameters: the query has more than the id of the last event.
        :raise ReadingsNotReady: the collection is not complete yet.
        :raise TooManyStreams: as many are open as may be.
        :raise AccessError: the caller has too many streams, or has lost its right.
        """
        if self._changes is None:
            raise PathNotFound
        return self._changes.answer(request)

    @routes.planned_route("/messages", "POST", right=Right.PUBLISH, description=operations.PUBLISH)
    def publish(self, request: Request) -> Plan:
        """Choose by ``Content-Type`` between one message and many."""
        fields = request.fields
        content_types = fields.all(b"Content-Type")
        if len(content_types) != 1:
            return _UNSUPPORTED
        plans = self._plans_with_key if fields.all(IDEMPOTENCY_KEY) else self._plans
        return plans.get(_media_type(content_types[0]), _UNSUPPORTED)

    def _publish_one(self, request: Request) -> Deferred[Answer]:
        message = parse_message(request.body)
        now_ms, trace = self._publisher.now_ms(), trace_of(request)
        scope: IdempotencyScope | None = request.admitted
        return self._publisher.publish(
            request,
            record_of(message, now_ms=now_ms, trace=trace)
            if scope is None
            else scope.record_of(message, 0, now_ms=now_ms, trace=trace),
        )

    def _publish_many(self, request: Request) -> Deferred[Answer]:
        return self._batches.publish(request, now_ms=self._publisher.now_ms(), trace=trace_of(request))


@lru_cache(maxsize=256)
def _media_type(content_type: bytes) -> bytes:
    """
    Return the media type of a ``Content-Type``, in lower case and without parameters.

    JSON defines no parameters, ``charset`` included (RFC 8259, section 11): it is in UTF-8, and so are lines
    of JSON.
    """
    match = _MEDIA_TYPE.fullmatch(content_type)
    return b"" if match is None else match[1].lower()


def _refuse_content_type(request: Request) -> NoReturn:
    raise UnsupportedContentType(request.fields.all(b"Content-Type"))


_UNSUPPORTED: Final = Plan(_refuse_content_type, admit=_refuse_content_type)


def _require_match(answer: Answer, tags: bytes) -> Answer:
    if match_fails(tags, dict(answer.headers)[b"ETag"]):
        raise PreconditionFailed
    return answer
