"""The Klein application: its two endpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache, partial
from http import HTTPStatus
from operator import attrgetter
from typing import Final

from msgspec.structs import replace
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
from sampleapp.web.batches import BatchPublisher
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
from sampleapp.web.gate import Gate, refusal_of_topic, require_topic
from sampleapp.web.publishing import REFUSALS_OF_BROKERS, STORED, Publisher, trace_of
from sampleapp.web.readings import GetRepresentation, readings_resource
from sampleapp.web.rest_proxy import RestProxy
from sampleapp.web.routing import Routes, RouteTable
from sampleapp.web.server import Limits, Request
from sampleapp.web.topics import Topics

__all__ = ["FrontDoor"]

_MEDIA_TYPE = re.compile(rb"[ \t]*([!-+\--:<-~]+)[ \t]*(?:;.*)?", re.DOTALL)

_ONE: Final = b"application/json"
_MANY: Final = (b"application/x-ndjson", b"application/jsonl")


@lru_cache(maxsize=256)
def _media_type(content_type: bytes) -> bytes:
    """
    Read what a ``Content-Type`` says, whatever its parameters.

    JSON defines none, ``charset`` included (RFC 8259, section 11): it is in UTF-8. So are lines of it.
    """
    match = _MEDIA_TYPE.fullmatch(content_type)
    return b"" if match is None else match[1].lower()


def _media_type_of(request: Request) -> bytes:
    content_types = request.fields.all(b"Content-Type")
    return _media_type(content_types[0]) if len(content_types) == 1 else b""


def _require_messages(request: Request) -> None:
    media_type = _media_type_of(request)
    if media_type != _ONE and media_type not in _MANY:
        raise request_errors.UnsupportedContentType(request.fields.all(b"Content-Type"))


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


def _lines(summary: str, description: str, *examples: str) -> tuple[Content, ...]:
    """Describe many values, one on each line, in each of the media types that there are for that."""
    return tuple(
        Content(
            media_type=media_type.decode("ascii"),
            kind={"type": "string", "description": description},
            summary=summary,
            example="".join(f"{line}\n" for line in examples),
        )
        for media_type in _MANY
    )


_MESSAGES: Final = Description(
    tag="Messages",
    summary="Publish one message, or many",
    text=(
        "Makes exactly one record of each message, and answers once the broker has acknowledged them. Many "
        "messages are one a line: first all of them are checked, then any is published. After 503 nothing "
        "was published. After 504 that is not known; of many messages, `results` say what is."
    ),
    parameters=(TRACEPARENT, TRACESTATE),
    bodies=(
        Content(
            media_type="application/json",
            kind=Message,
            summary="One message",
            example={"topic": "readings", "key": "kitchen", "content": "21.5"},
        ),
        *_lines(
            "Many messages",
            "Messages, one on each line.",
            '{"topic":"readings","key":"kitchen","content":"21.5"}',
            '{"topic":"readings","key":"hall","content":"19"}',
        ),
    ),
    successes=(
        replace(
            STORED,
            meaning="The record is stored, and where; or all records of many messages, in the same order.",
            contents=(
                *STORED.contents,
                *_lines(
                    "Where the records are",
                    "Where each record is, one on each line.",
                    '{"topic":"readings","partition":0,"offset":42}',
                    '{"topic":"readings","partition":2,"offset":7}',
                )[:1],
            ),
        ),
    ),
    refusals=(
        request_errors.UnsupportedContentType,
        errors.MalformedMessage,
        errors.InvalidMessage,
        errors.PartlyPublished,
        errors.PartlyRefused,
        *REFUSALS_OF_BROKERS,
    ),
)


class FrontDoor:
    """The HTTP interface of the service."""

    routes = Routes()
    routes.include(Topics.routes, attrgetter("topics"))
    routes.include(RestProxy.routes, attrgetter("rest_proxy"))

    def __init__(
        self,
        *,
        broker: IBroker,
        get_representation: GetRepresentation,
        clock: IReactorTime,
        gate: Gate | None = None,
        allowed_origins: Iterable[str] = (),
        limits: Limits | None = None,
    ) -> None:
        """
        :param broker: where messages go.
        :param get_representation: where readings come from.
        :param clock: gives the records their timestamps; it shows seconds since the epoch.
        :param gate: lets requests in; by default everybody may do everything.
        :param allowed_origins: the sites whose pages may publish, beside those of this service; each as
            `sampleapp.web.cors.check_origin` takes it.
        :param limits: how long bodies may be.
        """
        self._limits = Limits() if limits is None else limits
        self._gate = gate
        self._cross_site = CrossSiteRule(allowed_origins)
        self._readings = readings_resource(get_representation)
        self._publisher = Publisher(broker, clock, self._limits)
        self._batches = BatchPublisher(broker, self._publisher.turns, max_line=self._limits.max_body)
        self.topics = Topics(self._publisher)
        self.rest_proxy = RestProxy(self._publisher)

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

    def _max_body(self, request: Request) -> int | None:
        """Tell the limit for many messages; only these have one of their own."""
        return self._limits.max_batch_body if _media_type_of(request) in _MANY else None

    @routes.route(
        "/messages",
        "POST",
        admit=_require_messages,
        right=Right.PUBLISH,
        description=_MESSAGES,
        max_body=_max_body,
    )
    def publish(self, request: Request) -> Deferred[Answer]:
        """Publish one message, or one on each line, and answer where the records are that the broker has."""
        if request.max_body is not None:
            return self._batches.publish(
                request.body,
                now_ms=self._publisher.now_ms(),
                trace=trace_of(request),
                refuse_topic=None if request.caller is None else partial(refusal_of_topic, request.caller),
            )
        message = parse_message(request.body)
        require_topic(request, message.topic)
        return self._publisher.publish(
            record_of(message, now_ms=self._publisher.now_ms(), trace=trace_of(request))
        )
