"""The contract, used for a broker outside of sampleapp."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.testing.contracts import check_contract

BROKERS = '''
from twisted.internet import reactor
from twisted.internet.defer import Deferred, fail, succeed
from sampleapp.brokers.memory import MemoryBroker
from msgspec.structs import replace
from sampleapp.errors import (
    BrokerUnavailable, IdempotencyNotEnabled, IllegalTopic, PublishError, RecordRefused
)
from sampleapp.measures import Measures, Waiting
from sampleapp_testing import Recorder
from sampleapp.model import (
    EARLIEST, FromEnd, FromTime, Health, PartitionDescription, ReadResult, RecordIdentity, RecordMetadata,
    ReplayedRecord, TopicDescription
)


class Right(MemoryBroker):
    """A broker of somebody else's."""


class CountsFromOne(MemoryBroker):
    def publish(self, record):
        return super().publish(record).addCallback(
            lambda found: RecordMetadata(topic=found.topic, partition=0, offset=found.offset + 1)
        )


class LosesKeys(MemoryBroker):
    def publish(self, record):
        return super().publish(type(record)(topic=record.topic, key=None, value=record.value,
            timestamp_ms=record.timestamp_ms, headers=record.headers))


class IsAlwaysReady(MemoryBroker):
    def health(self):
        return Health(ready=True)


class RaisesItsOwnErrors(MemoryBroker):
    def publish(self, record):
        return fail(RuntimeError("closed")) if self._stopped else super().publish(record)


class IsDeaf(MemoryBroker):
    def follow(self, *, topic, observer, **options):
        observer.caught_up()
        return super().follow(topic=topic, observer=observer, **options)


class TellsNoPositions(MemoryBroker):
    def follow(self, *, observer, **options):
        class Plain(Recorder):
            caught_up = observer.caught_up
            record_received = observer.record_received
        return super().follow(observer=Plain(), **options)


class CountsCalls(MemoryBroker):
    def publish_many(self, records):
        return super().publish_many(records).addCallback(lambda found: found[:1] * len(found))


class RefusesToDoNothing(MemoryBroker):
    def publish_many(self, records):
        return super().publish_many(records) if records else fail(RecordRefused("nothing"))


class TurnsThemRound(MemoryBroker):
    def publish_many(self, records):
        return super().publish_many(records[::-1]).addCallback(lambda found: found[::-1])


class IsOvertaken(MemoryBroker):
    def publish_many(self, records):
        later = Deferred()
        reactor.callLater(0, lambda: super(IsOvertaken, self).publish_many(records).chainDeferred(later))
        return later


class FailsForAll(MemoryBroker):
    def publish_many(self, records):
        def first_error(found):
            return next((fail(each) for each in found if isinstance(each, PublishError)), found)
        return super().publish_many(records).addCallback(first_error)


class KnowsNoPartitions(MemoryBroker):
    def publish(self, record):
        return super().publish(type(record)(topic=record.topic, key=record.key, value=record.value,
            timestamp_ms=record.timestamp_ms, headers=record.headers))


class ForgetsWhatIsCancelled(MemoryBroker):
    def publish_many(self, records):
        calls = []
        later = Deferred(lambda _: calls[0].cancel())
        publish = super().publish_many
        calls.append(reactor.callLater(0, lambda: publish(records).chainDeferred(later)))
        return later


class TakesWhatFits(MemoryBroker):
    def measures(self):
        return Measures(waiting=Waiting(records=0, bytes=0, limit_bytes=2_000_000))

    def publish_many(self, records):
        rest = [RecordRefused("full")] * (len(records) - 4)
        return super().publish_many(records[:4]).addCallback(lambda found: found + rest)


class TakesAllAtOnce(MemoryBroker):
    def publish_many(self, records):
        return succeed([self.publish(record).result for record in records])


class LooksAtNoNames(MemoryBroker):
    def publish(self, record):
        if " " in record.topic:
            return fail(IllegalTopic("There is a space in it."))
        return super().publish(record)


