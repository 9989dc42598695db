"""A request in flight: encoded, and its response decoded, in a version that the broker supports."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from msgspec import Struct
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.cluster_client.framing import ApiRanges
from sampleapp.brokers.kafka.connections.failure_reason import FailureReason
from sampleapp.brokers.kafka.protocol import Request, request_frame

__all__ = [
    "CLIENT_CLOSED",
    "METADATA_UNUSABLE",
    "SERVICE_FAULT",
    "Call",
    "RequestFailed",
    "request_failed",
    "unknown_broker",
]

R = TypeVar("R")

_CORRELATION_ID_BYTES = 4
_log: Final = Logger()

SERVICE_FAULT: Final = FailureReason(
    sentence="The service has a bug; the log has the traceback.",
    public="The service has a fault.",
    lasting=False,
)
"""The reason after an unexpected exception."""

METADATA_UNUSABLE: Final = FailureReason(
    sentence="The broker's metadata of the cluster could not be processed; the log has the traceback.",
    public="The broker's metadata of the cluster could not be processed.",
    lasting=False,
)

CLIENT_CLOSED: Final = FailureReason(
    sentence="The Kafka client is closed.", public="The connection to the broker was closed.", lasting=False
)


def unknown_broker(node_id: int) -> FailureReason:
    """Return the reason for a request to a broker that is not in the cluster."""
    return FailureReason(
        sentence=f"Broker {node_id} is not in the cluster.",
        public="The broker is not in the cluster now.",
        lasting=False,
    )


class RequestFailed(Exception):
    """A request has failed without a response."""

    def __init__(self, reason: FailureReason, *, sent: bool) -> None:
        """
        :param reason: the reason.
        :param sent: true if any of its bytes may have reached the broker.
        """
        super().__init__(reason.sentence)
        self.reason = reason
        self.sent = sent


def request_failed(failure: Failure) -> RequestFailed:
    """
    Return a `RequestFailed` for any failure.

    Any other exception is a bug in the service. It is logged, and the broker may have the request.
    """
    if isinstance(failure.value, RequestFailed):
        return failure.value
    _log.failure("A bug in the service: a request to a broker failed unexpectedly", failure=failure)
    return RequestFailed(SERVICE_FAULT, sent=True)


class Call(Struct, Generic[R]):
    """One request to one broker."""

    request: Request[R]
    deadline_s: float
    """When the response must have come, in seconds of the reactor's clock."""
    response: Deferred[R]
    """The connection fires it."""
    version: int = 0
    """The version in which it was sent."""
    sent: bool = False
    """True if any of its bytes may have reached the broker."""

    def encode(self, correlation_id: int, ranges: ApiRanges, client_id: bytes) -> bytes:
        """
        Choose the version, and encode the frame without its length.

        :param ranges: the versions of each API that the broker supports.
        :param client_id: the name of this client in the broker's logs and quotas, in UTF-8.
        :raise RequestFailed: the broker and this service have no version of the API in common, or none that
            can carry this request.
        """
        request = self.request
        version = request.version_for(ranges)
        if version is None:
            raise RequestFailed(self._not_offered(), sent=False)
        unsupported_reason = request.unsupported_reason(version)
        if unsupported_reason is not None:
            raise RequestFailed(_too_old(unsupported_reason), sent=False)
        self.version = version
        return request_frame(request, version=version, correlation_id=correlation_id, client_id=client_id)

    def decode(self, frame: bytes) -> R:
        """
        Decode the response.

        :param frame: as received, with the correlation id, by which this request was found.
        :raise sampleapp.brokers.kafka.protocol.ProtocolError: it is not a response to this request.
        """
        return self.request.decode(self.version, memoryview(frame)[_CORRELATION_ID_BYTES:])

    def unanswered(self, broker: str) -> FailureReason:
        """
        Return the reason when no response came in time.

        :param broker: its address.
        """
        return FailureReason(
            sentence=f"{broker} did not answer {self.request.api.name} in time.",
            public="The broker did not answer in time.",
            lasting=False,
        )

    def not_understood(self, broker: str) -> FailureReason:
        """
        Return the reason when the response cannot be decoded.

        :param broker: its address.
        """
        return FailureReason(
            sentence=f"{broker} answered {self.request.api.name} with bytes that are not Kafka's protocol.",
            public="The broker's answer could not be decoded.",
            lasting=False,
        )

    def _not_offered(self) -> FailureReason:
        api = self.request.api
        return FailureReason(
            sentence=f"The broker does not support {api.name} in a version {api.lowest} to {api.highest}.",
            public="The broker and this service have no version of Kafka's protocol in common.",
            lasting=True,
            incompatible=True,
        )


def _too_old(unsupported_reason: str) -> FailureReason:
    return FailureReason(
        sentence=unsupported_reason, public=unsupported_reason, lasting=True, incompatible=True
    )
