"""Records in the file of the SQLite broker."""

# ruff: noqa: ASYNC240 -- a test may look at its few small files while the reactor waits

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest_twisted
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from twisted.internet.defer import Deferred

from sampleapp.brokers.sqlite.store import Store
from sampleapp.errors import (
    BrokerStopped,
)
from sampleapp.model import RecordMetadata
from sampleapp_testing.broker_contract import HEADERS, KEYS, VALUES
from tests.support.brokers import (
    Recorder,
    content,
    everything,
    outcomes,
    record,
    settled,
    within,
)
from tests.support.examples import examples
from tests.support.sqlite import new_broker, other_connection, running, stored


@pytest_twisted.ensureDeferred
async def test_reopening_keeps_every_record_and_goes_on_with_the_next_offset(path):
    sent = [
        record("t", b"1", key=None, headers=(("a", b"\0\xff"), ("a", b""))),
        record("t", None, key=b""),
        record("t", b"", key=b"\0", timestamp_ms=-5),
    ]
    async with running(path) as broker:
        assert [m.offset for m in await settled(broker, sent)] == [0, 1, 2]
    async with running(path) as broker:
        assert (await within(broker.publish(record("t", b"4")))).offset == 3
        assert [content(r) for r in await everything(broker, "t")] == [
            *map(content, sent),
            content(record("t", b"4")),
        ]
    assert not Path(f"{path}-wal").exists()


class LogMachine(RuleBasedStateMachine):
    """Whatever the order of publishing, stopping, reopening and following: the log equals plain lists."""

    def __init__(self):
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.path = Path(self.directory.name, "log")
        self.model = {"a": [], "b": []}
        self.recorders = {}
        self.begin()

    def begin(self):
        self.broker = new_broker(self.path)
        self.broker.start()
        self.recorders = {}

    @rule(
        contents=st.lists(st.tuples(st.sampled_from("ab"), KEYS, VALUES, HEADERS), max_size=6),
        together=st.booleans(),
        stop_at_once=st.booleans(),
    )
    def publish(self, contents, together, stop_at_once):
        records = [record(t, v, key=k, headers=h) for t, k, v, h in contents]
        if together:
            published = [self.broker.publish_many(records)]
        else:
            published = [self.broker.publish(each) for each in records]
        if stop_at_once:
            self.reopen()
        ends = pytest_twisted.blockon(self.ends(published))
        for sent, found in zip(records, ends[0] if together else ends, strict=True):
            assert found == RecordMetadata(topic=sent.topic, partition=0, offset=len(self.model[sent.topic]))
            self.model[sent.topic].append(content(sent))

    @rule()
    def reopen(self):
        pytest_twisted.blockon(within(self.broker.stop(deadline_s=20)))
        rejected = self.broker.publish(record("a"))
        assert isinstance(pytest_twisted.blockon(self.ends([rejected]))[0], BrokerStopped)
        self.begin()

    @rule(topic=st.sampled_from("ab"))
    def follow(self, topic):
        recorder = self.recorders.setdefault(topic, Recorder())
        if not recorder.records and not recorder.caught_up_at:
            self.broker.follow(topic=topic, observer=recorder)

    @invariant()
    def followers_have_seen_everything_in_order(self):
        for topic, recorder in self.recorders.items():
            expected = self.model[topic]
            pytest_twisted.blockon(self.wait_for(recorder, len(expected)))
            assert [content(each) for each in recorder.records] == expected
            assert [each.offset for each in recorder.records] == list(range(len(expected)))
            assert len(recorder.caught_up_at) == 1

    def teardown(self):
        pytest_twisted.blockon(within(self.broker.stop(deadline_s=20)))
        for topic, expected in self.model.items():
            found = [row for row in stored(self.path) if row[0] == topic]
            assert found == [(topic, n, each[2], each[3]) for n, each in enumerate(expected)]
        self.directory.cleanup()

    @staticmethod
    def ends(deferreds):
        return pytest_twisted.defer.ensureDeferred(outcomes(deferreds))

    @staticmethod
    def wait_for(recorder, count):
        return pytest_twisted.defer.ensureDeferred(recorder.until(count))


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = examples(25, stateful_step_count=15)


@pytest_twisted.ensureDeferred
async def test_following_a_topic_does_not_create_it(path):
    async with running(path) as broker:
        assert await everything(broker, "missing") == []
    with other_connection(path) as connection:
        assert connection.execute("SELECT name FROM topic").fetchall() == []


