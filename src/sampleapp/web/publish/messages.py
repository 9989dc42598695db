"""
``POST /messages``: one message as JSON, or many as lines of JSON.

Many messages in one request are all checked before any is published. Long work is done in slices, one in each
turn of the reactor, so that other requests are served in between.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from http import HTTPStatus
from itertools import count, islice
from typing import Final, NamedTuple, NoReturn, TypeAlias

import msgspec
from msgspec import UNSET
from msgspec.structs import replace
from twisted.internet.defer import Deferred

from sampleapp.access import Caller, NotGranted
from sampleapp.concurrency.slices import TimeSlices
from sampleapp.errors import (
    Fault,
    IdempotencyNotEnabled,
    InvalidMessage,
    MessageError,
    PartlyPublished,
    PartlyRejected,
    PublishError,
    SampleAppError,
    SchemaMismatch,
)
from sampleapp.interfaces import IBroker, Outcome
from sampleapp.messages.event_lists import EventList
from sampleapp.messages.idempotency_key import IdempotencyScope
from sampleapp.messages.lines import MOST_FAULTS, MessageLines, RejectedLine
from sampleapp.messages.parsing import RecordHeaders, content_pointer, length_of, parse_message, record_of
from sampleapp.model import Record, RecordMetadata, ReplayedRecord
from sampleapp.validation.line import Client
from sampleapp.validation.schema_version import SchemaVersion
from sampleapp.validation.validation import Validation
from sampleapp.web.access_control import TO_PUBLISH, rejection_of_topic
from sampleapp.web.errors import (
    LEAST_URGENT,
    Result,
    UnsupportedContentType,
    partly_published_response,
    problem_response,
    row_of,
    urgency_of,
)
from sampleapp.web.publish.publisher import (
    HEADER_BYTES,
    IDEMPOTENCY_KEY,
    REPLAYED,
    SAFE_TO_REPEAT,
    IdempotentRecords,
    Publisher,
    check_key,
    client_of,
    repeatable_response,
)
from sampleapp.web.responses import Batch, Headers, Response, TopicTotal
from sampleapp.web.routing import Variant
from sampleapp.web.server import MemoryReservation, Request

NDJSON: Final = "application/x-ndjson"
_HEADERS: Final[Headers] = ((b"Content-Type", NDJSON.encode("ascii")),)

_SMALL: Final = 16 * 1024
"""A body up to this length, in bytes, takes hardly longer than one message, and need not wait for a slice."""
_RECORDS_AT_ONCE: Final = 2500
"""Records whose outcomes are processed in one slice: half a millisecond."""
RECORD_BYTES: Final = 384
"""
Memory for a record besides its key and value, in bytes, until it is answered.

