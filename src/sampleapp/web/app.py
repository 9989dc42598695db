"""The Klein application: the two endpoints, and what becomes of requests for anything else."""

from __future__ import annotations

from http import HTTPStatus

from klein import Klein
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest
from twisted.web.resource import Resource
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from sampleapp.interfaces import IBroker
from sampleapp.messages import parse_message
from sampleapp.model import Record
from sampleapp.web import request_errors
from sampleapp.web.admission import is_json
from sampleapp.web.answers import Answer, json_answer, set_answer
from sampleapp.web.problems import problem_answer
from sampleapp.web.readings import GetRepresentation, readings_resource
from sampleapp.web.routing import RouteTable, answer_to_failure, route

__all__ = ["FrontDoor"]


class FrontDoor:
    """The HTTP interface of the service."""

    app = Klein()

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

    def resource(self) -> RouteTable:
        """The root resource of the service."""
        return RouteTable(self.app)

    @route(app, "/", "GET", "HEAD")
    def readings(self, request: IRequest) -> Resource:
        """Serve the readings in the version that is asked for."""
        return self._readings

    @route(app, "/messages", "POST")
    async def publish(self, request: IRequest) -> Answer:
        """Publish one message, and answer where its record is once the broker has it."""
        content_types = request.requestHeaders.getRawHeaders(b"Content-Type", [])
        if len(content_types) != 1 or not is_json(content_types[0]):
            raise request_errors.UnsupportedContentType(content_types)
        message = parse_message(request.content.read())
        metadata = await self._broker.publish(
            Record(
                topic=message.topic,
                key=None if message.key is None else message.key.encode("utf-8"),
                value=message.content.encode("utf-8"),
                timestamp_ms=int(self._clock.seconds() * 1000),
            )
        )
        return json_answer(metadata)

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
