"""A request on its way: encoded, and its answer decoded, in the version that a connection has."""

from __future__ import annotations

from typing import Generic, TypeVar

from msgspec import Struct
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.client.framing import ApiRanges
from sampleapp.brokers.kafka.connections.failure_reason import FailureReason
from sampleapp.brokers.kafka.protocol import Request, request_frame

__all__ = ["Call", "RequestFailed", "reason_of"]

R = TypeVar("R")

_CORRELATION_ID_BYTES = 4


class RequestFailed(Exception):
    """A request has no answer, and will have none."""

    def __init__(self, reason: FailureReason, *, sent: bool) -> None:
        """
        :param reason: why.
        :param sent: whether any of its bytes may have reached the broker.
        """
        super().__init__(reason.sentence)
        self.reason = reason
        self.sent = sent


def reason_of(failure: Failure) -> FailureReason:
    """
    Why a request has failed.

    :raise TypeError: the failure is about something else, which is a fault of ours.
    """
    if isinstance(failure.value, RequestFailed):
        return failure.value.reason
    raise TypeError(f"not a failed request: {failure.value!r}") from failure.value


class Call(Struct, Generic[R]):
    """One request to one broker."""

    request: Request[R]
    deadline_s: float
    """When it has to be answered, in seconds of the reactor's clock."""
    answer: Deferred[R]
    """For the connection to fire."""
    version: int = 0
    """The one that it was sent in."""
    sent: bool = False
    """Whether any of its bytes may have reached the broker."""

    def encode(self, correlation_id: int, ranges: ApiRanges, client_id: bytes) -> bytes:
        """
        Choose the version, and make the frame, without its length.

        :param ranges: the versions of each request that the broker takes.
        :param client_id: what the broker sees in its logs and quotas, as UTF-8.
        :raise RequestFailed: the broker has no version of the request that we have, or none that can
            carry this one.
        """
        request = self.request
        version = request.version_for(ranges)
        if version is None:
            raise RequestFailed(self._not_offered(), sent=False)
        obstacle = request.obstacle(version)
        if obstacle is not None:
            raise RequestFailed(_too_old(obstacle), sent=False)
        self.version = version
        return request_frame(request, version=version, correlation_id=correlation_id, client_id=client_id)

    def decode(self, frame: bytes) -> R:
        """
        Read the answer.

        :param frame: as it came, with the correlation id, by which this request was found.
        :raise sampleapp.brokers.kafka.protocol.ProtocolError: it is not one.
        """
        return self.request.decode(self.version, memoryview(frame)[_CORRELATION_ID_BYTES:])

    def unanswered(self, broker: str) -> FailureReason:
        """
        There was no answer in time.

        :param broker: its address.
        """
        return FailureReason(
            sentence=f"{broker} did not answer {self.request.api.name} in time.",
            public="The broker did not answer in time.",
            lasting=False,
        )

    def not_understood(self, broker: str) -> FailureReason:
        """
        The answer is not one.

        :param broker: its address.
        """
        return FailureReason(
            sentence=f"{broker} answered {self.request.api.name} with something that is not Kafka's.",
            public="The broker's answer could not be understood.",
            lasting=False,
        )

    def _not_offered(self) -> FailureReason:
        api = self.request.api
        return FailureReason(
            sentence=f"The broker does not offer {api.name} in a version from {api.lowest} to {api.highest}.",
            public="The broker does not speak a version of Kafka's protocol that this service speaks.",
            lasting=True,
            incompatible=True,
        )


def _too_old(obstacle: str) -> FailureReason:
    return FailureReason(sentence=obstacle, public=obstacle, lasting=True, incompatible=True)
