"""
Readings whose ids have any length: what one turn of the reactor encodes is bounded, in bytes.

The work is counted, so that no test depends on the machine: `benchmarks/turns.py` measures the time.
"""

from __future__ import annotations

import json
from unittest.mock import patch

from hypothesis import example, given
from hypothesis import strategies as st

from sampleapp.readings import blocks
from sampleapp.web.read import readings
from tests.support.event_streams import EventReader
from tests.support.examples import examples
from tests.support.in_memory import InMemoryService, request_bytes
from tests.support.simulated_socket import Link
from tests.support.streams import body_of, unchunked
from tests.web.test_turns import TurningClock

MOST_BYTES = 3 * 1024 * 1024
"""Of JSON in one turn: encoded in at most 9 ms, since control characters take 3 ns for each byte of text."""
LONGEST_ID = 300_000
LONGEST_SUM = 1_500_000
V2 = [(b"Accept", b"application/vnd.sampleApp.v2+json")]


class Service(InMemoryService):
    """A service that counts the bytes which it encodes; its clock goes on by the time that this takes."""

    make_clock = TurningClock

    def __init__(self):
        super().__init__()
        self.encoded = self.most_of_a_turn = 0

    def counted(self, encode):
        def encode_and_count(value):
            text = encode(value)
            self.encoded += len(text)
            self.clock.rightNow += 3e-9 * len(text)
            return text

        return encode_and_count

    def turn(self, do=lambda: None):
        """Do what the sockets have for it, and then what is due, as a reactor does."""
        self.encoded = 0
        do()
        self.clock.turn()
        self.most_of_a_turn = max(self.most_of_a_turn, self.encoded)

    def turn_until_quiet(self):
        while self.clock.is_due:
            self.turn()

    def get(self, headers=()):
        connection = self.connect()
        self.turn(lambda: connection.channel.dataReceived(request_bytes("GET", "/", headers)))
        self.turn_until_quiet()
        connection.settle()
        (response,) = connection.responses(["GET"])
        return response

    def pass_time(self):
        """Let pauses be over."""
        for _ in range(3):
            self.clock.rightNow += 1
            self.turn_until_quiet()


kinds = st.tuples(
    st.sampled_from(["\x01", "a", '"', "ü", "漢", "😀"]),
    st.integers(1, 100) | st.integers(100, 40_000) | st.integers(30_000, LONGEST_ID),
    st.integers(1, 500),
)


def ids_of(kinds):
    """Return different ids of some characters and lengths, up to a length of all together."""
    found = []
    left = LONGEST_SUM
    for character, length, count in kinds:
        for _ in range(count):
            if length > left:
                break
            left -= length
            found.append(character * length + str(len(found)))
    return found


changes = st.lists(st.tuples(st.integers(0, 1000), st.sampled_from([b"2", b"3", None])), max_size=6)


@examples(30)
@given(st.lists(kinds, min_size=1, max_size=4), changes)
@example([("\x01", 160_000, 9)], [(3, b"2"), (3, b"3"), (4, None)])
@example([("a", 20_000, 75)], [(3, b"2"), (4, None)])
@example([("\x01", 40, 500), ("\x01", LONGEST_ID, 4), ("a", 30, 500)], [(0, b"2"), (501, None), (600, b"3")])
def test_no_turn_encodes_more_than_a_bound_whatever_the_lengths_of_the_ids(kinds, changes):
    service = Service()
    ids = ids_of(kinds)
    with (
        patch.object(blocks, "_encode", service.counted(blocks._encode)),  # noqa: SLF001 -- counts the work
        patch.object(readings, "_encode", service.counted(readings._encode)),  # noqa: SLF001 -- as above
    ):
        stream = Link(service.site, service.clock)
        service.turn(lambda: stream.send(request_bytes("GET", "/changes")))
        state = {}
        for each in ids:
            service.read(each.encode(), b"1")
            state[each] = 1.0
        service.turn_until_quiet()
        for number, value in changes:
            changed = ids[number % len(ids)]
            service.read(changed.encode(), value)
            if value is None:
                state.pop(changed, None)
            else:
                state[changed] = float(value)
            service.turn()
            version_1, version_2 = service.get(), service.get(V2)
            assert json.loads(version_1.body) == list(state.values())
            assert {each["id"]: each["value"] for each in json.loads(version_2.body)} == state
            service.pass_time()
        service.pass_time()
    copy = copy_of(stream)
    assert list(copy.items()) == list(state.items())
    assert service.most_of_a_turn <= MOST_BYTES