class HasFailingChecks(MemoryBroker):
    def check_topics(self, topics, *, create=True, identified=False):
        found = super().check_topics(topics, create=create, identified=identified)
        return fail(RuntimeError("closed")) if self._stopped else found


class DescribesWhatIsNot(MemoryBroker):
    def describe_topics(self, topics):
        for each in topics:
            self._topics.setdefault(each, [])
        return super().describe_topics(topics)


class LeavesTheRest(MemoryBroker):
    def stop(self, *, deadline_s):
        super().stop(deadline_s=deadline_s)
        return succeed(None)


class Reads(MemoryBroker):
    """Changes the results, or the requests, of reads."""

    def read(self, request):
        return super().read(self.change_request(request)).addCallback(self.change)

    def change_request(self, request):
        return request

    def change(self, result):
        return result


class LosesHeaders(Reads):
    def change(self, result):
        return replace(result, records=[replace(each, headers=()) for each in result.records])


class SkipsOne(Reads):
    def change(self, result):
        more = result.positions.items() if result.records and not result.is_up_to_date else ()
        return replace(result, positions={**result.positions, **{n: at + 1 for n, at in more}})


class ReadsMoreThanTheLimit(Reads):
    def change_request(self, request):
        return replace(request, limit=request.limit and request.limit + 1)


class ReadsAnyNumberOfBytes(Reads):
    def change_request(self, request):
        return replace(request, max_bytes=10**9)


class LeavesOutUncounted(Reads):
    def read(self, request):
        def chosen(result):
            records = [each for each in result.records if request.key in (None, each.key)]
            return replace(result, records=records)

        return super().read(request).addCallback(chosen)


class LeavesOutThoseWithTheKey(Reads):
    def read(self, request):
        def chosen(result):
            records = [each for each in result.records if request.key is None or each.key != request.key]
            return replace(result, records=records, left_out=len(result.records) - len(records))

        return super().read(request).addCallback(chosen)


class BeginsAtOffsetsOnly(Reads):
    def change_request(self, request):
        starts = {n: EARLIEST if isinstance(each, FromTime) else each for n, each in request.starts.items()}
        return replace(request, starts=starts)


class ReadsOneMoreBeforeTheEnd(Reads):
    def change_request(self, request):
        starts = request.starts
        ends = {n: FromEnd(at.count + 1) for n, at in starts.items() if isinstance(at, FromEnd)}
        return replace(request, starts={**starts, **ends})


class ReadsEveryPartition(Reads):
    def change_request(self, request):
        return replace(request, others=EARLIEST if request.others is None else request.others)


class GoesBackToTheEnd(Reads):
    def change(self, result):
        return replace(result, beyond={}, positions=result.ends) if result.beyond else result


class CreatesWhatIsRead(Reads):
    def change_request(self, request):
        self._topics.setdefault(request.topic, [])
        return request


class GivesEveryTopicOneId(Reads):
    def change(self, result):
        return replace(result, topic_id="always-the-same")


class MissesWhatComesMeanwhile(Reads):
    def change_request(self, request):
        self.topic = request.topic
        return request

    def change(self, result):
        end = len(self.records(self.topic))
        return replace(result, positions={0: end}, ends={0: end})


class HasTwoPartitions(Reads):
    """Every second offset is in partition 1, for reads only."""

    def read(self, request):
        starts, found = request.starts, []
        for number in (0, 1):
            records = [
                replace(each, partition=number, offset=n)
                for n, each in enumerate(self.records(request.topic)[number::2])
            ]
            start = starts.get(number, 0)
            found.append(records[start:])
        page = (found[0] + found[1])[:request.limit]
        positions = {n: starts.get(n, 0) + sum(each.partition == n for each in page) for n in (0, 1)}
        return succeed(
            ReadResult(
                topic_id="t",
                records=page,
                positions=positions,
                ends={n: starts.get(n, 0) + len(found[n]) for n in (0, 1)},
                partitions=2,
            )
        )

    def describe_topics(self, topics):
        one = TopicDescription(name=topics[0], partitions=tuple(
            PartitionDescription(partition=n, leader=0, replicas=(0,), in_sync=(0,)) for n in (0, 1)
        ))
        return succeed([one])

    def publish_many(self, records):
        return super().publish_many([replace(each, partition=None) for each in records])


