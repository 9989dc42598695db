"""The checker finds each promise that a history breaks, and nothing in one that keeps all of them."""

from __future__ import annotations

from copy import deepcopy

import pytest

from tests.chaos.checker import check, expected_readings
from tests.chaos.history import NOT_STORED, UNKNOWN, Attempt, History, Item, Readings, Request, Sent, Topic
from tests.real_kafka.reading import Stored


def stored(partition, offset, value, key="k", *, headers=(), timestamp_ms=0):
    return Stored(
        partition,
        offset,
        None if key is None else key.encode(),
        None if value is None else value.encode(),
        timestamp_ms,
        headers,
    )


def log(*records):
    return {(each.partition, each.offset): each for each in records}


def attempts(*outcomes):
    """One after the other; what is replayed is said by the order."""
    found = []
    for n, each in enumerate(outcomes):
        is_again = n > 0 and each in outcomes[:n]
        found.append(Attempt(2 * n, 2 * n + 1, each, is_again))
    return found


def got(record):
    headers = {name: value.decode() for name, value in record.headers}
    return Item(
        "message",
        {
            "partition": record.partition,
            "offset": record.offset,
            "key": record.key and record.key.decode(),
            "content": record.value and record.value.decode(),
            **({"headers": headers} if headers else {}),
        },
    )


def gap(partition, asked, earliest):
    return Item("gap", {"gone": [{"partition": partition, "asked": asked, "earliest": earliest}]})


def reset(reason):
    return Item("reset", {"reason": reason})


def ordinary():
    """A run with a topic of each kind, in which every promise was kept."""
    steady = [
        stored(0, 0, "a"),
        stored(0, 1, "b0"),
        stored(0, 2, "b1", headers=(("h", b"1"),)),
        stored(1, 0, "c", headers=(("idempotency-fingerprint", b"f"),)),
        stored(1, 2, "foreign 1", None),
        stored(1, 3, "e", None),
    ]
    requests = [
        Request("steady", "one", [Sent("a", "k")], attempts=attempts([(0, 0)])),
        Request(
            "steady",
            "one",
            [Sent("b0", "k"), Sent("b1", "k", {"h": "1"})],
            attempts=attempts([(0, 1), (0, 2)]),
        ),
        Request(
            "steady",
            "two",
            [Sent("c", "k")],
            is_identified=True,
            attempts=attempts([UNKNOWN], [(1, 0)], [(1, 0)]),
        ),
        Request("steady", "two", [Sent("d", "k")], attempts=attempts([NOT_STORED])),
        Request("steady", "two", [Sent("other", "k")], is_rejected=True, attempts=attempts([UNKNOWN])),
        Request("steady", "two", [Sent("e", None)], attempts=attempts([UNKNOWN])),
        Request("steady", "two", [Sent("f", None)], attempts=attempts([UNKNOWN])),
    ]
    short = [stored(0, n, f"s{n}") for n in range(6)]
    requests += [
        Request("short", "three", [Sent(f"s{n}", "k")], attempts=attempts([(0, n)])) for n in range(6)
    ]
    remade = [[stored(0, 0, "m0"), stored(0, 1, "m1")], [stored(0, 0, "m2"), stored(0, 1, "m3")]]
    requests += [
        Request("remade", "four", [Sent(f"m{n}", "k")], attempts=attempts([(0, n % 2)])) for n in range(4)
    ]
    # The record "lost" was at offset 1 before an unclean election.
    cut = [stored(0, 0, "u0"), stored(0, 1, "u1"), stored(0, 2, "u2")]
    requests += [
        Request("cut", "five", [Sent(value, "k")], attempts=attempts([(0, offset)]))
        for value, offset in (("u0", 0), ("lost", 1), ("u1", 1), ("u2", 2))
    ]
    numbers = [stored(0, 0, "1", "x", timestamp_ms=2), stored(0, 1, "2", "y", timestamp_ms=1)]
    numbers += [stored(0, 2, "3", "x", timestamp_ms=3), stored(0, 3, None, "y"), stored(0, 4, "4", "y")]
    numbers[-1] = numbers[-1]._replace(timestamp_ms=4)
    requests += [
        Request(
            "readings",
            "six",
            [Sent(each.value and each.value.decode(), each.key.decode())],
            attempts=attempts([(0, each.offset)]),
        )
        for each in numbers
    ]
    changes = [("old", {"x": 3.0}), ("tag", {"x": 3.0, "y": 4.0})]
    serves = Readings([3.0, 4.0], [("x", 3.0), ("y", 4.0)], "tag", changes)
    return History(
        requests=requests,
        topics={
            "steady": Topic([log(*steady)], {0: 0, 1: 0}, steady),
            "short": Topic([log(*short[:1], *short[3:])], {0: 4}, short[4:]),
            "remade": Topic([log(*each) for each in remade], {0: 0}, remade[-1]),
            "cut": Topic([log(*cut)], {0: 0}, cut, is_cut=True),
            "readings": Topic([log(*numbers)], {0: 0}, numbers),
        },
        readers={
            "of steady": ("steady", list(map(got, steady))),
            "of short": ("short", [got(short[0]), got(short[1]), gap(0, 2, 3), *map(got, short[3:])]),
            "late": ("short", list(map(got, short[4:]))),
            "of remade": (
                "remade",
                [*map(got, remade[0]), reset("topic-replaced"), *map(got, remade[1])],
            ),
            "of cut": (
                "cut",
                [got(cut[0]), got(stored(0, 1, "lost")), reset("position-unknown"), *map(got, cut)],
            ),
        },
        readings_topic="readings",
        readings={"one": serves, "two": deepcopy(serves)},
        served={"old": {"x": 3.0}},
    )


