"""``/topics/{topic}/records``: the records of a topic, as a page or as a stream."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Final, TypeAlias

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from sampleapp.concurrency.failures import forget_frames_of
from sampleapp.errors import Fault, InvalidParameters
from sampleapp.model import TOPIC_RULE, is_legal_topic
from sampleapp.records.read_parameters import read_page_parameters, read_stream_parameters
from sampleapp.web.access_control import AuthorizedTopic
from sampleapp.web.negotiation import asks_for_stream
from sampleapp.web.read.pages import RecordPages
from sampleapp.web.read.streams import RecordStreams
from sampleapp.web.responses import Response
from sampleapp.web.routing import Variant
from sampleapp.web.server import Request

_Open: TypeAlias = Callable[[Request, AuthorizedTopic], Deferred[Response]]

_GONE: Final = Response(HTTPStatus.NO_CONTENT, ((b"Vary", b"Accept"), (b"Cache-Control", b"no-store")))
"""For metrics and logs: the client has disconnected before it got a response."""


class RecordReading:
    """Serves the records of the topic that the path names."""

    def __init__(self, pages: RecordPages, streams: RecordStreams) -> None:
        self._pages = pages
        self._page = Variant(_handler(pages.open), check_head=_check_page, takes_query=True)
        self._stream = Variant(_handler(streams.open), check_head=_check_stream, takes_query=True)

    def end_waits(self) -> None:
        """Answer the pages that wait for a record, since the service stops."""
        self._pages.end_waits()

    def variant_of(self, request: Request) -> Variant:
        """Choose by ``Accept`` between a page and a stream."""
        return self._stream if asks_for_stream(request.fields.joined(b"accept")) else self._page


def _handler(open_response: _Open) -> Callable[..., Deferred[Response]]:
    """Return a handler; its Deferred, if cancelled, fires with a response for metrics and logs."""

    def respond(request: Request, *, topic: AuthorizedTopic) -> Deferred[Response]:
        return open_response(request, topic).addErrback(response_if_gone, request)

    return respond


def response_if_gone(failure: Failure, request: Request) -> Response:
    """
    Return a response for metrics and logs after a failure, if the client has gone.

    :raise Exception: the failure's, if the client is still there, or it is a fault.
    """
    if not request.client_has_finished:
        # Also a broker that has failed so: 204 would hide records from the client.
        failure.raiseException()
    failure.trap(CancelledError)
    forget_frames_of(failure)
    return _GONE


def _check_page(request: Request, *, topic: str) -> None:
    _check(request, topic, lambda: read_page_parameters(request.query))


def _check_stream(request: Request, *, topic: str) -> None:
    ids = request.fields.all(b"last-event-id")
    _check(request, topic, lambda: read_stream_parameters(request.query, ids))


def _check(request: Request, topic: str, read_parameters: Callable[[], object]) -> None:
    """:raise InvalidParameters: names all faults."""
    faults: list[Fault] = []
    if not is_legal_topic(topic):
        faults.append(Fault("/topic", f"The topic in the path must be {TOPIC_RULE}."))
    try:
        request.checked = read_parameters()
    except InvalidParameters as error:
        faults += error.faults
    if faults:
        raise InvalidParameters(faults)
    request.ends_with_client = True
