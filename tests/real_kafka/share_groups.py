"""Share groups over plain sockets: one request after the other, on the connection that a test chooses."""

from __future__ import annotations

import itertools
import uuid
from contextlib import ExitStack

from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import (
    END_SHARE_SESSION,
    JOIN_GROUP,
    LEAVE_GROUP,
    Acknowledgement,
    DescribeShareGroupOffsetsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
    SetGroupConfigsRequest,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareGroupHeartbeatRequest,
)
from tests.real_kafka.admin import new_topic
from tests.real_kafka.wire import connected
from tests.real_kafka.writing import produce
from tests.support.waiting import wait_until

__all__ = [
    "SESSIONS",
    "SETTINGS",
    "SHORTEST_LOCK",
    "SHORT_LOCK",
    "Session",
    "ShareGroup",
    "deliveries",
    "free_sessions",
]

SESSIONS = 10
SETTINGS = {
    "group.share.max.share.sessions": str(SESSIONS),
    # With more members than sessions the broker does not start.
    "group.share.max.size": str(SESSIONS),
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "60000",
    "group.share.min.heartbeat.interval.ms": "200",
    "group.share.heartbeat.interval.ms": "200",
}
"""Of a broker with few sessions and long locks, so that what comes back early was released."""
SHORT_LOCK = {"share.record.lock.duration.ms": "5000"}
"""Of a group whose locks end while a test waits, but not between two of its requests."""
SHORTEST_LOCK = {"share.record.lock.duration.ms": "1500"}
"""Of a group whose locks may end at any time."""


def ask(wire, request):
    return wire.ask(request, request.api.highest)


class ShareGroup:
    """A new group in a new topic, every partition of which is ready to be fetched."""

    def __init__(self, cluster, records=0, *, partitions=1, assignment=None, **config):
        """
        :param records: how many there are in partition 0.
        :param assignment: which nodes have which partition.
        """
        self.bootstrap = cluster.bootstrap
        self.topic = cluster.admin.create(new_topic("shared"), partitions=partitions, assignment=assignment)
        self.name = f"group-{uuid.uuid4().hex[:12]}"
        self.partitions = tuple(range(partitions))
        self.publish(cluster, records)
        with self.connected() as wire:
            # Another node may have said that the topic is there.
            self.topic_id = wait_until(lambda: self._topic_id(wire), f"this node knows {self.topic}")
            values = {"share.auto.offset.reset": "earliest", **config}
            changed = ask(wire, SetGroupConfigsRequest(group=self.name, values=values))
            assert changed == ErrorCode.NONE
            # In a new cluster this makes the topic of the coordinators, which a heartbeat does not.
            request = FindCoordinatorRequest(group=self.name)
            wait_until(lambda: ask(wire, request).error == ErrorCode.NONE, "there is a coordinator")
            self.coordinator = cluster.address(ask(wire, request).node_id)
        with connected(self.coordinator) as wire:
            self.join(wire, "first")

    def _topic_id(self, wire):
        [found] = ask(wire, MetadataRequest(topics=[self.topic], auto_create=False)).topics
        return found.topic_id if found.error == ErrorCode.NONE else None

    def publish(self, cluster, count):
        produce(cluster, self.topic, [b"%d" % each for each in range(count)], partition=0)

    def connected(self):
        return connected(self.bootstrap)

    def join(self, wire, member_id, *others):
        """Have members join, until each partition is assigned to one of them; return those of each."""
        epochs = dict.fromkeys((member_id, *others), JOIN_GROUP)
        assigned = dict.fromkeys(epochs, ())

        def all_have_some():
            for each, epoch in epochs.items():
                request = ShareGroupHeartbeatRequest(
                    group=self.name,
                    member_id=each,
                    member_epoch=epoch,
                    topic=self.topic if epoch == JOIN_GROUP else None,
                )
                answer = ask(wire, request)
                if answer.error == ErrorCode.NONE:
                    epochs[each] = answer.member_epoch
                if answer.assignment is not None:
                    assigned[each] = answer.assignment.get(self.topic_id, ())
            once = sorted(itertools.chain(*assigned.values())) == [*self.partitions]
            return once and all(assigned.values())

        wait_until(all_have_some, "each partition is assigned")
        return assigned

    def leave(self, wire, member_id="first"):
        request = ShareGroupHeartbeatRequest(
            group=self.name, member_id=member_id, member_epoch=LEAVE_GROUP, topic=None
        )
        assert ask(wire, request).error == ErrorCode.NONE

    def lag(self):
        """
        Count the records of partition 0 that are not done.

        :return: -1 before any was acknowledged; ``None`` if the group has no state.
        """
        with connected(self.coordinator) as wire:
            described = ask(wire, DescribeShareGroupOffsetsRequest(group=self.name))
        return described.lags.get(self.topic, {}).get(0)


