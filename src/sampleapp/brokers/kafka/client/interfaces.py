"""What a client of a cluster offers, and what it tells of its connections."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar
from uuid import UUID

from twisted.internet.defer import Deferred

from sampleapp.brokers.kafka.connections.failure_reason import FailureReason
from sampleapp.brokers.kafka.protocol import Request, TopicMetadata

__all__ = ["ClusterClient", "ConnectionListener"]

R = TypeVar("R")


class ClusterClient(Protocol):
    """The connections to a cluster, and what is known of it: what the producer and the consumer use."""

    def request(self, node_id: int, request: Request[R], *, timeout_s: float) -> Deferred[R]:
        """
        Send a request to a broker, at most once.

        :param timeout_s: seconds to wait for the answer, the connecting included. Then the connection is
            dropped, since the answers to later requests could only come after this one.
        :return: fires with the answer, or fails with `RequestFailed` and nothing else. Cancelling it
            gives up waiting.
        """

    def when_connected(self, node_id: int) -> Deferred[None]:
        """
        Connect to a broker, unless that is done.

        :return: fires with ``None``, or fails with `RequestFailed`.
        """

    def is_connected(self, node_id: int) -> bool:
        """Return whether a request to this broker would be sent at once."""

    def load_metadata(self, topics: Iterable[str], *, auto_create: bool = False) -> Deferred[None]:
        """
        Learn which brokers there are, and of these topics their partitions and leaders.

        :param topics: may be empty.
        :param auto_create: whether a broker may create those that do not exist, if it is configured to.
        :return: fires with ``None``, or fails with `RequestFailed` when no broker answers.
        """

    def topic_error(self, topic: str) -> int | None:
        """Return Kafka's error code in the last answer about a topic; ``None`` if there was none yet."""

    def topic_id(self, topic: str) -> UUID | None:
        """
        Return the id of a topic, which is another one when it was deleted and made again under its name.

        :return: what the last answer about the topic said; ``None`` if there was none yet, or no such topic,
            or the broker has no ids of topics (Kafka before 2.8, KIP-516).
        """

    def partitions_of(self, topic: str) -> Sequence[int]:
        """Return the partitions of a topic, ascending; none if it is not known."""

    def leader_of(self, topic: str, partition: int) -> int | None:
        """Return the node id of the broker that leads a partition, if one is known to."""

    def describe_topics(self, topics: Sequence[str] | None) -> Deferred[Sequence[TopicMetadata]]:
        """
        Look which topics there are; nothing of it is kept, and none is created.

        :param topics: the only ones to look for; ``None`` for all.
        :return: fires with what a broker says of each, or fails with `RequestFailed` when none answers.
            Cancelling it gives up waiting.
        """

    def forget_topic(self, topic: str) -> None:
        """Keep nothing of a topic."""

    def node_ids(self) -> Sequence[int]:
        """Return the brokers of the cluster, as of the last metadata."""


class ConnectionListener(Protocol):
    """Is told what happens to the connections of a client."""

    def connected(self, host: str, port: int) -> None:
        """A connection is ready for use."""

    def answered(self, host: str, port: int) -> None:
        """An answer to a request has come."""

    def failed(self, host: str, port: int, reason: FailureReason) -> None:
        """An attempt to connect has failed, for this reason; not told if it was given up."""

    def lost(self, host: str, port: int) -> None:
        """A connection that was ready has ended, whoever ended it."""
