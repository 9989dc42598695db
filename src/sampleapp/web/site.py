"""All connections of the service together."""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import ILoggingContext, IReactorTime
from twisted.web.http import datetimeToString
from twisted.web.server import Site
from zope.interface import implementer

from sampleapp.web.channel import FrontDoorChannel
from sampleapp.web.request import FrontDoorRequest
from sampleapp.web.routing import RouteTable

__all__ = ["FrontDoorSite"]


@implementer(ILoggingContext)
class FrontDoorSite(Site):
    """Makes the connections, knows which are open, and can wait until none is."""

    noisy = False
    # Without the switch to HTTP/2 that the default has: it would ignore the limit for bodies.
    protocol = FrontDoorChannel  # type: ignore[assignment] # the default is typed as a proxy
    requestFactory = FrontDoorRequest
    resource: RouteTable

    def __init__(self, resource: RouteTable, *, reactor: IReactorTime, max_body: int) -> None:
        """:param max_body: the greatest length of a request's body, in bytes."""
        super().__init__(resource, reactor=reactor, parsePOSTFormSubmission=False)
        self.max_body = max_body
        self.channels: set[FrontDoorChannel] = set()
        self.is_draining = False
        self._drained: list[Deferred[None]] = []
        self._date = b""
        self._dated_s = -1

    def logPrefix(self) -> str:
        """What Twisted calls it in the log, when it begins to listen."""
        return "sampleapp"

    def startFactory(self) -> None:
        """Do without the access log: its line costs more than a small request."""

    def stopFactory(self) -> None:
        """Do without the access log."""

    def log(self, request: object) -> None:
        """Do without the access log."""

    def acceptableProtocols(self) -> list[bytes]:
        """What TLS may negotiate (ALPN)."""
        return [b"http/1.1"]

    def http_date(self) -> bytes:
        """The time for a ``Date`` header (RFC 9110, section 6.6.1), which changes once a second."""
        now_s = int(self.reactor.seconds())
        if now_s != self._dated_s:
            self._date = datetimeToString(now_s)
            self._dated_s = now_s
        return self._date

    def channel_closed(self, channel: FrontDoorChannel) -> None:
        """Take note that a connection is gone."""
        self.channels.discard(channel)
        if not self.channels:
            drained, self._drained = self._drained, []
            for waiting in drained:
                waiting.callback(None)

    def drain(self) -> Deferred[None]:
        """
        Let the requests that are in flight end, and close each connection that has none.

        :return: fires with ``None`` when no connection is left. An answer that was handed to its
            connection is not on the wire yet, so requests that have ended are not enough.
        """
        self.is_draining = True
        for channel in list(self.channels):
            channel.drain()
        return self.wait_until_closed()

    def wait_until_closed(self) -> Deferred[None]:
        """Fires with ``None`` when no connection is left; cancelling it only stops the waiting."""
        if not self.channels:
            return succeed(None)
        waiting: Deferred[None] = Deferred(self._drained.remove)
        self._drained.append(waiting)
        return waiting

    def abort(self) -> None:
        """Cut every connection that is left."""
        for channel in list(self.channels):
            channel.transport.abortConnection()
