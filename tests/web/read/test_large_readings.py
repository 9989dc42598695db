"""``GET /`` when many readings must be encoded first."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.web.server import Site

from sampleapp.concurrency.slices import cooperator_on
from sampleapp.readings import Readings
from sampleapp.readings.follower import SharedEncoding
from sampleapp.web.read.readings import AcceptDispatch
from tests.support.in_memory import InMemoryService, MemoryTransport, PromptBroker, request_bytes
from tests.support.readings import apply_next
from tests.web.http import JSON, MESSAGE, assert_problem
from tests.web.server.test_connections import NarrowTransport

AT_ONCE = 4
COUNT = 40
MANY_TURNS = 100

ACCEPTS = {1: [], 2: [(b"Accept", b"application/vnd.sampleApp.v2+json")]}

both_versions = pytest.mark.parametrize("version", [1, 2])
# The service's own connections; Klein in a site of twisted.web; the resource for the readings in one.
every_way = pytest.mark.parametrize("way", ["own", "klein", "resource"])


class TimeSlices(Clock):
    """A clock that runs one turn of the reactor at a time; Twisted's runs all calls that are due at once."""

    def callLater(self, delay, function, *args, **kwargs):
        return super().callLater(delay or 1, function, *args, **kwargs)

    def take(self):
        self.advance(1)


class ServiceInTurns(InMemoryService):
    """A service that encodes four readings in a turn."""

    def __init__(self, way="own"):
        super().__init__(broker=PromptBroker())
        self.begin_again(block_readings=2)
        self.turns = TimeSlices()
        self.cooperator = cooperator_on(self.turns)
        self.encodings = {
            version: SharedEncoding(self.readings, version, cooperator=self.cooperator, at_once=AT_ONCE)
            for version in ACCEPTS
        }
        self.follower._encodings = self.encodings  # noqa: SLF001 -- with fewer readings in a turn
        if way == "klein":
            self.site = Site(self.gateway.app.resource(), reactor=self.clock)
        elif way == "resource":
            self.site = Site(AcceptDispatch(self.follower.representation), reactor=self.clock)

    def change_all(self, value):
        for n in range(COUNT):
            self.read(b"sensor-%d" % n, b"%d" % value)

    def ask(self, method="GET", headers=(), transport=MemoryTransport):
        connection = self.connect(transport)
        connection.send(request_bytes(method, "/", headers))
        return connection

    def turns_until(self, *connections):
        """Take turns until all these have an answer; returns how many that took."""
        turns = 0
        while not all(connection.sent for connection in connections):
            self.turns.take()
            turns += 1
            assert turns < MANY_TURNS
        return turns


def response_to(connection, method="GET"):
    (answer,) = connection.responses([method])
    return answer


def expected(version, value):
    """The whole representation, made at once by a collection of its own."""
    readings = Readings(block_readings=2)
    for n in range(COUNT):
        apply_next(readings, b"sensor-%d" % n, b"%d" % value)
    return readings.representation(version)


@both_versions
@every_way
def test_others_are_served_while_many_readings_are_encoded(way, version):
    service = ServiceInTurns(way)
    service.change_all(1)
    asked = service.ask(headers=ACCEPTS[version])
    service.turns.take()
    assert asked.sent == b""
    if way != "resource":
        published = service.post(MESSAGE, JSON)
        assert (published.status, asked.sent) == (200, b"")
    assert service.turns_until(asked) > 2
    answer = response_to(asked)
    assert answer.status == 200
    assert answer.body == expected(version, 1).body
    assert answer.headers[b"etag"] == expected(version, 1).etag.encode()
    again = service.ask(headers=ACCEPTS[version])
    assert response_to(again).body == answer.body


@both_versions
@every_way
def test_head_and_conditions_wait_for_the_tag_of_what_is_encoded(way, version):
    service = ServiceInTurns(way)
    service.change_all(1)
    tag = expected(version, 1).etag.encode()
    head = service.ask("HEAD", ACCEPTS[version])
    same = service.ask(headers=[*ACCEPTS[version], (b"If-None-Match", tag)])
    other = service.ask(headers=[*ACCEPTS[version], (b"If-None-Match", b'"other"')])
    assert (head.sent, same.sent, other.sent) == (b"", b"", b"")
    service.turns_until(head, same, other)
    assert response_to(head, "HEAD").headers[b"content-length"] == b"%d" % expected(version, 1).length
    assert (response_to(same).status, response_to(same).headers[b"etag"]) == (304, tag)
    assert response_to(other).body == expected(version, 1).body


