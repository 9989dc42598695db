"""The memory broker with a topic to which everything may happen that happens to one in Kafka."""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed
from zope.interface import implementer

from sampleapp.brokers.memory import MemoryBroker, _first_offset, _Log
from sampleapp.errors import BrokerUnavailable, UnknownPartition, UnknownTopic
from sampleapp.interfaces import ISubscription
from sampleapp.model import (
    EARLIEST,
    ConsumerRecord,
    FromEnd,
    GoneRecords,
    OffsetAndEpoch,
    ReadResult,
    epoch_of,
    with_epoch,
)

__all__ = ["TOPIC", "FaultyBroker"]

TOPIC = "t"


class FaultyBroker(MemoryBroker):
    """
    A memory broker with a topic of several partitions, which `read` and `follow` show with its faults.

    Records of the topic expire, partitions are added and cut, and the topic is made again. Readings are
    answered, and records are delivered, a millisecond of the clock later.
    """

    def __init__(self, clock, *, partitions=1, has_ids=True, has_epochs=False):
        super().__init__(clock=clock)
        self.epoch = 0 if has_epochs else -1
        """The leader epoch of the next records."""
        self.has_ids = has_ids
        self.generation = 0
        self.history = []
        """For each topic that had the name, for each partition: all records by their offsets; ``None`` for a
        control record. Nothing of it is ever removed."""
        self.is_reachable = True
        self.frozen = set()
        """The partitions whose leader is frozen: reads of them fail after some seconds."""
        self.deliver_at_once = 1
        """The number of records that are delivered in one turn."""
        self.is_following_held = False
        """True to deliver nothing, as if following were slow."""
        self.followings = []
        self.reads = 0
        self.records_read = 0
        self.compares_keys = False
        self.make(partitions)

    # Events

    def make(self, partitions):
        """Make the topic, or make it again."""
        self.history.append([])
        self.begins = []
        self.generation = len(self.history) - 1
        for _ in range(partitions):
            self.add_partition()
        self._wake()

    def add_partition(self):
        self.logs.append(_PartitionLog())
        self.begins.append(0)
        self._wake()

    def append(self, partition=0, value=b"v", key=None, headers=()):
        log = self.logs[partition]
        log.append(
            ConsumerRecord(
                topic=TOPIC,
                partition=partition,
                offset=len(log),
                timestamp_ms=1000 * len(log),
                key=key,
                value=value,
                headers=headers,
                leader_epoch=self.epoch,
            )
        )
        self._wake()

    def end_transaction(self, partition=0):
        """Append a control record, which is not delivered."""
        self.logs[partition].append(None)
        self._wake()

    def expire(self, partition=0, begin=None):
        """Remove all records, or those before an offset."""
        end = len(self.logs[partition])
        self.begins[partition] = max(self.begins[partition], end if begin is None else min(begin, end))

    def cut(self, partition, end):
        """Lose the last records, as an unclean election does. The topic stays the same."""
        self.history.append(list(self.logs))
        self.logs[partition] = _PartitionLog(self.logs[partition][:end])
        self.epoch += self.epoch >= 0
        self._wake()

    def hold_following(self, is_held):
        self.is_following_held = is_held
        self._wake()

    # State

    @property
    def logs(self):
        return self.history[-1]

    @property
    def topic_id(self):
        return f"id{self.generation}" if self.has_ids else "_"

    # IBroker

    def read(self, request):
        assert request.topic == TOPIC
        self.reads += 1
        answer = Deferred(lambda _: call.cancel())
        if any(request.starts.get(each) is not None for each in self.frozen):
            call = self._clock.callLater(5, answer.errback, BrokerUnavailable("A broker does not answer."))
        else:
            call = self._clock.callLater(0.001, self._response, answer, request)
        return answer

    def follow(self, *, topic, observer, start=EARLIEST, partition=None):
        assert (topic, start, partition) == (TOPIC, FromEnd(0), None)
        following = _Subscription(self, self._clock, observer)
        self.followings.append(following)
        following.wake()
        return following

    def _wake(self):
        for following in self.followings:
            following.wake()

    def _response(self, answer, request):
        if not self.is_reachable:
            answer.errback(BrokerUnavailable("Kafka cannot be reached."))
        elif not self.logs:
            answer.errback(UnknownTopic("There is no such topic."))
        elif any(partition >= len(self.logs) for partition in request.starts):
            answer.errback(UnknownPartition("There is no such partition."))
        else:
            answer.callback(self._result(request))

    def _result(self, request):
        asked, limit, max_bytes = dict(request.starts), request.limit, request.max_bytes
        if request.others is not None:
            asked = dict.fromkeys(range(len(self.logs)), request.others) | asked
        positions, ends, gone, beyond, records, left_out = {}, {}, [], {}, [], 0
        for partition, start in asked.items():
            if start is None:
                continue
            log, begin = self.logs[partition], self.begins[partition]
            ends[partition] = len(log)
            if isinstance(start, int):
                positions[partition] = start
                end = log.end_of_epoch(epoch_of(start))
                if start < begin:
                    gone.append(GoneRecords(partition, start, begin))
                    continue
                if start > end:
                    beyond[partition] = end
                    continue
            else:
                positions[partition] = max(_first_offset(log, start), begin)
            while positions[partition] < len(log) and limit > 0 and (max_bytes > 0 or not records):
                record = log[positions[partition]]
                positions[partition] = positions[partition] + 1 if record is None else record.next_offset
                if record is None:
                    continue
                limit -= 1
                if self.compares_keys and request.key not in {None, record.key}:
                    left_out += 1
                    continue
                records.append(record)
                max_bytes -= len(record.value or b"")
        self.records_read += len(records)
        return ReadResult(
            topic_id=self.topic_id,
            records=records,
            positions=positions,
            ends=ends,
            gone=gone,
            beyond=beyond,
            partitions=len(self.logs),
            left_out=left_out,
        )


