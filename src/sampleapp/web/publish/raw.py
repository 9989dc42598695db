"""``/topics/{topic}``: publish a raw body (POST) or a tombstone (DELETE)."""

from __future__ import annotations

from typing import Final, NoReturn

from msgspec import Struct
from msgspec.structs import replace
from twisted.internet.defer import Deferred

from sampleapp.access import HookVerifier
from sampleapp.errors import Fault, InvalidParameters
from sampleapp.messages.cloud_events import (
    EventFormat,
    event_format,
    key_of_headers,
    may_be_event,
    read_event_headers,
    read_event_key,
)
from sampleapp.messages.headers import RecordedFields
from sampleapp.messages.idempotency_key import IdempotencyScope
from sampleapp.messages.parsing import RecordHeaders
from sampleapp.messages.queries import RecordQuery, read_key, read_record_query
from sampleapp.messages.rest_proxy_bodies import begins_like_envelope, is_envelope
from sampleapp.model import TOPIC_RULE, is_legal_topic
from sampleapp.web.access_control import AuthorizedTopic
from sampleapp.web.errors import SeveralContentTypes, UnsupportedEventFormat
from sampleapp.web.publish.messages import BatchPublisher
from sampleapp.web.publish.publisher import IDEMPOTENCY_KEY, Publisher, scope_of
from sampleapp.web.publish.rest_proxy import UNSUPPORTED_FORMAT, ProduceRequests, reject_envelope
from sampleapp.web.responses import Response
from sampleapp.web.rest_proxy_documents import embedded_format, is_of_rest_proxy
from sampleapp.web.routing import Variant
from sampleapp.web.server import Request


class _Head(Struct, frozen=True, gc=False):
    """The record that the head of a request asks for: all of it except the value and the trace."""

    key: bytes | None
    headers: RecordHeaders
    """Those of an event."""
    recorded: RecordHeaders
    """Those that `RecordedFields` has chosen."""
    scope: IdempotencyScope | None
    keeps_envelope: bool
    """True if the value may be an envelope of REST Proxy's API."""


def _reject_several_types(request: Request, **_: object) -> NoReturn:
    raise SeveralContentTypes(request.fields.all(b"content-type"))


_AMBIGUOUS: Final = Variant(_reject_several_types, check_head=_reject_several_types)


def _reject_event_format(_request: Request, *, topic: str) -> NoReturn:  # noqa: ARG001 -- a CheckHead
    raise UnsupportedEventFormat


_UNSUPPORTED_EVENT: Final = Variant(_reject_event_format, check_head=_reject_event_format)

_CONTENT_TYPE: Final = frozenset({b"content-type"})
_NO_QUERY: Final = RecordQuery()


def _read_head(
    request: Request,
    topic: str,
    recorded: RecordedFields,
    *,
    unrecorded: frozenset[bytes],
    is_tombstone: bool = False,
) -> _Head:
    """
    Read the parts of a record that are not in the body: key and headers.

    :param unrecorded: names of fields, in lower case, that become headers of no record.
    :raise MalformedIdempotencyKey: ``Idempotency-Key`` is not valid.
    :raise InvalidParameters: names all faults.
    """
    faults: list[Fault] = []
    if not is_legal_topic(topic):
        faults.append(Fault("/topic", f"The topic in the path must be {TOPIC_RULE}."))
    if not is_tombstone:
        query = read_record_query(request.query, faults, recorded.parameters) if request.query else _NO_QUERY
    elif (query := RecordQuery(read_key(request.query, faults))).key is None:
        faults.append(
            Fault("/key", 'The parameter "key" is missing. It names the key to delete, as in "?key=kitchen".')
        )
    key = query.key
    headers: RecordHeaders = ()
    fields = request.fields
    content_types = fields.all(b"content-type")
    content_type = content_types[0] if content_types else None
    is_event = not is_tombstone and (
        may_be_event(fields.names()) or (content_type is not None and event_format(content_type) is not None)
    )
    if is_event:
        headers = read_event_headers(fields, content_type, faults)
        key = key_of_headers(headers) if key is None else key
    if faults:
        raise InvalidParameters(faults)
    return _Head(
        key,
        headers,
        # An event has its content type among its own headers.
        recorded.of(fields, without=unrecorded | _CONTENT_TYPE if is_event else unrecorded) + query.headers,
        scope_of(request) if fields.all(IDEMPOTENCY_KEY) else None,
        query.keeps_envelope,
    )


