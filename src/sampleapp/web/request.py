"""A request that is admitted before its body is taken, and answered in one write."""

from __future__ import annotations

from http import HTTPStatus
from io import BytesIO
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.iweb import INonQueuedRequestFactory
from twisted.web.server import Request
from zope.interface import provider

from sampleapp.web.admission import admit
from sampleapp.web.answers import Answer
from sampleapp.web.problems import INTERNAL_ERROR, problem_answer
from sampleapp.web.request_errors import BodyTooLarge, MalformedRequest, RequestError

if TYPE_CHECKING:
    from sampleapp.web.channel import FrontDoorChannel
    from sampleapp.web.site import FrontDoorSite

__all__ = ["FrontDoorRequest"]


@provider(INonQueuedRequestFactory)
class FrontDoorRequest(Request):
    """
    One HTTP request.

    The body is kept in memory, never in a temporary file, and no more of it than the site allows.
    """

    _log = Logger()
    channel: FrontDoorChannel
    content: BytesIO
    site: FrontDoorSite
    _received = 0
    _is_refused = False

    def gotLength(self, length: int | None) -> None:
        """Refuse the request, or take its body; called once its header has been read."""
        self.content = BytesIO()
        try:
            admit(
                headers=self.requestHeaders,
                version=self.clientproto,
                length=length,
                max_body=self.channel.site.max_body,
            )
        except RequestError as error:
            self._refuse(error)

    def handleContentChunk(self, data: bytes) -> None:
        """Take one piece of the body, unless that makes it too large."""
        if self._is_refused:
            return
        self._received += len(data)
        max_body = self.channel.site.max_body
        if self._received > max_body:
            self._refuse(BodyTooLarge(max_body))
        else:
            self.content.write(data)

    def _refuse(self, error: RequestError) -> None:
        self._is_refused = True
        self.content = BytesIO()
        # The channel would send "100 Continue" after the refusal.
        self.requestHeaders.removeHeader(b"Expect")
        self.channel.refuse(problem_answer(error))

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """Process the request, now that it is whole."""
        if not self._is_refused:
            super().requestReceived(command, path, version)

    def process(self) -> None:
        """Find what answers; all but the service's own routes goes the long way through Twisted and Klein."""
        self.site = self.channel.site
        if not self.path.startswith(b"/") and self.path != b"*":
            try:
                self.path = _path_of_url(self.path)
            except MalformedRequest as error:
                self.write_answer(problem_answer(error))
                return
        if not self.site.resource.dispatch(self, self.path):
            super().process()

    def _handleStar(self) -> None:
        # A probe of the server as a whole (RFC 9110, section 9.3.7).
        if self.method == b"OPTIONS":
            self.write_answer(Answer(HTTPStatus.NO_CONTENT))
        else:
            self.write_answer(problem_answer(MalformedRequest('The target "*" is for OPTIONS only.')))

    def processingFailed(self, reason: Failure) -> Any:
        """Answer a fault that nobody else has answered, without telling of the inside."""
        self._log.failure("A request met a fault of the service.", failure=reason)
        self.write_answer(INTERNAL_ERROR)

    def write_answer(self, answer: Answer) -> None:
        """Send a whole answer and finish. Does nothing if the client has gone."""
        if self._disconnected:
            return
        channel = self.channel
        body = b"" if self.method == b"HEAD" else answer.body
        # What write() would note, so that finish() adds nothing.
        self.startedWriting = 1
        self.code = answer.status
        self.sentLength = len(body)
        channel.write_answer(
            b"%bDate: %b\r\n%b\r\n%b"
            % (
                answer.head,
                channel.site.http_date(),
                b"" if channel.persistent else b"Connection: close\r\n",
                body,
            )
        )
        self.finish()


def _path_of_url(target: bytes) -> bytes:
    """
    Accept a whole URL as the target, as every server has to (RFC 9112, section 3.2.2).

    :raise MalformedRequest: it is not that either. Twisted would cut off the first byte and go on.
    """
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        raise MalformedRequest('The target of a request is a path, which begins with "/".')
    return b"/" + rest.partition(b"/")[2]
