"""Printing a topic that is read through the service, page by page, with a clock that stands still."""

from __future__ import annotations

import json

import click
import pytest
from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.task import Clock

from sampleapp.cli._consume_broker import Selection
from sampleapp.cli._consume_service import print_pages
from sampleapp.client import (
    Forbidden,
    Page,
    PositionExpired,
    Problem,
    ProblemError,
    ServiceUnreachable,
    TopicReplaced,
)
from sampleapp.model import ConsumerRecord, GoneRecords


def problem(status, name="about:blank"):
    return Problem(type=f"urn:sampleapp:problem:{name}", title="Title", status=status, detail="Detail.")


MISSING = ProblemError(problem(404, "unknown-topic"))
AWAY = ServiceUnreachable("Nothing answers at http://service.example/: Connection refused.")


class Topic:
    """A client of a service that has one topic with two partitions; its errors come first."""

    def __init__(self, *records, page=2, errors=()):
        self.partitions = ([], [])
        self.earliest = [0, 0]
        self.topic_id = "A"
        self.page = page
        self.errors = list(errors)
        self.asked = []
        self.waiting = []
        self.add(*records)

    def add(self, *records):
        """Add records, of each its partition and its value."""
        for partition, value in records:
            self.partitions[partition].append(value)
        waiting, self.waiting = self.waiting, []
        for deferred, arguments in waiting:
            deferred.callback(self._page(**arguments))

    def lose(self, error):
        """End all requests that wait with an error."""
        waiting, self.waiting = self.waiting, []
        for deferred, _ in waiting:
            deferred.errback(error)

    def read(self, **arguments):
        self.asked.append(arguments)
        if self.errors:
            error = self.errors.pop(0)
            if error is not None:
                return fail(error)
        try:
            page = self._page(**arguments)
        except PositionExpired as error:
            return fail(error)
        if page.records or not arguments["wait_s"]:
            return succeed(page)
        waiting = Deferred()
        self.waiting.append((waiting, arguments))
        return waiting

    def _page(self, *, start, partitions, limit, **_):
        lengths = [len(values) for values in self.partitions]
        if start == "latest":
            offsets = lengths
        elif start.startswith("offset:"):
            asked = int(start[7:])
            offsets = [
                min(max(asked, first), last) for first, last in zip(self.earliest, lengths, strict=True)
            ]
        elif start.startswith("-"):
            offsets = [
                max(first, last - int(start[1:])) for first, last in zip(self.earliest, lengths, strict=True)
            ]
        elif "~" in start:
            places = start.partition("~")[2].split(".")
            offsets = [int(place) if place.isdigit() else 0 for place in [*places, "", ""][:2]]
        else:
            offsets = [0, 0]
        read = [0, 1] if partitions is None else partitions
        records = []
        for number in read:
            if offsets[number] < self.earliest[number]:
                gone = GoneRecords(number, offsets[number], self.earliest[number])
                resume = f"{self.topic_id}~{'.'.join(map(str, self.earliest))}"
                raise PositionExpired(problem(410), gone=[gone], resume=resume)
            while offsets[number] < lengths[number] and len(records) < min(limit, self.page):
                records.append(record(number, offsets[number], self.partitions[number][offsets[number]]))
                offsets[number] += 1
        places = [str(offsets[number]) if number in read else "-" for number in (0, 1)]
        return Page(
            records=tuple(records),
            position=f"{self.topic_id}~{'.'.join(places)}",
            up_to_date=all(offsets[number] == lengths[number] for number in read),
        )


def record(partition, offset, value):
    return ConsumerRecord(
        topic="t", partition=partition, offset=offset, timestamp_ms=1, key=None, value=value.encode()
    )


class Printing:
    """A topic that is being printed, and the result."""

    def __init__(self, capture, topic, **selection):
        self.clock = Clock()
        self.topic = topic
        self._capture = capture
        self.ends = []
        selection = Selection(**{"topic": "t", **selection})
        self.running = Deferred.fromCoroutine(print_pages(selection, client=topic, clock=self.clock))
        self.running.addBoth(self.ends.append)

    @property
    def failure(self):
        (end,) = self.ends
        assert isinstance(end.value, click.ClickException)
        return end.value.message

    def printed(self):
        """Return the values and sentences that were printed since the last call."""
        captured = self._capture.readouterr()
        return [json.loads(line)["content"] for line in captured.out.splitlines()], captured.err.decode()


@pytest.fixture
def printing(capsysbinary):
    return lambda topic, **selection: Printing(capsysbinary, topic, **selection)


