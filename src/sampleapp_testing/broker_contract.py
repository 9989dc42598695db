"""
The contract of `sampleapp.interfaces.IBroker`, as tests that every broker must pass unchanged.

The tests of a broker subclass `BrokerContract` and create the broker. The contract does not assume one
partition, offsets from 0, or a broker without other users: each test uses new topics. It does not assume that
topics can be deleted either, so `IRecordObserver.reset` needs separate tests.
"""

from __future__ import annotations

import itertools
import random
import re
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest_twisted
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure
from zope.interface.verify import verifyObject

from sampleapp.errors import (
    BrokerStopped,
    BrokerUnavailable,
    OutcomeUnknown,
    PublishError,
    UnknownPartition,
    UnknownTopic,
)
from sampleapp.interfaces import IBroker, IMeasured, ISubscription, Outcome
from sampleapp.model import (
    EARLIEST,
    ConsumerRecord,
    FromEnd,
    FromOffset,
    FromOffsets,
    FromTime,
    GoneRecords,
    Health,
    ReadRequest,
    ReadResult,
    ReadStart,
    RecordMetadata,
    Start,
)
from sampleapp_testing.idempotency_contract import IdempotencyContract
from sampleapp_testing.publishing import (
    NO_PARTITION,
    content,
    everything,
    new_topic,
    outcome_offset,
    pages,
    record,
    record_offset,
    settled,
    size,
)
from sampleapp_testing.recorder import BatchRecorder, PositionRecorder, Recorder
from sampleapp_testing.waiting import eventually, outcomes, turns, within

__all__ = ["HEADERS", "KEYS", "NAMES", "TIMESTAMPS", "VALUES", "BrokerContract", "new_topic"]

KEYS = st.none() | st.sampled_from([b"", b"\0", b"a", b"b"]) | st.binary(max_size=40)
VALUES = st.none() | st.just(b"") | st.binary(max_size=200)
# The name of a header can be encoded in UTF-8, so it has no lone surrogates.
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
HEADERS = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=20)), max_size=3).map(tuple)
# Kafka rejects negative timestamps except -1, which means no timestamp.
TIMESTAMPS = st.integers(min_value=0, max_value=2**62)


