"""Produce requests: decode the body, publish its records, and encode their outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Final, NoReturn

import msgspec
from msgspec.structs import replace
from twisted.internet.defer import Deferred

from sampleapp import errors
from sampleapp.errors import (
    Fault,
    InvalidParameters,
    PartlyPublished,
    PartlyRejected,
    PublishError,
    SampleAppError,
    SchemaMismatch,
    UnknownPartition,
)
from sampleapp.interfaces import Outcome
from sampleapp.messages.lines import MOST_FAULTS, UncheckedContent
from sampleapp.messages.parsing import length_of
from sampleapp.messages.rest_proxy_bodies import EmbeddedFormat, Unserializable, read_records
from sampleapp.model import TOPIC_RULE, Record, RecordMetadata, is_legal_topic
from sampleapp.validation.validation import Validation
from sampleapp.web.access_control import AuthorizedTopic
from sampleapp.web.errors import (
    EnvelopeOfAnotherType,
    NotAcceptable,
    UnsupportedEmbeddedFormat,
    problem_response,
)
from sampleapp.web.failures import error_object_response
from sampleapp.web.publish.messages import RECORD_BYTES
from sampleapp.web.publish.publisher import Publisher, client_of, reject_key
from sampleapp.web.responses import Batch, Headers, Response, TopicTotal
from sampleapp.web.rest_proxy_documents import (
    RESPONSE,
    PartitionOffset,
    embedded_format,
    partition_number,
    response_type,
)
from sampleapp.web.routing import Variant
from sampleapp.web.server import Request

_UNSERIALIZABLE: Final = 40801
"""With status 422; REST Proxy has 408, after which many clients and proxies retry by themselves."""

# As in io.confluent.kafkarest.Errors, which has these codes for requests only, and none for records.
_RECORD_CODES: Final[tuple[tuple[type[PublishError], int], ...]] = (
    (errors.TopicNotAuthorized, 40301),
    (errors.UnknownTopic, 40401),
    (errors.UnknownPartition, 40402),
)
_KAFKA_ERROR: Final = 50002
_RETRIABLE_KAFKA_ERROR: Final = 50003

_BODY_FACTOR: Final = 4
"""The limit for a body, in limits for one message. It is decoded in one step."""
_SMALL: Final = 16 * 1024
"""A body up to this length, in bytes, need not wait for a slice."""
_COPIES: Final = 3
"""Copies of a body in memory: as received, without its white space, and as keys and values."""
_CHECKED_AT_ONCE: Final = 500
"""Records whose contents are checked before others have their turn."""
_OUTCOMES_AT_ONCE: Final = 2000
"""Outcomes that are encoded in one slice: about a millisecond."""


_encode: Final = msgspec.json.Encoder().encode


def _reject_format(request: Request, **_: object) -> NoReturn:
    raise UnsupportedEmbeddedFormat(request.fields.all(b"content-type"))


UNSUPPORTED_FORMAT: Final = Variant(_reject_format, check_head=_reject_format)
"""For bodies in a format of REST Proxy that the service does not read."""


def reject_envelope(request: Request) -> Response:
    """Reject a body that only REST Proxy's clients send, in the form that they read."""
    error = EnvelopeOfAnotherType(request.fields.all(b"content-type"))
    return error_object_response(problem_response(error), accept=request.fields.joined(b"accept"))


