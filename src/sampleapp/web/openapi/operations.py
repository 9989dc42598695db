"""OpenAPI descriptions of the routes for callers and operators, those of REST Proxy's API v2 last."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Final

from msgspec import Meta
from msgspec.structs import replace

from sampleapp import access, errors
from sampleapp.messages.rest_proxy_bodies import EmbeddedFormat
from sampleapp.messages.work_bodies import (
    AckRequest,
    Backlog,
    ExtendRequest,
    LeasedMessages,
    NewLease,
    PullRequest,
)
from sampleapp.model import (
    MEDIA_TYPES,
    TOPIC_PATTERN,
    TOPIC_RULE,
    Acknowledged,
    Message,
    Reading,
    RecordMetadata,
)
from sampleapp.records import positions
from sampleapp.records.event_stream import MEDIA_TYPE
from sampleapp.records.read_parameters import DEFAULT_LIMIT, LONGEST_WAIT_S, MOST_HEADER_FILTERS, MOST_RECORDS
from sampleapp.web import errors as request_errors
from sampleapp.web.descriptions import (
    CACHE_CONTROL,
    IF_NONE_MATCH,
    NOT_STORED,
    VARY,
    Content,
    Description,
    Field,
    Success,
    in_header,
    in_path,
    in_query,
    with_entity_tag,
)
from sampleapp.web.errors import BROKER_REJECTIONS, IDEMPOTENCY_REJECTIONS, NotReady, PathNotFound
from sampleapp.web.openapi.pages import GUARDS
from sampleapp.web.probes import Live, Ready
from sampleapp.web.rest_proxy_documents import (
    PLAIN,
    PUBLISHED,
    RESPONSE,
    BinaryProduceRequest,
    ErrorObject,
    JSONProduceRequest,
    Partition,
    ProduceResponse,
    Topic,
    request_type,
)

_TEXT: Final = {"type": "string"}


def _json(meaning: str, kind: object, example: object) -> Success:
    content = Content("application/json", kind, example=example)
    return Success(meaning, contents=(content,), fields=(NOT_STORED,))


LIVE: Final = Description(
    tag="Operations",
    summary="Liveness probe",
    successes=(_json("The process answers.", Live, {"live": True}),),
)
READY: Final = Description(
    tag="Operations",
    summary="Readiness probe",
    text="Answers at once from the known state, without a request to the broker.",
    successes=(
        _json(
            "Publishing should succeed, all readings were read, and the service is not stopping.",
            Ready,
            {"ready": True},
        ),
    ),
    rejections=(NotReady,),
)

METRICS: Final = Description(
    tag="Operations",
    summary="Metrics for Prometheus",
    text="Counters begin at 0 when the service starts. In OpenMetrics if `Accept` names it, otherwise "
    "in the text format of Prometheus.",
    successes=(
        Success(
            "All metrics, with their current values.",
            contents=(Content("text/plain", _TEXT), Content("application/openmetrics-text", _TEXT)),
            fields=(NOT_STORED, VARY),
        ),
    ),
)

_GUARD_FIELDS: Final = tuple(
    Field(name.decode("ascii"), "Protects the page from other sites.", value.decode("ascii"))
    for name, value in GUARDS
)

OPENAPI: Final = Description(
    tag="Documentation",
    summary="This OpenAPI document",
    parameters=(IF_NONE_MATCH,),
    successes=with_entity_tag(
        "An OpenAPI document, version 3.1.",
        (
            Content(
                "application/json",
                {
                    "type": "object",
                    "required": ["openapi", "info", "paths"],
                    "properties": {"openapi": {"type": "string", "pattern": "^3\\.1\\."}},
                },
            ),
        ),
    ),
)

DOCS: Final = Description(
    tag="Documentation",
    summary="The documentation as a page",
    text="A page for a browser, with a form to send a message. All of its files are from this service.",
    parameters=(IF_NONE_MATCH,),
    successes=with_entity_tag("The page.", (Content("text/html", _TEXT),), *_GUARD_FIELDS),
)

SHOWN_READINGS: Final = replace(
    DOCS,
    summary="The readings as a page",
    text="A page for a browser that shows the readings as they change, each with a line of its last values. "
    "It uses `GET /changes`.",
)

FILE: Final = Description(
    tag="Documentation",
    summary="The files of the page",
    parameters=(in_path("file", "A file name in the page. It changes with the content."), IF_NONE_MATCH),
    successes=with_entity_tag(
        "The file. Its content never changes under this name.",
        tuple(Content(each, _TEXT) for each in ("text/javascript", "text/css", "image/svg+xml")),
        *_GUARD_FIELDS,
    ),
    rejections=(PathNotFound,),
)


IDEMPOTENCY_KEY: Final = in_header(
    "Idempotency-Key",
    "Publishes the record unless a request with the same key has: then the response has the first record's "
    "partition and offset. One key of 1 to 255 visible ASCII characters, or an RFC 9651 string. It belongs "
    "to the caller and the topic.",
    {"type": "string", "pattern": r'^([!#-~][!-~]{0,254}|"([ !#-\[\]-~]|\\["\\]){1,255}")$'},
)
_TRACE: Final = (
    in_header(
        "traceparent",
        "The trace of the request (W3C Trace Context). If valid, it becomes a header of the record.",
    ),
    in_header(
        "tracestate",
        "More about the trace in `traceparent`. If both are valid, it becomes a header of the record.",
    ),
)
_OF_ONE_RECORD: Final = (IDEMPOTENCY_KEY, *_TRACE)
_TOPIC: Final = in_path(
    "topic",
    f"The topic: {TOPIC_RULE}.",
    {"type": "string", "pattern": rf"^(?!\.{{1,2}}$){TOPIC_PATTERN}$", "maxLength": 249},
)
_NO_BUFFERING: Final = Field("X-Accel-Buffering", "Tells nginx to pass on each event at once.", "no")
_ANY_BYTES: Final = {"contentMediaType": "application/octet-stream"}
_SCHEMA_REJECTIONS: Final = (
    errors.SchemaMismatch,
    errors.SchemaTooExpensive,
    errors.SchemaChecksFull,
    errors.SchemaChecksUnavailable,
)
_REJECTIONS: Final[tuple[type[errors.SampleAppError], ...]] = (
    errors.InvalidParameters,
    *BROKER_REJECTIONS,
    *IDEMPOTENCY_REJECTIONS,
)
"""The errors of every request that publishes one record."""

READINGS: Final = Description(
    tag="Readings",
    summary="The latest value of each key",
    text=(
        "`Accept` chooses between two versions of the collection. Without `Accept`, the response is version "
        "1. Both versions list the same readings in the same order."
    ),
    parameters=(
        IF_NONE_MATCH,
        in_header(
            "If-Match",
            "The entity tags that you accept, or `*`: if none of them is current, the response is 412.",
        ),
    ),
    successes=with_entity_tag(
        "All readings, in the version that `Accept` names; otherwise in version 1.",
        (
            Content(MEDIA_TYPES[1], list[float], "Version 1: the values", [21.5, 19.0]),
            Content(
                MEDIA_TYPES[2],
                list[Reading],
                "Version 2: each value with its id",
                [{"id": "kitchen", "value": 21.5}, {"id": "hall", "value": 19.0}],
            ),
        ),
        VARY,
    ),
    rejections=(errors.InvalidParameters, request_errors.PreconditionFailed, errors.ReadingsNotReady),
)

CHANGES: Final = Description(
    tag="Readings",
    summary="The readings as they change",
    text=(
        "An event stream, for `EventSource` and others. The first event, `readings`, has all readings, as "
        "version 2 lists them. Then `reading` has the id and the value of a reading that is new or has "
        "changed, and `removed` has the id of a reading that was removed. The id of an event is the "
        "entity tag of version 2 after it, without quotation marks; it is empty if more changes of the "
        "same moment follow. `readings` may come again: replace your copy then. A stream ends after about "
        "ten minutes, and when the service stops: come back with `Last-Event-ID`. If too many streams "
        "are open, or readings are not ready, a browser gets 200 and the event `unavailable`, whose data is "
        "the problem document: after 429 and 503, `EventSource` would not come back."
    ),
    parameters=(
        in_header(
            "Last-Event-ID",
            "The id of the last event that you have. If the readings are still the same, the first "
            "event is left out.",
        ),
        in_query("last_event_id", "The same as `Last-Event-ID`, for clients that cannot send header fields."),
    ),
    successes=(
        Success(
            "The stream.",
            contents=(
                Content(
                    MEDIA_TYPE,
                    {"type": "string"},
                    "All readings, then a change",
                    "retry: 2417\n\n"
                    "id: 1f0c5f4ce6a4c6f3a4f1b2d0\nevent: readings\n"
                    'data: [{"id":"kitchen","value":21.5}]\n\n'
                    "id: 9d0a1cc8d8f4be2f6f0d8a11\nevent: reading\n"
                    'data: {"id":"kitchen","value":21.6}\n\n',
                ),
            ),
            fields=(CACHE_CONTROL, _NO_BUFFERING),
        ),
    ),
    rejections=(errors.InvalidParameters, errors.ReadingsNotReady, request_errors.TooManyStreams),
)

_STORED: Final = Success(
    "The record is stored at this partition and offset.",
    contents=(
        Content(
            "application/json",
            RecordMetadata,
            "The partition and the offset of the record",
            {"topic": "readings", "partition": 0, "offset": 42},
        ),
    ),
    optional_fields=(
        Field(
            "Idempotent-Replayed",
            "`true` if nothing new was published: an earlier request with this Idempotency-Key has done it.",
            "true",
        ),
    ),
)


def _lines(media_type: str, summary: str, description: str, *examples: str) -> Content:
    """Describe JSON values, one on each line."""
    return Content(
        media_type,
        {"type": "string", "description": description},
        summary,
        "".join(f"{line}\n" for line in examples),
    )


_STORED_LINES: Final = _lines(
    "application/x-ndjson",
    "The partitions and the offsets of the records",
    "The partition and the offset of each record, one on each line.",
    '{"topic":"readings","partition":0,"offset":42}',
    '{"topic":"readings","partition":2,"offset":7}',
)

_MESSAGE: Final = {
    # Not "oneOf", of which generators of clients make several types.
    "if": {"required": ["content_base64"]},
    "then": {"not": {"required": ["content"]}},
    "else": {"required": ["content"]},
    "not": {
        "required": ["key", "key_base64"],
        "properties": {"key": {"type": "string"}, "key_base64": {"type": "string"}},
    },
    # Generators of clients do not know prefixItems, nor that nothing follows, which msgspec writes as false.
    "properties": {
        "headers_base64": {"items": {"items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
    },
}
"""A message has one of the two contents, and at most one of the two keys."""

PUBLISH: Final = Description(
    tag="Messages",
    summary="Publish one message, or many",
    text=(
        "Publishes exactly one record for each message, and answers after the broker has acknowledged all of "
        "them. Bytes that are not text: `content_base64` and `key_base64`, instead of `content` and `key`. "
        "Many messages have one line each: all of them are checked before any is published. After 503, "
        "nothing was published. After 504, the outcome is unknown; for many messages, `results` has the "
        "outcome of each."
    ),
    parameters=_OF_ONE_RECORD,
    bodies=(
        Content(
            "application/json",
            Message,
            "One message",
            {"topic": "readings", "key": "kitchen", "content": "21.5"},
            _MESSAGE,
        ),
        *(
            _lines(
                media_type,
                "Many messages",
                "Messages, one on each line.",
                '{"topic":"readings","key":"kitchen","content":"21.5"}',
                '{"topic":"readings","key":"hall","content":"19"}',
            )
            for media_type in ("application/x-ndjson", "application/jsonl")
        ),
    ),
    successes=(
        replace(
            _STORED,
            meaning=(
                "The record is stored at this partition and offset. For many messages: one line for each "
                "record, in the same order."
            ),
            contents=(*_STORED.contents, _STORED_LINES),
        ),
    ),
    rejections=(
        request_errors.UnsupportedContentType,
        errors.MalformedMessage,
        errors.InvalidMessage,
        *_SCHEMA_REJECTIONS,
        errors.PartlyPublished,
        errors.PartlyRejected,
        *_REJECTIONS,
    ),
)

_PRODUCE_BODIES: Final = (
    Content(
        request_type(EmbeddedFormat.JSON),
        JSONProduceRequest,
        "Records of JSON, as for REST Proxy",
        {"records": [{"key": "kitchen", "value": {"celsius": 21.5}}, {"value": None, "partition": 0}]},
    ),
    Content(
        request_type(EmbeddedFormat.BINARY),
        BinaryProduceRequest,
        "Records of any bytes, as for REST Proxy",
        {"records": [{"key": "a2l0Y2hlbg==", "value": "MjEuNQ=="}]},
    ),
)
_PRODUCED: Final = Content(
    RESPONSE.decode("ascii"),
    ProduceResponse,
    "The outcome of each record, as REST Proxy answers it",
    {
        "offsets": [{"partition": 0, "offset": 42, "error_code": None, "error": None}],
        "key_schema_id": None,
        "value_schema_id": None,
    },
)
_PRODUCE_ERRORS: Final = (ErrorObject, ProduceResponse)
"""The forms of responses that are not successes."""
_PRODUCE_REJECTIONS: Final = (
    errors.InvalidParameters,
    request_errors.NotAcceptable,
    request_errors.UnsupportedEmbeddedFormat,
    errors.MalformedMessage,
    errors.InvalidMessage,
    *_SCHEMA_REJECTIONS,
    *BROKER_REJECTIONS,
)

_NOT_EMPTY: Final = {"type": "string", "minLength": 1}
_EVENT: Final = {
    "type": "object",
    "description": "A CloudEvent of version 1.0 in the JSON format.",
    "required": ["specversion", "id", "source", "type"],
    "properties": {
        "specversion": {"const": "1.0"},
        "id": _NOT_EMPTY,
        "source": _NOT_EMPTY,
        "type": _NOT_EMPTY,
        "partitionkey": {**_NOT_EMPTY, "description": "The record's key, unless the query has one."},
    },
}

PUBLISH_TO_TOPIC: Final = Description(
    tag="Messages",
    summary="Publish any bytes",
    text=(
        "Publishes exactly one record whose value is the body, byte for byte. An empty body is an empty "
        "value. Answers after the broker has acknowledged the record. After 503, nothing was published. "
        "After 504, the outcome is unknown.\n\n"
        "`Content-Type` becomes the header `content-type` of the record, and so do other headers that the "
        "operator has chosen, under their names in lower case.\n\n"
        "A CloudEvent in binary mode (with `ce-…` fields) also gets its attributes as headers of the record, "
        "`ce_…`. The `partitionkey` of an event is the key, unless the query has one. A batch of CloudEvents "
        "is like many messages sent to `/messages`: all events are checked before any is published, and the "
        "answer has a line for each.\n\n"
        "With the two media types of REST Proxy's API v2, the body contains records. All of them are checked "
        "before any is published. If only some of them are published, the status is 504, or 422 if the "
        "others were rejected permanently; `offsets` has the outcome of each."
    ),
    takes_recorded_parameters=True,
    parameters=(
        _TOPIC,
        in_query(
            "key",
            "The record's key: any bytes, form-encoded (`+` is a space). Without this parameter the "
            "record has no key. `key=` is the empty key.",
        ),
        in_query(
            "envelope",
            "With `value`, a JSON object with `records`, as clients of REST Proxy send it, is the value. "
            "Without this parameter it is rejected, unless it has one of REST Proxy's media types.",
            {"type": "string", "enum": ["value"]},
        ),
        *_OF_ONE_RECORD,
    ),
    bodies=(
        # Generators of clients leave out a body of any type, so one has a name. The format says it is bytes.
        Content("application/octet-stream", {"type": "string", "format": "binary"}, "Any bytes"),
        Content("*/*", _ANY_BYTES, "Any bytes, with another media type or without one"),
        Content(
            "application/cloudevents+json",
            _EVENT,
            "A CloudEvent in structured mode",
            {
                "specversion": "1.0",
                "id": "17",
                "source": "/shop",
                "type": "order.paid",
                "partitionkey": "17",
                "data": {"order": 17},
            },
        ),
        Content(
            "application/cloudevents-batch+json",
            # Not "items": a generator of clients would make a program that fails for each body of this path.
            {"type": "array", "unevaluatedItems": _EVENT, "minItems": 1},
            "CloudEvents, each of which becomes a record",
            [
                {"specversion": "1.0", "id": "17", "source": "/shop", "type": "order.paid"},
                {"specversion": "1.0", "id": "18", "source": "/shop", "type": "order.sent"},
            ],
        ),
        *_PRODUCE_BODIES,
    ),
    needs_body=False,
    successes=(
        replace(_STORED, contents=(replace(_STORED.contents[0], kind=PUBLISHED), _STORED_LINES, _PRODUCED)),
    ),
    rejections=(
        request_errors.SeveralContentTypes,
        request_errors.EnvelopeOfAnotherType,
        request_errors.UnsupportedEventFormat,
        errors.PartlyPublished,
        errors.PartlyRejected,
        *_PRODUCE_REJECTIONS,
        *IDEMPOTENCY_REJECTIONS,
    ),
    error_objects=_PRODUCE_ERRORS,
)

DELETE_KEY: Final = Description(
    tag="Messages",
    summary="Publish a tombstone",
    text=(
        "Publishes exactly one record with this key and a null value. It removes the reading of the key. In "
        "a topic that Kafka compacts, it also removes the key's earlier records. A body is rejected."
    ),
    parameters=(
        _TOPIC,
        in_query(
            "key", "The key: any bytes, form-encoded (`+` is a space). It may be empty.", is_required=True
        ),
        *_OF_ONE_RECORD,
    ),
    successes=(_STORED,),
    rejections=_REJECTIONS,
)

RECEIVE_HOOK: Final = Description(
    tag="Messages",
    summary="Receive a signed webhook",
    text=(
        "Publishes exactly one record whose value is the body, byte for byte, to the topic of the hook. The "
        "sender proves who it is with a signature in a header, and needs no other credentials: "
        "`X-Hub-Signature-256` (GitHub), `Stripe-Signature`, `X-Slack-Signature`, `webhook-signature` or "
        "`svix-signature` (Standard Webhooks), or the header that the operator has chosen. The signature is "
        "verified before the body is decoded. Without a valid one, and for a name that no hook has, the "
        "answer is 401.\n\n"
        "To Slack, the response has no body; its `url_verification` is answered with the challenge, and not "
        "published. After 503, nothing was published. After 504, the outcome is unknown."
    ),
    takes_recorded_parameters=True,
    parameters=(in_path("hook", "The name of the hook, from the callers file."), *_OF_ONE_RECORD),
    bodies=(Content("*/*", _ANY_BYTES, "Any bytes, with or without a media type"),),
    needs_body=False,
    successes=(
        replace(
            _STORED,
            meaning="The record is stored at this partition and offset. For Slack, the body is empty.",
        ),
    ),
    rejections=(
        access.InvalidSignature,
        access.RateExceeded,
        request_errors.BodyMemoryOfCallerFull,
        errors.SchemaChecksOfCallerFull,
        *_SCHEMA_REJECTIONS,
        *_REJECTIONS,
    ),
)

CHECK_HOOK: Final = Description(
    tag="Messages",
    summary="Check the URL of a webhook",
    text=(
        "Publishes nothing. `?ssl_check=1`, with which Slack checks the certificate, is answered with 200 "
        "for any name. Other requests are answered with 401, as `POST` without a valid signature, or with "
        "405."
    ),
    parameters=(
        in_path("hook", "The name of the hook, from the callers file."),
        in_query("ssl_check", "`1` if only the certificate is checked."),
    ),
    successes=(
        Success(
            "The URL can be reached.",
            contents=(Content("text/plain", {"type": "string", "maxLength": 0}, "Nothing"),),
            fields=(NOT_STORED,),
        ),
    ),
    rejections=(access.InvalidSignature, access.RateExceeded, request_errors.MethodNotAllowed),
)

_POSITION: Final = Field("Position", "The position after this page, for `from`.", "pVqT3f8WQb6~42.0.7")
_NEXT: Final = Field(
    "Link",
    'The next page, as a relative reference with `rel="next"` (RFC 8288).',
    '<?from=pVqT3f8WQb6~42.0.7&limit=100>; rel="next"',
)
_UP_TO_DATE: Final = Field("Up-To-Date", "`true` if there were no more committed records.", "true")

_RECORD_LINES: Final = _lines(
    "application/x-ndjson",
    "A page of records",
    "Records, one on each line.",
    '{"topic":"readings","partition":0,"offset":42,"timestamp":1700000000000,"key":"kitchen",'
    '"content":"21.5","headers":{}}',
)

_RECORD_EVENTS: Final = Content(
    MEDIA_TYPE,
    {"type": "string", "description": "Server-sent events; the data of each is a record."},
    "A stream of records",
    "retry: 2417\n\n"
    "id: pVqT3f8WQb6~42e3\n\n"
    "id: pVqT3f8WQb6~43e3\n"
    'data: {"topic":"readings","partition":0,"offset":42,"timestamp":1700000000000,"key":"kitchen",'
    '"content":"21.5","headers":{}}\n\n',
)

READ_RECORDS: Final = Description(
    tag="Topics",
    summary="Read the records of a topic",
    text=(
        "Returns a page of records, one on each line, with `Position`: where the next page begins. If "
        "`Accept` names `text/event-stream`, and prefers nothing else, the response is a stream of events, "
        "each with the position after it as its id. Nothing is kept in the service, so any instance can "
        "answer the next request. Only committed records are read. The records of each partition are in the "
        "order of their offsets.\n\n"
        "A stream ends after about ten minutes, and when the service stops: come back with `Last-Event-ID`. "
        "If records are gone then, the event `gap` says which; if the topic was made again, or its log was "
        "cut before the position, the event is `reset`. If too many streams are open, the topic does not "
        "exist yet, or the broker cannot be reached, a browser gets 200 and the event `unavailable`, whose "
        "data is the problem document: after another status, `EventSource` would not come back.\n\n"
        "A record without a key has no `key`; `content` is null in a tombstone. A key or a content that is "
        "not UTF-8 is `key_base64` or `content_base64`. `headers` has the headers that come once and are "
        "UTF-8; the others are beside it in `headers_base64`, a list of `[name, base64 or null]`."
    ),
    parameters=(
        _TOPIC,
        in_query(
            "from",
            "The start: `earliest`, `latest`, `-N` (the last N records of each partition), `offset:N` "
            "(in each partition), a time (RFC 3339 with an offset, or milliseconds since the epoch in at "
            "least 12 digits), or a position from an earlier response. Default: `earliest`, and `latest` "
            "for a stream.",
        ),
        in_query(
            "partition",
            "The partitions to read, such as `3` or `0,4-7`. Default: all.",
            {"type": "string", "pattern": "^[0-9]{1,10}(-[0-9]{1,10})?(,[0-9]{1,10}(-[0-9]{1,10})?)*$"},
        ),
        in_query("key", "Return only records with this key: any bytes, form-encoded (`+` is a space)."),
        in_query(
            "key_hex",
            "The same as `key`, as hexadecimal digits. Only one of both may be given.",
            {"type": "string", "pattern": "^([0-9A-Fa-f]{2})*$"},
        ),
        in_query(
            "header",
            "Return only records with this header, as `NAME:VALUE`: any bytes, form-encoded. "
            "May be there several times, for records that have all of them.",
            {
                "type": "array",
                "items": {"type": "string", "pattern": "^[^:]*:"},
                "maxItems": MOST_HEADER_FILTERS,
            },
        ),
        in_query(
            "limit",
            f"Of a page: the most records. Default: {DEFAULT_LIMIT}.",
            Annotated[int, Meta(ge=1, le=MOST_RECORDS)],
        ),
        in_query(
            "wait",
            "Of a page: the seconds to wait for a record if there is none. Default: 0.",
            Annotated[int, Meta(ge=0, le=LONGEST_WAIT_S)],
        ),
        in_query(
            "last_event_id",
            "Of a stream: the same as `Last-Event-ID`, for clients that cannot send header fields, or a "
            "value of `from`. "
            "`lastEventId`, which polyfills of `EventSource` append, means the same, and wins over it.",
        ),
        in_header(
            "Last-Event-ID",
            "Of a stream: the id of the last event that you have. It takes precedence over "
            "`last_event_id`, and both over `from`.",
        ),
    ),
    successes=(
        Success(
            "A page with at least one record, or a stream.",
            contents=(_RECORD_LINES, _RECORD_EVENTS),
            fields=(VARY, CACHE_CONTROL),
            optional_fields=(_POSITION, _NEXT, _UP_TO_DATE, _NO_BUFFERING),
        ),
        Success(
            "No record. Continue at `Position`; with a key, it has moved if the search is not over.",
            status=HTTPStatus.NO_CONTENT,
            fields=(_POSITION, _NEXT, VARY, CACHE_CONTROL),
            optional_fields=(_UP_TO_DATE,),
        ),
    ),
    rejections=(
        errors.InvalidParameters,
        errors.UnknownTopic,
        errors.UnknownPartition,
        errors.TopicNotAuthorized,
        errors.BrokerUnavailable,
        errors.BrokerIncompatible,
        errors.BrokerStopped,
        positions.PositionExpired,
        positions.TopicReplaced,
        positions.PositionUnknown,
        request_errors.BodyMemoryFull,
        request_errors.TooManyStreams,
        request_errors.TooManyTopics,
    ),
    fields_of_rejections=(VARY,),
)

_EXAMPLE: Final = {
    "partition": 0,
    "leader": 1,
    "replicas": [
        {"broker": 1, "leader": True, "in_sync": True},
        {"broker": 2, "leader": False, "in_sync": True},
    ],
}
_PARTITION: Final = in_path("partition", "The number of the partition, from 0.", int)
_VISIBLE_TOPICS: Final = (
    "As in REST Proxy's API v2. A caller sees the topics that it may publish to, consume or work in."
)


def _success(meaning: str, kind: object, example: object) -> Success:
    return Success(
        meaning,
        contents=tuple([Content(each.decode("ascii"), kind, example=example) for each in (RESPONSE, PLAIN)]),
        fields=(VARY, CACHE_CONTROL),
    )


LIST_TOPICS: Final = Description(
    tag="Topics",
    summary="The names of the topics",
    text=f"{_VISIBLE_TOPICS} The answer may be up to two seconds old.",
    successes=(_success("The names.", list[str], ["events", "readings"]),),
    rejections=(errors.InvalidParameters, request_errors.NotAcceptable, errors.BrokerUnavailable),
    error_objects=(ErrorObject,),
)
DESCRIBE_TOPIC: Final = replace(
    LIST_TOPICS,
    summary="One topic with its partitions and their replicas",
    text=_VISIBLE_TOPICS,
    parameters=(_TOPIC,),
    successes=(_success("The topic.", Topic, {"name": "readings", "configs": {}, "partitions": [_EXAMPLE]}),),
    rejections=(*LIST_TOPICS.rejections, access.NotGranted, errors.UnknownTopic),
)
READ_SCHEMA: Final = Description(
    tag="Topics",
    summary="The schema of a topic",
    text="The JSON Schema that the content of each message of the topic must match. Needs the right to "
    "publish to the topic or to read it.",
    parameters=(_TOPIC,),
    successes=(
        Success(
            "The schema.",
            contents=(
                Content(
                    "application/schema+json",
                    {"description": "A JSON Schema: an object, or `true` or `false`."},
                    "A schema",
                    {"type": "object", "required": ["id"]},
                ),
            ),
            fields=(CACHE_CONTROL,),
        ),
    ),
    rejections=(errors.InvalidParameters, access.NotGranted, request_errors.PathNotFound),
)
_GROUP: Final = replace(
    _TOPIC, name="group", meaning=f"The group of workers: {TOPIC_RULE}. On Kafka it is a share group."
)
_LEASE: Final = {"lease": "kqVvcmRlcnM"}
_NEW_LEASE: Final = {**_LEASE, "expires": "2026-11-24T10:00:30.123Z"}
_LEASED: Final = {
    **_NEW_LEASE,
    "messages": [
        {
            "id": "0-42",
            "attempts": 1,
            "topic": "orders",
            "partition": 0,
            "offset": 42,
            "timestamp": 1795363727918,
            "key": "17",
            "content": "paid",
            "headers": {},
        }
    ],
}
_OF_WORK: Final = (
    errors.InvalidParameters,
    errors.TopicNotAuthorized,
    errors.WorkNotSupported,
    errors.BrokerUnavailable,
    errors.BrokerStopped,
)

DESCRIBE_GROUP: Final = Description(
    tag="Work",
    summary="The backlog of a group",
    text="For autoscalers.",
    parameters=(_TOPIC, _GROUP),
    successes=(_json("The backlog.", Backlog, {"topic": "orders", "group": "billing", "backlog": 17}),),
    rejections=(*_OF_WORK, errors.UnknownTopic, request_errors.UnknownGroup),
)
EXTEND: Final = replace(
    DESCRIBE_GROUP,
    summary="Get more time for messages",
    text="Replaces a lease by a new one, which lasts as long as a new lease does, from now on.",
    bodies=(Content("application/json", ExtendRequest, "A lease", _LEASE),),
    successes=(_json("The new lease. The old one has ended.", NewLease, _NEW_LEASE),),
    rejections=(
        *_OF_WORK,
        errors.OutcomeUnknown,
        errors.LeaseLost,
        errors.TooManyLeases,
        errors.MalformedMessage,
        errors.InvalidWorkRequest,
        request_errors.NotJSON,
    ),
)
ACKNOWLEDGE: Final = replace(
    EXTEND,
    summary="Acknowledge messages",
    text=(
        "Ends a lease. Messages in `accept` are done, those in `reject` are never given again, and all "
        "others are free for any worker. After 409 the lease has ended: its messages are given again. After "
        "422 the lease goes on. After 504 the outcome is unknown."
    ),
    bodies=(Content("application/json", AckRequest, "One is done", {**_LEASE, "accept": ["0-42"]}),),
    successes=(_json("The lease has ended.", Acknowledged, {"accepted": 1, "released": 0, "rejected": 0}),),
    rejections=tuple(kind for kind in EXTEND.rejections if kind is not errors.TooManyLeases),
)
PULL: Final = replace(
    EXTEND,
    summary="Give messages to a worker",
    text=(
        "Gives up to `max` messages, which no other worker of the group gets until the lease ends. Answer "
        "with `ack` before `expires`, or get more time with `extend`. A message that is not accepted or "
        "rejected in time is given again, up to a number of attempts. A new group begins at the first "
        "message of the topic. A message has the members of a line of `/topics/{topic}/records`."
    ),
    bodies=(Content("application/json", PullRequest, "Up to ten messages", {"max": 10, "wait": 20}),),
    needs_body=False,
    successes=(
        _json("At least one message, with the lease.", LeasedMessages, _LEASED),
        Success("No message has come in time.", status=HTTPStatus.NO_CONTENT, fields=(NOT_STORED,)),
    ),
    rejections=(
        *(kind for kind in EXTEND.rejections if kind is not errors.LeaseLost),
        errors.UnknownTopic,
        request_errors.TooManyStreams,
    ),
)
LIST_PARTITIONS: Final = replace(
    DESCRIBE_TOPIC,
    summary="The partitions of a topic and their replicas",
    successes=(_success("The partitions.", list[Partition], [_EXAMPLE]),),
)
DESCRIBE_PARTITION: Final = replace(
    DESCRIBE_TOPIC,
    summary="One partition and its replicas",
    parameters=(_TOPIC, _PARTITION),
    successes=(_success("The partition.", Partition, _EXAMPLE),),
    rejections=(*DESCRIBE_TOPIC.rejections, errors.UnknownPartition),
)
PRODUCE_TO_PARTITION: Final = Description(
    tag="Messages",
    summary="Publish records to a partition",
    text=(
        "As in REST Proxy's API v2. A record with a `partition` of its own goes to that one. All records are "
        "checked before any is published."
    ),
    parameters=(_TOPIC, _PARTITION, *_TRACE),
    bodies=_PRODUCE_BODIES,
    successes=(Success("All records are stored.", contents=(_PRODUCED,)),),
    rejections=_PRODUCE_REJECTIONS,
    error_objects=_PRODUCE_ERRORS,
)