class _PartitionLog(_Log):
    """The records of a partition, with ``None`` for each control record."""

    def __init__(self, entries=()):
        super().__init__()
        self += entries

    def __iadd__(self, entries):
        for each in entries:
            self.append(each)
        return self

    def append(self, entry):
        if entry is not None:
            super().append(entry)
            return
        list.append(self, None)
        self._latest_ms.append(self._newest_ms)

    def end_of_epoch(self, epoch):
        if epoch < 0:
            return len(self)
        later = (each for each in self if each is not None and each.leader_epoch > epoch)
        first = next(later, None)
        return len(self) if first is None else OffsetAndEpoch(first.offset, epoch)


@implementer(ISubscription)
class _Subscription:
    """Delivers records one by one, and tells of positions."""

    def __init__(self, broker, clock, observer):
        self._broker = broker
        self._clock = clock
        self._observer = observer
        self._call = None
        self._seen = broker.logs
        self._positions = {}
        self._existed = len(broker.logs)

    def wake(self):
        if self._call is None and not self._broker.is_following_held:
            self._call = self._clock.callLater(0.001, self._deliver)

    def stop(self):
        if self._call is not None:
            self._call.cancel()
        self._broker.followings.remove(self)
        return succeed(None)

    def unavailable_reason(self):
        return None

    def _deliver(self):
        self._call = None
        for _ in range(self._broker.deliver_at_once):
            if not self._deliver_one():
                return
            if self not in self._broker.followings:
                return
        self.wake()

    def _deliver_one(self):
        logs, begins = self._broker.logs, self._broker.begins
        if self._seen is not logs:
            self._seen, self._positions, self._existed = logs, {}, 0
            self._observer.reset()
            return True
        for partition, log in enumerate(logs):
            position = self._positions.get(partition)
            if position is None:
                position = len(log) if partition < self._existed else begins[partition]
                position = with_epoch(position, self._broker.epoch)
                self._observer.begun_at(partition, position)
            elif position < begins[partition]:
                position = begins[partition]
                self._observer.begun_at(partition, position)
            elif position == len(log):
                continue
            else:
                position += 1
                if log[position - 1] is None:
                    self._observer.passed(partition, position)
                else:
                    self._observer.records_received([log[position - 1]])
            self._positions[partition] = position
            return True
        return False