RECORDS = ((0, "a0"), (1, "b0"), (0, "a1"), (0, "a2"), (1, "b1"))


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({}, ["a0", "a1", "a2", "b0", "b1"]),
        ({"limit": 3}, ["a0", "a1", "a2"]),
        ({"limit": 9}, ["a0", "a1", "a2", "b0", "b1"]),
        ({"partition": 1}, ["b0", "b1"]),
        ({"start": "offset:1"}, ["a1", "a2", "b1"]),
        ({"start": "offset:2"}, ["a2"]),
        ({"start": "offset:99"}, []),
        ({"start": "-1"}, ["a2", "b1"]),
        ({"start": "-99", "partition": 0}, ["a0", "a1", "a2"]),
        ({"start": "latest"}, []),
        ({"start": "1970-01-01T00:00:01Z"}, ["a0", "a1", "a2", "b0", "b1"]),
    ],
)
def test_the_selected_records_are_printed_and_then_it_ends(printing, selection, expected):
    running = printing(Topic(*RECORDS), **selection)
    assert running.ends == [len(expected)]
    assert running.printed() == (expected, "")


def test_key_time_partition_and_limit_are_sent_to_the_service(printing):
    running = printing(
        Topic(*RECORDS),
        start="1970-01-01T00:00:01Z",
        partition=1,
        key=b"\xff",
        headers=(("a", b"1"),),
        limit=10,
    )
    assert running.topic.asked[-1] == {
        "topic": "t",
        "start": "1970-01-01T00:00:01Z",
        "partitions": [1],
        "key": b"\xff",
        "headers": (("a", b"1"),),
        "limit": 10,
        "wait_s": 0,
    }


def test_records_that_come_faster_than_they_are_read_do_not_keep_it_from_ending(printing):
    topic = Topic(*RECORDS, page=1)
    read = topic.read

    def growing(**arguments):
        result = read(**arguments)
        topic.partitions[1].append("more")
        return result

    topic.read = growing
    running = printing(topic)
    assert len(running.ends) == 1
    assert {"a0", "a1", "a2", "b0", "b1"} <= set(running.printed()[0])


def test_with_follow_it_prints_what_comes_until_it_is_interrupted(printing):
    topic = Topic((0, "a0"))
    running = printing(topic, follow=True)
    topic.add((1, "b0"))
    topic.add((0, "a1"), (0, "a2"), (0, "a3"))
    assert running.printed() == (["a0", "b0", "a1", "a2", "a3"], "")
    running.running.cancel()
    assert running.ends == [5]


def test_nothing_is_known_of_a_topic_that_could_not_be_read(printing):
    running = printing(Topic(*RECORDS, errors=[AWAY] * 99), follow=True)
    running.running.cancel()
    assert running.ends == [None]
    running = printing(Topic(*RECORDS), follow=True, start="latest")
    running.running.cancel()
    assert running.ends == [0]


def test_with_follow_it_goes_on_where_it_was_when_the_service_is_back(printing):
    topic = Topic((0, "a0"))
    running = printing(topic, follow=True, start="latest")
    topic.add((1, "b0"))
    topic.errors = [AWAY, ProblemError(problem(503), retry_after_s=3)]
    topic.lose(AWAY)
    topic.add((0, "a1"))
    for _ in range(9):
        running.clock.advance(0.5)
    assert running.printed() == (["b0"], f"{AWAY} Asking again until there is an answer.\n")
    running.clock.advance(0.5)
    assert running.printed() == (["a1"], "The service answers again.\n")


def test_without_follow_it_goes_on_as_well_once_the_service_has_answered(printing):
    running = printing(Topic(*RECORDS, errors=[None, None, AWAY]))
    assert running.ends == []
    running.clock.advance(1)
    assert running.ends == [5]
    assert running.printed()[0] == ["a0", "a1", "a2", "b0", "b1"]


def test_a_service_that_was_never_there_is_a_failure_that_says_what_to_do(printing):
    assert "Is the service running? Start it with" in printing(Topic(errors=[AWAY])).failure


def test_a_service_that_is_busy_is_asked_again_from_the_beginning(printing):
    running = printing(Topic(*RECORDS, errors=[ProblemError(problem(503))]))
    running.clock.advance(1)
    assert running.ends == [5]


def test_a_right_that_is_missing_is_a_failure_that_says_what_to_do(printing):
    running = printing(Topic(errors=[Forbidden(problem(403))]), follow=True)
    assert "The operator of the service can grant the right." in running.failure


