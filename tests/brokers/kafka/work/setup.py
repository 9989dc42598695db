"""Instances of the service that share the messages of a simulated topic."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.consumer import TopicReader
from sampleapp.brokers.kafka.work import GroupWork
from sampleapp.model import ALL, Verdicts
from tests.support.kafka_simulator import TOPIC, Cluster

GROUP = "workers"
NOW_S = 1_700_000_000.0


def new_cluster(partitions=1, *, brokers=(1,)):
    cluster = Cluster(partitions, brokers=brokers)
    cluster.has_readers = True
    return cluster


class Instance:
    """One instance."""

    def __init__(self, cluster, *, ahead_s=0.0, most_leases=200):
        """:param ahead_s: by how much its clock is ahead of the brokers'."""
        self.cluster = cluster
        self.ahead_s = ahead_s
        self.client = cluster.new_client()
        self.reader = TopicReader(new_client=cluster.new_client, clock=cluster.clock)
        self.work = GroupWork(
            client=self.client,
            read=self.reader.read,
            clock=cluster.clock,
            now=lambda: NOW_S + self.ahead_s + cluster.clock.seconds(),
            most_leases=most_leases,
        )

    def result(self, asked, *, within_s=30.0):
        """Wait for a result, and return it, or the error."""
        results = []
        asked.addBoth(results.append)
        self.cluster.until(lambda: results, within_s=within_s)
        (found,) = results
        return found.value if isinstance(found, Failure) else found

    def begin_pull(self, most=1, *, wait_s=0.0, group=GROUP, topic=TOPIC):
        return self.work.pull(topic, group, most=most, wait_s=wait_s)

    def pull(self, most=1, *, wait_s=0.0, group=GROUP, topic=TOPIC):
        return self.result(self.begin_pull(most, wait_s=wait_s, group=group, topic=topic))

    def acknowledge(self, token, *, group=GROUP, topic=TOPIC, **verdicts):
        verdicts = verdicts or {"accept": ALL}
        return self.result(self.work.acknowledge(topic, group, token, Verdicts(**verdicts)))

    def extend(self, token, *, group=GROUP, topic=TOPIC):
        return self.result(self.work.extend(topic, group, token))

    def backlog(self, *, group=GROUP, topic=TOPIC):
        return self.result(self.work.backlog(topic, group))

    def stop(self):
        self.reader.stop()
        assert self.result(Deferred.fromCoroutine(self.work.stop())) is None

    def die(self):
        """As when its process is killed: the connections close, and nothing else happens."""
        for connection in self.client.connections:
            if not connection.closed:
                connection.closed = connection.has_died = True
                self.cluster.share_groups.close(connection)


def offsets(lease):
    return [each.record.offset for each in lease.messages]


def attempts(lease):
    return [each.attempts for each in lease.messages]
