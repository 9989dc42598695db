"""``GET /changes``: the readings as they change, to clients that apply the events to a copy of their own."""

from __future__ import annotations

import json

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from sampleapp.readings.changes import Changes
from sampleapp.web.read.readings import ChangeStream
from sampleapp.web.read.registry import RIGHT_LOST, StreamKind
from tests.support import strategies
from tests.support.callers import FULL, by, caller
from tests.support.event_streams import EventReader
from tests.support.examples import examples
from tests.support.faults import require_for_faults
from tests.support.in_memory import InMemoryService, request_bytes
from tests.support.simulated_socket import Link
from tests.support.streams import body_of, unchunked

V2 = [(b"Accept", b"application/vnd.sampleApp.v2+json")]


class Client:
    """A client that keeps a copy of the readings."""

    def __init__(self, service, *, last=None, headers=()):
        self.service = service
        self.link = Link(service.site, service.clock)
        self.copy = {} if last is None else dict(last.copy)
        self.reader = EventReader("" if last is None else last.tag)
        self.headers = list(headers)
        if self.tag:
            self.headers.append((b"Last-Event-ID", self.tag.encode()))
        self.link.send(request_bytes("GET", "/changes", self.headers))
        self.is_reading = True
        self.applied = 0
        self.fed = 0

    @property
    def tag(self):
        """The id that it would come back with."""
        return self.reader.last_event_id

    @property
    def events(self):
        """What has come, applied to the copy."""
        if self.is_reading:
            self.link.read_all()
        data, _ = unchunked(body_of(bytes(self.link.received)))
        self.reader.feed(data[self.fed :])
        self.fed = len(data)
        while self.applied < len(self.reader.events):
            self.apply(self.reader.events[self.applied])
            self.applied += 1
        return self.reader.events

    def stop_reading(self):
        self.is_reading = False
        self.link.socket.room = len(self.link.socket.unread) + 1000

    def read_on(self):
        self.is_reading = True
        self.link.socket.room = float("inf")

    def apply(self, event):
        data = json.loads(event.data)
        if event.event == "readings":
            self.copy = {reading["id"]: reading["value"] for reading in data}
        elif event.event == "reading":
            self.copy[data["id"]] = data["value"]
        elif event.event == "removed":
            del self.copy[data["id"]]
        else:
            raise AssertionError(event)
        if event.event_id:
            assert self.service.states[event.event_id] == list(self.copy.items())


class Service(InMemoryService):
    """A service that remembers each state that the readings ever had."""

    def __init__(self, **rest):
        super().__init__(**rest)
        self.states = {}
        self.remember()

    def remember(self):
        tag = self.readings.representation(2).etag.strip('"')
        self.states[tag] = [
            (reading["id"], reading["value"]) for reading in json.loads(self.readings.representation(2).body)
        ]
        return tag

    def read(self, key, value, **place):
        super().read(key, value, **place)
        return self.remember()

    def turn(self, count=3):
        for _ in range(count):
            self.clock.advance(0.001)

    def begin_again(self):
        """The topic was deleted and made again."""
        super().begin_again(block_readings=4)
        self.remember()


@pytest.fixture
def service():
    return Service()


def test_the_first_event_has_all_readings_and_the_tag_of_version_2(service):
    service.read(b"kitchen", b"21.5")
    service.read("h\u2028all".encode(), b"-0.0")
    client = Client(service)
    service.turn()
    (event,) = client.events
    answer = service.request("GET", "/", V2)
    assert event.event == "readings"
    assert json.loads(event.data) == json.loads(answer.body)
    assert f'"{event.event_id}"' == answer.headers[b"etag"].decode()