def test_a_topic_that_does_not_exist_is_a_failure(printing):
    assert printing(Topic(errors=[MISSING])).failure == "There is no topic 't'. Is its name right?"
    missing = ProblemError(problem(404, "unknown-partition"))
    running = printing(Topic(errors=[missing]), partition=7)
    assert running.failure == "There is no partition 7 of 't'. Detail."
    running = printing(Topic(errors=[MISSING]), partition=7)
    assert running.failure == "There is no topic 't'. Is its name right?"


def test_another_path_that_does_not_exist_is_told_in_the_words_of_the_service(printing):
    assert "Detail." in printing(Topic(errors=[ProblemError(problem(404, "not-found"))])).failure


@pytest.mark.parametrize("start", ["latest", "-1", "offset:1"])
def test_with_follow_it_waits_for_the_topic_and_prints_all_of_it(printing, start):
    topic = Topic(errors=[MISSING, MISSING])
    running = printing(topic, follow=True, start=start)
    topic.add((0, "a0"), (0, "a1"))
    running.clock.advance(1)
    running.clock.advance(1)
    assert running.printed() == (["a0", "a1"], "There is no topic 't' yet. Waiting for it.\n")


def test_an_offset_that_is_gone_is_the_nearest_that_there_is(printing):
    topic = Topic(*RECORDS)
    topic.earliest = [2, 0]
    running = printing(topic, start="offset:1")
    assert running.printed() == (["a2", "b1"], "")


def test_records_that_are_gone_before_they_were_read_are_told(printing):
    topic = Topic((0, "a0"))
    running = printing(topic, follow=True)
    topic.partitions[0].extend(["a1", "a2", "a3"])
    topic.earliest = [3, 0]
    topic.lose(AWAY)
    running.clock.advance(1)
    printed, told = running.printed()
    assert printed == ["a0", "a3"]
    assert "Title (410): Detail. Going on with the first records that are left.\n" in told


def test_a_topic_that_was_made_again_is_told_and_read_from_its_first_record(printing):
    topic = Topic((0, "a0"))
    running = printing(topic, follow=True)
    topic.errors = [TopicReplaced(problem(410))]
    topic.topic_id = "B"
    topic.partitions = (["new"], [])
    topic.lose(AWAY)
    running.clock.advance(1)
    printed, told = running.printed()
    assert printed == ["a0", "new"]
    assert "Title (410): Detail. Reading the topic from its first record.\n" in told


def test_a_time_out_without_a_record_ends_it(printing):
    topic = Topic((0, "a0"))
    running = printing(topic, follow=True, timeout_s=2)
    running.clock.advance(1.5)
    topic.add((0, "a1"))
    running.clock.advance(1.5)
    assert running.ends == []
    running.clock.advance(0.5)
    assert running.ends == [2]


def test_a_time_out_before_everything_is_printed_is_a_failure(printing):
    running = printing(Topic(errors=[ProblemError(problem(503))] * 9), timeout_s=2.5)
    assert running.ends == []
    for _ in range(5):
        running.clock.advance(0.5)
    assert running.failure == "Gave up after 2.5 seconds without a record. Title (503): Detail."


@pytest.mark.parametrize("timeout_s", [0.0, 0.001])
@pytest.mark.parametrize("follow", [False, True])
def test_a_short_time_out_prints_what_is_there(printing, follow, timeout_s):
    topic = Topic(*RECORDS)
    read = topic.read
    delays = []

    def slow(**arguments):
        delayed = Deferred()
        delays.append((delayed, arguments))
        return delayed

    topic.read = slow
    running = printing(topic, follow=follow, timeout_s=timeout_s)
    while not running.ends:
        delayed, arguments = delays.pop()
        if arguments["wait_s"] and len(running.topic.asked) > 4:
            running.clock.advance(timeout_s)
        else:
            running.clock.advance(5)
            read(**arguments).chainDeferred(delayed)
    assert running.ends == [5]


def test_an_interrupt_before_the_end_is_not_a_success(printing):
    running = printing(Topic(errors=[ProblemError(problem(503))]))
    running.running.cancel()
    (end,) = running.ends
    assert end.check(CancelledError)


def test_an_empty_page_that_has_not_moved_is_not_asked_for_at_once_again(printing):
    topic = Topic((0, "a0"))
    page = Page(records=(), position="A~0.0", up_to_date=False)
    asked = []
    topic.read = lambda **arguments: asked.append(arguments) or succeed(page)
    running = printing(topic)
    assert len(asked) < 5
    running.clock.advance(1)
    assert len(asked) < 6
    running.running.cancel()
