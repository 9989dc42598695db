"""The Klein application: every route for callers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from http import HTTPStatus
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from sampleapp.access import HookVerifier, Right
from sampleapp.feeds import Feeds
from sampleapp.interfaces import IBroker
from sampleapp.messages.headers import RecordedFields
from sampleapp.readings.changes import Changes
from sampleapp.validation.validation import Validation
from sampleapp.web.access_control import (
    TO_CONSUME,
    TO_PUBLISH,
    TO_SEE,
    TO_WORK,
    AccessControl,
    AuthorizedTopic,
)
from sampleapp.web.cors import CrossSiteRule
from sampleapp.web.errors import PathNotFound
from sampleapp.web.openapi import operations
from sampleapp.web.publish.hooks import Hooks
from sampleapp.web.publish.messages import BatchPublisher, Messages
from sampleapp.web.publish.publisher import IdempotentRecords, Publisher
from sampleapp.web.publish.raw import RawPublishing
from sampleapp.web.publish.rest_proxy import ProduceRequests, require_acceptable
from sampleapp.web.read.pages import RecordPages
from sampleapp.web.read.readings import AcceptDispatch, ChangesResource, GetRepresentation
from sampleapp.web.read.records import RecordReading
from sampleapp.web.read.registry import OpenStreams
from sampleapp.web.read.streams import RecordStreams
from sampleapp.web.read.topic_reads import TopicReads
from sampleapp.web.read.topics import Topics
from sampleapp.web.responses import Event, Response, SharedBody
from sampleapp.web.routing import AccessPolicy, App, Variant
from sampleapp.web.server import Limits, Request
from sampleapp.web.work.groups import WorkGroups, check_group

_GROUP: Final = "/topics/<topic>/groups/<group>"
_SCHEMA_FIELDS: Final = ((b"Content-Type", b"application/schema+json"), (b"Cache-Control", b"no-cache"))


class SampleApp:
    """
    The HTTP interface of the service: a Klein application between callers and a broker.

    The service's own HTTP server takes the routes from a `sampleapp.web.routing.RouteTable`. In any other
    site of twisted.web, Klein serves them: ``Site(gateway.app.resource())``.
    """

    app = App()

    @app.route(
        "/messages",
        methods=["POST"],
        has_variants=True,
        right=Right.PUBLISH,
        description=operations.PUBLISH,
    )
    def publish(self, request: Request) -> Variant:
        """Publish a message, or many as lines; answered once the broker has acknowledged them."""
        return self._messages.variant_of(request)

    @app.route("/", methods=["GET"], takes_query=True, right=Right.READ, description=operations.READINGS)
    def readings(self, _request: Request) -> AcceptDispatch:
        """Return the resource of the readings, which answers in the version that ``Accept`` chooses."""
        return self._readings

    @app.route(
        "/topics/<topic>",
        methods=["POST"],
        has_variants=True,
        right=Right.PUBLISH,
        topic_use=TO_PUBLISH,
        description=operations.PUBLISH_TO_TOPIC,
    )
    def publish_to_topic(self, request: Request) -> Variant:
        """Publish the body as it is, a CloudEvent, or the records of a client of REST Proxy."""
        return self._raw_publishing.variant_of(request)

    @app.route(
        "/topics/<topic>",
        methods=["DELETE"],
        has_variants=True,
        right=Right.PUBLISH,
        topic_use=TO_PUBLISH,
        description=operations.DELETE_KEY,
    )
    def delete_key(self, _request: Request) -> Variant:
        """Publish a tombstone for a key."""
        return self._raw_publishing.tombstone

    @app.route(
        "/hooks/<hook>",
        methods=["POST"],
        has_variants=True,
        right=Right.NONE,
        description=operations.RECEIVE_HOOK,
    )
    def receive_hook(self, _request: Request) -> Variant:
        """Publish what a sender of webhooks has signed."""
        return self.hooks.variant

    @app.route(
        "/hooks/<hook>",
        methods=["GET"],
        has_variants=True,
        right=Right.NONE,
        description=operations.CHECK_HOOK,
    )
    def check_hook(self, _request: Request) -> Variant:
        """Answer a sender of webhooks that checks its URL, without publishing anything."""
        return self.hooks.url_check

    @app.route(
        "/topics/<topic>/records",
        methods=["GET"],
        has_variants=True,
        right=Right.CONSUME,
        topic_use=TO_CONSUME,
        description=operations.READ_RECORDS,
    )
    def read_records(self, request: Request) -> Variant:
        """Read the records of a topic: a page, or a stream if ``Accept`` asks for one."""
        return self._records.variant_of(request)

    @app.route(
        "/changes", methods=["GET"], takes_query=True, right=Right.READ, description=operations.CHANGES
    )
    def changes(self, request: Request) -> Response:
        """Stream the readings as they change."""
        if self._changes is None:
            raise PathNotFound
        return self._changes.respond(request)

    @app.route("/topics", methods=["GET"], check_head=require_acceptable, description=operations.LIST_TOPICS)
    async def list_topics(self, request: Request) -> Response:
        """List the topics that the caller may see."""
        return await self._topics.names(request)

    @app.route(
        "/topics/<topic>",
        methods=["GET"],
        check_head=require_acceptable,
        topic_use=TO_SEE,
        description=operations.DESCRIBE_TOPIC,
    )
    async def describe_topic(self, request: Request, *, topic: AuthorizedTopic) -> Response:
        """Describe a topic with its partitions."""
        return await self._topics.topic(request, topic)

    @app.route(
        "/topics/<topic>/schema", methods=["GET"], topic_use=TO_SEE, description=operations.READ_SCHEMA
    )
    def read_schema(self, _request: Request, *, topic: AuthorizedTopic) -> Response:
        """Return the JSON Schema of a topic."""
        schema = None if self.validation is None else self.validation.current.by_topic.get(topic)
        if schema is None:
            raise PathNotFound("The topic has no schema, so any content may be published to it.")
        return Response(HTTPStatus.OK, _SCHEMA_FIELDS, SharedBody((schema.text,)))

    @app.route(
        "/topics/<topic>/partitions",
        methods=["GET"],
        check_head=require_acceptable,
        topic_use=TO_SEE,
        description=operations.LIST_PARTITIONS,
    )
    async def list_partitions(self, request: Request, *, topic: AuthorizedTopic) -> Response:
        """Describe the partitions of a topic."""
        return await self._topics.partitions(request, topic)

    @app.route(
        "/topics/<topic>/partitions/<partition>",
        methods=["GET"],
        check_head=require_acceptable,
        topic_use=TO_SEE,
        description=operations.DESCRIBE_PARTITION,
    )
    async def describe_partition(
        self, request: Request, *, topic: AuthorizedTopic, partition: str
    ) -> Response:
        """Describe one partition of a topic."""
        return await self._topics.partition(request, topic, partition)

    @app.route(
        "/topics/<topic>/partitions/<partition>",
        methods=["POST"],
        has_variants=True,
        right=Right.PUBLISH,
        topic_use=TO_PUBLISH,
        description=operations.PRODUCE_TO_PARTITION,
    )
    def produce_to_partition(self, request: Request) -> Variant:
        """Publish the records of a client of REST Proxy to one partition."""
        return self._produce.to_partition(request)

    _work_route = partial(app.route, right=Right.WORK, topic_use=TO_WORK)
    """Declares a route of groups of workers."""

    @_work_route(_GROUP, methods=["GET"], check_head=check_group, description=operations.DESCRIBE_GROUP)
    async def describe_group(self, _request: Request, *, topic: AuthorizedTopic, group: str) -> Response:
        """Return the backlog of a group of workers."""
        return await self.work.backlog(topic, group)

    @_work_route(f"{_GROUP}/pull", methods=["POST"], has_variants=True, description=operations.PULL)
    def pull(self, _request: Request) -> Variant:
        """Give messages to a worker, under a lease."""
        return self.work.pull

    @_work_route(f"{_GROUP}/ack", methods=["POST"], has_variants=True, description=operations.ACKNOWLEDGE)
    def ack(self, _request: Request) -> Variant:
        """Take the results for the messages of a lease, which ends."""
        return self.work.acknowledge

    @_work_route(f"{_GROUP}/extend", methods=["POST"], has_variants=True, description=operations.EXTEND)
    def extend(self, _request: Request) -> Variant:
        """Replace a lease by one that lasts longer."""
        return self.work.extend

    def __init__(
        self,
        *,
        broker: IBroker,
        get_representation: GetRepresentation,
        clock: IReactorTime,
        changes: Changes | None = None,
        access_control: AccessControl | None = None,
        allowed_origins: Iterable[str] = (),
        limits: Limits | None = None,
        recorded: RecordedFields | None = None,
        records_caller: bool = False,
        hooks: HookVerifier | None = None,
        validation: Validation | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """
        :param broker: receives the messages.
        :param get_representation: returns the readings.
        :param clock: schedules long work in slices.
        :param changes: of the readings; without them there is no ``/changes``.
        :param access_control: authenticates and authorizes requests; by default any caller has all rights.
        :param allowed_origins: the other sites whose pages may publish, each in the form that
            `sampleapp.web.cors.check_origin` accepts. Pages of this service always may.
        :param limits: for the lengths of bodies.
        :param recorded: chooses the header fields and parameters of requests that become headers of
            records; by default only ``Content-Type``.
        :param records_caller: True to add the name of the caller to each record, which needs access control.
        :param hooks: verifies the requests of hooks; by default there are none.
        :param validation: checks contents by schemas; by default, they are not checked.
        :param now: returns the time of day, in seconds since the epoch, for the timestamps of records.
        """
        limits = Limits() if limits is None else limits
        recorded = RecordedFields() if recorded is None else recorded
        self.access = AccessPolicy(access_control, CrossSiteRule(allowed_origins))
        """The checks before a request is served."""
        self.streams = OpenStreams(clock=clock, access_control=access_control, limits=limits)
        """The open streams and waiting pages."""
        self.reads = TopicReads(broker)
        """The reads of topics."""
        self.feeds = Feeds(broker, clock, make_event=Event, most=limits.max_followed_topics)
        """The shared following of topics; to be stopped with the service."""
        publisher = Publisher(
            broker, clock, limits, records_caller=records_caller, now=now, validation=validation
        )
        self.idempotent_records: IdempotentRecords = publisher.idempotent_records
        """Counts the records of requests with ``Idempotency-Key``."""
        batches = BatchPublisher(
            broker,
            publisher.slices,
            max_line=limits.max_body,
            idempotent_records=self.idempotent_records,
            validation=validation,
        )
        self._readings = AcceptDispatch(get_representation)
        self._changes = None if changes is None else ChangesResource(changes, streams=self.streams)
        self._messages = Messages(publisher, batches)
        self._produce = ProduceRequests(publisher)
        self._raw_publishing = RawPublishing(publisher, batches, recorded, self._produce, hooks=hooks)
        self.hooks = Hooks(publisher, hooks, recorded)
        """Receives signed requests."""
        self._topics = Topics(broker, publisher.slices, clock)
        self.validation = validation
        """Checks contents by schemas; ``None`` if they are not checked."""
        self._records = RecordReading(
            RecordPages(self.reads, self.feeds, clock=clock, slices=publisher.slices, streams=self.streams),
            RecordStreams(self.reads, self.feeds, streams=self.streams, clock=clock),
        )

        self.work = WorkGroups(
            broker, streams=self.streams, slices=publisher.slices, clock=clock, limits=limits
        )
        """The groups of workers."""

    def end_waits(self) -> Deferred[None]:
        """
        Answer the pages and pulls that wait, since the service stops.

        :return: fires with ``None`` when workers have no more leases; see `WorkGroups.stop`.
        """
        self._records.end_waits()
        return Deferred.fromCoroutine(self.work.stop())
