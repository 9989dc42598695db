"""One connection: refusals that the client can read, and an end that loses no answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twisted.internet.interfaces import IDelayedCall, ISSLTransport, ITCPTransport
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel, Request

from sampleapp.web.answers import Answer
from sampleapp.web.problems import problem_answer
from sampleapp.web.request_errors import HeaderTooLarge, MalformedRequest

if TYPE_CHECKING:
    from sampleapp.web.site import FrontDoorSite

__all__ = ["FrontDoorChannel"]

_LINGER_S: Final = 2.0
_LINGER_BYTES: Final = 1024 * 1024


class FrontDoorChannel(HTTPChannel):
    """
    The server's side of one HTTP/1.1 connection.

    A client that is refused while it is still sending would, if the socket were closed at once, be sent
    a reset that can overtake the answer (RFC 9112, section 9.6). So the answer is sent, and what still
    comes is thrown away for a while.
    """

    site: FrontDoorSite
    transport: ITCPTransport
    _linger_end: IDelayedCall | None = None
    _is_lingering = False
    _discarded = 0

    def connectionMade(self) -> None:
        """Take part in the site's drain from now on."""
        self.site.channels.add(self)
        super().connectionMade()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Tell the requests and the site."""
        if self._linger_end is not None:
            self._linger_end.cancel()
            self._linger_end = None
        super().connectionLost(reason)
        self.site.channel_closed(self)

    def dataReceived(self, data: bytes) -> None:
        """Read on, or throw away what comes after a refusal."""
        if not self._is_lingering:
            super().dataReceived(data)
            return
        self._discarded += len(data)
        if self._discarded > _LINGER_BYTES:
            self.transport.abortConnection()

    def rawDataReceived(self, data: bytes) -> None:
        """Take a piece of a body, unless the request was refused meanwhile."""
        if not self._is_lingering:
            super().rawDataReceived(data)

    def lineLengthExceeded(self, line: bytes) -> None:
        """Refuse a header that has a line over the limit."""
        self.refuse(problem_answer(HeaderTooLarge(f"A line of the header is over {self.MAX_LENGTH} bytes.")))

    def checkPersistence(self, request: Request, version: bytes) -> bool:
        """Whether the connection stays open after this request; called when its header has been read."""
        request.clientproto = version
        return not self.site.is_draining and super().checkPersistence(request, version)

    def _respondToBadRequestAndDisconnect(self) -> None:
        if self._is_lingering:
            return
        if self._receivedHeaderSize > self.totalHeadersSize or self._receivedHeaderCount > self.maxHeaders:
            error = HeaderTooLarge(
                f"The header is over {self.totalHeadersSize} bytes, or over {self.maxHeaders} fields."
            )
            self.refuse(problem_answer(error))
        else:
            self.refuse(problem_answer(MalformedRequest("The request does not follow the grammar of HTTP.")))

    def refuse(self, answer: Answer) -> None:
        """Answer the request that is being read, read no more of it, and close the connection soon."""
        self._is_lingering = True
        self.clearLineBuffer()
        self.setRawMode()
        self.setTimeout(None)
        self.transport.write(
            b"%bDate: %b\r\nConnection: close\r\n\r\n%b" % (answer.head, self.site.http_date(), answer.body)
        )
        self._linger_end = self.callLater(_LINGER_S, self._stop_lingering)
        # TLS has no half-closed connections that clients could be expected to know.
        if not ISSLTransport.providedBy(self.transport):
            self.transport.loseWriteConnection()

    def _stop_lingering(self) -> None:
        self._linger_end = None
        self.transport.abortConnection()

    def drain(self) -> None:
        """Close the connection as soon as no request is under way on it."""
        if self.requests or self._buffer:
            self.persistent = 0
        elif not self._is_lingering:
            self.loseConnection()