def put(history, topic, record):
    found = history.topics[topic]
    found.generations[-1][record.partition, record.offset] = record
    found.latest = list(found.generations[-1].values())


def take(history, topic, place):
    found = history.topics[topic]
    del found.generations[-1][place]
    found.latest = list(found.generations[-1].values())


def items(history, reader):
    return history.readers[f"of {reader}"][1]


def swap(values, one, two):
    values[one], values[two] = values[two], values[one]


def request(history, value):
    return next(each for each in history.requests if each.records[0].value == value)


BROKEN = {
    "a record is lost": (lambda h: take(h, "steady", (0, 0)), "'a' of one is lost"),
    "a record that is not deleted yet is lost": (
        lambda h: take(h, "short", (0, 5)),
        "'s5' of three is lost",
    ),
    "a record of a former topic is lost": (
        lambda h: h.topics["remade"].generations[0].pop((0, 1)),
        "'m1' of four is lost",
    ),
    "a record is there twice": (lambda h: put(h, "steady", stored(0, 3, "a")), "more than once"),
    "a record is there twice after an election": (
        lambda h: put(h, "cut", stored(0, 3, "u0")),
        "'u0' of five is stored more than once",
    ),
    "a record with a key is there twice": (
        lambda h: put(h, "steady", stored(1, 4, "c")),
        "'c' of two is stored more than once",
    ),
    "an unknown record is there twice": (
        lambda h: put(h, "steady", stored(1, 4, "e", None)),
        "'e' of two is stored more than once",
    ),
    "a record is elsewhere": (
        lambda h: (take(h, "steady", (0, 0)), put(h, "steady", stored(0, 9, "a"))),
        "'a' of one is elsewhere",
    ),
    "a value is altered": (lambda h: put(h, "steady", stored(0, 0, "A")), "was never sent"),
    "a key is altered": (lambda h: put(h, "steady", stored(0, 0, "a", "K")), "'a' of one was altered"),
    "a key is added": (lambda h: put(h, "steady", stored(1, 3, "e", "")), "'e' of two was altered"),
    "headers are lost": (lambda h: put(h, "steady", stored(0, 2, "b1")), "'b1' of one was altered"),
    "a tombstone is lost": (lambda h: take(h, "readings", (0, 3)), "None of six is lost"),
    "a tombstone has another key": (
        lambda h: put(h, "readings", stored(0, 3, None, "x")),
        "None of six was altered",
    ),
    "lines of a batch change places": (
        lambda h: (
            put(h, "steady", stored(0, 1, "b1", headers=(("h", b"1"),))),
            put(h, "steady", stored(0, 2, "b0")),
            setattr(request(h, "b0"), "attempts", attempts([(0, 2), (0, 1)])),
        ),
        "'b1' of one is before 'b0'",
    ),
    "requests change places": (
        lambda h: h.requests.insert(0, h.requests.pop(1)),
        "'a' of one is before",
    ),
    "a rejected record is stored": (
        lambda h: put(h, "steady", stored(0, 3, "d")),
        "'d' of two is stored, and",
    ),
    "an idempotency key has two records": (
        lambda h: put(h, "steady", stored(1, 4, "other")),
        "with the idempotency key of another",
    ),
    "a repeat has another place": (
        lambda h: request(h, "c").attempts.append(Attempt(9, 10, [(1, 7)], is_replayed=True)),
        "different places",
    ),
    "a repeat is said to be published": (
        lambda h: setattr(request(h, "c").attempts[-1], "is_replayed", False),
        "published again",
    ),
    "a first request is said to be a repeat": (
        lambda h: setattr(request(h, "c"), "attempts", [Attempt(0, 1, [(1, 0)], is_replayed=True)]),
        "and was sent once",
    ),
    "a reader skips a record": (lambda h: items(h, "steady").pop(1), "never got 1 records of partition 0"),
    "a reader does not get the first record": (lambda h: items(h, "steady").pop(0), "never got"),
    "a reader does not get the last record": (lambda h: items(h, "steady").pop(), "never got"),
    "a reader gets nothing": (lambda h: items(h, "steady").clear(), "never got 3 records of partition 0"),
    "a reader gets a record twice": (
        lambda h: items(h, "steady").insert(2, items(h, "steady")[1]),
        "again, or too late",
    ),
    "a reader gets records in another order": (
        lambda h: swap(items(h, "steady"), 0, 1),
        "never got 1 records of partition 0",
    ),
    "a reader gets another value": (
        lambda h: items(h, "steady")[0].data.update(content="A"),
        "not in the topic",
    ),
    "a reader gets another key": (lambda h: items(h, "steady")[0].data.pop("key"), "not in the topic"),
    "a reader gets no headers": (lambda h: items(h, "steady")[2].data.pop("headers"), "not in the topic"),
    "a reader gets an aborted record": (
        lambda h: items(h, "steady").insert(4, got(stored(1, 1, "foreign 0", None))),
        "not in the topic",
    ),
    "a reader is not told of deleted records": (lambda h: items(h, "short").pop(2), "never got"),
    "a reader is told of too small a gap": (
        lambda h: items(h, "short")[2].data["gone"][0].update(asked=1, earliest=2),
        "never got",
    ),
    "a reader is told that records are gone which are there": (
        lambda h: items(h, "short").insert(4, gap(0, 4, 5)),
        "a gap that is not there",
    ),
    "a reader is not told of a topic that was made again": (
        lambda h: items(h, "remade").pop(2),
        "again, or too late",
    ),
    "a reader goes on in a topic that was made again": (
        lambda h: (items(h, "remade").pop(1), items(h, "remade").pop(1), items(h, "remade").pop(1)),
        "not told that the topic was made again",
    ),
    "a reader never learns that a topic was made again": (
        lambda h: items(h, "remade").__delitem__(slice(2, None)),
        "not told that the topic was made again",
    ),
    "a reader does not begin again": (lambda h: items(h, "remade").pop(3), "never got"),
    "a reader is told of a reset for no reason": (
        lambda h: items(h, "steady").insert(0, reset("topic-replaced")),
        "for no reason",
    ),
    "a reader is told of a wrong reason": (
        lambda h: items(h, "cut")[2].data.update(reason="topic-replaced"),
        "for no reason",
    ),
    "a reader is not told of a cut log that has grown": (
        lambda h: items(h, "cut").__delitem__(slice(2, 5)),
        "not told that the log was cut",
    ),
    "a reader is not told of a cut log": (
        lambda h: (
            take(h, "cut", (0, 2)),
            take(h, "cut", (0, 1)),
            items(h, "cut").__delitem__(slice(2, None)),
        ),
        "not told that the log was cut",
    ),
    "a reader of a cut log skips a record": (lambda h: items(h, "cut").pop(4), "never got"),
    "a reading is old": (
        lambda h: h.readings["two"].version_2.__setitem__(0, ("x", 1.0)),
        "two: the readings",
    ),
    "readings have another order": (lambda h: h.readings["two"].version_2.reverse(), "two: the readings are"),
    "version 1 differs": (lambda h: h.readings["one"].version_1.pop(), "one: version 1"),
    "a change is missing": (lambda h: h.readings["one"].changes.pop(), "one: the changes come to"),
    "a change is wrong": (lambda h: h.readings["one"].changes[0][1].update(x=2.0), "which was served as"),
    "the id of a change is another": (
        lambda h: h.readings["one"].changes.append(("other", h.readings["one"].changes[1][1])),
        "one: the changes come to",
    ),
    "entity tags differ": (lambda h: setattr(h.readings["two"], "etag", "other"), "different entity tags"),
}


def test_nothing_is_found_where_every_promise_was_kept():
    assert check(ordinary()) == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_found(name):
    history = ordinary()
    breaking, words = BROKEN[name]
    breaking(history)
    found = check(history)
    assert any(words in each for each in found), found


def test_the_readings_of_a_log_are_its_last_values_in_the_order_of_their_first_records():
    records = [
        stored(1, 0, "1", "late", timestamp_ms=5),
        stored(0, 0, "2", "early", timestamp_ms=1),
        stored(0, 1, "3", "gone", timestamp_ms=2),
        stored(0, 2, None, "gone"),
        stored(1, 1, "4", "late", timestamp_ms=9),
    ]
    assert expected_readings(records) == [("early", 2.0), ("late", 4.0)]
