"""The interface of a cluster client, and that of a listener to its connections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeVar
from uuid import UUID

from twisted.internet.defer import Deferred

from sampleapp.brokers.kafka.connections.diagnostics import FailureReason
from sampleapp.brokers.kafka.protocol import Request, TopicMetadata

R = TypeVar("R")


class Connection(Protocol):
    """A connection to one broker that is not shared."""

    is_expiring: bool
    """True if its authentication ends soon (KIP-368): the broker drops it at a request after that."""

    def ask(self, request: Request[R], *, timeout_s: float) -> Deferred[R]:
        """Send a request, at most once, and connect before if necessary; see `ClusterClient.request`."""

    def close(self) -> Deferred[None]:
        """Close it for ever, as `ClusterClient.close` does. The client does not close it."""


class ClusterClient(Protocol):
    """The connections and the metadata of a cluster, for the producer and the consumer."""

    def request(self, node_id: int, request: Request[R], *, timeout_s: float) -> Deferred[R]:
        """
        Send a request to a broker, at most once.

        :param timeout_s: seconds to wait for the response, including connecting. After that the connection is
            dropped, since the responses to later requests could only follow this one.
        :return: fires with the response, or fails with `RequestFailed` and nothing else. Cancelling it
            stops waiting.
        """

    def new_connection(self, node_id: int) -> Connection | None:
        """
        Make one more connection to a broker, for one caller alone. It is not renewed when it expires.

        :return: ``None`` if the broker is not in the cluster.
        """

    def when_connected(self, node_id: int) -> Deferred[None]:
        """
        Connect to a broker, unless connected.

        :return: fires with ``None``, or fails with `RequestFailed`.
        """

    def is_connected(self, node_id: int) -> bool:
        """Return whether a request to this broker would be sent at once."""

    def load_metadata(self, topics: Iterable[str], *, auto_create: bool = False) -> Deferred[None]:
        """
        Load the brokers, and the partitions and leaders of these topics.

        :param topics: may be empty.
        :param auto_create: true if a broker may create missing topics, if it is configured to.
        :return: fires with ``None``, or fails with `RequestFailed` when no broker answers.
        """

    def topic_error(self, topic: str) -> int | None:
        """Return Kafka's error code in the last response about a topic; ``None`` before the first one."""

    def topic_id(self, topic: str) -> UUID | None:
        """
        Return the id of a topic. A topic that is deleted and made again gets another id.

        :return: the id in the last response about the topic; ``None`` before the first response, for a topic
            that does not exist, and with a broker without topic ids (Kafka before 2.8, KIP-516).
        """

    def partitions_of(self, topic: str) -> Sequence[int]:
        """Return the partitions of a topic, ascending; empty if it is unknown."""

    def leader_of(self, topic: str, partition: int) -> int | None:
        """Return the node id of the leader of a partition; ``None`` if unknown."""

    def leader_epoch_of(self, topic: str, partition: int) -> int:
        """
        Return the epoch of the leader of a partition, which grows with each election (KIP-320).

        :return: -1 if unknown, and with a broker before Kafka 2.1.
        """

    def describe_topics(self, topics: Sequence[str] | None) -> Deferred[Iterator[TopicMetadata | None]]:
        """
        Load the metadata of topics without keeping it or creating a topic.

        :param topics: their names; ``None`` for all.
        :return: fires with an iterator over the topics, or fails with `RequestFailed` when no broker answers.
            Cancelling it stops waiting. The response is decoded while it is iterated over: ``None`` comes
            after each millisecond of work, for a pause, and `sampleapp.brokers.kafka.protocol.ProtocolError`
            may be raised.
        """

    def forget_topic(self, topic: str) -> None:
        """Remove a topic from the metadata."""

    def node_ids(self) -> Sequence[int]:
        """Return the node ids of the brokers in the last metadata."""

    def close(self) -> Deferred[None]:
        """
        Close every connection; requests in flight fail with `RequestFailed`.

        :return: fires with ``None`` when they are closed. Never fails, and may be called more than once.
        """


class ConnectionListener(Protocol):
    """Gets the events of a client: of its connections, and of the cluster."""

    def connected(self, host: str, port: int) -> None:
        """Handle a connection that is ready for use."""

    def responded(self, host: str, port: int) -> None:
        """Handle that a broker has answered a request."""

    def failed(self, host: str, port: int, reason: FailureReason) -> None:
        """Handle a failed attempt to connect; not called for an attempt that was cancelled."""

    def lost(self, host: str, port: int) -> None:
        """Handle the end of a connection that was ready, by either side, unless it was closed for ever."""

    def leaders_changed(self) -> None:
        """Handle that new metadata of a known topic has a new leader epoch of a partition (KIP-320)."""