class ProduceRequests:
    """Serves produce requests."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        max_body = _BODY_FACTOR * publisher.limits.max_body
        self.to_topic: Final = Variant(self._produce, check_head=_check_head, max_body=max_body)
        """Serves a request with no partition in the path."""
        self._to_partition = Variant(
            self._produce_to_partition, check_head=_check_partition, max_body=max_body
        )

    def to_partition(self, request: Request) -> Variant:
        """Require one of the two formats of records that the service reads."""
        content_types = request.fields.all(b"content-type")
        if len(content_types) != 1 or embedded_format(content_types[0]) is None:
            return UNSUPPORTED_FORMAT
        return self._to_partition

    def _produce(self, request: Request, *, topic: AuthorizedTopic) -> Deferred[Response]:
        return Deferred.fromCoroutine(_produce(self._publisher, request, topic))

    def _produce_to_partition(
        self, request: Request, *, topic: AuthorizedTopic, partition: str
    ) -> Deferred[Response]:
        return Deferred.fromCoroutine(
            _produce(self._publisher, request, topic, partition=partition_number(partition))
        )


def _check_partition(request: Request, *, topic: str, partition: str) -> None:
    _check_head(request, topic=topic)
    partition_number(partition)


def _check_head(request: Request, *, topic: str) -> None:
    """
    Check the head of a produce request.

    :raise InvalidParameters: the name of the topic is not a legal one, or there is ``Idempotency-Key``.
    :raise NotAcceptable: the client accepts none of the media types of the response.
    """
    if not is_legal_topic(topic):
        raise InvalidParameters([Fault("/topic", f"The topic in the path must be {TOPIC_RULE}.")])
    reject_key(request)
    require_acceptable(request)


def require_acceptable(request: Request, **_: object) -> None:
    """:raise NotAcceptable: the client accepts none of the media types of the response."""
    if response_type(request.fields.joined(b"accept")) is None:
        raise NotAcceptable


async def _produce(
    publisher: Publisher, request: Request, topic: AuthorizedTopic, *, partition: int | None = None
) -> Response:
    """
    Publish the records of a request, after all of them are checked.

    :param partition: for the records that name none; the broker chooses by default.
    """
    accept = request.fields.joined(b"accept")
    # The variant was chosen by the format, so there is one.
    embedded = embedded_format(request.fields.all(b"content-type")[0]) or EmbeddedFormat.BINARY
    records: list[Record] = []
    partitions: set[int | None] = set()
    reservation, copies = request.reservation, _COPIES * len(request.body)
    try:
        if reservation is not None:
            reservation.resize(copies)
        slices = read_records(
            request.body,
            embedded,
            topic=topic,
            partition=partition,
            timestamp_ms=publisher.now_ms(),
            headers=publisher.headers_of(request),
        )
        is_large = len(request.body) > _SMALL
        if is_large:
            await publisher.slices.next()
        for some in slices:
            records += some
            if reservation is not None:
                reservation.resize(copies + RECORD_BYTES * len(records))
            partitions.update([record.partition for record in some])
            if is_large:
                await publisher.slices.next()
        await _check(publisher, request, topic, records, partitions)
        outcomes = await publisher.broker.publish_many(records)
    except Unserializable as error:
        response = _rejection(error, accept, rejected=_count_rejected(error), code=_UNSERIALIZABLE)
    except errors.InvalidMessage as error:
        response = _rejection(error, accept, rejected=_count_rejected(error))
    except SampleAppError as error:
        response = _rejection(error, accept, rejected=len(records))
    else:
        response = await _response(publisher, topic, records, outcomes, accept)
        await publisher.slices.free_gradually(outcomes)
    await publisher.slices.free_gradually(records)
    return response


async def _check_contents(
    publisher: Publisher,
    validation: Validation,
    request: Request,
    topic: AuthorizedTopic,
    records: Sequence[Record],
) -> None:
    """
    Check the contents of records, some at a time.

    :raise SchemaMismatch: some do not match the schema of the topic.
    :raise SampleAppError: as `Validation.mismatches`.
    """
    schemas, client = validation.current, client_of(request)
    if topic not in schemas.by_topic:
        return
    faults: list[Fault] = []
    for start in range(0, len(records), _CHECKED_AT_ONCE):
        if start:
            await publisher.slices.next()
        contents = [
            UncheckedContent(number, topic, record.value, f"/records/{number}/value")
            for number, record in enumerate(records[start : start + _CHECKED_AT_ONCE], start)
            if record.value is not None
        ]
        for _, error in await validation.mismatches(schemas, contents, client=client):
            # The errors of REST Proxy have no pointers.
            faults += [Fault(each.pointer, f"{each.pointer}: {each.detail}") for each in error.faults]
        if len(faults) >= MOST_FAULTS:
            break
    if faults:
        raise SchemaMismatch(faults[:MOST_FAULTS])


async def _check(
    publisher: Publisher,
    request: Request,
    topic: AuthorizedTopic,
    records: Sequence[Record],
    partitions: Iterable[int | None],
) -> None:
    """
    Check, before anything is published, the contents of records, and that the topic and the partitions exist.

    :param partitions: of the records; ``None`` for a record without one.
    :raise SampleAppError: as `_check_contents`, or a record cannot be published.
    """
    if publisher.validation is not None:
        await _check_contents(publisher, publisher.validation, request, topic, records)
    rejected = await publisher.broker.check_topics([topic])
    if topic in rejected:
        raise rejected[topic]
    named = {partition for partition in partitions if partition is not None}
    if not named:
        return
    known = [
        each.partition
        for description in await publisher.broker.describe_topics([topic])
        for each in description.partitions
    ]
    # A topic that its first record creates has no partitions yet.
    unknown = named.difference(known or [0])
    if unknown:
        raise UnknownPartition(
            f"The topic {topic} has no partition {min(unknown)}; it has {len(known) or 1}, from 0 on. "
            "Nothing was published."
        )


def _rejection(
    error: SampleAppError, accept: bytes | None, *, rejected: int, code: int | None = None
) -> Response:
    response = error_object_response(problem_response(error), accept=accept, code=code)
    return replace(response, batch=Batch(rejected=rejected))


def _count_rejected(error: errors.InvalidMessage) -> int:
    return len({fault.pointer.split("/")[2] for fault in error.faults if fault.pointer.count("/") > 1})


async def _response(
    publisher: Publisher,
    topic: str,
    records: Sequence[Record],
    outcomes: Sequence[Outcome],
    accept: bytes | None,
) -> Response:
    """Answer with the outcome of each record, and one status for the whole request."""
    parts = [b'{"offsets":[']
    failures: list[PublishError] = []
    stored_bytes = 0
    for start in range(0, len(outcomes), _OUTCOMES_AT_ONCE):
        if start:
            await publisher.slices.next()
        some = outcomes[start : start + _OUTCOMES_AT_ONCE]
        stored = records[start : start + len(some)]
        failed = [each for each in some if isinstance(each, PublishError)]
        if failed:
            failures += failed
            stored = [
                record
                for record, outcome in zip(stored, some, strict=True)
                if not isinstance(outcome, PublishError)
            ]
        parts.append(_encode([_offset_of(each) for each in some])[1:-1])
        parts.append(b",")
        stored_bytes += sum(map(length_of, stored))
    parts[-1] = b'],"key_schema_id":null,"value_schema_id":null}'
    count = len(records) - len(failures)
    status, headers, problem = _verdict(failures, is_any_stored=count > 0)
    return Response(
        status,
        ((b"Content-Type", response_type(accept) or RESPONSE), *headers),
        b"".join(parts) if len(outcomes) <= _OUTCOMES_AT_ONCE else tuple(parts),
        batch=Batch(
            published=(TopicTotal(topic, count, stored_bytes),) if count else (),
            records=count,
            rejected=len(failures),
        ),
        problem=problem,
    )


def _offset_of(outcome: Outcome) -> PartitionOffset:
    if isinstance(outcome, RecordMetadata):
        return PartitionOffset(outcome.partition, outcome.offset)
    own = next((code for kind, code in _RECORD_CODES if isinstance(outcome, kind)), None)
    general = _RETRIABLE_KAFKA_ERROR if outcome.retriable else _KAFKA_ERROR
    return PartitionOffset(None, None, general if own is None else own, str(outcome))


def _verdict(failures: Sequence[PublishError], *, is_any_stored: bool) -> tuple[HTTPStatus, Headers, str]:
    """
    Return the status, the header fields and the kind of problem of a response.

    :param failures: of all records, in order.
    """
    if not failures:
        return HTTPStatus.OK, (), ""
    error: SampleAppError
    if is_any_stored:
        is_retry_useful = any(each.retriable or each.possibly_published for each in failures)
        error = (PartlyPublished if is_retry_useful else PartlyRejected)()
    else:
        # A failure after which a record may be published takes precedence over certain failures.
        error = next((each for each in failures if each.possibly_published), failures[0])
    response = problem_response(error)
    headers = tuple([field for field in response.headers if field[0] != b"Content-Type"])
    return response.status, headers, response.problem
