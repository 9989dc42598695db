"""A request on its way: encoded, and its answer decoded, in the version that a connection has."""

from __future__ import annotations

from typing import Generic, TypeVar

from sampleapp.brokers.kafka.client.connection import ApiRanges, Connection, RequestFailed
from sampleapp.brokers.kafka.connections.failure_reason import FailureReason, address
from sampleapp.brokers.kafka.protocol import Request, request_frame

__all__ = ["Call"]

R = TypeVar("R")


class Call(Generic[R]):
    """One request to one broker."""

    def __init__(self, request: Request[R], *, client_id: bytes) -> None:
        """:param client_id: what the broker sees in its logs and quotas, as UTF-8."""
        self._request = request
        self._client_id = client_id
        self._version = 0

    def encode(self, correlation_id: int, ranges: ApiRanges) -> bytes:
        """
        See `sampleapp.brokers.kafka.client.connection.Frame`.

        :raise RequestFailed: the broker has no version of the request that we have, or none that can
            carry this one.
        """
        version = self._request.version_for(ranges)
        if version is None:
            raise RequestFailed(self._not_offered(), sent=False)
        obstacle = self._request.obstacle(version)
        if obstacle is not None:
            raise RequestFailed(_too_old(obstacle), sent=False)
        self._version = version
        return request_frame(
            self._request, version=version, correlation_id=correlation_id, client_id=self._client_id
        )

    def decode(self, answer: bytes) -> R:
        """
        Read the answer.

        :param answer: as it came, with the correlation id, by which afkak has found this request.
        :raise sampleapp.brokers.kafka.protocol.ProtocolError: it is not one.
        """
        return self._request.decode(self._version, memoryview(answer)[4:])

    def unanswered(self, broker: Connection) -> FailureReason:
        """There was no answer in time."""
        return FailureReason(
            sentence=f"{address(broker.host, broker.port)} did not answer {self._request.api.name} in time.",
            public="The broker did not answer in time.",
            lasting=False,
        )

    def not_understood(self, broker: Connection) -> FailureReason:
        """The answer is not one."""
        return FailureReason(
            sentence=f"{address(broker.host, broker.port)} answered {self._request.api.name} with something "
            "that is not Kafka's.",
            public="The broker's answer could not be understood.",
            lasting=False,
        )

    def _not_offered(self) -> FailureReason:
        api = self._request.api
        return FailureReason(
            sentence=f"The broker does not offer {api.name} in a version from {api.lowest} to {api.highest}.",
            public="The broker does not speak a version of Kafka's protocol that this service speaks.",
            lasting=True,
            incompatible=True,
        )


def _too_old(obstacle: str) -> FailureReason:
    return FailureReason(sentence=obstacle, public=obstacle, lasting=True, incompatible=True)
