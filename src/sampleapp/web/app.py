"""The Klein application: the two endpoints, and what becomes of requests for anything else."""

from __future__ import annotations

import re
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from klein.resource import KleinResource
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest
from twisted.web.resource import Resource
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from sampleapp.conditional import match_fails
from sampleapp.errors import SampleAppError
from sampleapp.interfaces import IBroker
from sampleapp.messages import parse_message
from sampleapp.model import Record
from sampleapp.web import request_errors
from sampleapp.web.answers import Answer, json_answer, set_answer
from sampleapp.web.problems import problem_answer
from sampleapp.web.readings import GetRepresentation, readings_resource
from sampleapp.web.routing import Routes, RouteTable, answer_to_failure, decoded_path
from sampleapp.web.server import Request
from sampleapp.web.server.head import check_content_coding, check_host
from sampleapp.web.twisted_web import request_of

__all__ = ["FrontDoor"]

_JSON = re.compile(rb"[ \t]*application/json[ \t]*(?:;.*)?", re.IGNORECASE | re.DOTALL)


@lru_cache(maxsize=256)
def _is_json(content_type: bytes) -> bool:
    """
    Whether a ``Content-Type`` says ``application/json``, whatever its parameters.

    The media type defines none, ``charset`` included (RFC 8259, section 11): JSON is in UTF-8.
    """
    return _JSON.fullmatch(content_type) is not None


def _require_json(request: Request) -> None:
    content_types = request.fields.all(b"Content-Type")
    if len(content_types) != 1 or not _is_json(content_types[0]):
        raise request_errors.UnsupportedContentType(content_types)


class FrontDoor:
    """The HTTP interface of the service."""

    routes = Routes()
    app = routes.app

    def __init__(
        self, *, broker: IBroker, get_representation: GetRepresentation, clock: IReactorTime
    ) -> None:
        """
        :param broker: where messages go.
        :param get_representation: where readings come from.
        :param clock: gives the records their timestamps; it shows seconds since the epoch.
        """
        self._broker = broker
        self._readings = readings_resource(get_representation)
        self._clock = clock

    def table(self) -> RouteTable:
        """What the service's own connections ask who answers."""
        return RouteTable(self.routes, self)

    def resource(self) -> Resource:
        """Make the root of a site, or a part of one, for any program with twisted.web."""
        return _FrontDoorResource(self.app)

    @routes.route("/", "GET", "HEAD")
    def readings(self, request: Request) -> Answer:
        """
        Serve the readings in the version that is asked for.

        :raise PreconditionFailed: by ``If-Match``, which goes before ``If-None-Match`` (RFC 9110, section
            13.2.2).
        """
        answer = self._readings.answer(request)
        tags = request.fields.joined(b"If-Match")
        if tags is not None and match_fails(tags, dict(answer.headers)[b"ETag"]):
            raise request_errors.PreconditionFailed
        return answer

    @routes.route("/messages", "POST", admit=_require_json)
    def publish(self, request: Request) -> Deferred[Answer]:
        """Publish one message, and answer where its record is once the broker has it."""
        message = parse_message(request.body)
        return self._broker.publish(
            Record(
                topic=message.topic,
                key=None if message.key is None else message.key.encode("utf-8"),
                value=message.content.encode("utf-8"),
                timestamp_ms=int(self._clock.seconds() * 1000),
            )
        ).addCallback(json_answer)

    @app.handle_errors(MethodNotAllowed)
    def refuse_method(self, request: IRequest, failure: Failure) -> bytes:
        """Tell which methods the path takes: as a refusal, or because it was asked for (``OPTIONS``)."""
        methods = getattr(failure.value, "valid_methods", ())
        allowed = request_errors.MethodNotAllowed({*methods, "OPTIONS"})
        if request.method == b"OPTIONS":
            return set_answer(request, Answer(HTTPStatus.NO_CONTENT, allowed.headers))
        return set_answer(request, problem_answer(allowed))

    @app.handle_errors(HTTPException)
    def refuse_path(self, request: IRequest, failure: Failure) -> bytes:
        """Nothing is there; or a redirect would lead there, which callers of a service do not follow."""
        return set_answer(request, problem_answer(request_errors.PathNotFound()))

    @app.handle_errors(Exception)
    def report_fault(self, request: IRequest, failure: Failure) -> bytes:
        """Answer, and log, what went wrong in Klein itself; what handlers raise is answered before."""
        return set_answer(request, answer_to_failure(failure))


class _FrontDoorResource(KleinResource):
    """Klein's resource, which is not asked what it would take for another request, or refuse badly."""

    def render(self, request: IRequest) -> Any:
        """Answer a request, or refuse it."""
        try:
            self._check(request)
        except SampleAppError as error:
            return set_answer(request, problem_answer(error))
        return super().render(request)

    def _check(self, request: IRequest) -> None:
        own = request_of(request)
        request.content.seek(0)
        # Klein meets a name that IDNA cannot encode with a traceback.
        check_host(own.fields, is_required=False)
        check_content_coding(own.fields)
        path = decoded_path(b"/" + own.path.removeprefix(b"/"))
        if path.startswith(b"//"):
            # Klein does not see the first segment when it is empty.
            raise request_errors.PathNotFound
        methods = {
            method
            for rule in self._app.url_map.iter_rules()
            if rule.rule.encode("ascii") == path
            for method in rule.methods or ()
        }
        if methods and request.method != request.method.upper():
            # Werkzeug takes "post" for "POST", but methods are case-sensitive (RFC 9110, section 9.1).
            raise request_errors.MethodNotAllowed({*methods, "OPTIONS"})
