"""The check of a topic against answers finds each kind of fault."""

from __future__ import annotations

import pytest

from tests.real_kafka.asked import NOT_STORED, UNKNOWN, Asked, check_topic
from tests.real_kafka.reading import Stored


def identified(*contents, answers, firsts=1, sends=1):
    return Asked(contents, is_identified=True, answers=answers, firsts=firsts, sends_before_known=sends)


def ordinary(*contents, answers=()):
    return Asked(contents, is_identified=False, answers=list(answers))


def stored(*contents, partition=0):
    return [Stored(partition, n, b"k", each.encode(), 0, ()) for n, each in enumerate(contents)]


ASKED = [
    identified("a", answers=[[UNKNOWN], [(0, 0)], [(0, 0)]], sends=2),
    ordinary("b", "c", answers=[[(0, 1), (0, 2)]]),
    ordinary("refused", answers=[[NOT_STORED]]),
    ordinary("cut"),
    identified("d", "e", answers=[[NOT_STORED, (0, 3)], [(0, 4), (0, 3)]], sends=2),
    ordinary("late", answers=[[UNKNOWN]]),
    identified("f", "g", answers=[[(0, 5), (0, 7)]]),
]
RIGHT = ["a", "b", "c", "e", "d", "f", "late", "g"]


def check(records, asked=ASKED):
    check_topic([("k", asked)], records)


def test_what_is_right_is_right():
    check(stored(*RIGHT))
    check_topic([(None, ASKED[:1]), ("k", ASKED[1:])], stored(*RIGHT))


@pytest.mark.parametrize(
    ("contents", "fault"),
    [
        pytest.param([*RIGHT, "a"], "a is at", id="twice"),
        pytest.param([*RIGHT, "b"], "b is at", id="an ordinary one twice"),
        pytest.param([*RIGHT, "cut", "cut"], "cut is at", id="one that was given up twice"),
        pytest.param(RIGHT[:-1], "g is at", id="lost"),
        pytest.param(["a", "b", "x", *RIGHT[3:]], "c is at", id="an ordinary one lost"),
        pytest.param(["b", "a", *RIGHT[2:]], "a is at", id="not where the answer said"),
        pytest.param([*RIGHT, "refused"], "refused is at", id="there although it was rejected"),
        pytest.param([*RIGHT, "x"], "x was never sent", id="never sent"),
    ],
)
def test_a_topic_with_a_fault_is_found_out(contents, fault):
    with pytest.raises(AssertionError, match=fault):
        check(stored(*contents))


@pytest.mark.parametrize(
    ("asked", "contents", "fault"),
    [
        pytest.param(
            [ordinary("a", answers=[[(0, 1)]]), identified("b", answers=[[(0, 0)]])],
            ["b", "a"],
            "b is before a",
            id="before the request before",
        ),
        pytest.param(
            [identified("a", answers=[[(0, 1)]]), ordinary("b", answers=[[UNKNOWN]])],
            ["b", "a"],
            "b is before a",
            id="one that was given up, before the request before",
        ),
        pytest.param(
            [ordinary("a", "b", answers=[[UNKNOWN, (0, 0)]])],
            ["b", "a"],
            "b is before a",
            id="within an ordinary request",
        ),
        pytest.param(
            [identified("a", "b", answers=[[(0, 1), (0, 0)]])],
            ["b", "a"],
            "b is before a",
            id="within a request that was sent once",
        ),
        pytest.param(
            [identified("a", answers=[[(0, 0)], [(0, 1)]])], ["a"], "a is at", id="two places in the answers"
        ),
        pytest.param([identified("a", answers=[[UNKNOWN]])], ["a"], "a is at", id="never answered"),
        pytest.param(
            [identified("a", answers=[[(0, 0)]], firsts=2)], ["a"], "first 2 times", id="two firsts"
        ),
    ],
)
def test_answers_with_a_fault_are_found_out(asked, contents, fault):
    with pytest.raises(AssertionError, match=fault):
        check(stored(*contents), asked)


def test_a_record_key_in_two_partitions_is_found_out():
    asked = [ordinary("a", answers=[[(0, 0)]]), ordinary("b", answers=[[(1, 0)]])]
    with pytest.raises(AssertionError, match="records of one key"):
        check([*stored("a"), *stored("b", partition=1)], asked)