class RawPublishing:
    """Publishes to the topic that the path names."""

    def __init__(
        self,
        publisher: Publisher,
        batches: BatchPublisher,
        recorded: RecordedFields,
        produce: ProduceRequests,
        *,
        hooks: HookVerifier | None = None,
    ) -> None:
        """
        :param produce: serves the bodies that have REST Proxy's media types.
        :param recorded: chooses the header fields and parameters of a request that become headers of its
            record.
        :param hooks: has the fields with signatures, which become headers of no record.
        """
        self._publisher = publisher
        self._batches = batches
        self._recorded = recorded
        self._hooks = hooks
        self._raw = Variant(self._publish_raw, check_head=self._check_head, takes_query=True)
        self.tombstone: Final = Variant(
            self._publish_tombstone, check_head=self._check_tombstone, takes_query=True
        )
        """Publishes a record without a value, for ``DELETE``."""
        self._events = {
            EventFormat.STRUCTURED: Variant(
                self._publish_structured, check_head=self._check_head, takes_query=True
            ),
            EventFormat.BATCHED: Variant(
                self._publish_events,
                check_head=self._check_head,
                max_body=publisher.limits.max_batch_body,
                takes_query=True,
            ),
            EventFormat.UNSUPPORTED: _UNSUPPORTED_EVENT,
        }
        self._produce = produce

    def variant_of(self, request: Request) -> Variant:
        """Choose by ``Content-Type``: records as for REST Proxy, a CloudEvent, or any body as it is."""
        content_types = request.fields.all(b"content-type")
        if len(content_types) > 1:
            return _AMBIGUOUS
        content_type = content_types[0] if content_types else b""
        if embedded_format(content_type) is not None:
            return self._produce.to_topic
        accept = request.fields.joined(b"accept")
        if accept is not None and is_of_rest_proxy(accept):
            # A client of REST Proxy, whose records in their envelope must not become a record as they are.
            return UNSUPPORTED_FORMAT
        if not content_types:
            return self._raw
        event = event_format(content_type)
        if event is not None:
            return self._events[event]
        # A body in another of REST Proxy's formats must not become a record as it is.
        return UNSUPPORTED_FORMAT if is_of_rest_proxy(content_type) else self._raw

    def _check_head(self, request: Request, *, topic: str) -> None:
        request.checked = _read_head(request, topic, self._recorded, unrecorded=self._unrecorded())

    def _publish_events(self, request: Request, *, topic: AuthorizedTopic) -> Deferred[Response]:
        head: _Head = request.checked
        return self._batches.publish_events(
            request,
            topic=topic,
            key=head.key,
            now_ms=self._publisher.now_ms(),
            of_request=head.recorded + self._publisher.headers_of(request),
            scope=head.scope,
        )

    def _publish_structured(
        self, request: Request, *, topic: AuthorizedTopic
    ) -> Response | Deferred[Response]:
        head: _Head = request.checked
        key = read_event_key(request.body)
        if head.key is None and key is not None:
            request.checked = replace(head, key=key)
        return self._publish_raw(request, topic=topic, is_event=True)

    def _publish_raw(
        self, request: Request, *, topic: AuthorizedTopic, is_event: bool = False
    ) -> Response | Deferred[Response]:
        head: _Head = request.checked
        # The data of a CloudEvent may have any form.
        may_be_envelope = begins_like_envelope(request.body) and not (
            is_event or head.headers or head.keeps_envelope
        )
        if may_be_envelope and is_envelope(request.body):
            return reject_envelope(request)
        return self._publisher.publish_to(
            request,
            topic,
            key=head.key,
            value=request.body,
            headers=head.headers,
            of_request=head.recorded + self._publisher.headers_of(request),
            scope=head.scope,
            is_event=is_event,
        )

    def _check_tombstone(self, request: Request, *, topic: str) -> None:
        request.checked = _read_head(
            request, topic, self._recorded, unrecorded=self._unrecorded(), is_tombstone=True
        )

    def _unrecorded(self) -> frozenset[bytes]:
        # It may be another one after each change of the callers file.
        return frozenset() if self._hooks is None else self._hooks.signature_fields

    def _publish_tombstone(self, request: Request, *, topic: AuthorizedTopic) -> Deferred[Response]:
        """
        Publish a tombstone.

        :raise InvalidParameters: there is a body. It would mean nothing (RFC 9110, section 9.3.5), so a
            client that sends one expects something else.
        """
        if request.body:
            raise InvalidParameters(
                [
                    Fault(
                        "",
                        "DELETE takes no body: it publishes a record without a value. Use POST to send one.",
                    )
                ]
            )
        head: _Head = request.checked
        return self._publisher.publish_to(
            request,
            topic,
            key=head.key,
            value=None,
            of_request=head.recorded + self._publisher.headers_of(request),
            scope=head.scope,
        )