def copy_of(stream):
    """Return the readings of a client that applies all events."""
    stream.read_all()
    data, _ = unchunked(body_of(bytes(stream.received)))
    copy = {}
    for event in EventReader.of(data).events:
        content = json.loads(event.data)
        if event.event == "readings":
            copy = {reading["id"]: reading["value"] for reading in content}
        elif event.event == "reading":
            copy[content["id"]] = content["value"]
        else:
            del copy[content["id"]]
    return copy


@examples(30)
@given(st.lists(kinds, min_size=1, max_size=4), st.integers(0, 1000))
@example([("\x01", 160_000, 9)], 3)
@example([("a", 20, 400), ("\x01", LONGEST_ID, 4)], 399)
@example([("a", 2000, 500)], 7)
def test_a_change_encodes_its_own_id_again_and_little_more(kinds, number):
    service = Service()
    ids = ids_of(kinds)
    for each in ids:
        service.read(each.encode(), b"1")
    service.get(V2)
    with patch.object(blocks, "_encode", service.counted(blocks._encode)):  # noqa: SLF001 -- counts the work
        changed = ids[number % len(ids)]
        service.read(changed.encode(), b"2")
        service.encoded = 0
        service.readings.representation(2)
    most_of_others = 6 * 64 * (4 * blocks.BLOCK_READINGS + blocks.BLOCK_READINGS)
    assert service.encoded <= len(json.dumps(changed)) + most_of_others


def test_a_long_id_is_the_same_json_in_pieces_as_at_once():
    all_kinds = '\x01\n"\\/\x7f\u0085\u2028é漢😀'
    for text in (all_kinds * 20_000, "a" * blocks.LONG_ID, "a" * (2 * blocks.LONG_ID)):
        service = InMemoryService()
        service.read(text.encode(), b"21.5")
        assert (
            service.readings.representation(2).body
            == json.dumps([{"id": text, "value": 21.5}], ensure_ascii=False, separators=(",", ":")).encode()
        )


def test_a_client_that_reads_a_long_change_slowly_gets_it_whole_and_then_the_present_readings():
    service = InMemoryService()
    ids = [str(number) + "\x01" * LONGEST_ID for number in range(4)]
    service.read(b"x", b"1")
    stream = Link(service.site, service.clock, room=10_000)
    stream.send(request_bytes("GET", "/changes"))
    for value in (b"1", b"2", b"3"):
        for each in ids:
            service.read(each.encode(), value)
            service.clock.advance(2)
        stream.read(5_000)
    for _ in range(3000):
        stream.read(50_000)
        service.clock.advance(0.01)
    stream.socket.room = float("inf")
    service.clock.advance(2)
    copy = copy_of(stream)
    assert copy == {"x": 1.0, **dict.fromkeys(ids, 3.0)}


def test_long_changes_that_only_slow_clients_have_count_in_the_memory_for_bodies():
    service = InMemoryService()
    name = "\x01" * LONGEST_ID
    service.read(b"x", b"1")
    stream = Link(service.site, service.clock)
    stream.send(request_bytes("GET", "/changes"))
    stream.read_all()
    stream.socket.room = 100_000
    for value in range(1, 8):
        service.read(name.encode(), b"%d" % value)
        service.clock.advance(2)
    # The first change, which it has begun to read, has left the log of 1 MiB.
    assert service.site.body_memory.reserved > 6 * LONGEST_ID
    stream.reset()
    service.clock.advance(2)
    assert service.site.body_memory.reserved == 0
