"""The contract, as somebody uses it who has installed sampleapp and written a broker elsewhere."""

from __future__ import annotations

import subprocess
import sys
from xml.etree import ElementTree as ET

BROKERS = '''
from twisted.internet import reactor
from twisted.internet.defer import Deferred, fail, succeed
from sampleapp.brokers.memory import MemoryBroker
from sampleapp.errors import IllegalTopic, PublishError, RecordRefused
from sampleapp.measures import Measures, Waiting
from sampleapp.model import Health, RecordMetadata


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
    def check_topics(self, topics):
        return fail(RuntimeError("closed")) if self._stopped else super().check_topics(topics)


class DescribesWhatIsNot(MemoryBroker):
    def describe_topics(self, topics=None):
        for each in topics or ():
            self._topics.setdefault(each, [])
        return super().describe_topics(topics)


class LeavesTheRest(MemoryBroker):
    def stop(self, *, deadline_s):
        super().stop(deadline_s=deadline_s)
        return succeed(None)
'''

TESTS = """
from contextlib import contextmanager

import theirs
from sampleapp.testing import BrokerContract
from twisted.internet import reactor
"""

TEST = """

class Test{name}(BrokerContract):
    one_partition = True
    first_offset = 0

    @contextmanager
    def new_broker(self):
        yield theirs.{name}(clock=reactor)
"""

BROKEN = {
    "CountsFromOne": "test_concurrent_publishes_get_offsets_of_their_own_without_gaps",
    "LosesKeys": "test_records_with_the_same_topic_and_key_keep_the_order_of_the_calls",
    "IsAlwaysReady": "test_it_becomes_ready_once_started_and_is_not_ready_once_stopped",
    "RaisesItsOwnErrors": "test_after_stop_it_refuses_records",
    "IsDeaf": "test_nothing_is_delivered_before_follow_has_returned",
    "CountsCalls": "test_each_of_many_records_gets_its_own_offset_without_gaps",
    "RefusesToDoNothing": "test_no_records_at_all_are_published_at_once",
    "TurnsThemRound": "test_many_records_with_the_same_topic_and_key_keep_their_order",
    "IsOvertaken": "test_records_keep_their_order_whether_they_are_published_alone_or_with_others",
    "FailsForAll": "test_of_many_records_some_may_be_stored_and_some_not",
    "KnowsNoPartitions": "test_a_partition_that_does_not_exist_is_refused",
    "ForgetsWhatIsCancelled": "test_cancelling_many_records_stops_only_the_waiting",
    "TakesWhatFits": "test_more_records_than_there_is_room_for_are_refused_together",
    "TakesAllAtOnce": "test_a_large_number_of_records_lets_others_in",
    "LooksAtNoNames": "test_topics_are_checked_as_publishing_to_them_would_end",
    "HasFailingChecks": "test_checking_topics_never_fails",
    "DescribesWhatIsNot": "test_topics_are_described_with_their_partitions",
    "LeavesTheRest": "test_at_the_deadline_of_stop_every_one_of_many_records_has_an_answer_that_is_true",
}


def test_a_right_broker_passes_and_one_that_breaks_a_promise_fails_the_test_of_that_promise(tmp_path):
    (tmp_path / "theirs.py").write_text(BROKERS)
    tests = TESTS + "".join(TEST.format(name=name) for name in ("Right", *BROKEN))
    (tmp_path / "test_theirs.py").write_text(tests)
    report = tmp_path / "report.xml"
    options = ["-q", "-c", "/dev/null", "--rootdir", str(tmp_path), f"--junitxml={report}"]
    chosen = ["TestRight", *(f"Test{name}::{test}" for name, test in BROKEN.items())]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(f"test_theirs.py::{each}" for each in chosen)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    cases = list(ET.parse(report).iter("testcase"))
    assert len(cases) > 40 + len(BROKEN), done.stdout
    failed = {case.get("classname").rpartition(".Test")[2]: case.get("name") for case in cases if list(case)}
    assert failed == BROKEN, done.stdout


def test_the_service_does_not_import_what_only_tests_need():
    program = (
        "import sys, sampleapp, sampleapp.service, sampleapp.tap, sampleapp.cli; "
        "sys.exit(bool({'pytest', 'pytest_twisted', 'hypothesis'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