class EndsReadsThatAreCancelled(Reads):
    def read(self, request):
        reading = super().read(request)
        if self._stopped or hasattr(self, "was_cancelled"):
            return reading
        later = Deferred(lambda _: later.errback(BrokerUnavailable("cancelled")))
        self.was_cancelled = True
        return later


class GoesOnAfterTheEnd(Reads):
    def read(self, request):
        if self._stopped:
            return fail(BrokerUnavailable("closed"))
        return super().read(request)


class Trims(Reads):
    """Deletes records, and does not say so."""

    def change_request(self, request):
        self.first = self.trimmed.get(request.topic, 0)
        return request

    def change(self, result):
        return replace(result, records=[each for each in result.records if each.offset >= self.first])

    trimmed = {}


def plain(record):
    return replace(record, identity=None)


class PublishesAgain(MemoryBroker):
    def publish(self, record):
        return super().publish(plain(record))


class SaysNothingOfReplays(MemoryBroker):
    def publish(self, record):
        return super().publish(record).addCallback(
            lambda found: RecordMetadata(topic=found.topic, partition=0, offset=found.offset)
        )


class AnswersWithTheEnd(MemoryBroker):
    def publish(self, record):
        def change(found):
            end = len(self.records(found.topic)) - 1
            return replace(found, offset=end) if isinstance(found, ReplayedRecord) else found
        return super().publish(record).addCallback(change)


class TakesABatchForWhatItsFirstIs(MemoryBroker):
    def publish_many(self, records):
        if records and records[0].identity and self._remembered.find(records[0]):
            return succeed([
                ReplayedRecord(topic=each.topic, partition=0, offset=n) for n, each in enumerate(records)
            ])
        return super().publish_many(records)


class LooksBeforeEachCallOnly(MemoryBroker):
    def publish_many(self, records):
        known = self._remembered
        new = [each.identity and not known.find(each) and each.identity for each in records]
        publishing = super().publish_many([plain(r) if i else r for r, i in zip(records, new)])

        def published(found):
            for identity, each in zip(new, found):
                if identity:
                    known.add(identity, each.offset)
            return found
        return publishing.addCallback(published)


class RemembersWhenItIsLate(MemoryBroker):
    def publish(self, record):
        if record.identity is None or self._remembered.find(record):
            return super().publish(record)

        def remember(found):
            later = Deferred()
            reactor.callLater(0, self._remembered.add, record.identity, found.offset)
            reactor.callLater(0, later.callback, found)
            return later
        return super().publish(plain(record)).addCallback(remember)


class LooksAtNoFingerprints(MemoryBroker):
    def _append(self, record):
        if record.identity:
            record = replace(record, identity=replace(record.identity, fingerprint=bytes(32)))
        return super()._append(record)


class RefusesACallWithTwo(MemoryBroker):
    def publish_many(self, records):
        ids = [each.identity.id for each in records if each.identity]
        return super().publish_many(records) if len(ids) == len(set(ids)) else fail(RecordRefused("twice"))


class KnowsByContent(MemoryBroker):
    def _append(self, record):
        if record.identity:
            record = replace(record, identity=replace(record.identity, id=record.identity.fingerprint))
        return super()._append(record)


class UsesIdsOfRefused(MemoryBroker):
    def _append(self, record):
        found = super()._append(record)
        if record.identity and isinstance(found, PublishError):
            self._remembered.add(record.identity, 0)
        return found


