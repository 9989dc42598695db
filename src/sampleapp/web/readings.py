"""``GET /``: one collection, in the version that the caller's ``Accept`` header asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias

from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from sampleapp.conditional import none_match_fails
from sampleapp.negotiation import Version, choose_version
from sampleapp.readings import Representation
from sampleapp.web.answers import Answer

if TYPE_CHECKING:
    from sampleapp.web.request import FrontDoorRequest

__all__ = ["AcceptDispatch", "GetRepresentation", "RepresentationResource", "readings_resource"]

GetRepresentation: TypeAlias = Callable[[Version], Representation]
"""Gives the readings as they are now; raises `sampleapp.errors.ReadingsNotReady`."""


def readings_resource(get_representation: GetRepresentation) -> Resource:
    """Make the resource that serves both versions of the readings."""
    return AcceptDispatch(
        {
            1: RepresentationResource(1, get_representation),
            2: RepresentationResource(2, get_representation),
        }
    )


class AcceptDispatch(Resource):
    """Leaves each request to the resource of the version that its ``Accept`` header chooses."""

    isLeaf = True

    def __init__(self, versions: Mapping[Version, RepresentationResource]) -> None:
        super().__init__()
        self._versions = versions

    def render(self, request: FrontDoorRequest) -> int:
        """Render the request with the resource of the chosen version."""
        lines = request.requestHeaders.getRawHeaders(b"Accept")
        accept = None if lines is None else lines[0] if len(lines) == 1 else b",".join(lines)
        return self._versions[choose_version(accept)].render(request)


class RepresentationResource(Resource):
    """One version of the readings."""

    isLeaf = True

    def __init__(self, version: Version, get_representation: GetRepresentation) -> None:
        super().__init__()
        self._version = version
        self._get_representation = get_representation
        self._represented: Representation | None = None

    def render(self, request: FrontDoorRequest) -> int:
        """
        Answer with the representation, or that the caller has it already.

        :raise ReadingsNotReady: there is no whole collection to represent yet.
        """
        representation = self._get_representation(self._version)
        if representation is not self._represented:
            self._make_answers(representation)
        lines = request.requestHeaders.getRawHeaders(b"If-None-Match")
        fresh = lines is not None and none_match_fails(b",".join(lines), self._etag)
        request.write_answer(self._not_modified if fresh else self._whole)
        return NOT_DONE_YET

    def _make_answers(self, representation: Representation) -> None:
        self._represented = representation
        self._etag = representation.etag.encode("ascii")
        validators = (
            (b"ETag", self._etag),
            (b"Vary", b"Accept"),
            (b"Cache-Control", b"no-cache"),
        )
        self._not_modified = Answer(HTTPStatus.NOT_MODIFIED, validators)
        content_type = representation.media_type.encode("ascii")
        self._whole = Answer(
            HTTPStatus.OK, ((b"Content-Type", content_type), *validators), representation.body
        )