def _read_back_property() -> Any:
    """
    Return a new property. pytest-twisted wraps the function inside once for each item that it runs, so that
    the tests of two brokers cannot share one.
    """

    # Each example takes a broker, so that there are fewer than the profile has; that of Hypothesis has 100.
    @settings(
        max_examples=max(10, settings().max_examples // 4), suppress_health_check=[HealthCheck.too_slow]
    )
    @given(
        contents=st.lists(st.tuples(KEYS, VALUES, HEADERS, TIMESTAMPS), max_size=12),
        how=st.sampled_from(["one after the other", "at the same time", "in one call"]),
        limit=st.sampled_from([1, 4, 100]),
    )
    @pytest_twisted.ensureDeferred
    async def test(self: BrokerContract, contents: list[Any], how: str, limit: int) -> None:
        topic = new_topic()
        records = [record(topic, v, key=k, headers=h, timestamp_ms=t) for k, v, h, t in contents]
        async with self.running() as broker:
            found: list[Outcome]
            if how == "in one call":
                found = await within(broker.publish_many(records))
            elif how == "at the same time":
                found = await settled(broker, records)
            else:
                found = []
                for each in records:
                    alone = await within(broker.publish(each))
                    found.append(alone)
            followed = await everything(broker, topic)
            if records:
                read = [each for page in await pages(broker, topic, limit=limit) for each in page.records]
                assert sorted(read, key=record_offset) == sorted(followed, key=record_offset)
            by_offset = {record_offset(each): each for each in followed}
        assert len(by_offset) == len(records)
        for sent, outcome in zip(records, found, strict=True):
            assert content(by_offset[outcome_offset(outcome, topic=topic)]) == content(sent)

    return test


class BrokerContract(IdempotencyContract):
    """The tests that every broker must pass: a base class for pytest tests, to subclass for each broker."""

    one_partition: ClassVar[bool] = False
    """Whether every topic of the broker has exactly one partition."""
    first_offset: ClassVar[int | None] = None
    """The offset of the first record in a partition, if the broker guarantees one."""
    finds_times: ClassVar[bool] = True
    """Whether the broker can find offsets by time."""
    deletes: ClassVar[bool] = False
    """Whether `delete_before` can delete the first records of a topic."""

    test_every_record_is_read_back_as_it_was_published: ClassVar[Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give each subclass its own property."""
        super().__init_subclass__(**kwargs)
        cls.test_every_record_is_read_back_as_it_was_published = _read_back_property()

    async def delete_before(self, broker: IBroker, topic: str, partition: int, offset: int) -> None:
        """Delete the records of a partition before an offset, as retention does (only if `deletes`)."""
        raise NotImplementedError

    async def test_it_provides_the_interface(self) -> None:
        async with self.running() as broker:
            assert verifyObject(IBroker, broker)
            subscription = broker.follow(topic=new_topic(), observer=Recorder())
            assert verifyObject(ISubscription, subscription)

    async def test_nothing_keeps_a_broker_that_works_from_reading_on(self) -> None:
        topic = new_topic()
        async with self.running() as broker:
            recorder = Recorder()
            subscription = broker.follow(topic=topic, observer=recorder)
            await settled(broker, [record(topic)])
            await recorder.until(1)
            assert subscription.unavailable_reason() is None
            await within(subscription.stop())
            assert subscription.unavailable_reason() is None
            late = broker.follow(topic=topic, observer=Recorder())
            assert late.unavailable_reason() is None or isinstance(late.unavailable_reason(), str)
        assert recorder.reset_at == []

    async def test_concurrent_publishes_get_offsets_of_their_own_without_gaps(self) -> None:
        topic = new_topic()
        async with self.running() as broker:
            found = await settled(broker, [record(topic, b"%d" % n) for n in range(500)])
            read = {(r.partition, r.offset): r.value for r in await everything(broker, topic)}
        assert {(m.partition, m.offset): b"%d" % n for n, m in enumerate(found)} == read
        offsets: defaultdict[int, list[int]] = defaultdict(list)
        for metadata in found:
            assert isinstance(metadata, RecordMetadata)
            offsets[metadata.partition].append(metadata.offset)
        for each in offsets.values():
            first = min(each) if self.first_offset is None else self.first_offset
            assert sorted(each) == list(range(first, first + len(each)))
        if self.one_partition:
            assert set(offsets) == {0}

    async def test_offsets_of_one_topic_are_independent_of_the_other_topics(self) -> None:
        one, other = new_topic(), new_topic()
        async with self.running() as broker:
            found = await settled(
                broker, [record(t, b"x", key=b"k") for _ in range(20) for t in (one, other)]
            )
            assert len(await everything(broker, one)) == 20
            assert len(await everything(broker, other)) == 20
        for topic in (one, other):
            offsets = [metadata.offset for metadata in found if metadata.topic == topic]
            assert offsets == list(range(offsets[0], offsets[0] + 20))

    async def test_records_with_the_same_topic_and_key_keep_the_order_of_the_calls(self) -> None:
        topic = new_topic()
        keys = [b"a", b"b", b"", None]
        async with self.running() as broker:
            await settled(broker, [record(topic, b"%d" % n, key=keys[n % 4]) for n in range(400)])
            read = await everything(broker, topic)
        for key in (b"a", b"b", b""):
            numbers = [int(r.value or b"") for r in read if r.key == key]
            assert numbers == [n for n in range(400) if keys[n % 4] == key]

    async def test_each_of_many_records_gets_its_own_offset_without_gaps(self) -> None:
        topic = new_topic()
        async with self.running() as broker:
            found = await within(broker.publish_many([record(topic, b"%d" % n) for n in range(500)]))
            read = {(r.partition, r.offset): r.value for r in await everything(broker, topic)}
        assert {outcome_offset(m): b"%d" % n for n, m in enumerate(found)} == read
        offsets: defaultdict[int, list[int]] = defaultdict(list)
        for partition, offset in map(outcome_offset, found):
            offsets[partition].append(offset)
        for each in offsets.values():
            first = min(each) if self.first_offset is None else self.first_offset
            assert sorted(each) == list(range(first, first + len(each)))

    async def test_no_records_at_all_are_published_at_once(self) -> None:
        async with self.running() as broker:
            assert await within(broker.publish_many([])) == []

    async def test_many_records_with_the_same_topic_and_key_keep_their_order(self) -> None:
        topics = [new_topic() for _ in range(3)]
        keys = [b"a", b"b", b"", None]
        sent = [record(topics[n % 3], b"%d" % n, key=keys[n % 4]) for n in range(600)]
        async with self.running() as broker:
            found = await within(broker.publish_many(sent))
            for topic in topics:
                read = await everything(broker, topic)
                assert len(read) == 200
                for key in (b"a", b"b", b""):
                    values = [r.value for r in read if r.key == key]
                    assert values == [r.value for r in sent if (r.topic, r.key) == (topic, key)]
        for each, outcome in zip(sent, found, strict=True):
            outcome_offset(outcome, topic=each.topic)

    async def test_records_keep_their_order_whether_they_are_published_alone_or_with_others(self) -> None:
        topic = new_topic()
        values = [b"%d" % n for n in range(100)]
        sent = [record(topic, value, key=b"k") for value in values]
        async with self.running() as broker:
            # In the first round the broker does not know the topic yet, in the second it does.
            for round_ in range(2):
                alone = [broker.publish(sent[0])]
                together = [broker.publish_many(sent[1:20])]
                alone.append(broker.publish(sent[20]))
                together += [broker.publish_many(sent[21:22]), broker.publish_many(sent[22:99])]
                alone.append(broker.publish(sent[99]))
                first, second, last = await outcomes(alone)
                found: list[Outcome] = [first, *await within(together[0]), second]
                found += [*await within(together[1]), *await within(together[2]), last]
                read = (await everything(broker, topic))[round_ * 100 :]
                assert [r.value for r in read] == values
                assert [outcome_offset(m) for m in found] == [(r.partition, r.offset) for r in read]

    async def test_of_many_records_some_may_be_stored_and_some_not(self) -> None:
        topic = new_topic()
        async with self.running() as broker:
            sent = [
                record(topic, b"%d" % n, key=b"k", partition=NO_PARTITION if n % 3 == 1 else None)
                for n in range(30)
            ]
            found = await within(broker.publish_many(sent))
            read = {(r.partition, r.offset): r.value for r in await everything(broker, topic)}
        stored = {outcome_offset(m): b"%d" % n for n, m in enumerate(found) if n % 3 != 1}
        assert read == stored
        rejected = found[1::3]
        assert [type(each) for each in rejected] == [UnknownPartition] * 10

    async def test_a_record_goes_to_the_partition_that_it_names(self) -> None:
        topic = new_topic()
        async with self.running() as broker:
            await within(broker.publish(record(topic)))
            (description,) = await within(broker.describe_topics([topic]))
            partitions = [each.partition for each in description.partitions]
            sent = [record(topic, b"%d" % n, key=b"k", partition=n) for n in partitions]
            found = [*await within(broker.publish_many(sent)), *await settled(broker, sent)]
            read = {(r.partition, r.offset): r.value for r in await everything(broker, topic)}
        assert [each.partition for each in found] == partitions * 2
        assert [read[outcome_offset(each)] for each in found] == [each.value for each in sent] * 2

    async def test_a_partition_that_does_not_exist_is_rejected(self) -> None:
        topic = new_topic()
        async with self.running() as broker:
            await within(broker.publish(record(topic, b"0", key=b"k")))
            nowhere = record(topic, b"1", key=b"k", partition=NO_PARTITION)
            [alone] = await settled(broker, [nowhere])
            [together] = await within(broker.publish_many([nowhere]))
            assert [type(each) for each in (alone, together)] == [UnknownPartition] * 2
            await within(broker.publish(record(topic, b"2", key=b"k")))
            assert [r.value for r in await everything(broker, topic)] == [b"0", b"2"]

    async def test_cancelling_many_records_stops_only_the_waiting(self) -> None:
        topic = new_topic()
        sent = [record(topic, b"%d" % n, key=b"k") for n in range(30)]
        async with self.running() as broker:
            first, cancelled, last = (broker.publish_many(sent[n : n + 10]) for n in (0, 10, 20))
            already_there = cancelled.called
            cancelled.cancel()
            ends = await outcomes([first, cancelled, last])
            values = [r.value for r in await everything(broker, topic)]
        assert isinstance(ends[1], list if already_there else CancelledError)
        assert all(isinstance(each, RecordMetadata) for each in ends[0] + ends[2])
        assert values == [each.value for each in sent]

    async def test_more_records_than_there_is_room_for_are_rejected_together(self) -> None:
        topic = new_topic()
        async with self.running() as broker:
            if not IMeasured.providedBy(broker):
                return
            limit_bytes = broker.measures().waiting.limit_bytes
            if limit_bytes is None:
                return
            await within(broker.publish(record(topic, b"before", key=b"k")))
            large = bytes(500_000)
            count = limit_bytes // len(large) + 1
            too_many = [record(topic, large, key=b"k")] * count
            [end] = await outcomes([broker.publish_many(too_many)])
            assert isinstance(end, PublishError)
            assert not end.possibly_published
            assert (broker.measures().waiting.records, broker.measures().waiting.bytes) == (0, 0)
            [after] = await within(broker.publish_many([record(topic, b"after", key=b"k")]))
            assert isinstance(after, RecordMetadata)
            assert [r.value for r in await everything(broker, topic)] == [b"before", b"after"]

    async def test_a_large_number_of_records_lets_others_in(self) -> None:
        topic, other = new_topic(), new_topic()
        sent = [record(topic, b"%d" % n, key=b"%d" % (n % 7)) for n in range(5000)]
        async with self.running() as broker:
            await settled(broker, [record(topic), record(other)])
            many = broker.publish_many(sent)
            # Otherwise the next record would not be published during the batch.
            assert not many.called
            alone = broker.publish(record(other))
            found = await within(many)
            (found_alone,) = await outcomes([alone])
            outcome_offset(found_alone, topic=other)
            read = await everything(broker, topic)
        by_offset = {(r.partition, r.offset): r.value for r in read}
        assert [by_offset[outcome_offset(each)] for each in found] == [each.value for each in sent]
        assert len(by_offset) == 1 + 5000
        for key in {each.key for each in sent}:
            assert [r.value for r in read if r.key == key] == [r.value for r in sent if r.key == key]

    async def test_a_following_begins_with_the_first_record_and_goes_on_live(self) -> None:
        topic = new_topic()
        recorder = Recorder()
        async with self.running() as broker:
            await settled(broker, [record(topic, b"%d" % n, key=b"k") for n in range(700)])
            broker.follow(topic=topic, observer=recorder)
            await recorder.until(700)
            for n in range(700, 720):
                await within(broker.publish(record(topic, b"%d" % n, key=b"k")))
            await settled(broker, [record(topic, b"%d" % n, key=b"k") for n in range(720, 760)])
            await recorder.until(760)
            await turns()
        assert recorder.values() == [b"%d" % n for n in range(760)]
        assert recorder.caught_up_at == [700]
        assert recorder.reset_at == []
        self.assert_in_order(recorder.records)

    async def test_an_observer_of_batches_is_told_the_same_in_fewer_calls(
        self, no_failure_is_lost: list[Failure]
    ) -> None:
        topic = new_topic()

        def fail(records: Sequence[ConsumerRecord]) -> None:
            assert len({each.partition for each in records}) == 1
            if any(each.value == b"3" for each in records):
                raise ZeroDivisionError("on purpose")

        recorder = BatchRecorder(on_batch=fail)
        async with self.running() as broker:
            await settled(broker, [record(topic, b"%d" % n, key=b"k") for n in range(700)])
            broker.follow(topic=topic, observer=recorder)
            await recorder.until(700)
            await within(broker.publish(record(topic, b"700", key=b"k")))
            await recorder.until(701)
            await turns()
        assert recorder.values() == [b"%d" % n for n in range(701)]
        assert recorder.caught_up_at == [700]
        assert sum(recorder.batches) == 701
        assert len(recorder.batches) < 701
        self.assert_in_order(recorder.records)
        assert [failure.type for failure in no_failure_is_lost] == [ZeroDivisionError]
        no_failure_is_lost.clear()

    async def test_an_observer_of_batches_that_stops_is_told_nothing_more(self) -> None:
        topic = new_topic()
        stops: list[Deferred[None]] = []
        async with self.running() as broker:
            await settled(broker, [record(topic, b"%d" % n, key=b"k") for n in range(3000)])
            recorder = BatchRecorder(on_batch=lambda _: stops.append(subscription.stop()))
            subscription = broker.follow(topic=topic, observer=recorder)
            await eventually(lambda: stops)
            assert await outcomes(stops) == [None]
            await everything(broker, topic)
        assert len(recorder.batches) == 1
        assert len(recorder.records) < 3000
        assert recorder.caught_up_at == []

    async def test_two_followings_of_a_topic_are_each_told_everything(self) -> None:
        topic = new_topic()
        early, late = Recorder(), Recorder()
        async with self.running() as broker:
            broker.follow(topic=topic, observer=early)
            await settled(broker, [record(topic, b"%d" % n, key=b"k") for n in range(30)])
            broker.follow(topic=topic, observer=late)
            await settled(broker, [record(topic, b"%d" % n, key=b"k") for n in range(30, 40)])
            await early.until(40)
            await late.until(40)
        assert early.values() == late.values() == [b"%d" % n for n in range(40)]

    async def test_a_following_is_told_of_its_own_topic_only(self) -> None:
        mine, other = new_topic(), new_topic()
        recorder = Recorder()
        async with self.running() as broker:
            broker.follow(topic=mine, observer=recorder)
            await settled(broker, [record(other, b"no"), record(mine, b"yes"), record(other, b"no")])
            await recorder.until(1)
            await turns()
        assert recorder.values() == [b"yes"]

    async def test_what_is_published_during_a_replay_arrives_once_and_in_order(self) -> None:
        topic = new_topic()
        more: list[Deferred[RecordMetadata]] = []
        async with self.running() as broker:
            await settled(broker, [record(topic, b"%d" % n, key=b"k") for n in range(1200)])
            numbers = itertools.count(1200)

            def publish_one_more(received: ConsumerRecord) -> None:
                if int(received.value or b"") % 100 == 0 and len(more) < 12:
                    more.append(broker.publish(record(topic, b"%d" % next(numbers), key=b"k")))

            recorder = Recorder(on_record=publish_one_more)
            broker.follow(topic=topic, observer=recorder)
            await recorder.until(1212)
            assert all(isinstance(each, RecordMetadata) for each in await outcomes(more))
        assert recorder.values() == [b"%d" % n for n in range(1212)]
        self.assert_in_order(recorder.records)

    async def test_reading_may_begin_at_an_offset_before_the_end_or_at_a_time(self) -> None:
        topic = new_topic()
        async with self.running() as broker:
            sent = [record(topic, b"%d" % n, key=b"k", timestamp_ms=1000 * n) for n in range(10)]
            partition, first = outcome_offset((await settled(broker, sent))[0])
            starts: list[tuple[Start | FromOffsets, int]] = [
                (EARLIEST, 0),
                (FromOffsets({}), 0),
                (FromOffsets({partition: first + 3}), 3),
                (FromOffsets({partition: first + 99}), 10),
                (FromOffset(first + 3), 3),
                (FromOffset(first + 10), 10),
                (FromOffset(first + 99), 10),
                (FromEnd(0), 10),
                (FromEnd(2), 8),
                (FromEnd(99), 0),
            ]
            if self.finds_times:
                starts += [(FromTime(0), 0), (FromTime(4001), 5), (FromTime(5000), 5), (FromTime(9001), 10)]
            recorders = [Recorder() for _ in starts]
            for recorder, (start, _) in zip(recorders, starts, strict=True):
                broker.follow(topic=topic, observer=recorder, start=start)
            for recorder, (start, expected) in zip(recorders, starts, strict=True):
                await recorder.until(0)
                assert recorder.values() == [b"%d" % n for n in range(expected, 10)], start
            await within(broker.publish(record(topic, b"10", key=b"k")))
            for recorder, (start, expected) in zip(recorders, starts, strict=True):
                await recorder.until(11 - expected)
                assert recorder.values() == [b"%d" % n for n in range(expected, 11)], start

    async def test_an_observer_can_learn_from_which_offset_on_it_gets_records(self) -> None:
        topic, later = new_topic(), new_topic()
        async with self.running() as broker:
            await settled(broker, [record(topic, b"%d" % n, key=b"k") for n in range(10)])
            recorders: dict[Start, PositionRecorder] = {
                FromEnd(0): PositionRecorder(),
                EARLIEST: PositionRecorder(),
            }
            for start, recorder in recorders.items():
                broker.follow(topic=topic, observer=recorder, start=start)
                await recorder.until(0)
                found = await within(
                    broker.read(ReadRequest(topic=topic, others=start, limit=0, max_bytes=1))
                )
                assert recorder.begun == found.positions
            created = PositionRecorder()
            broker.follow(topic=later, observer=created, start=FromEnd(0))
            await created.until(0)
            await settled(broker, [record(topic, b"live", key=b"k"), record(later, b"live")])
            for recorder in (recorders[FromEnd(0)], created):
                await recorder.until(1)
                assert recorder.values() == [b"live"]

    async def test_a_topic_that_comes_into_being_later_is_read_from_its_first_record(self) -> None:
        topic = new_topic()
        recorder = Recorder()
        async with self.running() as broker:
            broker.follow(topic=topic, observer=recorder, start=FromEnd(0))
            await eventually(lambda: recorder.caught_up_at)
            await within(broker.publish(record(topic, b"first")))
            await recorder.until(1)
        assert recorder.values() == [b"first"]

    async def test_one_partition_alone_may_be_read(self) -> None:
        topic = new_topic()
        async with self.running() as broker:
            found = await settled(broker, [record(topic, b"%d" % n, key=b"%d" % n) for n in range(20)])
            for number in {metadata.partition for metadata in found}:
                recorder, last = Recorder(), Recorder()
                broker.follow(topic=topic, observer=recorder, partition=number)
                broker.follow(topic=topic, observer=last, partition=number, start=FromEnd(1))
                expected = [b"%d" % n for n, metadata in enumerate(found) if metadata.partition == number]
                await recorder.until(len(expected))
                assert sorted(value or b"" for value in recorder.values()) == sorted(expected)
                await last.until(1)
                assert last.values() == recorder.values()[-1:]

    async def test_a_following_knows_whether_there_is_what_it_follows(self) -> None:
        topic, other = new_topic(), new_topic()
        async with self.running() as broker:
            await within(broker.publish(record(topic)))
            subscriptions = []
            for name, partition in ((topic, None), (topic, 999), (other, None)):
                recorder = Recorder()
                subscriptions.append(broker.follow(topic=name, observer=recorder, partition=partition))
                await recorder.until(0)
            assert [each.exists() for each in subscriptions] == [True, False, False]
            assert not any(each.is_lasting() for each in subscriptions)
            await within(broker.publish(record(other)))
            await eventually(subscriptions[-1].exists)

    async def test_topics_are_checked_as_publishing_to_them_would_end(self) -> None:
        known = new_topic()
        names = [known, new_topic(), f"{new_topic()} with spaces", "x" * 250]
        async with self.running() as broker:
            await within(broker.publish(record(known)))
            assert await within(broker.check_topics([])) == {}
            assert await within(broker.check_topics([], create=False)) == {}
            assert known not in await within(broker.check_topics(names, create=False))
            assert [each.name for each in await within(broker.describe_topics(names))] == [known]
            against = await within(broker.check_topics(names))
            ends = await settled(broker, [record(name) for name in names])
            assert known not in against
            rejected = {n: type(e) for n, e in zip(names, ends, strict=True) if isinstance(e, PublishError)}
            assert {name: type(error) for name, error in against.items()} == rejected

    async def test_checking_topics_never_fails(self) -> None:
        with self.new_broker() as broker:
            broker.start()
            asked = [broker.check_topics([new_topic()])]
            await within(broker.stop(deadline_s=20))
            asked.append(broker.check_topics({new_topic(), new_topic()}))
            for against in await outcomes(asked):
                assert isinstance(against, Mapping)
                assert all(isinstance(each, PublishError) for each in against.values())

    async def test_topics_are_described_with_their_partitions(self) -> None:
        topics, missing = sorted([new_topic(), new_topic()]), new_topic()
        async with self.running() as broker:
            found = await settled(
                broker, [record(topic, key=b"%d" % n) for topic in topics for n in range(9)]
            )
            asked = await within(broker.describe_topics({*topics, missing}))
            names = await within(broker.list_topics())
            everywhere = await within(broker.describe_topics(names))
            assert await within(broker.describe_topics([missing])) == []
            assert await within(broker.describe_topics([])) == []
        assert [each.name for each in asked] == topics
        assert [each.name for each in everywhere] == list(names) == sorted(names)
        assert missing not in names
        assert [each for each in everywhere if each.name in topics] == list(asked)
        for description in asked:
            numbers = [each.partition for each in description.partitions]
            assert numbers == ([0] if self.one_partition else list(range(len(numbers))))
            assert {each.partition for each in found if each.topic == description.name} <= set(numbers)
            for each in description.partitions:
                assert each.leader in each.replicas
                assert set(each.in_sync) <= set(each.replicas)

    async def test_a_broker_that_was_stopped_describes_no_topics(self) -> None:
        async with self.running() as broker:
            await within(broker.stop(deadline_s=20))
            ends = await outcomes([broker.list_topics(), broker.describe_topics(["t"])])
        assert [type(end) for end in ends] == [BrokerUnavailable] * 2

    async def test_a_read_returns_the_records_from_the_positions_and_the_positions_after_them(self) -> None:
        topic = new_topic()
        keys, values = [None, b"", b"a", b"\xff"], [b"v", b"", None]
        headers = [(), (("name", b"1"), ("name", b"\xff"), ("name", None), ("", b""))]
        sent = [
            record(topic, values[n % 3], key=keys[n % 4], headers=headers[n % 2], timestamp_ms=n)
            for n in range(40)
        ]
        async with self.running() as broker:
            found = await settled(broker, sent)
            result = await self.read(broker, topic)
            by_offset = {outcome_offset(each): content(r) for each, r in zip(found, sent, strict=True)}
            self.assert_consistent(result, topic)
            assert {record_offset(each): content(each) for each in result.records} == by_offset
            assert result.is_up_to_date
            assert result.positions == result.ends
            assert set(result.positions) == set(range(result.partitions))
            (description,) = await within(broker.describe_topics([topic]))
            assert result.partitions == len(description.partitions)
            # From positions in the middle, one partition at each.
            middle = {each.partition: each.offset for each in result.records if each.offset % 3}
            starts = {**result.positions, **middle}
            rest = await self.read(broker, topic, starts)
            self.assert_consistent(rest, topic)
            assert rest.positions == result.positions
            assert [*rest.records] == [r for r in result.records if r.offset >= starts[r.partition]]

    async def test_pages_continue_one_another_without_a_gap_or_a_repeat(self) -> None:
        topic = new_topic()
        async with self.running() as broker:
            await settled(broker, [record(topic, b"%d" % n, key=b"%d" % n) for n in range(30)])
            followed = sorted(await everything(broker, topic), key=record_offset)
            for limit in (1, 7, 30):
                found = await pages(broker, topic, limit=limit)
                for page in found:
                    assert len(page.records) <= limit
                    self.assert_consistent(page, topic)
                assert (
                    sorted((each for page in found for each in page.records), key=record_offset) == followed
                )

    async def test_a_page_is_bounded_by_bytes_and_has_a_record_of_any_size(self) -> None:
        topic = new_topic()
        sizes = [1000, 1000, 50_000, 0, 1000, 1000, 1000, 1000]
        async with self.running() as broker:
            sent = [
                record(topic, bytes(each), key=b"k", headers=(("h", bytes(1000)),) * (each // 1000))
                for each in sizes
            ]
            await settled(broker, sent)
            for max_bytes in (1, 5000, 1_000_000):
                found = await pages(broker, topic, max_bytes=max_bytes)
                for page in found:
                    of_each = [size(each) for each in page.records]
                    assert sum(of_each) - max(of_each, default=0) <= max_bytes
                values = [len(each.value or b"") for page in found for each in page.records]
                assert values == sizes

    async def test_starts_are_resolved_without_reading_records(self) -> None:
        topic = new_topic()
        async with self.running() as broker:
            sent = [record(topic, b"%d" % n, key=b"k", timestamp_ms=1000 * n) for n in range(10)]
            first = outcome_offset((await settled(broker, sent))[0])
            starts: list[tuple[ReadStart, int]] = [
                (EARLIEST, 0),
                (FromOffset(first[1] + 3), 3),
                (FromOffset(first[1] + 99), 10),
                (FromEnd(0), 10),
                (FromEnd(2), 8),
                (FromEnd(99), 0),
                (first[1] + 4, 4),
                (first[1] + 10, 10),
            ]
            if self.finds_times:
                starts += [(FromTime(0), 0), (FromTime(4001), 5), (FromTime(5000), 5), (FromTime(9001), 10)]
            for start, expected in starts:
                exact = isinstance(start, int)
                result = await self.read(broker, topic, {first[0]: start}, None if exact else start, limit=0)
                self.assert_consistent(result, topic)
                assert not result.records
                assert result.positions[first[0]] == first[1] + expected, start
                assert result.ends[first[0]] == first[1] + 10
                assert result.is_up_to_date == (expected == 10)
                for partition, position in result.positions.items():
                    assert partition == first[0] or position == result.ends[partition]

    async def test_reads_from_any_positions_agree_with_following(self) -> None:
        topic = new_topic()
        choice = random.Random(0)  # noqa: S311 -- the same reads each time
        async with self.running() as broker:
            sent = [
                record(topic, bytes(n), key=b"%d" % (n % 7), timestamp_ms=1 + choice.randrange(50))
                for n in range(60)
            ]
            await settled(broker, sent)
            ends = (await self.read(broker, topic, others=FromEnd(0), limit=0)).positions
            followed: dict[int, list[ConsumerRecord]] = {number: [] for number in ends}
            for each in await everything(broker, topic):
                followed[each.partition].append(each)
            for _ in range(60):
                starts: dict[int, ReadStart] = {
                    number: self.any_start(choice, end)
                    for number, end in ends.items()
                    if choice.random() < 0.8
                }
                others = choice.choice([None, EARLIEST, self.any_start(choice, 20)])
                if isinstance(others, int):
                    others = FromOffset(others)
                limit, max_bytes = choice.randrange(30), choice.choice([1, 100, 10_000])
                result = await within(
                    broker.read(
                        ReadRequest(
                            topic=topic, starts=starts, others=others, limit=limit, max_bytes=max_bytes
                        )
                    )
                )
                self.assert_consistent(result, topic)
                assert not result.beyond
                assert len(result.records) <= limit
                assert set(result.positions) == set(starts if others is None else ends)
                for number, position in result.positions.items():
                    start = starts.get(number, others)
                    rest = [each for each in followed[number] if each.offset >= position]
                    read = [each for each in result.records if each.partition == number]
                    assert read + rest == self.from_start(followed[number], start)

    async def test_a_read_for_a_key_has_all_records_with_it_and_counts_those_that_it_leaves_out(self) -> None:
        topic = new_topic()
        keys = [None, b"", b"k", b"kk", b"k\x00", b"other", b"k"] * 4
        async with self.running() as broker:
            await settled(broker, [record(topic, b"%d" % n, key=key) for n, key in enumerate(keys)])
            whole = [content(each) for each in await everything(broker, topic)]
            for key, limit, max_bytes in [(b"k", 3, 10_000), (b"k", 100, 1), (b"", 100, 10_000)]:
                read: list[ConsumerRecord] = []
                left_out = 0
                for page in await pages(broker, topic, limit=limit, max_bytes=max_bytes, key=key):
                    self.assert_consistent(page, topic)
                    assert len(page.records) + page.left_out <= limit
                    read += page.records
                    left_out += page.left_out
                assert len(read) + left_out == len(keys)
                wanted = [content(each) for each in read if each.key == key]
                assert sorted(wanted) == sorted(each for each in whole if each[2] == key)

    def any_start(self, choice: random.Random, end: int) -> ReadStart:
        """Return a start in a partition."""
        offset = choice.randrange(end + 1)
        starts: list[ReadStart] = [offset, offset, end, FromOffset(offset), FromEnd(offset)]
        if self.finds_times:
            starts.append(FromTime(choice.randrange(60)))
        return choice.choice(starts)

    @staticmethod
    def from_start(records: Sequence[ConsumerRecord], start: ReadStart | None) -> list[ConsumerRecord]:
        """Return the records of a partition from a start on; its offsets have no gaps."""
        if isinstance(start, FromTime):
            late = [n for n, each in enumerate(records) if each.timestamp_ms >= start.timestamp_ms]
            return list(records[late[0] :]) if late else []
        if isinstance(start, FromEnd):
            return list(records[max(0, len(records) - start.count) :])
        offset = start.offset if isinstance(start, FromOffset) else start or 0
        return [each for each in records if each.offset >= offset]

    async def test_only_the_partitions_that_are_asked_for_are_read(self) -> None:
        topic = new_topic()
        async with self.running() as broker:
            found = await settled(broker, [record(topic, key=b"%d" % n) for n in range(20)])
            numbers = sorted({each.partition for each in found})
            for number in numbers:
                result = await self.read(broker, topic, {number: EARLIEST}, None)
                self.assert_consistent(result, topic)
                assert set(result.positions) == set(result.ends) == {number}
                assert {record_offset(each) for each in result.records} == {
                    outcome_offset(each) for each in found if each.partition == number
                }
                rest = await self.read(broker, topic, {number: None})
                self.assert_consistent(rest, topic)
                assert set(rest.positions) == set(rest.ends) == set(range(rest.partitions)) - {number}
                assert {record_offset(each) for each in rest.records} == {
                    outcome_offset(each) for each in found if each.partition != number
                }
            nothing = await self.read(broker, topic, {}, None)
            assert (list(nothing.records), dict(nothing.positions)) == ([], {})
            assert (nothing.topic_id, nothing.partitions) == (result.topic_id, result.partitions)

    async def test_a_position_beyond_the_end_is_reported(self) -> None:
        topic = new_topic()
        async with self.running() as broker:
            found = await settled(broker, [record(topic, key=b"%d" % n) for n in range(20)])
            number = found[0].partition
            end = (await self.read(broker, topic, limit=0, others=FromEnd(0))).positions[number]
            for limit in (0, 100):
                result = await self.read(broker, topic, {number: end + 7}, limit=limit)
                self.assert_consistent(result, topic)
                assert dict(result.beyond) == {number: end}
                assert result.positions[number] == end + 7
                assert not result.is_up_to_date
            assert {record_offset(each) for each in result.records} == {
                outcome_offset(each) for each in found if each.partition != number
            }

    async def test_records_that_are_gone_are_reported_for_an_exact_position(self) -> None:
        if not self.deletes:
            return
        topic = new_topic()
        async with self.running() as broker:
            found = await settled(broker, [record(topic, b"%d" % n, key=b"k") for n in range(10)])
            number, first = outcome_offset(found[0])
            await self.delete_before(broker, topic, number, first + 4)
            result = await self.read(broker, topic, {number: first + 3})
            self.assert_consistent(result, topic)
            assert list(result.gone) == [GoneRecords(number, first + 3, first + 4)]
            assert result.positions[number] == first + 3
            assert not result.records
            assert not result.is_up_to_date
            for start in (first + 4, EARLIEST, FromOffset(first), FromEnd(99)):
                rest = await self.read(broker, topic, {number: start})
                assert [each.offset for each in rest.records] == list(range(first + 4, first + 10))

    async def test_a_topic_or_partition_that_does_not_exist_cannot_be_read(self) -> None:
        topic, missing = new_topic(), new_topic()
        async with self.running() as broker:
            await within(broker.publish(record(topic)))
            ends = await outcomes(
                [
                    broker.read(ReadRequest(topic=missing, limit=1, max_bytes=1)),
                    broker.read(
                        ReadRequest(
                            topic=missing, starts={NO_PARTITION: 0}, others=None, limit=1, max_bytes=1
                        )
                    ),
                    broker.read(
                        ReadRequest(topic=topic, starts={0: 0, NO_PARTITION: 0}, limit=1, max_bytes=1)
                    ),
                    broker.read(ReadRequest(topic=topic, starts={NO_PARTITION: None}, limit=1, max_bytes=1)),
                ]
            )
            assert [type(end) for end in ends] == [
                UnknownTopic,
                UnknownTopic,
                UnknownPartition,
                UnknownPartition,
            ]
            assert missing not in await within(broker.list_topics())

    async def test_a_topic_keeps_its_id(self) -> None:
        topics = [new_topic(), new_topic()]
        with self.new_broker() as broker:
            broker.start()
            await settled(broker, [record(topic) for topic in topics])
            ids = [(await self.read(broker, topic)).topic_id for topic in topics * 2]
            await within(broker.stop(deadline_s=20))
            if self.durable:
                again = self.again(broker)
                again.start()
                ids += [(await self.read(again, topic)).topic_id for topic in topics]
                await within(again.stop(deadline_s=20))
        assert ids[:2] * (len(ids) // 2) == ids
        assert len(set(ids)) == (1 if ids[0] == "_" else 2)

    async def test_nothing_that_is_published_meanwhile_is_missed(self) -> None:
        topic = new_topic()
        async with self.running() as broker:
            await within(broker.publish(record(topic, b"before")))
            page = await self.read(broker, topic, others=FromEnd(0), limit=0)
            assert page.is_up_to_date
            publishing = broker.publish_many([record(topic, b"%d" % n, key=b"%d" % n) for n in range(300)])
            records: list[ConsumerRecord] = []
            while True:
                # A broker in this process may answer at once, and publish the rest in later turns.
                await turns(1)
                is_published = publishing.called
                page = await self.read(broker, topic, page.positions, limit=50)
                self.assert_consistent(page, topic)
                records += page.records
                if is_published and page.is_up_to_date:
                    break
            found = await within(publishing)
        assert len(records) == 300
        assert {record_offset(each): each.value for each in records} == {
            outcome_offset(each): b"%d" % n for n, each in enumerate(found)
        }

    async def test_no_partition_is_left_out_because_others_have_many_records(self) -> None:
        topic = new_topic()
        async with self.running() as broker:
            await within(broker.publish(record(topic)))
            (description,) = await within(broker.describe_topics([topic]))
            numbers = [each.partition for each in description.partitions]
            busy = [record(topic, partition=numbers[0])] * 5
            await within(broker.publish_many([*busy, *(record(topic, partition=n) for n in numbers)]))
            positions: Mapping[int, int] = {}
            seen: set[int] = set()
            for _ in range(2 * len(numbers) + 2):
                await within(broker.publish_many(busy))
                page = await self.read(broker, topic, positions, limit=2)
                seen |= {each.partition for each in page.records}
                positions = page.positions
        assert seen == set(numbers)

    async def test_cancelling_a_read_stops_only_the_waiting(self) -> None:
        topic = new_topic()
        async with self.running() as broker:
            await within(broker.publish(record(topic)))
            cancelled = broker.read(ReadRequest(topic=topic, limit=1, max_bytes=1))
            already_there = cancelled.called
            cancelled.cancel()
            [end] = await outcomes([cancelled])
            assert isinstance(end, ReadResult if already_there else CancelledError)
            assert len((await self.read(broker, topic)).records) == 1

    async def test_a_broker_that_was_stopped_cannot_be_read(self) -> None:
        topic = new_topic()
        async with self.running() as broker:
            await within(broker.publish(record(topic)))
            before = broker.read(ReadRequest(topic=topic, limit=1, max_bytes=1))
            stopping = broker.stop(deadline_s=20)
            during = broker.read(ReadRequest(topic=topic, limit=1, max_bytes=1))
            await within(stopping)
            after = broker.read(ReadRequest(topic=topic, limit=1, max_bytes=1))
            ends = await outcomes([before, during, after])
        assert isinstance(ends[0], ReadResult | BrokerStopped)
        assert [type(end) for end in ends[1:]] == [BrokerStopped] * 2

    async def test_nothing_is_delivered_before_follow_has_returned(self) -> None:
        topic = new_topic()
        recorder = Recorder()
        async with self.running() as broker:
            await within(broker.publish(record(topic)))
            await everything(broker, topic)
            broker.follow(topic=topic, observer=recorder)
            assert recorder.records == []
            assert recorder.caught_up_at == []
            await recorder.until(1)

    async def test_observers_are_called_on_the_thread_of_the_reactor(self) -> None:
        topic = new_topic()
        threads = set()
        recorder = Recorder(
            on_record=lambda _: threads.add(threading.get_ident()),
            on_caught_up=lambda: threads.add(threading.get_ident()),
        )
        async with self.running() as broker:
            await within(broker.publish(record(topic)))
            broker.follow(topic=topic, observer=recorder)
            await recorder.until(1)
        assert threads == {threading.get_ident()}

    async def test_a_topic_that_does_not_exist_is_empty_until_it_does(self) -> None:
        topic = new_topic()
        recorder = Recorder()
        async with self.running() as broker:
            broker.follow(topic=topic, observer=recorder)
            await eventually(lambda: recorder.caught_up_at)
            assert recorder.records == []
            await within(broker.publish(record(topic, b"first")))
            await recorder.until(1)
        assert recorder.values() == [b"first"]
        assert recorder.caught_up_at == [0]

    async def test_after_stop_a_following_delivers_nothing_more(self) -> None:
        topic = new_topic()
        recorder = Recorder()
        async with self.running() as broker:
            await within(broker.publish(record(topic, b"before", key=b"k")))
            subscription = broker.follow(topic=topic, observer=recorder)
            await recorder.until(1)
            stopping = subscription.stop()
            published = broker.publish(record(topic, b"after", key=b"k"))
            assert await within(stopping) is None
            await within(published)
            # A new follower receives it, so the stopped one would have received it as well.
            assert [r.value for r in await everything(broker, topic)] == [b"before", b"after"]
            await turns()
        assert recorder.values() == [b"before"]

    async def test_a_following_that_is_stopped_at_once_delivers_nothing_at_all(self) -> None:
        topic = new_topic()
        recorder = Recorder()
        async with self.running() as broker:
            await within(broker.publish(record(topic)))
            subscription = broker.follow(topic=topic, observer=recorder)
            assert await within(subscription.stop()) is None
            await everything(broker, topic)
            await turns()
        assert recorder.records == []
        assert recorder.caught_up_at == []

    async def test_a_following_may_be_stopped_by_its_own_observer_and_more_than_once(self) -> None:
        topic = new_topic()
        stops: list[Deferred[None]] = []
        async with self.running() as broker:
            await settled(broker, [record(topic, b"%d" % n, key=b"k") for n in range(10)])
            recorder = Recorder(on_record=lambda r: r.value == b"3" and stops.append(subscription.stop()))
            subscription = broker.follow(topic=topic, observer=recorder)
            await eventually(lambda: stops)
            assert await outcomes([*stops, subscription.stop(), subscription.stop()]) == [None] * 3
            await everything(broker, topic)
        assert recorder.values() == [b"0", b"1", b"2", b"3"]
        assert recorder.caught_up_at == []

    async def test_an_observer_that_raises_is_logged_and_told_of_the_next_record(
        self, no_failure_is_lost: list[Failure]
    ) -> None:
        topic = new_topic()

        def fail(*_: object) -> None:
            raise ZeroDivisionError("on purpose")

        recorder = Recorder(on_record=fail, on_caught_up=fail)
        async with self.running() as broker:
            await settled(broker, [record(topic, b"%d" % n, key=b"k") for n in range(3)])
            broker.follow(topic=topic, observer=recorder)
            await recorder.until(3)
            await within(broker.publish(record(topic, b"3", key=b"k")))
            await recorder.until(4)
            await turns()
        assert recorder.values() == [b"0", b"1", b"2", b"3"]
        assert recorder.caught_up_at == [3]
        assert [failure.type for failure in no_failure_is_lost] == [ZeroDivisionError] * 5
        no_failure_is_lost.clear()

    async def test_records_may_be_published_as_soon_as_it_was_started(self) -> None:
        topic = new_topic()
        with self.new_broker() as broker:
            broker.start()
            published = broker.publish(record(topic))
            metadata = await within(published)
            assert isinstance(metadata, RecordMetadata)
            await within(broker.stop(deadline_s=20))

    async def test_cancelling_a_publish_stops_only_the_waiting(self) -> None:
        topic = new_topic()
        async with self.running() as broker:
            first, cancelled, last = (broker.publish(record(topic, v, key=b"k")) for v in (b"1", b"2", b"3"))
            already_there = cancelled.called
            cancelled.cancel()
            ends = await outcomes([first, cancelled, last])
            values = [r.value for r in await everything(broker, topic)]
        assert isinstance(ends[0], RecordMetadata)
        assert isinstance(ends[1], RecordMetadata if already_there else CancelledError)
        assert isinstance(ends[2], RecordMetadata)
        assert values in ([b"1", b"2", b"3"], [b"1", b"3"])

    async def test_it_becomes_ready_once_started_and_is_not_ready_once_stopped(self) -> None:
        with self.new_broker() as broker:
            self.assert_not_ready(broker)
            broker.start()
            await eventually(lambda: broker.health().ready)
            assert broker.health() == Health(ready=True)
            await within(broker.stop(deadline_s=20))
            self.assert_not_ready(broker)

    async def test_after_stop_it_rejects_records(self) -> None:
        topic = new_topic()
        async with self.running() as broker:
            await within(broker.publish(record(topic)))
            stopping = broker.stop(deadline_s=20)
            rejected = broker.publish(record(topic))
            assert await within(stopping) is None
            many = broker.publish_many([record(topic)] * 2)
            for each in await outcomes([rejected, broker.publish(record(topic)), many]):
                assert isinstance(each, BrokerStopped)
                assert not each.possibly_published

    async def test_a_following_knows_how_much_is_left_to_be_read(self) -> None:
        topic = new_topic()
        recorder = Recorder()
        async with self.running() as broker:
            await settled(broker, [record(topic, key=b"k") for _ in range(10)])
            subscription = broker.follow(topic=topic, observer=recorder)
            lag = subscription.lag()
            assert lag is None or lag <= 10
            await recorder.until(10)
            await eventually(lambda: subscription.lag() == 0)
            await settled(broker, [record(topic, key=b"k") for _ in range(5)])
            await recorder.until(15)
            await eventually(lambda: subscription.lag() == 0)

    async def test_what_was_accepted_counts_as_waiting_until_it_is_responseed(self) -> None:
        topic = new_topic()
        async with self.running() as broker:
            if not IMeasured.providedBy(broker):
                return
            assert verifyObject(IMeasured, broker)
            await within(broker.publish(record(topic)))
            assert (broker.measures().waiting.records, broker.measures().waiting.bytes) == (0, 0)
            publishing = [broker.publish(record(topic, bytes(100))) for _ in range(7)]
            left = [each for each in publishing if not each.called]
            waiting = broker.measures().waiting
            assert waiting.records == len(left)
            assert waiting.bytes >= 100 * len(left)
            assert waiting.limit_bytes is None or waiting.bytes <= waiting.limit_bytes
            await outcomes(publishing)
            assert (broker.measures().waiting.records, broker.measures().waiting.bytes) == (0, 0)
            many = broker.publish_many([record(topic, bytes(100))] * 7)
            waiting = broker.measures().waiting
            assert (waiting.records, waiting.bytes >= 700) == ((0, False) if many.called else (7, True))
            await within(many)
            assert (broker.measures().waiting.records, broker.measures().waiting.bytes) == (0, 0)

    async def test_stop_finishes_what_was_accepted(self) -> None:
        topic = new_topic()
        with self.new_broker() as broker:
            broker.start()
            published = [broker.publish(record(topic, b"%d" % n, key=b"k")) for n in range(3000)]
            assert await within(broker.stop(deadline_s=25)) is None
            assert all(each.called for each in published)
            ends = await outcomes(published)
            assert all(isinstance(each, RecordMetadata) for each in ends)
            if self.durable:
                assert [r.value for r in await self.read_again(broker, topic)] == [
                    b"%d" % n for n in range(3000)
                ]

    async def test_at_the_deadline_of_stop_every_publish_has_a_response_that_is_true(self) -> None:
        topic = new_topic()
        with self.new_broker() as broker:
            broker.start()
            published = [broker.publish(record(topic, b"%d" % n, key=b"k")) for n in range(3000)]
            assert await within(broker.stop(deadline_s=0)) is None
            assert all(each.called for each in published)
            await self.assert_true_ends(broker, topic, await outcomes(published))

    async def test_stop_finishes_many_records_that_were_accepted(self) -> None:
        topic = new_topic()
        sent = [record(topic, b"%d" % n, key=b"%d" % (n // 1000)) for n in range(3000)]
        with self.new_broker() as broker:
            broker.start()
            published = [broker.publish_many(sent[n : n + 1000]) for n in (0, 1000, 2000)]
            assert await within(broker.stop(deadline_s=25)) is None
            assert all(each.called for each in published)
            ends = await outcomes(published)
            assert all(isinstance(each, RecordMetadata) for found in ends for each in found)
            if self.durable:
                read = await self.read_again(broker, topic)
                for key in (b"0", b"1", b"2"):
                    assert [r.value for r in read if r.key == key] == [r.value for r in sent if r.key == key]

    async def test_at_the_deadline_of_stop_every_one_of_many_records_has_a_response_that_is_true(
        self,
    ) -> None:
        topic = new_topic()
        sent = [record(topic, b"%d" % n, key=b"k") for n in range(9000)]
        with self.new_broker() as broker:
            broker.start()
            published = [broker.publish_many(sent[n : n + 3000]) for n in (0, 3000, 6000)]
            assert await within(broker.stop(deadline_s=0)) is None
            assert all(each.called for each in published)
            ends: list[Any] = []
            for end in await outcomes(published):
                ends += [end] * 3000 if isinstance(end, PublishError) else end
            assert len(ends) == 9000
            await self.assert_true_ends(broker, topic, ends)

    async def test_stop_may_be_called_again_and_without_a_start(self) -> None:
        with self.new_broker() as broker:
            first, second = broker.stop(deadline_s=5), broker.stop(deadline_s=5)
            assert await outcomes([first, second, broker.stop(deadline_s=0)]) == [None] * 3
            [rejected] = await outcomes([broker.publish(record(new_topic()))])
            assert isinstance(rejected, BrokerStopped)
        async with self.running() as broker:
            first, second = broker.stop(deadline_s=20), broker.stop(deadline_s=20)
            assert await outcomes([first, second]) == [None] * 2
            assert await within(broker.stop(deadline_s=20)) is None

    async def test_stop_of_the_broker_stops_every_following(self) -> None:
        topic = new_topic()
        async with self.running() as broker:
            await within(broker.publish(record(topic)))
            recorder, unread = Recorder(), Recorder()
            subscription = broker.follow(topic=topic, observer=recorder)
            await recorder.until(1)
            broker.follow(topic=topic, observer=unread)
            published = broker.publish(record(topic))
            await within(broker.stop(deadline_s=20))
            await outcomes([published])
            seen = len(recorder.records), len(unread.records)
            late = Recorder()
            assert await outcomes(
                [subscription.stop(), broker.follow(topic=topic, observer=late).stop()]
            ) == [
                None,
                None,
            ]
            await turns()
            assert (len(recorder.records), len(unread.records)) == seen
            assert late.records == []

    async def test_each_publish_fails_with_an_error_of_its_own(self) -> None:
        async with self.running() as broker:
            await within(broker.stop(deadline_s=20))
            ends = await settled(broker, [record(new_topic()) for _ in range(2)])
        assert all(isinstance(each, PublishError) for each in ends)
        assert ends[0] is not ends[1]

    async def test_publish_returns_a_deferred_that_may_be_used_by_its_caller_alone(self) -> None:
        topic = new_topic()
        async with self.running() as broker:
            one, other = broker.publish(record(topic)), broker.publish(record(topic))
            assert isinstance(one, Deferred)
            assert one is not other
            one.addCallback(lambda _: "changed")
            assert isinstance((await outcomes([one, other]))[1], RecordMetadata)

    async def read(
        self,
        broker: IBroker,
        topic: str,
        starts: Mapping[int, ReadStart | None] | None = None,
        others: ReadStart | None = EARLIEST,
        *,
        limit: int = 100,
    ) -> ReadResult:
        """Read a page; by default everything, up to 100 records."""
        return await within(
            broker.read(
                ReadRequest(topic=topic, starts=starts or {}, others=others, limit=limit, max_bytes=1_000_000)
            )
        )

    def assert_consistent(self, result: ReadResult, topic: str) -> None:
        """Check what each result of a read promises."""
        assert re.fullmatch("[A-Za-z0-9_-]{1,16}", result.topic_id)
        assert result.positions.keys() == result.ends.keys()
        assert result.positions.keys() <= set(range(result.partitions))
        rejected = {each.partition for each in result.gone} | set(result.beyond)
        assert rejected <= result.positions.keys()
        assert result.held <= result.positions.keys()
        grouped = [key for key, _ in itertools.groupby(each.partition for each in result.records)]
        assert len(grouped) == len(set(grouped)), "the records are not grouped by partition"
        assert rejected.isdisjoint(grouped)
        for number in grouped:
            offsets = [each.offset for each in result.records if each.partition == number]
            assert offsets == sorted(set(offsets))
            assert result.positions[number] > offsets[-1]
            assert result.ends[number] > offsets[-1]
        assert all(each.topic == topic for each in result.records)

    async def read_again(self, broker: IBroker, topic: str) -> list[ConsumerRecord]:
        """Return all records of a topic, as the next broker finds them."""
        again = self.again(broker)
        again.start()
        try:
            return await everything(again, topic)
        finally:
            await within(again.stop(deadline_s=20))

    async def assert_true_ends(self, broker: IBroker, topic: str, ends: Sequence[Any]) -> None:
        """
        Check the outcomes of records after `stop`: each says truly whether its record is stored.

        :param ends: of the records with the values 0, 1, 2 and so on.
        """
        assert all(isinstance(e, RecordMetadata | BrokerStopped | OutcomeUnknown) for e in ends)
        if self.durable:
            stored = {int(r.value or b""): r.offset for r in await self.read_again(broker, topic)}
            for n, end in enumerate(ends):
                if isinstance(end, RecordMetadata):
                    assert stored.get(n) == end.offset
                elif not end.possibly_published:
                    assert n not in stored

    def assert_in_order(self, records: Sequence[ConsumerRecord]) -> None:
        """Check that the offsets in each partition are consecutive."""
        offsets: defaultdict[int, list[int]] = defaultdict(list)
        for each in records:
            offsets[each.partition].append(each.offset)
        for found in offsets.values():
            assert found == list(range(found[0], found[0] + len(found)))

    def assert_not_ready(self, broker: IBroker) -> None:
        """Check that the broker is not ready, with reasons."""
        health = broker.health()
        assert not health.ready
        assert health.reasons
        assert health.public_reasons
        assert all(isinstance(reason, str) and reason for reason in (*health.reasons, *health.public_reasons))


for _name, _test in (*vars(BrokerContract).items(), *vars(IdempotencyContract).items()):
    # Each test of the classes is a coroutine, and pytest-twisted only runs marked ones.
    if _name.startswith("test_"):
        pytest_twisted.ensureDeferred(_test)
