"""Subscribers in groups: each event is encoded once, and handed to those that have joined before it."""

from __future__ import annotations

import pytest

from sampleapp.feeds import broadcast
from sampleapp.feeds.broadcast import Selection, Subscribers
from sampleapp.model import ConsumerRecord

ALL = Selection("id")


class Stream:
    """A subscriber that remembers its events."""

    def __init__(self, *, takes=99):
        self.takes = takes
        self.group, self.joined, self.position = None, 0, b""
        self.events = []
        self.ends = []

    def has_room(self, event):
        return True

    def receive(self, event, count):
        self.events.append(event)
        return len(self.events) < self.takes

    def detached(self, *, is_reset):
        self.ends.append(is_reset)

    def failed(self):
        self.ends.append("failed")

    @property
    def offsets(self):
        parts = b"".join(self.events).split(b'"offset":')[1:]
        return [int(part.partition(b",")[0]) for part in parts]


class Topic:
    """An subscribers, and the records that it takes."""

    def __init__(self):
        self.subscribers = Subscribers(make_event=bytes)
        self.vector = {0: 0, 1: 0}

    def join(self, selection=ALL, **more):
        stream = Stream(**more)
        self.subscribers.join(stream, self.vector, selection)
        return stream

    def take(self, *keys, partition=0, headers=()):
        begin = self.vector[partition]
        records = [
            ConsumerRecord(
                topic="t",
                partition=partition,
                offset=offset,
                timestamp_ms=0,
                key=key,
                value=b"",
                headers=headers,
            )
            for offset, key in enumerate(keys, begin)
        ]
        self.vector[partition] = begin + len(keys)
        self.subscribers.take(partition, records)

    def pass_on(self, steps=1000):
        for _ in range(steps):
            if self.subscribers.is_busy:
                self.subscribers.pass_on(1)


def test_who_joins_gets_only_what_comes_after_it():
    topic = Topic()
    early = topic.join()
    topic.take(None, None)
    late = topic.join()
    topic.take(None)
    topic.pass_on()
    assert early.offsets == [0, 1, 2]
    assert late.offsets == [2]
    assert early.position == late.position == b"id~3.0"


def test_who_leaves_has_the_position_of_what_it_got():
    topic = Topic()
    slow, other = topic.join(takes=1), topic.join()
    topic.take(None)
    topic.join()
    topic.take(None, None)
    topic.pass_on()
    assert (slow.offsets, slow.position) == ([0], b"id~1.0")
    assert (other.offsets, other.position) == ([0, 1, 2], b"id~3.0")
    assert slow.group is None


def test_who_is_detached_has_the_position_of_what_it_got():
    topic = Topic()
    first, second = topic.join(), topic.join()
    topic.take(None)
    topic.pass_on(1)
    topic.subscribers.retire_all(is_reset=False)
    topic.pass_on()
    assert (first.offsets, first.position, first.ends) == ([0], b"id~1.0", [False])
    assert (second.offsets, second.position, second.ends) == ([], b"id~0.0", [False])
    assert not topic.subscribers


def test_a_quiet_listener_of_a_key_has_the_position_after_other_keys_when_it_is_detached():
    topic = Topic()
    stream = topic.join(Selection("id", key=b"a"))
    topic.take(b"b", None)
    topic.subscribers.retire_all(is_reset=True)
    topic.pass_on()
    assert (stream.position, stream.ends) == (b"id~2.0", [True])


def test_events_are_one_object_for_all_of_a_group():
    topic = Topic()
    streams = [topic.join() for _ in range(3)]
    of_key = topic.join(Selection("id", key=b"a"))
    topic.take(b"a", b"b")
    topic.pass_on()
    assert len({id(stream.events[0]) for stream in streams}) == 1
    assert of_key.offsets == [0]


def test_subscribers_of_headers_get_the_records_that_have_all_of_them():
    topic = Topic()
    shop, web = ("source", b"shop"), ("source", b"web")
    selections = {
        name: Selection("id", key=key, headers=headers)
        for name, key, headers in [
            ("shop", None, (shop,)),
            ("web", None, (web,)),
            ("both", None, (shop, web)),
            ("key", b"a", (shop,)),
            ("all", None, ()),
        ]
    }
    streams = {name: topic.join(selection) for name, selection in selections.items()}
    same = topic.join(selections["both"])
    topic.take(b"a", b"b", headers=(shop,))
    topic.take(b"a", headers=(("x", None), web, shop, shop))
    topic.take(b"a", None)
    topic.pass_on()
    assert {name: stream.offsets for name, stream in streams.items()} == {
        "shop": [0, 1, 2],
        "web": [2],
        "both": [2],
        "key": [0, 2],
        "all": [0, 1, 2, 3, 4],
    }
    assert same.events[0] is streams["both"].events[0]
    for stream in (*streams.values(), same):
        topic.subscribers.leave(stream)
    assert not topic.subscribers


def test_positions_of_some_partitions_leave_out_the_others():
    topic = Topic()
    one, rest = (
        topic.join(Selection("id", partitions=frozenset({1}))),
        topic.join(Selection("id", skipped=frozenset({1}))),
    )
    topic.take(None)
    topic.take(None, None, partition=1)
    topic.pass_on()
    assert (one.offsets, one.position) == ([0, 1], b"id~-.2")
    assert (rest.offsets, rest.position) == ([0], b"id~1.-")


def test_an_audience_without_listeners_keeps_nothing():
    topic = Topic()
    streams = [topic.join(), topic.join(Selection("id", key=b"a")), topic.join(Selection("other"))]
    topic.take(b"a")
    for stream in streams:
        topic.subscribers.leave(stream)
    topic.pass_on()
    assert not topic.subscribers
    assert [stream.events for stream in streams] == [[], [], []]


def test_after_a_fault_a_listener_is_before_the_records_that_it_has_not_got(monkeypatch):
    topic = Topic()
    everything = topic.join()
    with_key = topic.join(Selection("id", key=b"k"))
    topic.take(b"k")
    topic.pass_on()

    def fail(records):
        raise MemoryError

    monkeypatch.setattr(broadcast, "record_events", fail)
    with pytest.raises(MemoryError):
        topic.take(b"k")
    topic.subscribers.retire_all(is_reset=False)
    topic.pass_on()
    for stream in (everything, with_key):
        assert (stream.offsets, stream.position, stream.ends) == ([0], b"id~1.0", [False])
