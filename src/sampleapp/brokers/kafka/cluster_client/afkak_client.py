"""
afkak's client with current versions of Kafka's requests.

From afkak, by subclassing:

- ``KafkaClient``: the table of brokers and leaders, a client for each broker, opening and closing them;
- ``_KafkaBrokerClient``: the address of a broker, and its connection; see `BrokerConnection`.

Its own requests are of Kafka 0.8, and Kafka 4 closes the connection on them (KIP-896). So the rest is not
afkak's: every request is one of `sampleapp.brokers.kafka.protocol`, in the highest version that the broker
and this service have in common; waiting for responses, receiving, and the loading of metadata are overridden,
and no request is repeated here, since only the producer knows whether a repetition could duplicate records.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from afkak.client import KafkaClient
from afkak.common import BrokerMetadata, PartitionMetadata, TopicMetadata
from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.cluster_client.broker_connection import (
    CLIENT_CLOSED,
    METADATA_UNUSABLE,
    BrokerConnection,
    RequestFailed,
    SeparateConnection,
    unknown_broker,
)
from sampleapp.brokers.kafka.cluster_client.interfaces import ConnectionListener
from sampleapp.brokers.kafka.cluster_client.metadata_loading import MetadataLoads, ask_one_of
from sampleapp.brokers.kafka.protocol import (
    ClusterMetadata,
    MetadataRequest,
    Request,
    TopicsRequest,
)
from sampleapp.brokers.kafka.protocol import TopicMetadata as DescribedTopic
from sampleapp.concurrency.rates import Backoff

R = TypeVar("R")
C = TypeVar("C", bound=BrokerConnection)

_NO_LEADER: Final = -1
_METADATA_TIMEOUT_S: Final = 5.0
_RECONNECT: Final = Backoff(first_s=0.05, max_s=1.0)


class AfkakClient(KafkaClient):  # type: ignore[misc] # afkak has no types
    """
    The connections to a cluster, for one purpose.

    A broker answers the requests of one connection one after another. A consumer lets it wait, so it must not
    share a client with urgent requests.
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
        :param addresses: host and port of the bootstrap brokers; the others are learnt from them.
        :param client_id: the name of this client in the brokers' logs and quotas.
        :param endpoint_factory: makes an endpoint of ``(reactor, host, port)`` whose protocols have
            ``api_versions``; see `sampleapp.brokers.kafka.connections.endpoints`.
        :param reactor: provides `IReactorTime` and the interfaces that the endpoints need.
        :param listener: gets the events of the connections and of the cluster.
        :param sent: counts the requests that are sent, by the name of the API and the node id of the broker,
            which is negative for a bootstrap address. Several clients may share it.
        """
        _quieten_afkak()
        super().__init__(
            [],
            clientId=client_id,
            reactor=reactor,
            endpoint_factory=endpoint_factory,
            retry_policy=_RECONNECT.delay_s,
        )
        self._bootstrap = {
            # Negative node ids, which no broker has.
            -1 - index: BrokerMetadata(-1 - index, host, port)
            for index, (host, port) in enumerate(addresses)
        }
        self._brokers.update(self._bootstrap)
        self._listener = listener
        self._sent: Counter[tuple[str, int]] = Counter() if sent is None else sent
        self._rotation = 0
        self._topic_ids: dict[str, UUID] = {}
        self._leader_epochs: dict[str, dict[int, int]] = {}
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
        broker = None if self._closing else self.clients.get(node_id) or self._connection(node_id)
        if broker is None:
            return fail(RequestFailed(unknown_broker(node_id), sent=False))
        return broker.ask(request, timeout_s=timeout_s)

    def new_connection(self, node_id: int) -> SeparateConnection | None:
        """See `ClusterClient.new_connection`."""
        is_usable = node_id in self._brokers and not self._closing
        return self._made(SeparateConnection, node_id) if is_usable else None

    def when_connected(self, node_id: int) -> Deferred[None]:
        """See `ClusterClient.when_connected`."""
        broker = None if self._closing else self._connection(node_id)
        if broker is None:
            return fail(RequestFailed(unknown_broker(node_id), sent=False))
        return broker.when_connected()

    def is_connected(self, node_id: int) -> bool:
        """See `ClusterClient.is_connected`."""
        broker = None if self._closing else self.clients.get(node_id)
        return broker is not None and broker.connected()

    def load_metadata(self, topics: Iterable[str], *, auto_create: bool = False) -> Deferred[None]:
        """See `ClusterClient.load_metadata`."""
        if self._closing:
            return fail(RequestFailed(CLIENT_CLOSED, sent=False))
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

    def leader_epoch_of(self, topic: str, partition: int) -> int:
        """See `ClusterClient.leader_epoch_of`."""
        return self._leader_epochs.get(topic, {}).get(partition, -1)

    def describe_topics(self, topics: Sequence[str] | None) -> Deferred[Iterator[DescribedTopic | None]]:
        """See `ClusterClient.describe_topics`."""
        if self._closing:
            return fail(RequestFailed(CLIENT_CLOSED, sent=False))
        request = TopicsRequest(topics=topics, auto_create=False)
        return ask_one_of(
            self._candidates(),
            ask=lambda node_id: self.request(node_id, request, timeout_s=_METADATA_TIMEOUT_S),
            clock=self.reactor,
        )

    def forget_topic(self, topic: str) -> None:
        """See `ClusterClient.forget_topic`. afkak would keep a topic for ever, even a missing one."""
        for partition in self.topic_partitions.get(topic, ()):
            self.partition_meta.pop((topic, partition), None)
        self._topic_ids.pop(topic, None)
        self._leader_epochs.pop(topic, None)
        self.reset_topic_metadata(topic)

    def node_ids(self) -> Sequence[int]:
        """See `ClusterClient.node_ids`."""
        return [node_id for node_id in self._brokers if node_id >= 0]

    def close(self) -> Deferred[None]:
        """See `ClusterClient.close`."""
        if self._closing:
            return succeed(None)
        closed: Deferred[Any] = super().close()
        return closed.addBoth(lambda _: None)

    def _connection(self, node_id: int) -> BrokerConnection | None:
        if node_id not in self.clients:
            if node_id not in self._brokers:
                return None
            self.clients[node_id] = self._made(BrokerConnection, node_id)
        connection: BrokerConnection = self.clients[node_id]
        return connection

    _get_brokerclient = _connection

    def _made(self, kind: type[C], node_id: int) -> C:
        return kind(
            self.reactor,
            self._endpoint_factory,
            self._brokers[node_id],
            self.clientId,
            self._retry_policy,
            listener=self._listener,
            sent=self._sent,
        )

    def _candidates(self) -> list[int]:
        """Return the node ids to ask for metadata: connected brokers, other brokers, bootstrap addresses."""
        known = list(self.node_ids())
        # Rotated, since the first one may be slow.
        self._rotation += 1
        first = self._rotation % len(known) if known else 0
        return [
            *sorted(known[first:] + known[:first], key=lambda node_id: not self.is_connected(node_id)),
            *self._bootstrap,
        ]

    def _ask_for_metadata(
        self, node_id: int, topics: Sequence[str], *, auto_create: bool
    ) -> Deferred[ClusterMetadata]:
        request = MetadataRequest(topics=topics, auto_create=auto_create)
        return (
            self.request(node_id, request, timeout_s=_METADATA_TIMEOUT_S)
            .addCallback(self._learn)
            .addErrback(self._metadata_failed)
        )

    def _metadata_failed(self, failure: Failure) -> Failure:
        """Convert an unexpected exception to `RequestFailed`, so that the waiters are answered."""
        if failure.check(RequestFailed, CancelledError):
            return failure
        self._log.failure(
            "A bug in the service: processing the metadata of the cluster failed", failure=failure
        )
        return Failure(RequestFailed(METADATA_UNUSABLE, sent=True))

    def _learn(self, metadata: ClusterMetadata) -> ClusterMetadata:
        if self._closing:
            return metadata
        brokers = _afkak_brokers(metadata)
        if brokers:
            for node_id in set(self.node_ids()) - set(brokers):
                # It has left the cluster. Its requests in flight fail, and are sent to the new leaders.
                del self._brokers[node_id]
                if node_id in self.clients:
                    left = self.clients.pop(node_id)
                    left.fail_removed()
                    self._close_brokerclients([left])
            for node_id in self._bootstrap:
                # With requests in flight, it is closed after a later response.
                if node_id in self.clients and not self.clients[node_id].requests:
                    self._close_brokerclients([self.clients.pop(node_id)])
        have_changed = False
        for topic in metadata.topics:
            if topic.topic_id is None:
                self._topic_ids.pop(topic.topic, None)
            else:
                self._topic_ids[topic.topic] = topic.topic_id
            epochs = {each.partition: each.leader_epoch for each in topic.partitions}
            have_changed |= self._leader_epochs.get(topic.topic, epochs) != epochs
            self._leader_epochs[topic.topic] = epochs
        self._merge_topic_metadata(brokers, _afkak_topics(metadata), fetched_all_topics=False)
        if have_changed:
            self._listener.leaders_changed()
        return metadata


def _afkak_brokers(metadata: ClusterMetadata) -> dict[int, BrokerMetadata]:
    """Return the live brokers by node id."""
    return {
        broker.node_id: BrokerMetadata(broker.node_id, broker.host, broker.port)
        for broker in metadata.brokers
    }


def _afkak_topics(metadata: ClusterMetadata) -> dict[str, TopicMetadata]:
    """Return the topics of a response, with -1 for a leader without an address, which afkak would look up."""
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
                    each.leader if each.leader in alive else _NO_LEADER,
                    each.replicas,
                    each.isr,
                )
                for each in topic.partitions
            },
        )
        for topic in metadata.topics
    }


def _quieten_afkak() -> None:
    """Silence afkak's warnings, which the callers here log themselves, unless a level is set for them."""
    logger = logging.getLogger("afkak")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