def test_each_change_is_an_event_with_the_tag_after_it(service):
    client = Client(service)
    service.turn()
    told = []
    for key, value in [(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", None), (b"b", b"2")]:
        told.append(service.read(key, value))
        service.turn()
    # And of the same moment.
    told += [service.read(b"c", b"%d" % n) for n in range(3)]
    service.turn()
    events = client.events[1:]
    assert [event.event_id for event in events] == told
    assert [(event.event, json.loads(event.data)) for event in events[:4]] == [
        ("reading", {"id": "a", "value": 1.0}),
        ("reading", {"id": "b", "value": 2.0}),
        ("reading", {"id": "a", "value": 3.0}),
        ("removed", {"id": "b"}),
    ]


def test_a_record_that_changes_nothing_is_no_event(service):
    service.read(b"a", b"1")
    client = Client(service)
    service.turn()
    service.read(b"a", b"1.0")
    service.read(b"other", None)
    service.turn()
    assert len(client.events) == 1


def test_who_comes_back_to_the_same_readings_gets_changes_only(service):
    service.read(b"a", b"1")
    first = Client(service)
    service.turn()
    assert first.events
    first.link.reset()
    service.read(b"a", b"2")
    service.read(b"a", b"1")
    again = Client(service, last=first)
    service.turn()
    assert again.events == []
    service.read(b"a", b"5")
    service.turn()
    assert [event.event for event in again.events] == ["reading"]
    assert again.copy == {"a": 5.0}


def test_who_comes_back_to_other_readings_gets_all_of_them(service):
    service.read(b"a", b"1")
    first = Client(service)
    service.turn()
    assert first.events
    service.read(b"a", b"2")
    again = Client(service, last=first)
    service.turn()
    assert [event.event for event in again.events] == ["readings"]


def test_nobody_gets_readings_that_are_older_than_the_request(service):
    service.read(b"a", b"1")
    first = Client(service)
    service.turn()
    assert first.events
    # Not told yet, though GET / has it already.
    service.read(b"a", b"2")
    tag = service.request("GET", "/", V2).headers[b"etag"].strip(b'"')
    other, another = service.connect(), service.connect()
    other.send(request_bytes("GET", "/changes", [(b"Last-Event-ID", tag)]))
    another.send(request_bytes("GET", "/changes"))
    service.turn()
    told = [EventReader.of(unchunked(body_of(each.sent))[0]).events for each in (other, another)]
    assert [[event.event_id.encode() for event in events] for events in told] == [[], [tag]]


def test_a_burst_is_told_in_slices_and_each_reading_once(service):
    client = Client(service)
    service.turn()
    for n in range(20_000):
        InMemoryService.read(service, b"k%d" % (n % 5000), b"%d" % n)
    tag = service.remember()
    # The first changes have states of their own.
    service.states = Anything(service.states)
    service.turn(30)
    events = client.events
    assert client.tag == tag
    assert client.copy == {f"k{n % 5000}": float(n) for n in range(15_000, 20_000)}
    assert 5000 <= len(events) - 1 <= 5016


class Anything(dict):
    """States of which only some are known."""

    def __missing__(self, key):
        return self

    def __eq__(self, other):
        return True

    __hash__ = None


def group_of_changes(service):
    """A client that is up to date, while the changes that follow are told as one group."""
    client = Client(service)
    service.turn()
    for number in range(16):
        service.read(b"single", b"%d" % number)
    return client


def test_a_reading_that_is_removed_and_comes_back_in_one_group_is_the_last_one(service):
    for key in (b"a", b"b", b"c"):
        service.read(key, b"1")
    client = group_of_changes(service)
    for key, value in ((b"a", b"2"), (b"b", b"2"), (b"a", None), (b"a", b"3")):
        tag = service.read(key, value)
    service.turn(5)
    assert [event.event for event in client.events[-3:]] == ["reading", "removed", "reading"]
    assert client.tag == tag
    assert list(client.copy) == ["b", "c", "single", "a"]


def test_nobody_is_told_of_a_reading_that_came_and_went_in_one_group(service):
    client = group_of_changes(service)
    for value in (b"1", None, b"2", None):
        tag = service.read(b"short", value)
    late = Client(service)
    service.turn(5)
    assert {json.loads(event.data)["id"] for event in client.events[1:]} == {"single"}
    assert (client.tag, late.events[-1].event_id) == (tag, tag)


def test_a_new_reading_with_an_older_record_comes_before_those_that_follow_it(service):
    for time in range(5):
        service.read(b"%d" % time, b"1", timestamp_ms=time * 10)
    client = Client(service)
    service.turn()
    service.read(b"new", b"1", timestamp_ms=25)
    service.turn(5)
    assert "readings" not in [event.event for event in client.events[1:]]
    assert list(client.copy) == ["0", "1", "2", "new", "3", "4"]


def test_a_new_reading_before_many_others_is_told_with_all_readings(service):
    for number in range(1000):
        InMemoryService.read(service, b"%d" % number, b"1")
    service.remember()
    client = Client(service)
    service.turn()
    tag = service.read(b"new", b"1", timestamp_ms=-1)
    service.turn(5)
    assert [event.event for event in client.events] == ["readings", "readings"]
    assert client.tag == tag


def test_an_event_is_encoded_once_for_all(service):
    clients = [Client(service) for _ in range(20)]
    service.turn()
    service.read(b"a", b"1")
    service.turn()
    assert len({client.events[-1] for client in clients}) == 1
    numbers = service.gateway.streams.numbers[StreamKind.CHANGES]
    # The first one is the time after which to come back.
    assert (numbers.open, numbers.events) == (20, 20 * 3)


def test_a_quiet_stream_is_told_the_tag_again(service):
    service.read(b"a", b"1")
    client = Client(service)
    service.turn()
    client.reader.ids.clear()
    service.clock.pump([1] * 31)
    assert len(client.events) == 1
    assert bytes(client.link.received).count(b"id: " + client.tag.encode()) == 3


def test_who_falls_behind_gets_all_readings_again(service):
    for n in range(3000):
        InMemoryService.read(service, b"k%d" % n, b"0")
    service.remember()
    service.states = Anything(service.states)
    client = Client(service)
    service.turn()
    client.stop_reading()
    for turn in range(90):
        for n in range(600):
            InMemoryService.read(service, b"k%d" % n, b"%d" % (turn * 1000 + n))
        service.turn(5)
    sink = next(iter(service.site.streams._open))  # noqa: SLF001 -- nothing else tells what is unsent
    assert 256_000 < sink.unsent < 350_000
    tag = service.remember()
    client.read_on()
    for _ in range(10):
        service.turn(5)
        assert client.events
    assert [event.event for event in client.events].count("readings") == 2
    assert client.tag == tag


def test_the_objects_of_changes_count_for_the_memory_in_which_they_are_kept(service):
    service.read(b"a", b"0")
    service.states = Anything(service.states)
    client = Client(service)
    service.turn()
    client.stop_reading()
    # Less than 2 MiB of events, but their objects are twice as large.
    for number in range(1, 12_001):
        InMemoryService.read(service, b"a", b"%d" % number)
        # A turn for each, so that each is an event.
        service.clock.pump([0.0001] * 3)
    client.read_on()
    service.turn(20)
    assert [event.event for event in client.events].count("readings") == 2
    assert client.copy == {"a": 12_000.0}


def test_until_the_readings_are_complete_clients_get_503_and_browsers_come_back(service):
    service.follower.reset()
    assert service.request("GET", "/changes").status == 503
    browser = service.request("GET", "/changes", [(b"Sec-Fetch-Mode", b"cors")])
    assert browser.status == 200
    reader = EventReader.of(browser.body)
    assert reader.retry_ms == 30_000
    assert [event.event for event in reader.events] == ["unavailable"]


def test_a_topic_that_is_made_again_is_told_as_all_readings(service):
    service.read(b"a", b"1")
    client = Client(service)
    service.turn()
    service.begin_again()
    service.turn()
    service.read(b"b", b"2")
    service.turn()
    assert [event.event for event in client.events] == ["readings", "readings", "reading"]
    assert client.copy == {"b": 2.0}


def test_head_and_a_client_that_goes_leave_nothing_behind(service):
    assert service.request("HEAD", "/changes").status == 200
    client = Client(service)
    service.turn()
    client.link.reset()
    service.turn()
    assert service.readings.on_change is None
    assert service.gateway.streams.numbers[StreamKind.CHANGES].open == 0


def test_a_stream_ends_within_five_seconds_when_its_caller_loses_the_right():
    service = Service(callers=FULL)
    client = Client(service, headers=[by("full")])
    service.turn()
    assert client.events
    assert service.request("GET", "/changes").status == 401
    service.use_callers(caller("full", "metrics = true"))
    client.link.advance(5)
    assert client.link.read_all().endswith(b"\r\n0\r\n\r\n")
    assert service.gateway.streams.numbers[StreamKind.CHANGES].ended == {RIGHT_LOST: 1}


def test_a_browser_that_is_one_too_many_comes_back():
    service = Service(max_streams=1)
    first = Client(service)
    service.turn()
    assert first.events
    assert service.request("GET", "/changes").status == 503
    browser = EventReader.of(service.request("GET", "/changes", [(b"Sec-Fetch-Mode", b"cors")]).body)
    assert [event.event for event in browser.events] == ["unavailable"]
    assert json.loads(browser.events[0].data)["type"].endswith(":too-many-streams")


class ChangesMachine(RuleBasedStateMachine):
    """Clients come, go, come back, and stop reading, while readings change: their copies are never wrong."""

    clients = Bundle("clients")
    gone = Bundle("gone")

    @initialize()
    def start(self):
        self.service = Service()
        self.service.begin_again()
        self.open = []

    @rule(key=st.sampled_from("abcdef") | strategies.ids, value=strategies.finite_numbers)
    def change(self, key, value):
        self.service.read(key.encode(), repr(value).encode())

    @rule(key=st.sampled_from("abcdef"))
    def remove(self, key):
        self.service.read(key.encode(), None)

    @rule(key=st.sampled_from("abcdefgh"), partition=st.integers(0, 2), time=st.integers(-3, 3))
    def change_with_a_record_of_another_time(self, key, partition, time):
        self.service.read(key.encode(), b"%d" % time, partition=partition, timestamp_ms=time)

    @rule(keys=st.lists(st.sampled_from("abcdefghijkl")), times=st.lists(st.integers(-3, 3), min_size=1))
    def change_many_at_random(self, keys, times):
        for number, key in enumerate(keys):
            time = times[number % len(times)]
            value = None if number % 3 == 1 else b"%d" % number
            self.service.read(key.encode(), value, partition=time % 2, timestamp_ms=time)

    @rule(count=st.integers(15, 40), value=st.integers(0, 3))
    def change_many(self, count, value):
        for n in range(count):
            self.service.read(b"m%d" % (n % 25), b"%d" % value)

    @rule()
    def make_the_topic_again(self):
        self.service.begin_again()

    @rule(target=clients)
    def connect(self):
        return self.opened(Client(self.service))

    @rule(target=clients, last=consumes(gone))
    def come_back(self, last):
        return self.opened(Client(self.service, last=last))

    @rule(target=gone, client=consumes(clients))
    def go(self, client):
        assert client.events is not None
        client.link.reset()
        self.open.remove(client)
        return client

    @rule(client=clients)
    def stop_reading(self, client):
        client.stop_reading()

    @rule(client=clients)
    def read_on(self, client):
        client.read_on()

    @rule(count=st.integers(1, 3))
    def turn(self, count):
        self.service.turn(count)

    def opened(self, client):
        self.open.append(client)
        return client

    @invariant()
    def what_came_is_true(self):
        for client in self.open:
            assert client.events is not None

    @rule()
    def in_the_end_every_copy_is_the_collection(self):
        tag = self.service.remember()
        for _ in range(20):
            self.service.turn()
            for client in self.open:
                client.read_on()
        for client in self.open:
            assert client.events is not None
            assert client.tag == tag
            assert list(client.copy.items()) == self.service.states[tag]


TestChangesMachine = ChangesMachine.TestCase
TestChangesMachine.settings = examples(25, stateful_step_count=30)


def change_with(fault, monkeypatch):
    """Let clients come, and follow changes of several kinds; check what each has in the end."""
    fault.watch(monkeypatch, Changes, "_step")
    fault.watch(monkeypatch, ChangeStream, "write_on")
    service = Service()
    service.read(b"a", b"1")
    clients = [Client(service) for _ in range(2)]
    service.turn(20)
    service.read(b"a", b"3")
    service.turn(5)
    for key, value in [(b"c", b"4"), (b"a", None), (b"a", b"7")]:
        service.read(key, value)
    service.turn(40)
    for number in range(40):
        service.read(b"r%d" % (number % 20), b"%d" % number)
    service.turn(60)
    clients.append(Client(service))
    for value in (b"8", b"9", None):
        come_back(service, clients)
        tag = service.read(b"z", value)
    for _ in range(2):
        come_back(service, clients)
    for client in clients:
        assert client.events
        assert (client.tag, list(client.copy.items())) == (tag, service.states[tag])


def come_back(service, clients):
    service.clock.pump([0.1] * 20)
    for place, client in enumerate(clients):
        client.link.read_all()
        if client.link.is_lost:
            assert client.events is not None
            clients[place] = Client(service, last=client)


@pytest.mark.slow
def test_a_fault_at_any_line_leaves_each_client_with_the_readings_in_the_end(no_failure_is_lost):
    files = {"changes.py", "readings.py", "blocks.py"}
    assert require_for_faults(files, change_with, no_failure_is_lost) > 100
