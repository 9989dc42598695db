"""``GET /``: the readings, in the version that ``Accept`` chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TypeAlias

from twisted.internet.defer import Deferred

from sampleapp.messages.queries import GET_PUBLISHES_NOTHING, require_no_message
from sampleapp.model import MEDIA_TYPES, Version
from sampleapp.readings import Representation
from sampleapp.web.errors import PreconditionFailed
from sampleapp.web.negotiation import choose_version, match_fails, none_match_fails
from sampleapp.web.responses import Response, SharedBody
from sampleapp.web.server import MemoryReservation, Request
from sampleapp.web.twisted_web import RequestResource

GetRepresentation: TypeAlias = Callable[[Version], "Representation | Deferred[Representation]"]
"""
Returns the current readings in a version, or a Deferred of the readings at this or a later time.

It raises, or fails with, `sampleapp.errors.ReadingsNotReady`.
"""


class AcceptDispatch(RequestResource):
    """Answers each request with the readings in the version that its ``Accept`` header chooses."""

    def __init__(self, get_representation: GetRepresentation) -> None:
        """:param get_representation: returns the readings."""
        super().__init__()
        self._versions: Mapping[Version, _Readings] = {
            version: _Readings(version, get_representation) for version in MEDIA_TYPES
        }

    def respond(self, request: Request) -> Response | Deferred[Response]:
        """
        Answer with the representation of the chosen version, or 304 if the client's copy is current.

        :return: a Deferred if it must be encoded first; it fails with the errors named here.
        :raise InvalidParameters: the query has a part of a message. Any other query is ignored.
        :raise ReadingsNotReady: the collection is not complete yet.
        :raise BodyMemoryFull: clients that read slowly hold too much of earlier ones.
        :raise PreconditionFailed: by ``If-Match``, which is evaluated before ``If-None-Match`` (RFC 9110,
            section 13.2.2).
        """
        if request.query:
            require_no_message(request.query, GET_PUBLISHES_NOTHING)
        fields = request.fields
        response = self._versions[choose_version(fields.joined(b"Accept"))].respond(request)
        tags = fields.joined(b"If-Match")
        if tags is None:
            return response
        if isinstance(response, Deferred):
            return response.addCallback(_require_match, tags)
        return _require_match(response, tags)


def _require_match(response: Response, tags: bytes) -> Response:
    if match_fails(tags, dict(response.headers)[b"ETag"]):
        raise PreconditionFailed
    return response


class _Readings:
    """The responses with the readings in one version."""

    def __init__(self, version: Version, get_representation: GetRepresentation) -> None:
        self._version = version
        self._get_representation = get_representation
        self._represented: Representation | None = None
        self._body: bytes | SharedBody = b""

    def respond(
        self, request: Request, representation: Representation | Deferred[Representation] | None = None
    ) -> Response | Deferred[Response]:
        """
        Answer with the representation, or 304 if the client's copy is current.

        :param representation: for the response; the current one by default.
        """
        if representation is None:
            representation = self._get_representation(self._version)
        if representation is not self._represented:
            if isinstance(representation, Deferred):
                return representation.addCallback(lambda made: self.respond(request, made))
            self._make_responses(representation, request.reservation)
        tags = request.fields.joined(b"If-None-Match")
        is_fresh = tags is not None and none_match_fails(tags, self._etag)
        return self._not_modified if is_fresh else self._whole

    def _make_responses(self, representation: Representation, reservation: MemoryReservation | None) -> None:
        if reservation is not None:
            # Also what clients hold that read earlier ones slowly.
            reservation.require_room(0)
        self._represented = representation
        self._etag = representation.etag.encode("ascii")
        validators = (
            (b"ETag", self._etag),
            (b"Vary", b"Accept"),
            (b"Cache-Control", b"no-cache"),
        )
        self._not_modified = Response(HTTPStatus.NOT_MODIFIED, validators)
        content_type = representation.media_type.encode("ascii")
        parts = representation.parts
        # A single part is sent in one write, which is cheaper.
        body = parts[0] if len(parts) == 1 else SharedBody(parts)
        if reservation is not None and isinstance(self._body, SharedBody):
            self._body.replace(parts if isinstance(body, bytes) else body, reservation)
        self._body = body
        self._whole = Response(HTTPStatus.OK, ((b"Content-Type", content_type), *validators), body)
