"""An HTTP/1.1 server that knows nothing of what is served."""

from sampleapp.web.server.connection import SAFE
from sampleapp.web.server.descriptors import Descriptors
from sampleapp.web.server.exchange import Exchange, OnAnswer, Peer
from sampleapp.web.server.fields import Fields
from sampleapp.web.server.limits import Limits
from sampleapp.web.server.loopback import is_on_loopback
from sampleapp.web.server.request import Dispatch, Handler, Request
from sampleapp.web.server.server import HTTPServer

__all__ = [
    "SAFE",
    "Descriptors",
    "Dispatch",
    "Exchange",
    "Fields",
    "HTTPServer",
    "Handler",
    "Limits",
    "OnAnswer",
    "Peer",
    "Request",
    "is_on_loopback",
]
