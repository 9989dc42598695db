"""Produce requests: from a body to records, and from what became of those to an answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final, NoReturn

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace
from twisted.internet.defer import Deferred

from sampleapp import errors
from sampleapp.errors import (
    Fault,
    InvalidParameters,
    PartlyPublished,
    PartlyRefused,
    PublishError,
    SampleAppError,
    UnknownPartition,
)
from sampleapp.interfaces import Outcome
from sampleapp.messages import TOPIC_RULE, is_legal_topic
from sampleapp.model import Record, RecordMetadata
from sampleapp.records import length_of
from sampleapp.rest_proxy import (
    ANSWER,
    EmbeddedFormat,
    Unserializable,
    answer_type,
    embedded_format,
    read_records,
    request_type,
)
from sampleapp.web.answers import Answer, Batch, Headers, TopicTotal
from sampleapp.web.descriptions import TRACEPARENT, TRACESTATE, Content
from sampleapp.web.error_objects import ErrorObject, error_object_answer
from sampleapp.web.gate import require_topic
from sampleapp.web.problems import problem_answer
from sampleapp.web.publishing import REFUSALS_OF_BROKERS, Publisher, trace_of
from sampleapp.web.request_errors import NotAcceptable, UnsupportedEmbeddedFormat
from sampleapp.web.server import Request

__all__ = [
    "PRODUCED",
    "PRODUCE_BODIES",
    "PRODUCE_PARAMETERS",
    "PRODUCE_REFUSALS",
    "admit",
    "max_body",
    "publish",
    "refuse_format",
]

_UNSERIALIZABLE: Final = 40801
"""REST Proxy gives it status 408, after which many clients and proxies send the same again by themselves."""

# As in io.confluent.kafkarest.Errors; those of a request stand for a record where there are no others.
_RECORD_CODES: Final[tuple[tuple[type[PublishError], int], ...]] = (
    (errors.TopicNotAuthorized, 40301),
    (errors.UnknownTopic, 40401),
    (errors.UnknownPartition, 40402),
)
_KAFKA_ERROR: Final = 50002
_RETRIABLE_KAFKA_ERROR: Final = 50003

_ROOM_OF_JSON: Final = 2
"""How many times as long as a message a record may be: base64 takes a third more, and so do escapes."""
_OUTCOMES_AT_ONCE: Final = 2000
"""Their part of an answer is written in about a millisecond."""


class PartitionOffset(Struct, gc=False):
    """What became of one record: where it is, or why it is not known to be anywhere."""

    partition: int | None
    offset: int | None
    error_code: int | None = None
    error: str | None = None


class ProduceAnswer(Struct):
    """What became of each record, in order."""

    offsets: list[PartitionOffset]
    key_schema_id: Annotated[None, Meta(description="Always null: there are no schemas.")] = None
    value_schema_id: Annotated[None, Meta(description="Always null: there are no schemas.")] = None


_Partition = Annotated[int, Meta(description="Where it is to go.", ge=0, le=2**31 - 1)]
_Base64 = Annotated[
    str,
    Meta(
        description="Bytes in base64, with or without padding (RFC 4648, section 4).",
        pattern="^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2,3})?=*$",
        extra_json_schema={"contentEncoding": "base64"},
    ),
]


class JSONRecord(Struct, forbid_unknown_fields=True):
    """A record whose key and value are JSON; what is null is not there."""

    key: Annotated[Any, Meta(description="The record's key is its compact JSON text.")] = None
    value: Annotated[Any, Meta(description="The record's value is its compact JSON text.")] = None
    partition: _Partition | None = None


class BinaryRecord(Struct, forbid_unknown_fields=True):
    """A record whose key and value are any bytes; what is null is not there."""

    key: _Base64 | None = None
    value: _Base64 | None = None
    partition: _Partition | None = None


class JSONProduceRequest(Struct, forbid_unknown_fields=True):
    """Records whose keys and values are JSON."""

    records: Annotated[list[JSONRecord], Meta(min_length=1)]


class BinaryProduceRequest(Struct, forbid_unknown_fields=True):
    """Records whose keys and values are any bytes, in base64."""

    records: Annotated[list[BinaryRecord], Meta(min_length=1)]


_encode = msgspec.json.Encoder().encode

PRODUCE_BODIES: Final = (
    Content(
        media_type=request_type(EmbeddedFormat.JSON),
        kind=JSONProduceRequest,
        summary="Records of JSON, as for REST Proxy",
        example={
            "records": [{"key": "kitchen", "value": {"celsius": 21.5}}, {"value": None, "partition": 0}]
        },
    ),
    Content(
        media_type=request_type(EmbeddedFormat.BINARY),
        kind=BinaryProduceRequest,
        summary="Records of any bytes, as for REST Proxy",
        example={"records": [{"key": "a2l0Y2hlbg==", "value": "MjEuNQ=="}]},
    ),
)
PRODUCED: Final = Content(
    media_type=ANSWER.decode("ascii"),
    kind=ProduceAnswer,
    summary="Where the records are, as REST Proxy says it",
    example={
        "offsets": [{"partition": 0, "offset": 42, "error_code": None, "error": None}],
        "key_schema_id": None,
        "value_schema_id": None,
    },
)
PRODUCE_PARAMETERS: Final = (TRACEPARENT, TRACESTATE)
PRODUCE_ERRORS: Final = (ErrorObject, ProduceAnswer)
"""What refusals of records may be."""
PRODUCE_REFUSALS: Final = (
    InvalidParameters,
    NotAcceptable,
    UnsupportedEmbeddedFormat,
    errors.MalformedMessage,
    errors.InvalidMessage,
    *REFUSALS_OF_BROKERS,
)


def max_body(publisher: Publisher, request: Request) -> int | None:
    """Return how long the body of a request may be; ``None`` if it is no produce request."""
    content_types = request.fields.all(b"content-type")
    if len(content_types) != 1 or embedded_format(content_types[0]) is None:
        return None
    return publisher.limits.max_batch_body


def refuse_format(request: Request, topic: str) -> NoReturn:  # noqa: ARG001 -- that of every form
    """:raise UnsupportedEmbeddedFormat: the media type is one of REST Proxy that is not here."""
    raise UnsupportedEmbeddedFormat(request.fields.all(b"content-type"))


def admit(request: Request, topic: str) -> None:
    """
    Look at a produce request before its body is taken.

    :raise InvalidParameters: there can be no such topic.
    :raise NotGranted: its caller may not publish to it.
    :raise NotAcceptable: who sends it would not understand the answer.
    """
    if not is_legal_topic(topic):
        raise InvalidParameters([Fault("/topic", f"The topic in the path has to be {TOPIC_RULE}.")])
    require_topic(request, topic)
    if answer_type(request.fields.joined(b"accept")) is None:
        raise NotAcceptable


def publish(
    publisher: Publisher,
    request: Request,
    topic: str,
    *,
    partition: int | None = None,
) -> Deferred[Answer]:
    """
    Publish the records of a request that was admitted, all of which are checked first.

    :param partition: where those records go that name none.
    """
    return Deferred.fromCoroutine(_publish(publisher, request, topic, partition))


async def _publish(publisher: Publisher, request: Request, topic: str, partition: int | None) -> Answer:
    accept = request.fields.joined(b"accept")
    # What is not the one is the other: both were looked at before.
    embedded = embedded_format(request.fields.all(b"content-type")[0]) or EmbeddedFormat.BINARY
    records: list[Record] = []
    partitions: set[int | None] = set()
    try:
        slices = read_records(
            request.body,
            embedded,
            topic=topic,
            partition=partition,
            timestamp_ms=publisher.now_ms(),
            headers=trace_of(request),
            max_record=_ROOM_OF_JSON * publisher.limits.max_body,
        )
        for number, some in enumerate(slices):
            if number:
                await publisher.turns.next()
            records += some
            partitions.update([record.partition for record in some])
        await _check(publisher, topic, partitions)
        outcomes = await publisher.broker.publish_many(records)
    except Unserializable as error:
        answer = _refusal(error, accept, refused=_count_refused(error), code=_UNSERIALIZABLE)
    except errors.InvalidMessage as error:
        answer = _refusal(error, accept, refused=_count_refused(error))
    except SampleAppError as error:
        answer = _refusal(error, accept, refused=len(records))
    else:
        answer = await _answer(publisher, topic, records, outcomes, accept)
        publisher.turns.let_go(outcomes)
    publisher.turns.let_go(records)
    return answer


async def _check(publisher: Publisher, topic: str, partitions: Iterable[int | None]) -> None:
    """
    See that every record can be published, as far as that is known before.

    :param partitions: that are named.
    :raise PublishError: one cannot.
    """
    refused = await publisher.broker.check_topics([topic])
    if topic in refused:
        raise refused[topic]
    named = {partition for partition in partitions if partition is not None}
    if not named:
        return
    known = [
        each.partition
        for description in await publisher.broker.describe_topics([topic])
        for each in description.partitions
    ]
    # One that comes into being with its first record is not there yet.
    unknown = named.difference(known or [0])
    if unknown:
        raise UnknownPartition(
            f"The topic {topic} has no partition {min(unknown)}; it has {len(known) or 1}, from 0 on. "
            "Nothing was published."
        )


def _refusal(error: SampleAppError, accept: bytes | None, *, refused: int, code: int | None = None) -> Answer:
    answer = error_object_answer(problem_answer(error), accept=accept, code=code)
    return replace(answer, batch=Batch(refused=refused))


def _count_refused(error: errors.InvalidMessage) -> int:
    return len({fault.pointer.split("/")[2] for fault in error.faults if fault.pointer.count("/") > 1})


async def _answer(
    publisher: Publisher,
    topic: str,
    records: Sequence[Record],
    outcomes: Sequence[Outcome],
    accept: bytes | None,
) -> Answer:
    """Tell what became of each record, with a status that is true for all of them."""
    pieces = [b'{"offsets":[']
    failures: list[PublishError] = []
    stored_bytes = 0
    for start in range(0, len(outcomes), _OUTCOMES_AT_ONCE):
        if start:
            await publisher.turns.next()
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
        pieces.append(_encode([_offset_of(each) for each in some])[1:-1])
        pieces.append(b",")
        stored_bytes += sum(map(length_of, stored))
    pieces[-1] = b'],"key_schema_id":null,"value_schema_id":null}'
    count = len(records) - len(failures)
    status, headers, problem = _verdict(failures, is_any_stored=count > 0)
    return Answer(
        status,
        ((b"Content-Type", answer_type(accept) or ANSWER), *headers),
        b"".join(pieces) if len(outcomes) <= _OUTCOMES_AT_ONCE else tuple(pieces),
        batch=Batch(
            published=(TopicTotal(topic, count, stored_bytes),) if count else (),
            records=count,
            refused=len(failures),
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
    Find the status, the header fields and the kind of problem of an answer.

    :param failures: those of all records, in order.
    """
    if not failures:
        return HTTPStatus.OK, (), ""
    error: SampleAppError
    if is_any_stored:
        may_be_better = any(each.retriable or each.possibly_published for each in failures)
        error = (PartlyPublished if may_be_better else PartlyRefused)()
    else:
        # That a record may be published is worse to miss than that another one is not.
        error = next((each for each in failures if each.possibly_published), failures[0])
    answer = problem_answer(error)
    headers = tuple([field for field in answer.headers if field[0] != b"Content-Type"])
    return answer.status, headers, answer.problem
