"""The Klein application: its two endpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from http import HTTPStatus
from operator import attrgetter
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.web.resource import Resource

from sampleapp import errors
from sampleapp.access import Right
from sampleapp.conditional import match_fails
from sampleapp.interfaces import IBroker
from sampleapp.messages import parse_message
from sampleapp.model import Message, Reading
from sampleapp.negotiation import MEDIA_TYPES
from sampleapp.records import record_of
from sampleapp.web import request_errors
from sampleapp.web.answers import Answer
from sampleapp.web.cross_site import CrossSiteRule
from sampleapp.web.descriptions import (
    CACHE_CONTROL,
    ETAG,
    IF_MATCH,
    IF_NONE_MATCH,
    TRACEPARENT,
    TRACESTATE,
    VARY,
    Content,
    Description,
    Success,
)
from sampleapp.web.gate import Gate, require_topic
from sampleapp.web.publishing import REFUSALS_OF_BROKERS, STORED, Publisher, trace_of
from sampleapp.web.readings import GetRepresentation, readings_resource
from sampleapp.web.routing import Routes, RouteTable
from sampleapp.web.server import Request
from sampleapp.web.topics import Topics

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


def _require_match(answer: Answer, tags: bytes) -> Answer:
    if match_fails(tags, dict(answer.headers)[b"ETag"]):
        raise request_errors.PreconditionFailed
    return answer


_READINGS: Final = Description(
    tag="Readings",
    summary="The latest value of each key",
    text=(
        "One collection, in the version that `Accept` names; version 1 without one. Both versions list the "
        "same readings in the same order."
    ),
    parameters=(IF_NONE_MATCH, IF_MATCH),
    successes=(
        Success(
            meaning="All readings. Media types are negotiated by `Accept`; anything else gets version 1.",
            contents=(
                Content(
                    media_type=MEDIA_TYPES[1],
                    kind=list[float],
                    summary="Version 1: the values",
                    example=[21.5, 19.0],
                ),
                Content(
                    media_type=MEDIA_TYPES[2],
                    kind=list[Reading],
                    summary="Version 2: each value with its id",
                    example=[{"id": "kitchen", "value": 21.5}, {"id": "hall", "value": 19.0}],
                ),
            ),
            fields=(ETAG, VARY, CACHE_CONTROL),
        ),
        Success(
            meaning="`If-None-Match` has the tag of the current representation: you have it already.",
            status=HTTPStatus.NOT_MODIFIED,
            fields=(ETAG, VARY, CACHE_CONTROL),
        ),
    ),
    refusals=(request_errors.PreconditionFailed, errors.ReadingsNotReady),
)

_MESSAGES: Final = Description(
    tag="Messages",
    summary="Publish one message",
    text=(
        "Makes exactly one record, and answers once the broker has acknowledged it. After 503 nothing was "
        "published; after 504 that is not known."
    ),
    parameters=(TRACEPARENT, TRACESTATE),
    bodies=(
        Content(
            media_type="application/json",
            kind=Message,
            summary="One message",
            example={"topic": "readings", "key": "kitchen", "content": "21.5"},
        ),
    ),
    successes=(STORED,),
    refusals=(
        request_errors.UnsupportedContentType,
        errors.MalformedMessage,
        errors.InvalidMessage,
        *REFUSALS_OF_BROKERS,
    ),
)


class FrontDoor:
    """The HTTP interface of the service."""

    routes = Routes()
    routes.include(Topics.routes, attrgetter("topics"))

    def __init__(
        self,
        *,
        broker: IBroker,
        get_representation: GetRepresentation,
        clock: IReactorTime,
        gate: Gate | None = None,
        allowed_origins: Iterable[str] = (),
    ) -> None:
        """
        :param broker: where messages go.
        :param get_representation: where readings come from.
        :param clock: gives the records their timestamps; it shows seconds since the epoch.
        :param gate: lets requests in; by default everybody may do everything.
        :param allowed_origins: the sites whose pages may publish, beside those of this service; each as
            `sampleapp.web.cors.check_origin` takes it.
        """
        self._gate = gate
        self._cross_site = CrossSiteRule(allowed_origins)
        self._readings = readings_resource(get_representation)
        self._publisher = Publisher(broker, clock)
        self.topics = Topics(self._publisher)

    def table(self, *others: tuple[Routes, object]) -> RouteTable:
        """
        What the service's own connections ask who answers.

        :param others: what else is served; see `RouteTable`.
        """
        return RouteTable(self.routes, self, *others, gate=self._gate, cross_site=self._cross_site)

    def resource(self, *, max_body: int | None = None) -> Resource:
        """
        Make the root of a site, or a part of one, for any program with twisted.web.

        :param max_body: how long a body that came compressed may be when it is decoded, in bytes; 1 MiB by
            default. How long it may be as it comes is up to the site.
        """
        return self.routes.resource(self, gate=self._gate, cross_site=self._cross_site, max_body=max_body)

    @routes.route("/", "GET", "HEAD", right=Right.READ, description=_READINGS)
    def readings(self, request: Request) -> Answer | Deferred[Answer]:
        """
        Serve the readings in the version that is asked for.

        :return: a Deferred if they have to be encoded first; it fails with what else is raised.
        :raise PreconditionFailed: by ``If-Match``, which goes before ``If-None-Match`` (RFC 9110, section
            13.2.2).
        """
        answer = self._readings.answer(request)
        tags = request.fields.joined(b"If-Match")
        if tags is None:
            return answer
        if isinstance(answer, Deferred):
            return answer.addCallback(_require_match, tags)
        return _require_match(answer, tags)

    @routes.route("/messages", "POST", admit=_require_json, right=Right.PUBLISH, description=_MESSAGES)
    def publish(self, request: Request) -> Deferred[Answer]:
        """Publish one message, and answer where its record is once the broker has it."""
        message = parse_message(request.body)
        require_topic(request, message.topic)
        return self._publisher.publish(
            record_of(message, now_ms=self._publisher.now_ms(), trace=trace_of(request))
        )
