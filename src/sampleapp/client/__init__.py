"""
A typed client of the HTTP interface, on treq::

    client = Client(base_url="http://127.0.0.1:8080/", reactor=reactor)
    metadata = await client.publish(topic="readings", key="kitchen", content="21.5")
    values = await client.readings()

Every error is a `ClientError`, and says whether the same request is worth another try, and whether a
message may have been published in spite of it.
"""

from sampleapp.client._client import Client, Snapshot
from sampleapp.client._errors import (
    AnswerLost,
    ClientError,
    Forbidden,
    PartlyPublished,
    Problem,
    ProblemError,
    RequestTimedOut,
    ServiceUnreachable,
    TLSFailed,
    TooManyRequests,
    Unauthorized,
    UnexpectedAnswer,
)
from sampleapp.client._messages import Message
from sampleapp.client._tokens import check_token
from sampleapp.client._urls import parse_base_url
from sampleapp.negotiation import Version

__all__ = [
    "AnswerLost",
    "Client",
    "ClientError",
    "Forbidden",
    "Message",
    "PartlyPublished",
    "Problem",
    "ProblemError",
    "RequestTimedOut",
    "ServiceUnreachable",
    "Snapshot",
    "TLSFailed",
    "TooManyRequests",
    "Unauthorized",
    "UnexpectedAnswer",
    "Version",
    "check_token",
    "parse_base_url",
]