class Session:
    """A share session, with the epoch of its next request."""

    def __init__(self, group, wire):
        self.group, self.wire = group, wire
        self.member_id = uuid.uuid4().hex
        self.epoch = 0

    def fetch(self, *, most=10, wait_ms=500, wire=None, epoch=None):
        """Acquire records on its connection, or on another one."""
        epoch = self.epoch if epoch is None else epoch
        return self._sent(epoch, wire, self.fetch_request(most=most, wait_ms=wait_ms, epoch=epoch))

    def fetch_request(self, *, most=10, wait_ms=500, epoch=0):
        return ShareFetchRequest(
            group=self.group.name,
            member_id=self.member_id,
            session_epoch=epoch,
            topic_id=self.group.topic_id,
            partitions=() if epoch else self.group.partitions,
            max_wait_ms=wait_ms,
            max_records=most,
            max_bytes=1 << 20,
        )

    def acquire(self, *, wait_ms=5_000, **fetch):
        """
        Acquire records, and return the offsets of partition 0 with their delivery counts.

        :param wait_ms: by default enough for a node that has yet to load the group's state.
        """
        return deliveries(self.fetch(wait_ms=wait_ms, **fetch))

    def acquire_soon(self, *offsets):
        """Acquire these offsets, and no others, in one fetch or some; return their delivery counts."""
        found = {}

        def acquired():
            fetched = self.fetch(most=len(offsets))
            # A broker that leads the partition since a moment may not know it yet.
            if not any(each.error for each in fetched.partitions):
                found.update(deliveries(fetched))
            return found.keys() >= {*offsets}

        # Less than the lock of SETTINGS.
        wait_until(acquired, f"{offsets} can be acquired", deadline_s=20)
        assert found.keys() == {*offsets}
        return found

    def acknowledge(self, kind=None, *offsets, wire=None, epoch=None):
        """Acknowledge offsets of partition 0; return the error of the request, or the partition's."""
        epoch = self.epoch if epoch is None else epoch
        acknowledgements = [Acknowledgement(each, each, kind) for each in offsets]
        request = ShareAcknowledgeRequest(
            group=self.group.name,
            member_id=self.member_id,
            session_epoch=epoch,
            topic_id=self.group.topic_id,
            acknowledgements={0: acknowledgements} if offsets else {},
        )
        answer = self._sent(epoch, wire, request)
        return ErrorCode(answer.error or answer.errors.get(0, ErrorCode.NONE))

    def end(self, kind=None, *offsets, wire=None):
        """Acknowledge, and end the session."""
        return self.acknowledge(kind, *offsets, wire=wire, epoch=END_SHARE_SESSION)

    def _sent(self, epoch, wire, request):
        answer = ask(wire or self.wire, request)
        if answer.error == ErrorCode.NONE and epoch != END_SHARE_SESSION:
            self.epoch = epoch + 1
        return answer


def deliveries(fetched):
    """The offsets of partition 0 that were acquired, with their delivery counts."""
    assert fetched.error == ErrorCode.NONE
    assert {each.error for each in fetched.partitions} <= {ErrorCode.NONE}
    return {
        offset: batch.delivery_count
        for part in fetched.partitions
        if part.partition == 0
        for batch in part.acquired
        for offset in range(batch.first_offset, batch.last_offset + 1)
    }


def free_sessions(group):
    """Count the sessions that the broker still has room for, each from a connection of its own."""
    opened = []
    with ExitStack() as connections:
        while True:
            session = Session(group, connections.enter_context(group.connected()))
            answer = session.fetch(wait_ms=0)
            if answer.error != ErrorCode.NONE:
                break
            opened.append(session)
        for each in opened:
            assert each.end() == ErrorCode.NONE
        assert answer.error == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    return len(opened)
