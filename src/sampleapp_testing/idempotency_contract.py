"""
The part of the contract about records with an identity, which may be sent again.

A broker that never recognises a record sets `IdempotencyContract.idempotent`. A broker whose topics must be
enabled overrides `IdempotencyContract.new_idempotent_topic` and `IdempotencyContract.new_plain_topic`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from twisted.internet.defer import CancelledError, Deferred

from sampleapp.errors import (
    IdempotencyKeyReused,
    IdempotencyNotEnabled,
    IdempotencyNotSupported,
    UnknownPartition,
)
from sampleapp.interfaces import Outcome
from sampleapp.model import Record, RecordMetadata, ReplayedRecord
from sampleapp_testing.contract_base import ContractBase
from sampleapp_testing.publishing import (
    NO_PARTITION,
    everything,
    identity,
    new_topic,
    outcome_offset,
    record,
    record_offset,
    settled,
)
from sampleapp_testing.waiting import outcomes, within

__all__ = ["IdempotencyContract"]


def is_new(outcome: Outcome) -> bool:
    """Return whether a record was published now; fail if it was rejected."""
    assert isinstance(outcome, RecordMetadata), repr(outcome)
    return not isinstance(outcome, ReplayedRecord)


class IdempotencyContract(ContractBase):
    """The tests of records with an identity; see `sampleapp.interfaces.IBroker.publish`."""

    idempotent: ClassVar[bool] = True
    """Whether the broker recognises a record that is sent again."""

    def new_idempotent_topic(self) -> str:
        """Return the name of a new topic whose records may have an identity; by default, any topic."""
        return new_topic()

    def new_plain_topic(self) -> str | None:
        """Return the name of a new topic whose records may have no identity; by default, there is none."""
        return None

    async def test_a_record_that_is_sent_again_is_not_published_again(self) -> None:
        if not self.idempotent:
            return
        topic = self.new_idempotent_topic()
        async with self.running() as broker:
            for number, key in enumerate((b"k", None, b"")):
                sent = record(topic, b"%d" % number, key=key, identity=identity(topic, f"{number}"))
                found: list[Outcome] = []
                for _ in range(3):
                    alone = await within(broker.publish(sent))
                    other = await within(broker.publish(record(topic, b"other")))
                    found.append(alone)
                    assert is_new(other)
                (many,) = await within(broker.publish_many([sent]))
                found.append(many)
                assert [is_new(each) for each in found] == [True, False, False, False]
                assert len({outcome_offset(each, topic=topic) for each in found}) == 1
                by_offset = {record_offset(each): each.value for each in await everything(broker, topic)}
                assert by_offset[outcome_offset(found[0])] == sent.value
                assert list(by_offset.values()).count(sent.value) == 1

    async def test_of_many_records_that_are_sent_again_the_missing_ones_are_published(self) -> None:
        if not self.idempotent:
            return
        topic = self.new_idempotent_topic()
        sent = [
            record(topic, b"%d" % n, key=b"%d" % (n % 7), identity=identity(topic, f"{n}"))
            for n in range(450)
        ]
        async with self.running() as broker:
            first = await within(broker.publish_many(sent[100:200]))
            (alone,) = await settled(broker, sent[230:231])
            found = await within(broker.publish_many(sent))
            again = await within(broker.publish_many(sent))
            by_offset = {record_offset(each): each.value for each in await everything(broker, topic)}
        assert all(map(is_new, [*first, alone]))
        assert not any(map(is_new, [*found[100:200], found[230], *again]))
        assert all(map(is_new, [*found[:100], *found[200:230], *found[231:]]))
        assert [outcome_offset(each) for each in [*first, alone]] == [
            outcome_offset(each) for each in [*found[100:200], found[230]]
        ]
        assert [outcome_offset(each) for each in again] == [outcome_offset(each) for each in found]
        assert {outcome_offset(each): b"%d" % n for n, each in enumerate(found)} == by_offset

    async def test_a_record_that_is_twice_in_one_call_is_published_once(self) -> None:
        if not self.idempotent:
            return
        topic = self.new_idempotent_topic()
        sent = [
            record(topic, b"%d" % n, key=b"k", identity=identity(topic, f"{n}"))
            for n in (*range(150), 0, 149, 5, 5)
        ]
        async with self.running() as broker:
            found = await within(broker.publish_many(sent))
            read = await everything(broker, topic)
        assert [is_new(each) for each in found] == [True] * 150 + [False] * 4
        assert [each.value for each in read] == [each.value for each in sent[:150]]
        by_offset = {record_offset(each): each.value for each in read}
        assert [by_offset[outcome_offset(each)] for each in found] == [each.value for each in sent]

    async def test_a_record_that_is_sent_several_times_at_once_is_published_once(self) -> None:
        if not self.idempotent:
            return
        topic = self.new_idempotent_topic()
        sent = [
            record(topic, b"%d" % n, key=None if n % 3 else b"k", identity=identity(topic, f"{n}"))
            for n in range(20)
        ]
        async with self.running() as broker:
            # In the first round the broker does not know the topic yet, in the second it does.
            for some in (sent[:10], sent[10:]):
                alone = [broker.publish(each) for each in some]
                many = [broker.publish_many(some), broker.publish_many(some[::-1])]
                alone += [broker.publish(each) for each in some]
                ends = await outcomes(many)
                single = await outcomes(alone)
                of_each: list[Sequence[Outcome]] = [ends[0], ends[1][::-1], single[:10], single[10:]]
                for found in zip(*of_each, strict=True):
                    assert sum(map(is_new, found)) == 1
                    assert len({outcome_offset(each, topic=topic) for each in found}) == 1
            values = [each.value for each in await everything(broker, topic)]
        assert sorted(value or b"" for value in values) == sorted(each.value or b"" for each in sent)

    async def test_another_record_with_the_same_id_is_rejected_and_not_published(self) -> None:
        if not self.idempotent:
            return
        topic = self.new_idempotent_topic()
        first = record(topic, b"first", key=b"k", identity=identity(topic, sent="first"))
        other = record(topic, b"other", key=b"k", identity=identity(topic, sent="other"))
        plain = record(topic, b"plain", key=b"k")
        async with self.running() as broker:
            found = [*await settled(broker, [first, other, first]), *await settled(broker, [other])]
            many = await within(broker.publish_many([first, plain, other, plain, first]))
            found.extend(many)
            values = [each.value for each in await everything(broker, topic)]
        rejected = [found.pop(n) for n in (6, 3, 1)]
        assert all(isinstance(each, IdempotencyKeyReused) for each in rejected), rejected
        assert len(set(map(id, rejected))) == 3
        assert not any(each.possibly_published or each.retriable for each in rejected)
        assert [is_new(each) for each in found] == [True, False, False, True, True, False]
        assert len({outcome_offset(found[n]) for n in (0, 1, 2, 5)}) == 1
        assert values == [b"first", b"plain", b"plain"]

    async def test_two_records_with_one_id_in_one_call_end_like_two_calls(self) -> None:
        if not self.idempotent:
            return
        topic = self.new_idempotent_topic()
        sent = [
            record(topic, value.encode(), key=b"k", identity=identity(topic, sent=value))
            for value in ("first", "other", "first")
        ]
        async with self.running() as broker:
            first, other, again = await within(broker.publish_many(sent))
            values = [each.value for each in await everything(broker, topic)]
        assert is_new(first)
        assert isinstance(other, IdempotencyKeyReused)
        assert not is_new(again)
        assert outcome_offset(first) == outcome_offset(again)
        assert values == [b"first"]

    async def test_records_with_different_ids_are_different_whatever_they_contain(self) -> None:
        if not self.idempotent:
            return
        topics = [self.new_idempotent_topic() for _ in range(2)]
        sent = [
            record(topic, b"v", key=b"k", identity=identity(topic, name))
            for topic in topics
            for name in "abc"
        ]
        async with self.running() as broker:
            found = await settled(broker, [*sent, record(topics[0], b"v", key=b"k")])
            counts = [len(await everything(broker, topic)) for topic in topics]
        assert all(map(is_new, found))
        assert counts == [4, 3]

    async def test_a_rejected_record_does_not_use_its_id(self) -> None:
        if not self.idempotent:
            return
        topic = self.new_idempotent_topic()

        def sent(name: str, content: str, partition: int | None = None) -> list[Record]:
            of_record = identity(topic, name, sent=content)
            return [record(topic, content.encode(), key=b"k", partition=partition, identity=of_record)]

        async with self.running() as broker:
            await within(broker.publish(record(topic, b"before", key=b"k")))
            rejected = await settled(broker, sent("alone", "refused", NO_PARTITION))
            many = await within(broker.publish_many(sent("many", "refused", NO_PARTITION)))
            rejected.extend(many)
            assert [type(each) for each in rejected] == [UnknownPartition] * 2
            found = await settled(broker, sent("alone", "1"))
            both = sent("both", "refused", NO_PARTITION) + sent("both", "3")
            many = await within(broker.publish_many(sent("many", "2") + both))
            found.extend(many)
            rejected.append(found.pop(2))
            assert isinstance(rejected[-1], UnknownPartition)
            values = [each.value for each in await everything(broker, topic)]
        assert all(map(is_new, found))
        assert values == [b"before", b"1", b"2", b"3"]

    async def test_records_keep_their_order_among_those_with_and_those_without_an_identity(self) -> None:
        if not self.idempotent:
            return
        topic = self.new_idempotent_topic()
        sent = [
            record(topic, b"%d" % n, key=b"k", identity=identity(topic, f"{n}") if n % 3 == 1 else None)
            for n in range(90)
        ]
        async with self.running() as broker:
            # At the first identity for a topic, a broker may have to ask whether the topic takes them.
            assert await within(broker.check_topics([topic], identified=True)) == {}
            for start in (0, 45):
                some = sent[start : start + 45]
                again = [some[1], some[4]]
                alone = [broker.publish(each) for each in some[:10]]
                many = [broker.publish_many(some[10:20] + again), broker.publish_many(some[20:21])]
                alone += [broker.publish(each) for each in (some[21], some[1], some[22])]
                many.append(broker.publish_many(some[23:40]))
                alone += [broker.publish(each) for each in some[40:]]
                single = await outcomes(alone)
                ends = await outcomes(many)
                replays = [*ends[0][10:], single[11]]
                assert not any(map(is_new, replays))
                assert all(map(is_new, [*ends[0][:10], *ends[1], *ends[2], *single[:11], *single[12:]]))
            stored = [int(each.value or b"") for each in await everything(broker, topic)]
        assert sorted(stored) == [*range(90)]
        plain = [n for n in range(90) if n % 3 != 1]
        of_one_call = [n for start in (0, 45) for n in range(start + 23, start + 40) if n % 3 == 1]
        for together in (plain, of_one_call):
            assert [n for n in stored if n in together] == together

    async def test_a_record_whose_caller_stopped_waiting_is_published_once(self) -> None:
        if not self.idempotent:
            return
        topic = self.new_idempotent_topic()
        sent = [record(topic, b"%d" % n, key=b"k", identity=identity(topic, f"{n}")) for n in range(3)]
        async with self.running() as broker:
            cancelled: list[Deferred[Any]] = [broker.publish(sent[0]), broker.publish_many(sent)]
            for each in cancelled:
                each.cancel()
            ends = await outcomes(cancelled)
            assert all(isinstance(each, CancelledError | RecordMetadata | list) for each in ends)
            found = await within(broker.publish_many(sent))
            read = await everything(broker, topic)
        assert not any(map(is_new, found))
        assert [each.value for each in read] == [b"0", b"1", b"2"]
        assert [outcome_offset(each) for each in found] == [record_offset(each) for each in read]

    async def test_a_record_is_recognised_after_the_broker_was_started_again(self) -> None:
        if not (self.idempotent and self.durable):
            return
        topic = self.new_idempotent_topic()
        sent = [record(topic, b"%d" % n, key=b"k", identity=identity(topic, f"{n}")) for n in range(20)]
        other = record(topic, b"other", key=b"k", identity=identity(topic, "3", sent="other"))
        with self.new_broker() as broker:
            broker.start()
            first = await within(broker.publish_many(sent[:10]))
            await within(broker.stop(deadline_s=20))
            again = self.again(broker)
            again.start()
            found = await within(again.publish_many(sent))
            (rejected,) = await settled(again, [other])
            read = await everything(again, topic)
            await within(again.stop(deadline_s=20))
        assert [is_new(each) for each in found] == [False] * 10 + [True] * 10
        assert [outcome_offset(each) for each in found[:10]] == [outcome_offset(each) for each in first]
        assert [record_offset(each) for each in read] == [outcome_offset(each) for each in found]
        assert isinstance(rejected, IdempotencyKeyReused)

    async def test_a_topic_that_takes_no_identities_rejects_them_all(self) -> None:
        topic = self.new_plain_topic()
        if topic is None:
            return
        plain = record(topic, b"plain", key=b"k")
        rejected = record(topic, b"refused", key=b"k", identity=identity(topic))
        async with self.running() as broker:
            await within(broker.publish(plain))
            ends = await outcomes([broker.publish(rejected), broker.publish_many([plain, rejected, plain])])
            await within(broker.publish(plain))
            values = [each.value for each in await everything(broker, topic)]
        assert all(isinstance(each, IdempotencyNotEnabled | IdempotencyNotSupported) for each in ends), ends
        assert values == [b"plain", b"plain"]
