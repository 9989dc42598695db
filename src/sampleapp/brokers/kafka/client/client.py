"""
afkak's client, speaking the protocol of today.

afkak keeps the connections and what is known of the cluster. Its own codecs are of Kafka 0.8, and
Kafka 4 closes the connection on them (KIP-896); so every request that goes out is one of
`sampleapp.brokers.kafka.protocol`, in the highest version that both sides of its connection have.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from afkak.client import KafkaClient
from afkak.common import BrokerMetadata, PartitionMetadata, TopicMetadata
from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.client.call import RequestFailed
from sampleapp.brokers.kafka.client.connection import Connection
from sampleapp.brokers.kafka.client.interfaces import ConnectionListener
from sampleapp.brokers.kafka.client.metadata import MetadataLoads, ask_one_of
from sampleapp.brokers.kafka.connections.diagnostics import NOT_LEARNT, gone
from sampleapp.brokers.kafka.protocol import (
    ClusterMetadata,
    MetadataRequest,
    Request,
)
from sampleapp.brokers.kafka.protocol import TopicMetadata as DescribedTopic
from sampleapp.brokers.shared.backoff import Backoff

__all__ = ["Client"]

R = TypeVar("R")

_NOBODY: Final = -1
_METADATA_TIMEOUT_S: Final = 5.0
_RECONNECT: Final = Backoff(first_s=0.05, max_s=1.0)


class Client(KafkaClient):  # type: ignore[misc] # afkak has no types
    """
    The connections to a cluster, for one purpose.

    A broker answers the requests of one connection one after another, so whoever lets it wait, as a
    consumer does, must not share a client with requests that are urgent.
    """

    _log = Logger()

    def __init__(
        self,
        *,
        addresses: Sequence[tuple[str, int]],
        client_id: str,
        endpoint_factory: Any,
        reactor: Any,
        listener: ConnectionListener,
        sent: Counter[tuple[str, int]] | None = None,
    ) -> None:
        """
        :param addresses: host and port of the brokers to ask first; the others are learnt from them.
        :param client_id: what the brokers see in their logs and quotas.
        :param endpoint_factory: ``(reactor, host, port)`` to an endpoint whose protocols have
            ``api_versions``; see `sampleapp.brokers.kafka.connections.endpoints`.
        :param reactor: provides `IReactorTime`, and what the endpoints ask for.
        :param listener: is told what happens to the connections.
        :param sent: where requests are counted when they are sent, by the names of their APIs and the node
            ids of the brokers, which are negative for addresses to ask first. Several clients may share it.
        """
        _quieten_afkak()
        super().__init__(
            [],
            clientId=client_id,
            reactor=reactor,
            endpoint_factory=endpoint_factory,
            retry_policy=_RECONNECT.delay_s,
        )
        self._first = {
            # Negative, as no broker's is.
            -1 - index: BrokerMetadata(-1 - index, host, port)
            for index, (host, port) in enumerate(addresses)
        }
        self._brokers.update(self._first)
        self._listener = listener
        self._sent: Counter[tuple[str, int]] = Counter() if sent is None else sent
        self._turn = 0
        self._topic_ids: dict[str, UUID] = {}
        self._loads = {
            auto_create: MetadataLoads(
                ask=partial(self._ask_for_metadata, auto_create=auto_create),
                candidates=self._candidates,
                clock=reactor,
            )
            for auto_create in (False, True)
        }

    def request(self, node_id: int, request: Request[R], *, timeout_s: float) -> Deferred[R]:
        """See `ClusterClient.request`."""
        broker = None if self._closing else self._connection(node_id)
        if broker is None:
            return fail(RequestFailed(gone(node_id), sent=False))
        return broker.ask(request, timeout_s=timeout_s)

    def when_connected(self, node_id: int) -> Deferred[None]:
        """See `ClusterClient.when_connected`."""
        broker = None if self._closing else self._connection(node_id)
        if broker is None:
            return fail(RequestFailed(gone(node_id), sent=False))
        return broker.when_connected()

    def is_connected(self, node_id: int) -> bool:
        """See `ClusterClient.is_connected`."""
        broker = None if self._closing else self.clients.get(node_id)
        return broker is not None and broker.connected()

    def load_metadata(self, topics: Iterable[str], *, auto_create: bool = False) -> Deferred[None]:
        """See `ClusterClient.load_metadata`."""
        if self._closing:
            return fail(RequestFailed(gone(None), sent=False))
        return self._loads[auto_create].load(topics)

    def topic_error(self, topic: str) -> int | None:
        """See `ClusterClient.topic_error`."""
        error: int | None = self.topic_errors.get(topic)
        return error

    def partitions_of(self, topic: str) -> Sequence[int]:
        """See `ClusterClient.partitions_of`."""
        partitions: Sequence[int] = self.topic_partitions.get(topic, ())
        return partitions

    def topic_id(self, topic: str) -> UUID | None:
        """See `ClusterClient.topic_id`."""
        return self._topic_ids.get(topic)

    def leader_of(self, topic: str, partition: int) -> int | None:
        """See `ClusterClient.leader_of`."""
        broker = self.topics_to_brokers.get((topic, partition))
        if broker is None:
            return None
        node_id: int = broker.node_id
        return node_id

    def describe_topics(self, topics: Sequence[str] | None) -> Deferred[Sequence[DescribedTopic]]:
        """See `ClusterClient.describe_topics`."""
        if self._closing:
            return fail(RequestFailed(gone(None), sent=False))
        request = MetadataRequest(topics=topics, auto_create=False)
        answer: Deferred[ClusterMetadata] = ask_one_of(
            self._candidates(),
            ask=lambda node_id: self.request(node_id, request, timeout_s=_METADATA_TIMEOUT_S),
            clock=self.reactor,
        )
        return answer.addCallback(lambda metadata: metadata.topics)

    def forget_topic(self, topic: str) -> None:
        """See `ClusterClient.forget_topic`. afkak would keep it for ever, also one that does not exist."""
        for partition in self.topic_partitions.get(topic, ()):
            self.partition_meta.pop((topic, partition), None)
        self._topic_ids.pop(topic, None)
        self.reset_topic_metadata(topic)

    def node_ids(self) -> Sequence[int]:
        """See `ClusterClient.node_ids`."""
        return [node_id for node_id in self._brokers if node_id >= 0]

    def close(self) -> Deferred[None]:
        """
        Close every connection; what is in flight fails with `RequestFailed`.

        :return: fires with ``None`` when they are closed. Never fails, and may be called more than once.
        """
        if self._closing:
            return succeed(None)
        closed: Deferred[Any] = super().close()
        return closed.addBoth(lambda _: None)

    def _connection(self, node_id: int) -> Connection | None:
        if node_id not in self.clients:
            if node_id not in self._brokers:
                return None
            made = Connection(
                self.reactor,
                self._endpoint_factory,
                self._brokers[node_id],
                self.clientId,
                self._retry_policy,
                listener=self._listener,
                sent=self._sent,
            )
            self.clients[node_id] = made
        connection: Connection = self.clients[node_id]
        return connection

    _get_brokerclient = _connection

    def _candidates(self) -> list[int]:
        """Whom to ask for metadata: those with a connection, then the others, then the first addresses."""
        known = list(self.node_ids())
        # Not always the same one, which may be the one that is slow.
        self._turn += 1
        turn = self._turn % len(known) if known else 0
        return [
            *sorted(known[turn:] + known[:turn], key=lambda node_id: not self.is_connected(node_id)),
            *self._first,
        ]

    def _ask_for_metadata(
        self, node_id: int, topics: Sequence[str], *, auto_create: bool
    ) -> Deferred[ClusterMetadata]:
        request = MetadataRequest(topics=topics, auto_create=auto_create)
        return (
            self.request(node_id, request, timeout_s=_METADATA_TIMEOUT_S)
            .addCallback(self._learn)
            .addErrback(self._not_learnt)
        )

    def _not_learnt(self, failure: Failure) -> Failure:
        """What keeps one answer from being used must not keep those who wait for it waiting."""
        if failure.check(RequestFailed, CancelledError):
            return failure
        self._log.failure("Learning of the cluster failed", failure=failure)
        return Failure(RequestFailed(NOT_LEARNT, sent=True))

    def _learn(self, metadata: ClusterMetadata) -> ClusterMetadata:
        if self._closing:
            return metadata
        brokers = _afkak_brokers(metadata)
        if brokers:
            for node_id in set(self.node_ids()) - set(brokers):
                # Not among those that are alive. What is in flight there fails, and finds its new leader.
                del self._brokers[node_id]
                if node_id in self.clients:
                    left = self.clients.pop(node_id)
                    left.has_left()
                    self._close_brokerclients([left])
            for node_id in self._first:
                # What else is asked there is still to be answered; then it is for the next time.
                if node_id in self.clients and not self.clients[node_id].requests:
                    self._close_brokerclients([self.clients.pop(node_id)])
        for topic in metadata.topics:
            if topic.topic_id is None:
                self._topic_ids.pop(topic.topic, None)
            else:
                self._topic_ids[topic.topic] = topic.topic_id
        self._merge_topic_metadata(brokers, _afkak_topics(metadata), fetched_all_topics=False)
        return metadata


def _afkak_brokers(metadata: ClusterMetadata) -> dict[int, BrokerMetadata]:
    """The brokers that are alive, by their node ids."""
    return {
        broker.node_id: BrokerMetadata(broker.node_id, broker.host, broker.port)
        for broker in metadata.brokers
    }


def _afkak_topics(metadata: ClusterMetadata) -> dict[str, TopicMetadata]:
    """The topics that were asked about. A leader that is not alive is none: afkak looks for its address."""
    alive = {broker.node_id for broker in metadata.brokers}
    return {
        topic.topic: TopicMetadata(
            topic.topic,
            topic.error,
            {
                each.partition: PartitionMetadata(
                    topic.topic,
                    each.partition,
                    each.error,
                    each.leader if each.leader in alive else _NOBODY,
                    each.replicas,
                    each.isr,
                )
                for each in topic.partitions
            },
        )
        for topic in metadata.topics
    }


def _quieten_afkak() -> None:
    """Let afkak not warn of what its callers here are told, and log, themselves; unless somebody wants it."""
    logger = logging.getLogger("afkak")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