It includes its place in the queues of the Kafka producer and its line of the response.
"""
_IDENTITY_BYTES: Final = 224
"""Memory for the identity of a record, in bytes."""
_RESULTS_AT_ONCE: Final = 500
"""Like `_RECORDS_AT_ONCE`, if some records are not published."""
_MOST_TOPICS: Final = 1000
"""The maximum number of topics that are counted for one batch."""

_Messages: TypeAlias = MessageLines | EventList
_STORED: Final = {RecordMetadata, ReplayedRecord}

_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines


class _ContentCheck(NamedTuple):
    """How the contents of one request are checked."""

    validation: Validation
    schemas: SchemaVersion
    client: Client

    async def run(self, lines: _Messages) -> None:
        """
        Check the contents that were read, and reject messages with those that do not match.

        :raise SampleAppError: as `Validation.mismatches`.
        """
        unchecked, lines.unchecked = lines.unchecked, []
        if lines.faults < MOST_FAULTS:
            for content, error in await self.validation.mismatches(
                self.schemas, unchecked, client=self.client
            ):
                lines.reject_content(content, error)


class BatchPublisher:
    """Publishes bodies that have a message on each line, or a list of CloudEvents."""

    def __init__(
        self,
        broker: IBroker,
        slices: TimeSlices,
        *,
        max_line: int,
        idempotent_records: IdempotentRecords,
        validation: Validation | None = None,
    ) -> None:
        """
        :param broker: receives the records.
        :param slices: for long work.
        :param max_line: the maximum length of a message, in bytes.
        :param idempotent_records: counts the records with an identity.
        :param validation: checks contents by schemas; by default, they are not checked.
        """
        self._validation = validation
        self._broker = broker
        self._slices = slices
        self._max_line = max_line
        self._idempotent_records = idempotent_records

    def publish(self, request: Request, *, now_ms: int, of_request: RecordHeaders = ()) -> Deferred[Response]:
        """
        Publish all messages in the body of a request, or none if one of them is rejected.

        A message is rejected, among other reasons, if the caller may not publish to its topic.

        :param now_ms: the timestamp of messages without one; milliseconds since the epoch.
        :param of_request: headers of every record, which come with the request.
        :return: fires with the response, also if nothing was published. Fails with the errors of
            `MemoryReservation.resize`.
        """
        body = request.body
        caller: Caller | None = request.caller
        check = self._check_of(request)
        lines = MessageLines(
            body,
            max_line=self._max_line,
            now_ms=now_ms,
            of_request=of_request,
            reject_topic=None if caller is None else partial(_rejection_of_topic, caller),
            scope=request.checked,
            checked_topics=() if check is None else check.schemas.by_topic,
        )
        return Deferred.fromCoroutine(self._publish(lines, len(body), request.reservation, check))

    def _check_of(self, request: Request) -> _ContentCheck | None:
        validation = self._validation
        if validation is None:
            return None
        return _ContentCheck(validation, validation.current, client_of(request))

    def publish_events(
        self,
        request: Request,
        *,
        topic: str,
        key: bytes | None,
        now_ms: int,
        of_request: RecordHeaders,
        scope: IdempotencyScope | None,
    ) -> Deferred[Response]:
        """
        Publish all CloudEvents in the body of a request, or none if one of them is rejected.

        :param topic: of all records; the caller may publish to it.
        :param key: as for `EventList`, like ``scope``.
        :param now_ms: the timestamp of the records; milliseconds since the epoch.
        :param of_request: more headers of every record, which come with the request.
        :return: as for `publish`; fails also with a `MessageError` if the body is not a list of events.
        """
        check = self._check_of(request)
        events = EventList(
            request.body,
            topic=topic,
            key=key,
            max_event=self._max_line,
            now_ms=now_ms,
            of_request=of_request,
            scope=scope,
            is_checked=check is not None and topic in check.schemas.by_topic,
        )
        return Deferred.fromCoroutine(self._publish(events, len(request.body), request.reservation, check))

    async def _publish(
        self,
        lines: _Messages,
        length: int,
        reservation: MemoryReservation | None,
        check: _ContentCheck | None,
    ) -> Response:
        try:
            await self._read(lines, length, reservation, check)
        except SampleAppError:
            await self._slices.free_gradually(lines.records)
            raise
        response = await self._check_and_publish(lines, reservation)
        # Not after a cancellation: the broker may still be reading them.
        await self._slices.free_gradually(lines.records)
        return response

    async def _read(
        self,
        lines: _Messages,
        length: int,
        reservation: MemoryReservation | None,
        check: _ContentCheck | None,
    ) -> None:
        """
        Read all lines, reserve memory for their records, and check their contents.

        :param length: of the body, in bytes.
        """
        if length > _SMALL:
            await self._slices.next()
        record_bytes = RECORD_BYTES + (_IDENTITY_BYTES if lines.has_identities else 0)
        is_unread = True
        while is_unread:
            is_unread = lines.read()
            if reservation is not None:
                # The body is kept until its last line is read. All keys and values are as long as the body.
                reservation.resize(
                    length * (2 if is_unread else 1)
                    + record_bytes * len(lines.records)
                    + HEADER_BYTES * lines.headers
                )
            if check is not None:
                await check.run(lines)
            if is_unread:
                await self._slices.next()

    async def _check_and_publish(self, lines: _Messages, reservation: MemoryReservation | None) -> Response:
        if lines.count == 0:
            return replace(problem_response(lines.nothing), batch=Batch())
        rejected = [*lines.rejected, *await self._rejected_by_broker(lines)]
        if rejected:
            return _rejection(rejected)
        records = lines.records
        publish_many = self._publish_identified if lines.has_identities else self._broker.publish_many
        try:
            outcomes = await publish_many(records)
        except PublishError as error:
            response = repeatable_response(error) if lines.has_identities else problem_response(error)
            return replace(response, batch=Batch(rejected=len(records)))
        response = await self._response(lines, outcomes, reservation)
        await self._slices.free_gradually(outcomes)
        return response

    async def _publish_identified(self, records: Sequence[Record]) -> list[Outcome]:
        """
        Publish records with identities, and count their results.

        :raise PublishError: all records are rejected together.
        """
        counts, total = self._idempotent_records, len(records)
        counts.begin(total)
        try:
            outcomes = await self._broker.publish_many(records)
        except PublishError as error:
            counts.add_rejected(error, total)
            raise
        finally:
            counts.end(total)
        for start in range(0, total, _RECORDS_AT_ONCE):
            if start:
                await self._slices.next()
            counts.add(outcomes[start : start + _RECORDS_AT_ONCE])
        return outcomes

    async def _rejected_by_broker(self, lines: _Messages) -> list[RejectedLine]:
        """Find messages whose topics cannot be published to, up to the maximum number of faults."""
        # Events have the topic of the path.
        room = min(MOST_FAULTS - lines.faults, MOST_FAULTS if lines.are_lines else 1)
        if room <= 0 or not lines.topics:
            return []
        # A rejected batch must not create topics, nor wait for a broker that cannot be reached.
        errors = await self._broker.check_topics(
            lines.topics, create=not lines.rejected, identified=lines.has_identities
        )
        if not errors:
            return []
        found: list[RejectedLine] = []
        numbers = _numbers(lines)
        for start in range(0, len(lines.records), _RECORDS_AT_ONCE):
            if start:
                await self._slices.next()
            # zip() must ask for the record first, so that it takes no number without a record.
            some = lines.records[start : start + _RECORDS_AT_ONCE]
            for record, number in zip(some, numbers, strict=False):
                if record.topic in errors:
                    found.append(RejectedLine(number, errors[record.topic], line=lines.line_of(number)))
            if len(found) >= room:
                break
        return found[:room]

    async def _response(
        self, lines: _Messages, outcomes: Sequence[Outcome], reservation: MemoryReservation | None
    ) -> Response:
        records = lines.records
        parts = []
        totals = _Totals()
        for start in range(0, len(records), _RECORDS_AT_ONCE):
            if start:
                await self._slices.next()
            some = outcomes[start : start + _RECORDS_AT_ONCE]
            new = records[start : start + _RECORDS_AT_ONCE]
            kinds = {*map(type, some)}
            if kinds != {RecordMetadata}:
                if not kinds <= _STORED:
                    return await self._response_for_each(lines, outcomes, reservation)
                new = _published_now(new, some)
            parts.append(_encode_lines(some))
            totals.add(new)
        return Response(
            HTTPStatus.OK,
            _HEADERS if totals.records else (*_HEADERS, REPLAYED),
            parts[0] if len(parts) == 1 else tuple(parts),
            batch=totals.batch(rejected=0),
        )

    async def _response_for_each(
        self, lines: _Messages, outcomes: Sequence[Outcome], reservation: MemoryReservation | None
    ) -> Response:
        records = lines.records
        parts = []
        totals = _Totals()
        failures = _Failures()
        for start in range(0, len(records), _RESULTS_AT_ONCE):
            if start:
                await self._slices.next()
            some = outcomes[start : start + _RESULTS_AT_ONCE]
            parts.append(_encode([_result(outcome) for outcome in some])[1:-1])
            if reservation is not None:
                # Records and results are there at the same time, and nothing can be rejected any more.
                reservation.count(reservation.size + len(parts[-1]))
            totals.add(_published_now(records[start : start + _RESULTS_AT_ONCE], some))
            for number, outcome in enumerate(some, start):
                if isinstance(outcome, PublishError):
                    failures.add(number, outcome, line=lines.line_of(number))
        batch = totals.batch(rejected=failures.count)
        response = (
            partly_published_response(
                failures.summary(len(records), has_identities=lines.has_identities), parts
            )
            if failures.count < len(records) or failures.may_be_published
            else failures.respond(len(records))
        )
        return replace(response, batch=batch)


def _published_now(records: Sequence[Record], outcomes: Sequence[Outcome]) -> list[Record]:
    """Return the records that are stored, without those that were published when they were sent before."""
    return [
        record
        for record, outcome in zip(records, outcomes, strict=True)
        if isinstance(outcome, RecordMetadata) and not isinstance(outcome, ReplayedRecord)
    ]


class _Totals:
    """Sums of published records and bytes, for each topic."""

    def __init__(self) -> None:
        self.records = 0
        self._by_topic: dict[str, list[int]] = {}

    def add(self, records: Sequence[Record]) -> None:
        self.records += len(records)
        topics = {record.topic for record in records}
        if len(topics) == 1:
            lengths = [len(record.key or b"") + len(record.value or b"") for record in records]
            self._add(topics.pop(), len(records), sum(lengths))
        else:
            for record in records:
                self._add(record.topic, 1, length_of(record))

    def _add(self, topic: str, records: int, length: int) -> None:
        total = self._by_topic.setdefault(topic, [0, 0])
        total[0] += records
        total[1] += length

    def batch(self, *, rejected: int) -> Batch:
        totals = islice(self._by_topic.items(), _MOST_TOPICS)
        return Batch(
            published=tuple(TopicTotal(topic, *total) for topic, total in totals),
            records=self.records,
            rejected=rejected,
        )


class _Failures:
    """Collects the errors of records that were not published, or may not have been."""

    def __init__(self) -> None:
        self.count = 0
        self.may_be_published = False
        self._may_be_tried_again = False
        self._first: list[RejectedLine] = []
        self._said: set[tuple[type[PublishError], str]] = set()

    def add(self, number: int, error: PublishError, *, line: int | None) -> None:
        self.count += 1
        self.may_be_published |= error.possibly_published
        self._may_be_tried_again |= error.retriable
        if len(self._first) < MOST_FAULTS:
            self._first.append(RejectedLine(number, error, line=line))
            self._said.add((type(error), str(error)))

    def summary(self, count: int, *, has_identities: bool) -> PartlyPublished:
        """
        Make the error for a batch of which some messages are published, or may be.

        :param count: of the messages.
        :param has_identities: true if the same request may be sent again.
        """
        if self.may_be_published or self._may_be_tried_again:
            advice = f" {SAFE_TO_REPEAT}" if has_identities else ""
            return PartlyPublished(
                f"{self.count} of the {count} messages were not published, or may not have been. See results "
                f"for the outcome of each message.{advice}"
            )
        return PartlyRejected(
            f"{self.count} of the {count} messages were rejected permanently; all others were published. See "
            "results for the outcome of each message."
        )

    def respond(self, count: int) -> Response:
        """
        Answer that no message of the batch was published.

        :param count: of the messages.
        """
        first = self._first[0]
        if len(self._said) == 1:
            return problem_response(first.error)
        return problem_response(
            first.error,
            detail=f"None of the {count} messages was published. The first one: {first.error}",
            faults=[_fault(each, "", str(each.error)) for each in self._first],
        )


def _rejection(rejected: Sequence[RejectedLine]) -> Response:
    """
    Answer that nothing was published, because some messages were rejected.

    :param rejected: at least one, in any order.
    """
    decisive = min(rejected, key=_rank)
    if _rank(decisive)[0] == LEAST_URGENT or isinstance(decisive.error, IdempotencyNotEnabled):
        # No message is wrong; the reason for the first one, such as an outage, is likely to hold for all.
        response = problem_response(decisive.error)
    else:
        wrong = sorted((each for each in rejected if _rank(each)[0] < LEAST_URGENT), key=_number)
        faults = [fault for each in wrong for fault in _faults(each)][:MOST_FAULTS]
        # The fault that decides on the status is named, even after the maximum number of faults.
        deciding = _faults(decisive)[0]
        if deciding not in faults:
            faults[-1] = deciding
        others = " Other messages were rejected too; see errors." if len(wrong) > 1 else ""
        at_line = "" if decisive.line is None else f"Line {decisive.line}: "
        response = problem_response(
            decisive.error,
            detail=f"Nothing was published. {at_line}{decisive.error}{others}",
            faults=faults,
        )
    return replace(response, batch=Batch(rejected=len(rejected)))


def _rejection_of_topic(caller: Caller, topic: str) -> NotGranted | None:
    return None if TO_PUBLISH.is_granted(caller, topic) else rejection_of_topic(topic, TO_PUBLISH)


def _number(rejected: RejectedLine) -> int:
    return rejected.number


def _rank(rejected: RejectedLine) -> tuple[int, int]:
    """Return the sort key of a rejected message: first the urgency of its error, then its number."""
    return urgency_of(type(rejected.error)), rejected.number


def _faults(rejected: RejectedLine) -> list[Fault]:
    error = rejected.error
    if isinstance(error, InvalidMessage):
        return [_fault(rejected, fault.pointer, fault.detail) for fault in error.faults]
    return [_fault(rejected, "" if isinstance(error, MessageError) else "/topic", str(error))]


def _fault(rejected: RejectedLine, pointer: str, detail: str) -> Fault:
    """
    Return a fault of a message in a batch.

    :param pointer: to the fault, in the message.
    """
    line = UNSET if rejected.line is None else rejected.line
    return Fault(f"/{rejected.number}{pointer}", detail, line)


def _result(outcome: Outcome) -> RecordMetadata | Result:
    if isinstance(outcome, RecordMetadata):
        return outcome
    row = row_of(type(outcome))
    return Result(status=row.status, type=row.type, detail=str(outcome))


def _numbers(lines: _Messages) -> Iterator[int]:
    """Yield the numbers of the messages that have a record, without end."""
    rejected = {each.number for each in lines.rejected if not isinstance(each.error, SchemaMismatch)}
    return (number for number in count() if number not in rejected)


_MEDIA_TYPE: Final = re.compile(rb"[ \t]*([!-+\--:<-~]+)[ \t]*(?:;.*)?", re.DOTALL)


class Messages:
    """Publishes messages, each to the topic that it names."""

    def __init__(self, publisher: Publisher, batches: BatchPublisher) -> None:
        self._publisher = publisher
        self._batches = batches
        many = Variant(self._publish_many, max_body=publisher.limits.max_batch_body)
        self._variants = {
            b"application/json": Variant(self._publish_one),
            b"application/x-ndjson": many,
            b"application/jsonl": many,
        }
        self._variants_with_key = {
            media_type: replace(variant, check_head=check_key)
            for media_type, variant in self._variants.items()
        }

    def variant_of(self, request: Request) -> Variant:
        """Choose by ``Content-Type`` between one message and many."""
        fields = request.fields
        content_types = fields.all(b"Content-Type")
        if len(content_types) != 1:
            return _UNSUPPORTED
        variants = self._variants_with_key if fields.all(IDEMPOTENCY_KEY) else self._variants
        return variants.get(media_type_of(content_types[0]), _UNSUPPORTED)

    def _publish_one(self, request: Request) -> Deferred[Response]:
        message = parse_message(request.body)
        now_ms, of_request = self._publisher.now_ms(), self._publisher.headers_of(request)
        scope: IdempotencyScope | None = request.checked
        return self._publisher.publish(
            request,
            record_of(message, now_ms=now_ms, of_request=of_request)
            if scope is None
            else scope.record_of(message, 0, now_ms=now_ms, of_request=of_request),
            at=content_pointer(message),
        )

    def _publish_many(self, request: Request) -> Deferred[Response]:
        return self._batches.publish(
            request, now_ms=self._publisher.now_ms(), of_request=self._publisher.headers_of(request)
        )


@lru_cache(maxsize=256)
def media_type_of(content_type: bytes) -> bytes:
    """
    Return the media type of a ``Content-Type``, in lower case and without parameters.

    JSON defines no parameters, ``charset`` included (RFC 8259, section 11): it is in UTF-8, and so are lines
    of JSON.
    """
    match = _MEDIA_TYPE.fullmatch(content_type)
    return b"" if match is None else match[1].lower()


def _reject_content_type(request: Request) -> NoReturn:
    raise UnsupportedContentType(request.fields.all(b"Content-Type"))


_UNSUPPORTED: Final = Variant(_reject_content_type, check_head=_reject_content_type)
