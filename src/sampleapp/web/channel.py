"""One connection: refusals that the client can read, and an end that loses no answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from twisted.internet.interfaces import (
    IAddress,
    IDelayedCall,
    IHalfCloseableProtocol,
    ISSLTransport,
    ITCPTransport,
)
from twisted.internet.protocol import connectionDone
from twisted.internet.tcp import Server
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel, Request
from zope.interface import implementer

from sampleapp.web.answers import Answer
from sampleapp.web.problems import problem_answer
from sampleapp.web.request_errors import BodyTooLarge, HeaderTooLarge, MalformedRequest

if TYPE_CHECKING:
    from sampleapp.web.site import FrontDoorSite

__all__ = ["FrontDoorChannel"]

# As nginx has them (lingering_timeout and lingering_time).
_LINGER_IDLE_S: Final = 5.0
_LINGER_S: Final = 30.0

_CLOSE_S: Final = 60.0
"""How long a closed connection may take to be read empty by its client."""
_CLOSE_IDLE_S: Final = 1.0
"""The same for one on which there is nothing to read; over TLS even that has to be answered."""

# Twisted remembers the names of ten thousand header fields for ever.
_LONGEST_FIELD_NAME: Final = 256


@implementer(IHalfCloseableProtocol)
class FrontDoorChannel(HTTPChannel):
    """
    The server's side of one HTTP/1.1 connection.

    A client that is refused while it is still sending would, if the socket were closed at once, be sent
    a reset that can overtake the answer (RFC 9112, section 9.6). So the answer is sent, and what still
    comes is thrown away for a while.

    What Twisted keeps to itself is used here where it has no public name: the parser's buffer and
    counters, and the method that refuses malformed requests, which has no other way to be replaced.
    """

    site: FrontDoorSite
    transport: ITCPTransport
    _abort_call: IDelayedCall | None = None
    _host: IAddress | None = None
    _is_closing = False
    _is_lingering = False
    _linger_end_s = 0.0
    _client_has_finished = False

    def connectionMade(self) -> None:
        """Take part in the site's drain from now on."""
        self.site.channels.add(self)
        super().connectionMade()

    def getHost(self) -> IAddress:
        """Where the connection came in: asked of the system once, not for each request."""
        if self._host is None:
            self._host = super().getHost()
        return self._host

    def write_answer(self, data: bytes) -> None:
        """
        Send what the socket takes now, and leave the rest to the reactor.

        Asking the reactor to say when the socket is ready, and then not to, costs more than sending does.
        """
        transport: Any = self.transport
        if type(transport) is Server and not (
            transport.TLS
            or transport.disconnecting
            or transport.dataBuffer
            or transport._tempDataBuffer  # noqa: SLF001 -- what waits there has to go first
            or transport._writeDisconnected  # noqa: SLF001 -- there is no public name for it
        ):
            sent = transport.writeSomeData(data)
            # An error is for the reactor, which will meet it as well, and ends the connection.
            if isinstance(sent, int):
                data = data[sent:]
        if data:
            self.write(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Tell the requests and the site."""
        if self._abort_call is not None:
            self._abort_call.cancel()
            self._abort_call = None
        super().connectionLost(reason)
        self.site.channel_closed(self)

    def dataReceived(self, data: bytes) -> None:
        """Read on, or throw away what comes after a refusal."""
        if self._is_lingering:
            self._abort_within(min(_LINGER_IDLE_S, self._linger_end_s - self.site.reactor.seconds()))
        else:
            super().dataReceived(data)
            self._close_if_finished()

    def readConnectionLost(self) -> None:
        """Answer what the client has sent before it closed its side of the connection."""
        self._client_has_finished = True
        self._close_if_finished()

    def writeConnectionLost(self) -> None:
        """Do nothing: this side was closed by the service itself."""

    def _close_if_finished(self) -> None:
        is_at_work = self._handlingRequest or self._busyReceiving or self.paused
        if self._client_has_finished and not is_at_work:
            self.loseConnection()

    def pauseProducing(self) -> None:
        """Begin no further request: the client does not read the answers that it has been sent."""
        super().pauseProducing()
        self.paused = True

    def resumeProducing(self) -> None:
        """Go on with the requests that have come meanwhile."""
        super().resumeProducing()
        self.paused = False
        self.dataReceived(b"")

    def requestDone(self, request: Request) -> None:
        """Go on with the next request, if the client reads."""
        if self._waitingForTransport:
            self._networkProducer.pauseProducing()
        super().requestDone(request)
        self._close_if_finished()

    def loseConnection(self) -> None:
        """Close the connection once the client has read everything, or has had time enough for it."""
        if not self._is_closing:
            self._is_closing = True
            super().loseConnection()
            self._abort_within(_CLOSE_S)

    def headerReceived(self, line: bytes) -> bool:
        """
        Take one field of the header.

        :return: whether the request may go on.
        """
        if line.find(b":") > _LONGEST_FIELD_NAME:
            self.refuse(
                problem_answer(HeaderTooLarge(f"A field's name is over {_LONGEST_FIELD_NAME} bytes."))
            )
            return False
        try:
            return bool(super().headerReceived(line))
        except ValueError:
            # A Content-Length of more digits than int() reads.
            self.refuse(problem_answer(BodyTooLarge(self.site.max_body)))
            return False

    def lineLengthExceeded(self, line: bytes) -> None:
        """Refuse a header that has a line over the limit."""
        self.refuse(problem_answer(HeaderTooLarge(f"A line of the header is over {self.MAX_LENGTH} bytes.")))

    def checkPersistence(self, request: Request, version: bytes) -> bool:
        """
        Whether the connection stays open after this request; called when its header has been read.

        Twisted's own reads only the first line of ``Connection``, and no commas (RFC 9110, section 7.6.1).
        """
        request.clientproto = version
        options = b",".join(request.requestHeaders.getRawHeaders(b"Connection", []))
        wants_close = b"close" in [option.strip(b" \t") for option in options.lower().split(b",")]
        if version == b"HTTP/1.1" and not wants_close and not self.site.is_draining:
            return True
        request.responseHeaders.setRawHeaders(b"Connection", [b"close"])
        return False

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
        self._linger_end_s = self.site.reactor.seconds() + _LINGER_S
        self.clearLineBuffer()
        self.setRawMode()
        self.transport.write(
            b"%bDate: %b\r\nConnection: close\r\n\r\n%b" % (answer.head, self.site.http_date(), answer.body)
        )
        self._abort_within(_LINGER_IDLE_S)
        # TLS has no half-closed connections that clients could be expected to know.
        if not ISSLTransport.providedBy(self.transport):
            self.transport.loseWriteConnection()

    def drain(self) -> None:
        """Close the connection as soon as no request is in flight on it."""
        if self.requests:
            self.persistent = 0
        elif not self._buffer and not self._is_lingering:
            self.loseConnection()
            self._abort_within(_CLOSE_IDLE_S)

    def _abort_within(self, delay_s: float) -> None:
        """Cut the connection after this time at the latest, unless it has ended by then."""
        if self._abort_call is not None:
            self._abort_call.cancel()
        self._abort_call = self.callLater(max(0.0, delay_s), self._abort)

    def _abort(self) -> None:
        self._abort_call = None
        self.transport.abortConnection()
