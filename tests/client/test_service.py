"""The client, and the command that publishes lines with it, against the real service, all in memory."""

from __future__ import annotations

import itertools
import re
from contextlib import closing

import treq.testing
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from sampleapp.brokers.memory import MemoryBroker
from sampleapp.cli._line_readers import ContentReader, Template
from sampleapp.cli._lines import LineSource
from sampleapp.cli._options import date_time
from sampleapp.cli._publish_lines import publish_lines
from sampleapp.client import Client, Message, Page, PartlyPublished, ProblemError
from sampleapp.errors import UnknownTopic
from sampleapp.model import ConsumerRecord, Record, RecordMetadata
from sampleapp.web import SampleApp
from tests.support import strategies
from tests.support.examples import examples
from tests.support.planned_outcomes import PlannedBroker, plans


class Service:
    """The real service and its client."""

    def __init__(self, broker, clock=None):
        self.broker, self.clock = broker, Clock() if clock is None else clock
        gateway = SampleApp(broker=broker, get_representation=None, clock=self.clock)
        self.agent = treq.testing.RequestTraversalAgent(gateway.app.resource())
        self.client = Client(base_url="http://service.example", reactor=self.clock, agent=self.agent)

    def result_of(self, deferred):
        """Wait until something is done; return its result, or its error."""
        results = []
        deferred.addBoth(lambda result: results.append(getattr(result, "value", result)))
        for _ in range(10_000):
            if results:
                return results[0]
            self.agent.flush()
            self.clock.advance(0.1)
        raise AssertionError("nothing came of it")


def values(records):
    return [record.value.decode() for record in records]


@given(planned=st.lists(plans, min_size=1, max_size=8))
def test_of_many_messages_the_client_says_what_the_broker_said_of_each(planned):
    service = Service(PlannedBroker(planned))
    messages = [Message(topic="t", content=str(number)) for number in range(len(planned))]
    result = service.result_of(service.client.publish_many(messages))
    none_is_published = all(plan.error is not None and not plan.error.possibly_published for plan in planned)
    if none_is_published:
        assert isinstance(result, ProblemError)
        assert not isinstance(result, PartlyPublished)
        assert result.possibly_published is False
        return
    if all(plan.error is None for plan in planned):
        results = result
    else:
        assert isinstance(result, PartlyPublished)
        results = result.results
    stored = values(service.broker.records("t"))
    for number, (plan, outcome) in enumerate(zip(planned, results, strict=True)):
        if plan.error is None:
            assert isinstance(outcome, RecordMetadata)
            assert stored[outcome.offset] == str(number)
        else:
            assert isinstance(outcome, ProblemError)
            assert outcome.possibly_published == plan.error.possibly_published


@given(
    key=st.none() | strategies.texts,
    content=strategies.texts,
    headers=st.none()
    | st.dictionaries(strategies.texts, strategies.texts, max_size=3)
    | st.lists(st.tuples(strategies.texts, st.none() | st.binary(max_size=3)), max_size=3).map(tuple),
    timestamp=strategies.numbers_of_time | st.integers(0, 10**14).map(date_time),
)
def test_what_the_client_was_given_is_in_the_record_alone_or_among_many(key, content, headers, timestamp):
    service = Service(PlannedBroker())
    members = {
        "topic": "t",
        "key": key,
        "content": content,
        "headers": headers,
        "timestamp": timestamp,
    }
    service.result_of(service.client.publish(**members))
    service.result_of(service.client.publish_many([Message(**members)]))
    alone, among_many = service.broker.published
    assert alone == among_many
    assert alone.key == (None if key is None else key.encode())
    assert alone.value == content.encode()
    if isinstance(headers, dict):
        headers = tuple((name, value.encode()) for name, value in headers.items())
    assert alone.headers == (headers or ())
    is_number = isinstance(timestamp, int)
    assert (alone.timestamp_ms if is_number else date_time(alone.timestamp_ms)) == timestamp


@given(body=st.binary(max_size=50), key=st.none() | st.binary(max_size=20))
def test_any_bytes_that_the_client_was_given_are_in_the_record(body, key):
    service = Service(PlannedBroker())
    service.result_of(service.client.publish_raw(topic="t", body=body, key=key))
    tombstone = service.result_of(service.client.delete(topic="t", key=key or b""))
    raw, deleted = service.broker.published
    assert (raw.key, raw.value) == (key, body)
    assert (deleted.key, deleted.value) == (key or b"", None)
    assert tombstone == RecordMetadata(topic="t", partition=0, offset=1)


