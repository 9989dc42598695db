"""``/topics/{topic}``: records whose value is the body as it is, and tombstones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace
from twisted.internet.defer import Deferred

from sampleapp.access import Right
from sampleapp.cloud_events import may_be_event, read_event_headers
from sampleapp.errors import Fault, InvalidParameters
from sampleapp.messages import TOPIC_RULE, is_legal_topic
from sampleapp.model import Record
from sampleapp.record_queries import read_key
from sampleapp.records import RecordHeaders
from sampleapp.rest_proxy import EmbeddedFormat, is_of_rest_proxy, request_type
from sampleapp.web import rest_proxy
from sampleapp.web.answers import Answer
from sampleapp.web.descriptions import TOPIC, TRACEPARENT, TRACESTATE, Content, Description, Parameter
from sampleapp.web.gate import require_topic
from sampleapp.web.publishing import REFUSALS_OF_BROKERS, STORED, Publisher, trace_of
from sampleapp.web.request_errors import SeveralContentTypes
from sampleapp.web.routing import Routes
from sampleapp.web.server import Request

__all__ = ["FORMS", "Form", "Topics"]

Publish: TypeAlias = Callable[[Publisher, Request, str], "Answer | Deferred[Answer]"]


class Form(Struct, frozen=True):
    """
    What ``POST`` does with bodies of some media type.

    Both functions are given the topic of the path. The first has to check it, and that the caller may publish
    to it.
    """

    admit: Callable[[Request, str], None]
    """Looks at a request before its body is taken, and raises what is wrong with it."""
    publish: Publish
    """Answers a request that was admitted."""


class _Wanted(Struct, frozen=True, gc=False):
    """The record that a request asks for, but for its value."""

    key: bytes | None
    headers: RecordHeaders


def _read(request: Request, topic: str, *, needs_key: bool = False) -> _Wanted:
    """
    Read what is in a request beside its body.

    :raise InvalidParameters: names all that is wrong.
    """
    faults: list[Fault] = []
    if not is_legal_topic(topic):
        faults.append(Fault("/topic", f"The topic in the path has to be {TOPIC_RULE}."))
    key = read_key(request.query, faults)
    if needs_key and key is None:
        faults.append(
            Fault("/key", 'The parameter "key" is missing: say whose tombstone it is, as in "?key=kitchen".')
        )
    headers: RecordHeaders = ()
    fields = request.fields
    content_type = fields.joined(b"content-type")
    if not needs_key and may_be_event(fields.all(b"ce-specversion"), content_type):
        headers = read_event_headers(fields, content_type, faults)
    if faults:
        raise InvalidParameters(faults)
    return _Wanted(key, headers)


def _admit_raw(request: Request, topic: str) -> None:
    request.admitted = _read(request, topic)
    require_topic(request, topic)


def _publish_raw(publisher: Publisher, request: Request, topic: str) -> Deferred[Answer]:
    wanted: _Wanted = request.admitted
    return publisher.publish(
        Record(
            topic=topic,
            key=wanted.key,
            value=request.body,
            timestamp_ms=publisher.now_ms(),
            headers=wanted.headers + trace_of(request),
        )
    )


_RAW: Final = Form(_admit_raw, _publish_raw)

FORMS: Final[dict[bytes, Form]] = {
    request_type(embedded).encode("ascii"): Form(rest_proxy.admit, rest_proxy.publish)
    for embedded in EmbeddedFormat
}
"""By media types, in lower case and without parameters: the bodies that are not simply values of records."""

# What means something else to REST Proxy must not become a record as it is.
_NOT_HERE: Final = Form(rest_proxy.refuse_format, rest_proxy.publish)


def _form_of(request: Request) -> Form:
    """:raise SeveralContentTypes: it cannot be told which."""
    content_types = request.fields.all(b"content-type")
    if not content_types:
        return _RAW
    if len(content_types) > 1:
        raise SeveralContentTypes
    content_type = content_types[0]
    default = _NOT_HERE if is_of_rest_proxy(content_type) else _RAW
    return FORMS.get(content_type.partition(b";")[0].strip().lower(), default)


def _admit(request: Request, *, topic: str) -> None:
    _form_of(request).admit(request, topic)


def _admit_tombstone(request: Request, *, topic: str) -> None:
    request.admitted = _read(request, topic, needs_key=True)
    require_topic(request, topic)


_POST: Final = Description(
    tag="Messages",
    summary="Publish any bytes",
    text=(
        "Makes exactly one record whose value is the body, byte for byte. An empty body is an empty value. "
        "Answers once the broker has acknowledged the record. After 503 nothing was published; after 504 "
        "that is not known.\n\n"
        "A CloudEvent in binary mode (with `ce-specversion`) gets its attributes as headers of the record, "
        "`ce_…`, and its `Content-Type` as `content-type`; one in structured mode gets the latter only.\n\n"
        "With the two media types of REST Proxy's API v2, the body has records. First everything is checked, "
        "then anything is published. If only some of them are published, the status is 504, or 422 if the "
        "others were refused for good; `offsets` says which."
    ),
    parameters=(
        TOPIC,
        Parameter(
            name="key",
            place="query",
            meaning=(
                "The record's key: any bytes, decoded as forms are (`+` is a space). Absent: the record has "
                "none. `key=` is the empty key, which is one."
            ),
        ),
        TRACEPARENT,
        TRACESTATE,
    ),
    bodies=(
        Content(
            media_type="*/*",
            kind={"contentMediaType": "application/octet-stream"},
            summary="Any bytes, of any type or none",
        ),
        *rest_proxy.PRODUCE_BODIES,
    ),
    needs_body=False,
    successes=(replace(STORED, contents=(*STORED.contents, rest_proxy.PRODUCED)),),
    refusals=(SeveralContentTypes, *rest_proxy.PRODUCE_REFUSALS),
    error_objects=rest_proxy.PRODUCE_ERRORS,
)

_DELETE: Final = Description(
    tag="Messages",
    summary="Publish a tombstone",
    text=(
        "Makes exactly one record with this key and a null value. That removes the reading of the key. In a "
        "topic that Kafka compacts, it removes the key's earlier records, too. A body is refused."
    ),
    parameters=(
        TOPIC,
        Parameter(
            name="key",
            place="query",
            meaning="The key: any bytes, decoded as forms are (`+` is a space). It may be empty.",
            is_required=True,
        ),
        TRACEPARENT,
        TRACESTATE,
    ),
    successes=(STORED,),
    refusals=(InvalidParameters, *REFUSALS_OF_BROKERS),
)


class Topics:
    """Publishes to the topic that the path names."""

    routes = Routes()

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def _max_body(self, request: Request, **_: object) -> int | None:
        """Tell the limit for many records; only these have one of their own."""
        return rest_proxy.max_body(self._publisher, request)

    @routes.route(
        "/topics/<topic>",
        "POST",
        admit=_admit,
        right=Right.PUBLISH,
        description=_POST,
        max_body=_max_body,
    )
    def publish_to_topic(self, request: Request, *, topic: str) -> Answer | Deferred[Answer]:
        """Publish what a body of this media type stands for: by default, one record of just these bytes."""
        return _form_of(request).publish(self._publisher, request, topic)

    @routes.route(
        "/topics/<topic>", "DELETE", admit=_admit_tombstone, right=Right.PUBLISH, description=_DELETE
    )
    def delete_key(self, request: Request, *, topic: str) -> Deferred[Answer]:
        """
        Publish a tombstone.

        :raise InvalidParameters: there is a body. It would mean nothing (RFC 9110, section 9.3.5), so who
            sends one expects something else.
        """
        if request.body:
            raise InvalidParameters(
                [Fault("", "DELETE takes no body: it makes a record without a value. To send one, use POST.")]
            )
        wanted: _Wanted = request.admitted
        return self._publisher.publish(
            Record(
                topic=topic,
                key=wanted.key,
                value=None,
                timestamp_ms=self._publisher.now_ms(),
                headers=trace_of(request),
            )
        )
