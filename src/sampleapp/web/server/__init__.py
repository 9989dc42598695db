"""An HTTP/1.1 server: connections, requests, limits. It knows nothing of routes and their handlers."""

from sampleapp.web.server.body import BodyMemory, MemoryReservation, Owner, Unverified
from sampleapp.web.server.fields import Fields
from sampleapp.web.server.hosts import HostRule, NotAHost, check_host_name
from sampleapp.web.server.limits import Descriptors, Limits
from sampleapp.web.server.request import (
    SAFE,
    Dispatch,
    Exchange,
    Handler,
    OnResponse,
    Peer,
    Request,
    is_on_loopback,
)
from sampleapp.web.server.server import HTTPServer
from sampleapp.web.server.stream import StreamEnd

__all__ = [
    "SAFE",
    "BodyMemory",
    "Descriptors",
    "Dispatch",
    "Exchange",
    "Fields",
    "HTTPServer",
    "Handler",
    "HostRule",
    "Limits",
    "MemoryReservation",
    "NotAHost",
    "OnResponse",
    "Owner",
    "Peer",
    "Request",
    "StreamEnd",
    "Unverified",
    "check_host_name",
    "is_on_loopback",
]
