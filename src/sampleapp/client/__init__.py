"""
A typed client of the HTTP interface, on treq::

    client = Client(base_url="http://127.0.0.1:8080/", reactor=reactor)
    metadata = await client.publish(topic="readings", key="kitchen", content="21.5")
    values = await client.readings()
    page = await client.read(topic="orders")
    async for item in client.stream(topic="orders", start=page.position):
        ...

Every error is a `ClientError`, which says whether the same request may succeed later, and whether a message
may have been published in spite of it.
"""

from sampleapp.client._client import Client, Snapshot
from sampleapp.client._errors import (
    ClientError,
    Forbidden,
    LeaseLost,
    PartlyPublished,
    PositionError,
    PositionExpired,
    PositionUnknown,
    Problem,
    ProblemError,
    RequestCancelled,
    RequestTimedOut,
    ResponseLost,
    ServiceUnreachable,
    TLSFailed,
    TooManyRequests,
    TopicReplaced,
    Unauthorized,
    UnexpectedResponse,
)
from sampleapp.client._messages import Lease, Message, Page
from sampleapp.client._settings import check_token, parse_base_url
from sampleapp.client._stream import Gap, Reset, Stream, StreamItem
from sampleapp.client._work import Rejected, Released
from sampleapp.model import Version

__all__ = [
    "Client",
    "ClientError",
    "Forbidden",
    "Gap",
    "Lease",
    "LeaseLost",
    "Message",
    "Page",
    "PartlyPublished",
    "PositionError",
    "PositionExpired",
    "PositionUnknown",
    "Problem",
    "ProblemError",
    "Rejected",
    "Released",
    "RequestCancelled",
    "RequestTimedOut",
    "Reset",
    "ResponseLost",
    "ServiceUnreachable",
    "Snapshot",
    "Stream",
    "StreamItem",
    "TLSFailed",
    "TooManyRequests",
    "TopicReplaced",
    "Unauthorized",
    "UnexpectedResponse",
    "Version",
    "check_token",
    "parse_base_url",
]
