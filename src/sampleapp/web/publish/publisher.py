"""
Publishing records for requests: the part that all formats of bodies share.

Requests with ``Idempotency-Key`` have identities for their records; their answers are counted for metrics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from msgspec.structs import replace
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from sampleapp.access import Caller
from sampleapp.concurrency.slices import TimeSlices
from sampleapp.errors import Fault, InvalidParameters, PublishError
from sampleapp.interfaces import IBroker, Outcome
from sampleapp.messages.cloud_events import read_event_data
from sampleapp.messages.headers import trace_headers
from sampleapp.messages.idempotency_key import IdempotencyScope, parse_idempotency_key
from sampleapp.messages.parsing import RecordHeaders, length_of
from sampleapp.model import CALLER_HEADER, Record, RecordMetadata, ReplayedRecord
from sampleapp.validation.line import Client
from sampleapp.validation.validation import Validation
from sampleapp.web.access_control import TO_PUBLISH, AuthorizedTopic, authorize_topic
from sampleapp.web.errors import problem_response
from sampleapp.web.responses import Response, published_response
from sampleapp.web.server import Limits, Request

IDEMPOTENCY_KEY: Final = b"Idempotency-Key"
"""The header field of requests."""
REPLAYED: Final = (b"Idempotent-Replayed", b"true")
"""The header field of responses to requests for which nothing new was published."""

HEADER_BYTES: Final = 192
"""Memory for a header of a record besides its value, in bytes."""
_FEW_HEADERS: Final = 16
"""Headers of a record that need no memory reserved: a connection takes as much."""

SAFE_TO_REPEAT: Final = "Sending the same request again, with the same Idempotency-Key, is safe."
"""The end of the detail of a problem whose records may have been published."""

T = TypeVar("T")


def scope_of(request: Request, names: Sequence[bytes] = (IDEMPOTENCY_KEY,)) -> IdempotencyScope | None:
    """
    Return the scope of the records of a request, after the caller is known.

    :param names: of the header field with the key.
    :return: ``None`` for a request without this field.
    :raise MalformedIdempotencyKey: the field is not valid.
    """
    found = [(name, value) for name in names for value in request.fields.all(name)]
    if not found:
        return None
    key = parse_idempotency_key([value for _, value in found], field=found[0][0].decode("ascii"))
    caller: Caller | None = request.caller
    # parse_idempotency_key() returns None only without values.
    return None if key is None else IdempotencyScope(caller="" if caller is None else caller.name, key=key)


def check_key(request: Request) -> None:
    """
    Keep the scope of a request for its handler: a check of its head.

    :raise MalformedIdempotencyKey: the field is not valid.
    """
    request.checked = scope_of(request)


def reject_key(request: Request) -> None:
    """
    Reject ``Idempotency-Key`` where it would have no effect.

    :raise InvalidParameters: the request has the field.
    """
    if request.fields.all(IDEMPOTENCY_KEY):
        raise InvalidParameters(
            [
                Fault(
                    "/Idempotency-Key",
                    "REST Proxy's API does not support Idempotency-Key. Omit the field, or publish with "
                    "another media type, or to /messages.",
                )
            ]
        )


def repeatable_response(error: PublishError) -> Response:
    """Return the problem document of an error of a request with ``Idempotency-Key``."""
    return problem_response(error, detail=f"{error} {SAFE_TO_REPEAT}" if error.possibly_published else None)


def client_of(request: Request) -> Client:
    """Return the client of a request, with whose other contents one is checked in turn."""
    caller: Caller | None = request.caller
    return Client("" if caller is None else caller.name, request.exchange.peer.host)


class IdempotentRecords:
    """Counts records with an identity, and makes the response for a single one."""

    def __init__(self) -> None:
        self.waiting = 0
        """The number of records that wait for the broker's response."""
        self.results = dict.fromkeys(("first", "replayed", "refused", "unknown"), 0)
        """The number of records by result. ``rejected``: not published. ``unknown``: perhaps published."""

    def begin(self, count: int) -> None:
        """Count records that begin to wait."""
        self.waiting += count

    def end(self, count: int) -> None:
        """Count records that no longer wait, whatever their result."""
        self.waiting -= count

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Count the results of records."""
        for outcome in outcomes:
            self.results[_result(outcome)] += 1

    def add_rejected(self, error: PublishError, count: int) -> None:
        """Count records that have one result: this error."""
        self.results[_result(error)] += count

    def respond(self, publishing: Deferred[RecordMetadata], length: int) -> Deferred[Response]:
        """
        Return the response for one record.

        :param publishing: fires as that of `IBroker.publish`.
        :param length: of its key and value, in bytes.
        """
        self.begin(1)
        return publishing.addBoth(self._ended).addCallbacks(
            self._response, self._rejection, callbackArgs=(length,)
        )

    def _ended(self, result: T) -> T:
        self.end(1)
        return result

    def _response(self, record: RecordMetadata, length: int) -> Response:
        self.add([record])
        response = published_response(record, length)
        if not isinstance(record, ReplayedRecord):
            return response
        return replace(
            response, headers=(*response.headers, REPLAYED), record=None, record_bytes=0, replayed=record
        )

    def _rejection(self, failure: Failure) -> Response | Failure:
        error = failure.value
        if not isinstance(error, PublishError):
            return failure
        self.add([error])
        return repeatable_response(error)


def _result(outcome: Outcome) -> str:
    if isinstance(outcome, PublishError):
        return "unknown" if outcome.possibly_published else "refused"
    return "replayed" if isinstance(outcome, ReplayedRecord) else "first"


def _reserve_headers(request: Request, record: Record) -> None:
    """
    Reserve the memory for the headers of a record, besides the body.

    :raise RequestError: as `MemoryReservation.resize`.
    """
    if request.reservation is not None:
        request.reservation.resize(request.reservation.size + HEADER_BYTES * len(record.headers))


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
        validation: Validation | None = None,
    ) -> None:
        """
        :param broker: receives the records.
        :param clock: schedules long work in slices.
        :param limits: for the lengths of bodies.
        :param records_caller: True to add the name of the caller to each record.
        :param now: returns the time of day, in seconds since the epoch, for the timestamps of records.
        :param validation: checks contents by schemas; by default, they are not checked.
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
        self.validation = validation
        """Checks contents by schemas; ``None`` if they are not checked."""
        self._now = now

    def now_ms(self) -> int:
        """Return the time in milliseconds since the epoch."""
        return int(self._now() * 1000)

    def publish(self, request: Request, record: Record, *, at: str) -> Deferred[Response]:
        """
        Publish the record that the body of a request asks for.

        :param at: the pointer to its content in the body.
        :return: fires with the partition and the offset after the broker's acknowledgement; fails with a
            `sampleapp.errors.PublishError`, or as `Validation.check`.
        :raise NotGranted: the caller may not publish to the topic of the record.
        :raise RequestError: as `MemoryReservation.resize`, for a record with many headers.
        """
        authorize_topic(request, record.topic, TO_PUBLISH)
        if self.validation is not None or len(record.headers) > _FEW_HEADERS:
            return self._check_and_publish(request, record, record.value, at)
        return self._publish(record)

    def publish_to(
        self,
        request: Request,
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

        :param request: that asks for the record.
        :param headers: those of the message itself, which a request with the same key must repeat.
        :param of_request: more headers of the record, which may be others when the request is sent again.
        :param scope: makes the identity of the record; by default it has none.
        :param is_event: true if the value is a CloudEvent, whose data is the content.
        :return: as for `publish`.
        :raise InvalidMessage: the event has a repeated member, or data that are not base64.
        :raise RequestError: as for `publish`.
        """
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
        if self.validation is not None or len(record.headers) > _FEW_HEADERS:
            content, at = value, ""
            schemas = {} if self.validation is None else self.validation.current.by_topic
            if is_event and value is not None and topic in schemas:
                content, at = read_event_data(value)
            return self._check_and_publish(request, record, content, at)
        return self._publish(record)

    def _check_and_publish(
        self, request: Request, record: Record, content: bytes | None, at: str
    ) -> Deferred[Response]:
        if len(record.headers) > _FEW_HEADERS:
            _reserve_headers(request, record)
        if self.validation is not None:
            checking = self.validation.check(record.topic, content, at=at, client=client_of(request))
            if checking is not None:
                return checking.addCallback(lambda _: self._publish(record))
        return self._publish(record)

    def _publish(self, record: Record) -> Deferred[Response]:
        publishing = self.broker.publish(record)
        if record.identity is None:
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
