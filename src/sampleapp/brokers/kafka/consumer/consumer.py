"""The clients and fetchers that all subscriptions share."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred, gatherResults, succeed
from twisted.internet.interfaces import IReactorTime

from sampleapp.brokers.kafka.cluster_client import ClusterClient
from sampleapp.brokers.kafka.consumer.fetcher import Fetcher
from sampleapp.brokers.kafka.consumer.partition import FollowedPartition
from sampleapp.brokers.kafka.consumer.reading_log import ReadingLog


class Consumer:
    """
    Reads for any number of subscriptions, with one fetcher for each broker and two connections to it.

    The connections are made for the first subscription, and closed after the last one.
    """

    def __init__(self, *, new_client: Callable[[], ClusterClient], clock: IReactorTime) -> None:
        """:param new_client: makes a client, which is closed after the last subscription."""
        self._new_client = new_client
        self._clock = clock
        self._topics: list[str] = []
        """Those of the subscriptions."""
        self._clients: tuple[ClusterClient, ...] = ()
        self._fetchers: dict[int, Fetcher] = {}
        self._ends: list[Deferred[None]] = []
        self.log = ReadingLog(clock)
        """Is told by each subscription when it cannot read, and when it can."""

    def join(self, topic: str) -> ClusterClient:
        """
        Note a subscription of a topic.

        :return: the client for its metadata.
        """
        if not self._clients:
            self._clients = self._new_client(), self._new_client()
        self._topics.append(topic)
        return self._clients[0]

    def leave(self, topic: str) -> Deferred[None]:
        """
        Note the end of a subscription; its partitions must have been dropped.

        :return: fires with ``None`` when nothing of it is left.
        """
        self._topics.remove(topic)
        if self._topics:
            if topic not in self._topics:
                self._clients[0].forget_topic(topic)
            return succeed(None)
        clients, self._clients = self._clients, ()
        fetchers, self._fetchers = self._fetchers, {}
        ends, self._ends = self._ends, []
        for fetcher in fetchers.values():
            fetcher.stop()
        # Closing fails the requests in flight, so that the fetchers end at once.
        ends += [client.close() for client in clients]
        return gatherResults(ends).addCallback(lambda _: None)

    def assign(self, partition: FollowedPartition) -> None:
        """
        Have the leader of a partition read, and no other broker; to be followed by `wake`.

        With a new leader epoch, its own position is sent again before it may share that of other
        subscriptions: only then the log may have been cut (KIP-320).
        """
        fetcher = None if partition.leader is None else self._fetcher(partition.leader)
        epoch = self._clients[0].leader_epoch_of(partition.follower.topic, partition.number)
        if partition.holder is not fetcher or partition.leader_epoch != epoch:
            if partition.holder is not None:
                partition.holder.release(partition)
            partition.leader_epoch = epoch
            if fetcher is not None:
                fetcher.add(partition)

    def wake(self) -> None:
        """Have the fetchers look for partitions that are ready."""
        for fetcher in list(self._fetchers.values()):
            fetcher.wake()

    def _fetcher(self, node_id: int) -> Fetcher:
        fetcher = self._fetchers.get(node_id)
        if fetcher is None:
            not_waiting, waiting = self._clients
            fetcher = self._fetchers[node_id] = Fetcher(
                node_id=node_id, waiting=waiting, not_waiting=not_waiting, clock=self._clock
            )
            for each in self._fetchers.values():
                each.share(len(self._fetchers))
            self._ends += fetcher.run()
        return fetcher