class TurnsIdentitiesRound(MemoryBroker):
    def publish_many(self, records):
        if not any(each.identity for each in records):
            return super().publish_many(records)
        return super().publish_many(records[::-1]).addCallback(lambda outcomes: outcomes[::-1])


class PublishesForThoseWhoWait(MemoryBroker):
    def publish(self, record):
        if not record.identity:
            return super().publish(record)
        publish = super().publish
        call = reactor.callLater(0, lambda: publish(record).chainDeferred(later))
        later = Deferred(lambda _: call.cancel())
        return later

    def publish_many(self, records):
        publish = super().publish_many
        later = Deferred(lambda _: publish(list(map(plain, records))))
        reactor.callLater(0, lambda: later.called or publish(records).chainDeferred(later))
        return later


class ForgetsAtItsEnd(MemoryBroker):
    """Keeps the records."""


class TakesAnyTopic(MemoryBroker):
    """Topics whose name has a dot should have no identities."""


class RefusesOneOfMany(MemoryBroker):
    def _append(self, record):
        if record.identity and "." in record.topic:
            return IdempotencyNotEnabled("not here")
        return super()._append(record)
'''

TESTS = """
import gc
from contextlib import contextmanager

import theirs
from sampleapp_testing import BrokerContract, new_topic
from twisted.internet import reactor

# Each test collects the garbage, for which the modules need not be looked at.
gc.collect()
gc.freeze()
"""

TEST = """

class Test{name}(BrokerContract):
    one_partition = True
    first_offset = 0

    @contextmanager
    def new_broker(self):
        yield theirs.{name}(clock=reactor)

    deletes = "{name}" == "Trims"

    async def delete_before(self, broker, topic, partition, offset):
        broker.trimmed[topic] = offset

    durable = "{name}" == "ForgetsAtItsEnd"

    def again(self, broker):
        another = theirs.{name}(clock=reactor)
        another._topics = broker._topics
        return another

    def new_plain_topic(self):
        return f"plain.{{new_topic()}}" if "{name}" in ("TakesAnyTopic", "RefusesOneOfMany") else None
"""

BROKEN = {
    "CountsFromOne": "test_concurrent_publishes_get_offsets_of_their_own_without_gaps",
    "LosesKeys": "test_records_with_the_same_topic_and_key_keep_the_order_of_the_calls",
    "IsAlwaysReady": "test_it_becomes_ready_once_started_and_is_not_ready_once_stopped",
    "RaisesItsOwnErrors": "test_after_stop_it_rejects_records",
    "IsDeaf": "test_nothing_is_delivered_before_follow_has_returned",
    "TellsNoPositions": "test_an_observer_can_learn_from_which_offset_on_it_gets_records",
    "CountsCalls": "test_each_of_many_records_gets_its_own_offset_without_gaps",
    "RefusesToDoNothing": "test_no_records_at_all_are_published_at_once",
    "TurnsThemRound": "test_many_records_with_the_same_topic_and_key_keep_their_order",
    "IsOvertaken": "test_records_keep_their_order_whether_they_are_published_alone_or_with_others",
    "FailsForAll": "test_of_many_records_some_may_be_stored_and_some_not",
    "KnowsNoPartitions": "test_a_partition_that_does_not_exist_is_rejected",
    "ForgetsWhatIsCancelled": "test_cancelling_many_records_stops_only_the_waiting",
    "TakesWhatFits": "test_more_records_than_there_is_room_for_are_rejected_together",
    "TakesAllAtOnce": "test_a_large_number_of_records_lets_others_in",
    "LooksAtNoNames": "test_topics_are_checked_as_publishing_to_them_would_end",
    "HasFailingChecks": "test_checking_topics_never_fails",
    "DescribesWhatIsNot": "test_topics_are_described_with_their_partitions",
    "LosesHeaders": "test_a_read_returns_the_records_from_the_positions_and_the_positions_after_them",
    "SkipsOne": "test_pages_continue_one_another_without_a_gap_or_a_repeat",
    "ReadsMoreThanTheLimit": "test_pages_continue_one_another_without_a_gap_or_a_repeat",
    "ReadsAnyNumberOfBytes": "test_a_page_is_bounded_by_bytes_and_has_a_record_of_any_size",
    "LeavesOutUncounted": (
        "test_a_read_for_a_key_has_all_records_with_it_and_counts_those_that_it_leaves_out"
    ),
    "LeavesOutThoseWithTheKey": (
        "test_a_read_for_a_key_has_all_records_with_it_and_counts_those_that_it_leaves_out"
    ),
    "BeginsAtOffsetsOnly": "test_starts_are_resolved_without_reading_records",
    "ReadsOneMoreBeforeTheEnd": "test_reads_from_any_positions_agree_with_following",
    "ReadsEveryPartition": "test_only_the_partitions_that_are_asked_for_are_read",
    "GoesBackToTheEnd": "test_a_position_beyond_the_end_is_reported",
    "Trims": "test_records_that_are_gone_are_reported_for_an_exact_position",
    "CreatesWhatIsRead": "test_a_topic_or_partition_that_does_not_exist_cannot_be_read",
    "GivesEveryTopicOneId": "test_a_topic_keeps_its_id",
    "MissesWhatComesMeanwhile": "test_nothing_that_is_published_meanwhile_is_missed",
    "HasTwoPartitions": "test_no_partition_is_left_out_because_others_have_many_records",
    "EndsReadsThatAreCancelled": "test_cancelling_a_read_stops_only_the_waiting",
    "GoesOnAfterTheEnd": "test_a_broker_that_was_stopped_cannot_be_read",
    "PublishesAgain": "test_a_record_that_is_sent_again_is_not_published_again",
    "SaysNothingOfReplays": "test_a_record_that_is_sent_again_is_not_published_again",
    "AnswersWithTheEnd": "test_a_record_that_is_sent_again_is_not_published_again",
    "TakesABatchForWhatItsFirstIs": (
        "test_of_many_records_that_are_sent_again_the_missing_ones_are_published"
    ),
    "LooksBeforeEachCallOnly": "test_a_record_that_is_twice_in_one_call_is_published_once",
    "RemembersWhenItIsLate": "test_a_record_that_is_sent_several_times_at_once_is_published_once",
    "LooksAtNoFingerprints": "test_another_record_with_the_same_id_is_rejected_and_not_published",
    "RefusesACallWithTwo": "test_two_records_with_one_id_in_one_call_end_like_two_calls",
    "KnowsByContent": "test_records_with_different_ids_are_different_whatever_they_contain",
    "UsesIdsOfRefused": "test_a_rejected_record_does_not_use_its_id",
    "TurnsIdentitiesRound": ("test_records_keep_their_order_among_those_with_and_those_without_an_identity"),
    "PublishesForThoseWhoWait": "test_a_record_whose_caller_stopped_waiting_is_published_once",
    "ForgetsAtItsEnd": "test_a_record_is_recognised_after_the_broker_was_started_again",
    "TakesAnyTopic": "test_a_topic_that_takes_no_identities_rejects_them_all",
    "RefusesOneOfMany": "test_a_topic_that_takes_no_identities_rejects_them_all",
    "LeavesTheRest": "test_at_the_deadline_of_stop_every_one_of_many_records_has_a_response_that_is_true",
}


@pytest.mark.slow
def test_a_right_broker_passes_and_one_that_breaks_a_promise_fails_the_test_of_that_promise(tmp_path):
    check_contract(tmp_path, BROKERS, TESTS, TEST, BROKEN)


def test_the_service_does_not_import_what_only_tests_need():
    program = (
        "import sys, sampleapp, sampleapp.service.assembly, sampleapp.service.tap, sampleapp.cli; "
        "sys.exit(bool({'pytest', 'pytest_twisted', 'hypothesis'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
