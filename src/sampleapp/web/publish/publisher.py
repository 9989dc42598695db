"""Publishing records for requests: the part that all formats of bodies share."""

from __future__ import annotations

import time
from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from sampleapp.access import Caller
from sampleapp.concurrency.time_slices import TimeSlices
from sampleapp.interfaces import IBroker
from sampleapp.messages.cloud_events import read_event_data
from sampleapp.messages.headers import trace_headers
from sampleapp.messages.idempotency_key import IdempotencyScope
from sampleapp.messages.records import RecordHeaders, length_of
from sampleapp.messages.schemas import Schemas
from sampleapp.model import CALLER_HEADER, Record
from sampleapp.web.access_control import TO_PUBLISH, AuthorizedTopic, authorize_topic
from sampleapp.web.publish.idempotency import IdempotentRecords
from sampleapp.web.responses import Response, published_response
from sampleapp.web.server import Limits, Request

__all__ = ["Publisher"]


class Publisher:
    """Publishes records, for topics that the caller of a request may publish to."""

    def __init__(
        self,
        broker: IBroker,
        clock: IReactorTime,
        limits: Limits,
        *,
        records_caller: bool = False,
        now: Callable[[], float] = time.time,
        schemas: Schemas | None = None,
    ) -> None:
        """
        :param broker: receives the records.
        :param clock: schedules long work in slices.
        :param limits: for the lengths of bodies.
        :param records_caller: True to add the name of the caller to each record.
        :param now: returns the time of day, in seconds since the epoch, for the timestamps of records.
        :param schemas: of topics; by default, contents are not checked.
        """
        self.broker = broker
        """Receives the records."""
        self.limits = limits
        """For the lengths of bodies."""
        self.slices = TimeSlices(clock)
        """For long work."""
        self.clock = clock
        """For work that is due later."""
        self.idempotent_records = IdempotentRecords()
        """Counts the records with an identity."""
        self._records_caller = records_caller
        self.schemas = schemas
        """Of topics; ``None`` if contents are not checked."""
        self._now = now

    def now_ms(self) -> int:
        """Return the time in milliseconds since the epoch."""
        return int(self._now() * 1000)

    def publish(self, request: Request, record: Record, *, at: str) -> Deferred[Response]:
        """
        Publish the record that the body of a request asks for.

        :param at: the pointer to its content in the body.
        :return: fires with the partition and the offset after the broker's acknowledgement; fails with a
            `sampleapp.errors.PublishError`.
        :raise NotGranted: the caller may not publish to the topic of the record.
        :raise SchemaMismatch: the content does not match the schema of the topic.
        """
        authorize_topic(request, record.topic, TO_PUBLISH)
        if self.schemas is not None:
            self.schemas.check(record.topic, record.value, at=at)
        publishing = self.broker.publish(record)
        if record.identity is None:
            return publishing.addCallback(published_response, length_of(record))
        return self.idempotent_records.respond(publishing, length_of(record))

    def publish_to(
        self,
        topic: AuthorizedTopic,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders = (),
        of_request: RecordHeaders = (),
        scope: IdempotencyScope | None = None,
        is_event: bool = False,
    ) -> Deferred[Response]:
        """
        Publish a record to a topic that was checked already.

        :param headers: those of the message itself, which a request with the same key must repeat.
        :param of_request: more headers of the record, which may be others when the request is sent again.
        :param scope: makes the identity of the record; by default it has none.
        :param is_event: true if the value is a CloudEvent, whose data is the content.
        :return: as for `publish`.
        :raise SchemaMismatch: the content does not match the schema of the topic.
        """
        if self.schemas is not None:
            content, at = read_event_data(value) if is_event and value is not None else (value, "")
            self.schemas.check(topic, content, at=at)
        record = Record(
            topic=topic,
            key=key,
            value=value,
            timestamp_ms=self.now_ms(),
            headers=headers + of_request,
            identity=None
            if scope is None
            else scope.identity(0, topic=topic, key=key, value=value, headers=headers),
        )
        publishing = self.broker.publish(record)
        if scope is None:
            return publishing.addCallback(published_response, length_of(record))
        return self.idempotent_records.respond(publishing, length_of(record))

    def headers_of(self, request: Request) -> RecordHeaders:
        """Return the headers that a request gives to each of its records: its caller, then its trace."""
        traceparents = request.fields.all(b"traceparent")
        trace = trace_headers(traceparents, request.fields.all(b"tracestate")) if traceparents else ()
        caller: Caller | None = request.caller
        if not self._records_caller or caller is None:
            return trace
        return ((CALLER_HEADER, caller.name.encode("ascii")), *trace)
