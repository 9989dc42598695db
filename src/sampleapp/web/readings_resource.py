"""``GET /``: the readings, in the version that ``Accept`` chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TypeAlias

from twisted.internet.defer import Deferred
from twisted.web.iweb import IRequest
from twisted.web.resource import Resource

from sampleapp.model import Version
from sampleapp.readings import Representation
from sampleapp.web.answers import Answer, SharedBody
from sampleapp.web.negotiation import choose_version
from sampleapp.web.preconditions import none_match_fails
from sampleapp.web.server import Request, Share
from sampleapp.web.twisted_web import render_resource

__all__ = ["AcceptDispatch", "GetRepresentation", "RepresentationResource", "readings_resource"]

GetRepresentation: TypeAlias = Callable[[Version], "Representation | Deferred[Representation]"]
"""
Returns the current readings in a version, or a Deferred of the readings at this or a later time.

It raises, or fails with, `sampleapp.errors.ReadingsNotReady`.
"""


def readings_resource(get_representation: GetRepresentation) -> AcceptDispatch:
    """Return the resource for both versions of the readings."""
    return AcceptDispatch(
        {
            1: RepresentationResource(1, get_representation),
            2: RepresentationResource(2, get_representation),
        }
    )


class AcceptDispatch(Resource):
    """Passes each request to the resource of the version that its ``Accept`` header chooses."""

    isLeaf = True

    def __init__(self, versions: Mapping[Version, RepresentationResource]) -> None:
        super().__init__()
        self._versions = versions

    def answer(self, request: Request) -> Answer | Deferred[Answer]:
        """
        Answer with the representation of the chosen version.

        :return: a Deferred if it must be encoded first; it fails with the error named here.
        :raise ReadingsNotReady: the collection is not complete yet.
        """
        return self._versions[choose_version(request.fields.joined(b"Accept"))].answer(request)

    def render(self, request: IRequest) -> int:
        """Answer inside a site of twisted.web."""
        return render_resource(request, self.answer)


class RepresentationResource(Resource):
    """One version of the readings."""

    isLeaf = True

    def __init__(self, version: Version, get_representation: GetRepresentation) -> None:
        super().__init__()
        self._version = version
        self._get_representation = get_representation
        self._represented: Representation | None = None
        self._body: bytes | SharedBody = b""

    def render(self, request: IRequest) -> int:
        """Answer inside a site of twisted.web."""
        return render_resource(request, self.answer)

    def answer(
        self, request: Request, representation: Representation | Deferred[Representation] | None = None
    ) -> Answer | Deferred[Answer]:
        """
        Answer with the representation, or 304 if the client's copy is current.

        :param representation: for the answer; the current one by default.
        :return: a Deferred if it must be encoded first; it fails with the error named here.
        :raise ReadingsNotReady: the collection is not complete yet.
        :raise BodyMemoryFull: clients that read slowly hold too much of earlier ones.
        """
        if representation is None:
            representation = self._get_representation(self._version)
        if representation is not self._represented:
            if isinstance(representation, Deferred):
                return representation.addCallback(lambda made: self.answer(request, made))
            self._make_answers(representation, request.share)
        tags = request.fields.joined(b"If-None-Match")
        is_fresh = tags is not None and none_match_fails(tags, self._etag)
        return self._not_modified if is_fresh else self._whole

    def _make_answers(self, representation: Representation, share: Share | None) -> None:
        if share is not None:
            # Also what clients hold that read earlier ones slowly.
            share.require_room(0)
            if isinstance(self._body, SharedBody):
                self._body.replace(representation.pieces, share)
        self._represented = representation
        self._etag = representation.etag.encode("ascii")
        validators = (
            (b"ETag", self._etag),
            (b"Vary", b"Accept"),
            (b"Cache-Control", b"no-cache"),
        )
        self._not_modified = Answer(HTTPStatus.NOT_MODIFIED, validators)
        content_type = representation.media_type.encode("ascii")
        pieces = representation.pieces
        # A single piece is sent in one write, which is cheaper.
        self._body = pieces[0] if len(pieces) == 1 else SharedBody(pieces)
        self._whole = Answer(HTTPStatus.OK, ((b"Content-Type", content_type), *validators), self._body)