def publish(service, *chunks, in_flight):
    unread = [*chunks, b""]
    return service.result_of(
        Deferred.fromCoroutine(
            publish_lines(
                client=service.client,
                reader=ContentReader(Template(topic="t")),
                source=LineSource(lambda: succeed(unread.pop(0))),
                in_flight=in_flight,
                clock=service.clock,
                progress=lambda _: None,
            )
        )
    )


@given(
    planned=st.lists(plans, max_size=20),
    chunks=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    in_flight=st.sampled_from([1, 1, 2]),
)
def test_each_line_is_published_once_and_in_order_or_told(planned, chunks, in_flight):
    numbers = itertools.count(1)
    files = [b"".join(b"%d\n" % next(numbers) for _ in range(count)) for count in chunks]
    service = Service(PlannedBroker(planned))
    report = publish(service, *files, in_flight=in_flight)
    in_doubt, rejected = set(), set()
    for sentence in report.sentences():
        if found := re.match(r"Lines? ([-\d, ]+): (.*)", sentence):
            told = in_doubt if found[2].endswith(" May have been published.") else rejected
            for part in found[1].split(", "):
                first, _, last = part.partition("-")
                told.update(range(int(first), int(last or first) + 1))
    stored = [int(value) for value in values(service.broker.records("t"))]
    assert len(set(stored)) == len(stored)
    assert rejected.isdisjoint(stored)
    begun = set(range(1, report.published + report.failed + report.in_doubt + 1))
    assert begun - in_doubt - rejected == set(stored) - in_doubt
    if in_flight == 1:
        assert sorted(stored) == stored


def test_a_topic_that_does_not_exist_is_told_once_for_all_lines():
    service = Service(PlannedBroker(topics={"t": UnknownTopic}))
    report = publish(service, b"1\n" * 300, b"2\n", in_flight=1)
    sentence, summary = report.sentences()
    assert re.fullmatch(r"Lines 1-301: .* \(404\): As planned\.", sentence)
    assert summary == "Published 0 lines, 301 failed."
    # Each batch was asked about once, and not line by line.
    assert service.broker.checked == [["t"], ["t"]]


small = st.none() | st.binary(max_size=4) | strategies.texts.map(str.encode)
headers = st.lists(st.tuples(strategies.texts, st.none() | st.binary(max_size=3)), max_size=3).map(tuple)


def in_the_order_of_a_line(names):
    """Return headers as a line of JSON has them: in `headers`, then in `headers_base64`."""
    return tuple(sorted(names, key=lambda header: not is_text(header, names)))


def is_text(header, names):
    name, value = header
    if value is None:
        return False
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return [each for each, _ in names].count(name) == 1


@examples(25)
@given(sent=st.lists(st.tuples(small, small, headers), min_size=1, max_size=5), limit=st.integers(1, 3))
def test_any_records_are_read_as_they_are_by_page_and_by_stream(sent, limit):
    clock = Clock()
    broker = MemoryBroker(clock=clock)
    broker.start()
    service = Service(broker, clock)
    for number, (key, value, names) in enumerate(sent):
        broker.publish(Record(topic="t", key=key, value=value, timestamp_ms=number, headers=names))
    expected = [
        ConsumerRecord(
            topic="t",
            partition=0,
            offset=number,
            timestamp_ms=number,
            key=key,
            value=value,
            headers=in_the_order_of_a_line(names),
        )
        for number, (key, value, names) in enumerate(sent)
    ]

    async def pages():
        page = Page(records=(), position="earliest", up_to_date=False)
        found = []
        while not page.up_to_date:
            page = await service.client.read(topic="t", start=page.position, limit=limit)
            found += page.records
        return found

    async def stream(start):
        with closing(service.client.stream(topic="t", start=start)) as stream:
            return [await stream.__anext__() for _ in range(limit)], stream.position

    assert service.result_of(Deferred.fromCoroutine(pages())) == expected
    if limit <= len(sent):
        items, position = service.result_of(Deferred.fromCoroutine(stream("earliest")))
        assert items == expected[:limit]
        rest = service.result_of(service.client.read(topic="t", start=position))
        assert list(rest.records) == expected[limit:]
