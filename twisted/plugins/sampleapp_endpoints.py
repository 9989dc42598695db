"""Register ``https:`` as a server endpoint of Twisted. Its modules are imported only when it is used."""

from __future__ import annotations

from typing import Any

from twisted.internet.interfaces import IStreamServerEndpoint, IStreamServerEndpointStringParser
from twisted.plugin import IPlugin
from zope.interface import implementer


@implementer(IPlugin, IStreamServerEndpointStringParser)
class _HTTPSParser:
    prefix = "https"

    def parseStreamServer(  # noqa: N802 -- Twisted's name
        self, reactor: Any, *args: str, **kwargs: str
    ) -> IStreamServerEndpoint:
        from sampleapp.tls import HTTPSEndpoint

        return HTTPSEndpoint.from_arguments(reactor, *args, **kwargs)


https = _HTTPSParser()
