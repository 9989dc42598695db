"""A topic with everything that may happen to one in Kafka, as `IBroker.read` and `IBroker.follow` show it."""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed
from zope.interface import implementer

from sampleapp.errors import BrokerUnavailable, UnknownPartition, UnknownTopic
from sampleapp.interfaces import ISubscription
from sampleapp.model import (
    EARLIEST,
    ConsumerRecord,
    FromEnd,
    FromOffset,
    FromTime,
    GoneRecords,
    OffsetAndEpoch,
    ReadResult,
    epoch_of,
    with_epoch,
)

__all__ = ["SimulatedTopic"]

TOPIC = "t"


class SimulatedTopic:
    """
    One topic with several partitions, whose records expire, which grows, and which is made again.

    Readings are answered, and records are delivered, a millisecond of the clock later.
    """

    work = None

    def __init__(self, clock, *, partitions=1, has_ids=True, has_epochs=False):
        self.clock = clock
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
        """How much is delivered in one turn."""
        self.is_following_held = False
        """True to deliver nothing, as if following were slow."""
        self.followings = []
        self.reads = 0
        self.records_read = 0
        self.compares_keys = False
        self.make(partitions)

    # What happens

    def make(self, partitions):
        """Make the topic, or make it again."""
        self.history.append([])
        self.begins = []
        self.generation = len(self.history) - 1
        for _ in range(partitions):
            self.add_partition()
        self._wake()

    def add_partition(self):
        self.logs.append([])
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
        """Append a control record, which nobody gets."""
        self.logs[partition].append(None)
        self._wake()

    def expire(self, partition=0, begin=None):
        """Remove all records, or those before an offset."""
        end = len(self.logs[partition])
        self.begins[partition] = max(self.begins[partition], end if begin is None else min(begin, end))

    def cut(self, partition, end):
        """Lose the last records, as an unclean election does. The topic stays the same."""
        self.history.append([list(log) for log in self.logs])
        del self.logs[partition][end:]
        self.epoch += self.epoch >= 0
        self._wake()

    def hold_following(self, is_held):
        self.is_following_held = is_held
        self._wake()

    # What is there

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
            frozen = BrokerUnavailable("A broker does not answer.")
            call = self.clock.callLater(5, answer.errback, frozen)
        else:
            call = self.clock.callLater(0.001, self._response, answer, request)
        return answer

    def follow(self, *, topic, observer, start=EARLIEST, partition=None):
        assert start == FromEnd(0)
        assert partition is None
        following = _Subscription(self, observer)
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
                if start < begin:
                    gone.append(GoneRecords(partition, start, begin))
                    continue
                end = self._end_of_epoch(log, epoch_of(start))
                if start > end:
                    beyond[partition] = end
                    continue
            else:
                positions[partition] = self._resolved(partition, start)
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

    def _end_of_epoch(self, log, epoch):
        later = (each for each in log if each is not None and each.leader_epoch > epoch >= 0)
        first = next(later, None)
        return len(log) if first is None else OffsetAndEpoch(first.offset, epoch)

    def _resolved(self, partition, start):
        log, begin = self.logs[partition], self.begins[partition]
        if isinstance(start, FromOffset):
            return min(max(start.offset, begin), len(log))
        if isinstance(start, FromEnd):
            return max(len(log) - start.count, begin)
        assert isinstance(start, FromTime)
        return next(
            (
                record.offset
                for record in log[begin:]
                if record is not None and record.timestamp_ms >= start.timestamp_ms
            ),
            len(log),
        )


@implementer(ISubscription)
class _Subscription:
    """Delivers records one by one, and tells of positions."""

    def __init__(self, topic, observer):
        self.topic = topic
        self.observer = observer
        self.call = None
        self.seen = topic.logs
        self.vector = {}
        self.existed = len(topic.logs)

    def wake(self):
        if self.call is None and not self.topic.is_following_held:
            self.call = self.topic.clock.callLater(0.001, self._deliver)

    def stop(self):
        if self.call is not None:
            self.call.cancel()
        self.topic.followings.remove(self)
        return succeed(None)

    def unavailable_reason(self):
        return None

    def _deliver(self):
        self.call = None
        for _ in range(self.topic.deliver_at_once):
            if not self._deliver_one():
                return
            if self not in self.topic.followings:
                return
        self.wake()

    def _deliver_one(self):
        logs, begins = self.topic.logs, self.topic.begins
        if self.seen is not logs:
            self.seen, self.vector, self.existed = logs, {}, 0
            self.observer.reset()
            return True
        for partition, log in enumerate(logs):
            position = self.vector.get(partition)
            if position is None:
                position = len(log) if partition < self.existed else begins[partition]
                position = with_epoch(position, self.topic.epoch)
                self.observer.begun_at(partition, position)
            elif position < begins[partition]:
                position = begins[partition]
                self.observer.begun_at(partition, position)
            elif position == len(log):
                continue
            elif log[position] is None:
                position += 1
                self.observer.passed(partition, position)
            else:
                position += 1
                self.observer.records_received([log[position - 1]])
            self.vector[partition] = position
            return True
        return False