@pytest.mark.parametrize("way", ["own", "klein"])
def test_if_match_is_compared_with_the_tag_of_what_is_encoded(way):
    service = ServiceInTurns(way)
    service.change_all(1)
    same = service.ask(headers=[(b"If-Match", expected(1, 1).etag.encode())])
    other = service.ask(headers=[(b"If-Match", b'"other"')])
    service.turns_until(same, other)
    assert response_to(same).status == 200
    assert_problem(response_to(other), 412)


@both_versions
def test_an_answer_is_the_state_of_the_moment_when_it_was_asked_for_whatever_changes_meanwhile(version):
    service = ServiceInTurns()
    service.change_all(1)
    asked = service.ask(headers=ACCEPTS[version])
    service.change_all(2)
    for n in range(0, COUNT, 3):
        service.read(b"sensor-%d" % n, None)
    service.turns_until(asked)
    assert response_to(asked).body == expected(version, 1).body
    assert response_to(asked).headers[b"etag"] == expected(version, 1).etag.encode()


@both_versions
def test_whoever_asks_after_a_change_sees_it(version):
    service = ServiceInTurns()
    service.change_all(1)
    early = service.ask(headers=ACCEPTS[version])
    service.change_all(2)
    late = service.ask(headers=ACCEPTS[version])
    service.turns_until(early, late)
    assert response_to(early).body == expected(version, 1).body
    assert response_to(late).body == expected(version, 2).body


def test_many_that_ask_at_once_share_what_is_encoded():
    service = ServiceInTurns()
    service.change_all(1)
    alone = service.turns_until(service.ask())
    service.change_all(2)
    asked = [service.ask() for _ in range(20)]
    # One turn for each answer, besides the turns that encode.
    assert service.turns_until(*asked) <= alone + len(asked)
    assert {response_to(each).body for each in asked} == {expected(1, 2).body}


def test_both_versions_are_encoded_side_by_side():
    service = ServiceInTurns()
    service.change_all(1)
    asked = {version: service.ask(headers=ACCEPTS[version]) for version in ACCEPTS}
    service.turns_until(*asked.values())
    for version, each in asked.items():
        assert response_to(each).body == expected(version, 1).body


@both_versions
@every_way
def test_a_client_that_goes_away_takes_nothing_from_the_others(way, version):
    service = ServiceInTurns(way)
    service.change_all(1)
    gone = service.ask(headers=ACCEPTS[version])
    patient = service.ask(headers=ACCEPTS[version])
    service.turns.take()
    gone.lose()
    service.change_all(2)
    also_gone = service.ask(headers=ACCEPTS[version])
    late = service.ask(headers=ACCEPTS[version])
    also_gone.lose()
    service.turns_until(patient, late)
    assert response_to(patient).body == expected(version, 1).body
    assert response_to(late).body == expected(version, 2).body
    assert (gone.sent, also_gone.sent) == (b"", b"")


@pytest.mark.parametrize("way", ["own", "klein"])
def test_when_the_service_stops_first_the_answer_is_503(way):
    service = ServiceInTurns(way)
    service.change_all(1)
    before, same = service.ask(), service.ask()
    for encoding in service.encodings.values():
        encoding.stop("The service is stopping.")
    for asked in (before, same, service.ask()):
        assert_problem(response_to(asked), 503)
    service.follower.reset()
    assert_problem(response_to(service.ask()), 503)


class PausingTransport(MemoryTransport):
    """Has room for one piece at a time."""

    def write(self, data):
        super().write(data)
        if self.producer is not None:
            self.producer.pauseProducing()


@pytest.mark.parametrize("way", ["klein", "resource"])
def test_pieces_are_sent_in_a_site_of_twisted_web_as_the_client_reads(way):
    service = ServiceInTurns(way)
    service.change_all(1)
    asked = service.ask(transport=PausingTransport)
    service.turns_until(asked)
    sent = []
    while asked.transport.producer is not None and len(sent) < MANY_TURNS:
        sent.append(len(asked.sent))
        asked.transport.producer.resumeProducing()
    assert len(sent) >= len(expected(1, 1).parts)
    assert response_to(asked).body == expected(1, 1).body


@pytest.mark.parametrize("way", ["klein", "resource"])
def test_a_client_of_twisted_web_may_go_away_in_the_middle_of_the_pieces(way, no_failure_is_lost):
    service = ServiceInTurns(way)
    service.change_all(1)
    asked = service.ask(transport=PausingTransport)
    service.turns_until(asked)
    sent = asked.sent
    asked.transport.producer.stopProducing()
    asked.lose()
    for _ in range(MANY_TURNS):
        service.turns.take()
    assert asked.sent == sent
    assert no_failure_is_lost == []