@pytest_twisted.ensureDeferred
async def test_records_that_an_operator_deleted_are_passed_over_and_their_offsets_not_used_again(path):
    async with running(path) as broker:
        await settled(broker, [record("t", b"%d" % n) for n in range(10)])
        with other_connection(path) as connection:
            connection.execute("DELETE FROM record WHERE offset IN (0, 4, 9)")
        assert [r.offset for r in await everything(broker, "t")] == [1, 2, 3, 5, 6, 7, 8]
        assert (await within(broker.publish(record("t")))).offset == 10


@pytest_twisted.ensureDeferred
async def test_text_that_an_operator_put_in_by_hand_is_read_as_bytes(path):
    async with running(path) as broker:
        await within(broker.publish(record("t")))
        with other_connection(path) as connection:
            connection.execute("INSERT INTO record VALUES (1, 1, 0, 'key', 'välue', NULL)")
            connection.execute("UPDATE topic SET next_offset = 2")
        last = (await everything(broker, "t"))[-1]
    assert (last.key, last.value) == (b"key", "välue".encode())


@pytest_twisted.ensureDeferred
async def test_pages_are_bounded_by_bytes_and_a_record_larger_than_a_page_is_still_read(path):
    values = [bytes([n]) * 700_000 for n in range(5)] + [bytes(3_000_000), b"last"]
    async with running(path) as broker:
        await settled(broker, [record("t", value) for value in values])
        assert [r.value for r in await everything(broker, "t")] == values
    store = Store(path=path, patience_s=0)
    page = store.read("t", 0, max_records=250, max_bytes=1_000_000)
    store.close()
    assert len(page.records) == 2
    assert (page.next_offset, page.end) == (2, 7)


_small = st.none() | st.binary(max_size=6) | st.just(bytes(300))
_some_headers = st.sampled_from([()] * 20 + [(("a", b"1"), ("ü", b"\0")), (("a", bytes(300)),)])


@examples(50)
@given(st.lists(st.tuples(_small, _small, st.integers(-5, 5), _some_headers), max_size=30), st.integers(1, 9))
def test_a_page_of_any_records_holds_what_was_published(contents, max_records):
    with tempfile.TemporaryDirectory() as directory:
        store = Store(path=Path(directory, "log"), patience_s=0)
        sent = [
            record("t", value, key=key, timestamp_ms=timestamp_ms, headers=headers)
            for key, value, timestamp_ms, headers in contents
        ]
        store.append(sent)
        found, offset = [], 0
        while offset < len(sent):
            page = store.read("t", offset, max_records=max_records, max_bytes=1000)
            assert [each.offset for each in page.records] == list(range(offset, page.next_offset))
            found += page.records
            offset = page.next_offset
        store.close()
    assert [content(each) for each in sent] == [content(each) for each in found]


@pytest_twisted.ensureDeferred
async def test_a_long_topic_that_is_stopped_between_two_turns_delivers_nothing_more(path):
    from twisted.internet import reactor

    stopped = Deferred()

    def stop_soon(received):
        if received.offset == 1600:
            reactor.callLater(0, stop)

    def stop():
        counts.append(len(recorder.records))
        following.stop().chainDeferred(stopped)

    counts = []
    recorder = Recorder(on_record=stop_soon)
    async with running(path) as broker:
        await settled(broker, [record("t", b"%d" % n) for n in range(5000)])
        following = broker.follow(topic="t", observer=recorder)
        await within(stopped)
        assert (await within(broker.publish(record("t", b"last")))).offset == 5000
        assert [len(recorder.records)] == counts
        assert 1600 < len(recorder.records) < 5000
    assert recorder.values() == [b"%d" % n for n in range(len(recorder.records))]


@pytest_twisted.ensureDeferred
async def test_what_is_published_while_many_topics_are_listed_does_not_wait_for_the_last_of_them(
    path, monkeypatch
):
    monkeypatch.setattr("sampleapp.brokers.sqlite.broker._PAGE_TOPICS", 2)
    names = sorted(f"t{number}" for number in range(61))
    async with running(path) as broker:
        await within(broker.publish_many([record(name) for name in names]))
        ended = []
        listing = broker.list_topics().addCallback(lambda found: ended.append("listed") or found)
        publishing = broker.publish(record("t0")).addCallback(lambda _: ended.append("published"))
        assert await within(listing) == names
        await within(publishing)
        assert ended == ["published", "listed"]
        found = await within(broker.describe_topics([*names, "other", "\ud800"]))
        assert [each.name for each in found] == names