steps = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(0, COUNT + 10), st.sampled_from([b"1", b"2", None])),
        st.tuples(st.just("ask"), st.sampled_from([1, 2]), st.sampled_from(["GET", "HEAD"])),
        st.tuples(st.just("turn"), st.integers(1, 5), st.none()),
    ),
    max_size=40,
)


@given(steps)
def test_every_answer_is_the_state_of_one_moment_between_the_question_and_the_answer(steps):
    service = ServiceInTurns()
    service.change_all(0)
    state = {b"sensor-%d" % n: b"0" for n in range(COUNT)}
    states = [dict(state)]
    waiting = []

    def look():
        for each in [each for each in waiting if each[0].sent]:
            waiting.remove(each)
            connection, version, method, since = each
            answer = response_to(connection, method)
            possible = [whole(version, state) for state in states[since:]]
            assert answer.headers[b"etag"] in [made.etag.encode() for made in possible]
            if method == "GET":
                found = [made for made in possible if made.etag.encode() == answer.headers[b"etag"]]
                assert answer.body == found[0].body

    for name, argument, more in [*steps, ("turn", MANY_TURNS, None)]:
        if name == "read":
            key = b"sensor-%d" % argument
            service.read(key, more)
            state.pop(key, None) if more is None else state.__setitem__(key, more)
            states.append(dict(state))
        elif name == "ask":
            waiting.append((service.ask(more, ACCEPTS[argument]), argument, more, len(states) - 1))
        else:
            for _ in range(argument):
                service.turns.take()
                look()
        look()
    assert waiting == []


def whole(version, state):
    """Return the representation of a state by another collection, encoded in one step."""
    readings = Readings(block_readings=2)
    for key, value in state.items():
        apply_next(readings, key, value)
    return readings.representation(version)


def test_json_of_version_2_names_all_of_them_after_many_turns():
    service = ServiceInTurns()
    service.change_all(7)
    asked = service.ask(headers=ACCEPTS[2])
    service.turns_until(asked)
    items = json.loads(response_to(asked).body)
    assert items == [{"id": f"sensor-{n}", "value": 7.0} for n in range(COUNT)]


def slow_readers(service, numbers):
    """Connections that each begin to read a version of its own, with another number in all readings."""
    connections = []
    for number in numbers:
        for n in range(COUNT):
            service.read(b"sensor-%d" % n + b"x" * 1000, b"%d" % number)
        connections.append(service.connect(NarrowTransport))
        connections[-1].send(request_bytes("GET", "/", ACCEPTS[2]))
    return connections


@pytest.fixture
def large():
    """A service with 40 KB of readings, in blocks."""
    service = InMemoryService(max_body_memory=1 << 20)
    service.begin_again(block_readings=2)
    return service


def test_a_version_that_clients_read_slowly_counts_once_it_is_replaced(large):
    memory = large.site.body_memory
    connections = slow_readers(large, range(1))
    assert memory.reserved == 0
    connections += slow_readers(large, range(1, 5))
    # The last one is current.
    assert 4 * COUNT * 1000 < memory.reserved < 4 * COUNT * 1200
    for connection in connections:
        while connection.transport.is_full:
            connection.transport.let_client_read()
        large.clock.advance(0.1)
    assert memory.reserved == 0


def test_a_version_counts_whole_although_versions_that_are_gone_had_parts_of_it(large):
    memory = large.site.body_memory
    (connection,) = slow_readers(large, range(1))
    for n in range(COUNT):
        large.read(b"sensor-%d" % n + b"x" * 1000, b"-1")
        assert large.request("GET", "/", ACCEPTS[2]).status == 200
    assert COUNT * 1000 < memory.reserved < COUNT * 1200
    connection.lose()
    assert memory.reserved == 0


def test_clients_that_read_replaced_versions_are_cut_when_these_take_half_of_the_memory(large):
    memory = large.site.body_memory
    connections = slow_readers(large, range(20))
    assert memory.reserved > memory.limit // 2
    large.clock.advance(2)
    large.clock.advance(2)
    assert 0 < memory.reserved <= memory.limit // 2
    assert large.site.rejections["max-body-memory"] == sum(each.transport.aborted for each in connections)
    assert large.request("GET", "/").status == 200
    # The current version is not what takes the memory.
    assert not connections[-1].transport.aborted
    for each in connections:
        each.lose()
    assert memory.reserved == 0


def test_no_version_is_made_while_replaced_ones_take_all_memory(large):
    connections = slow_readers(large, range(60))
    assert large.site.body_memory.reserved < large.site.body_memory.limit + COUNT * 1200
    assert connections[-1].sent.startswith(b"HTTP/1.1 503")
    for _ in range(3):
        large.clock.advance(2)
    assert large.request("GET", "/", ACCEPTS[2]).status == 200
