"""Patterns of topics, compared with an independent model."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sampleapp.access.caller import TopicPatterns, is_legal_group_pattern, is_legal_pattern
from sampleapp.model import is_legal_topic
from tests.support import strategies

# Few characters, so that some fit; those that are special elsewhere, and both cases of one.
few = "aA.-_"
patterns = st.text(few + "*", min_size=1, max_size=8)
short_topics = st.text(few, min_size=1, max_size=10)


def model(pattern, topic):
    """Return whether a pattern matches, by a state machine with sets of positions."""
    places = {0}
    for character in [*topic, None]:
        reached = set()
        while places:
            place = places.pop()
            if place < len(pattern) and pattern[place] == "*":
                places.add(place + 1)
                reached.add(place)
            elif character is None:
                reached.add(place)
            elif place < len(pattern) and pattern[place] == character:
                reached.add(place + 1)
        places = reached
    return len(pattern) in places


@given(st.lists(patterns, max_size=4), short_topics)
@example(["a*a"], "a")
@example(["*a*a"], "aa")
@example(["a*.*a"], "a.a")
def test_a_topic_is_granted_if_one_of_the_patterns_fits(listed, topic):
    assert (topic in TopicPatterns(listed)) == any(model(pattern, topic) for pattern in listed)


@given(strategies.topics)
def test_a_name_fits_itself_only_and_a_star_fits_everything(topic):
    assert topic in TopicPatterns([topic])
    assert f"{topic}x" not in TopicPatterns([topic])
    assert f"x{topic}" not in TopicPatterns([topic])
    assert topic in TopicPatterns(["*"])
    assert topic not in TopicPatterns()


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("sensors.*", ["sensors.", "sensors.a", "sensors.a.b"], ["sensors", "Sensors.a", "xsensors.a"]),
        ("a.b", ["a.b"], ["axb", "a.b.c"]),
        ("*-dlq", ["-dlq", "x.y-dlq"], ["dlq", "x-dlq2"]),
        ("a*b*c", ["abc", "a-b-b-c"], ["acb", "ab"]),
    ],
)
def test_only_the_star_is_special(pattern, fitting, others):
    assert [topic for topic in fitting + others if topic in TopicPatterns([pattern])] == fitting


@given(st.text(max_size=5) | strategies.topics)
def test_a_pattern_without_a_star_is_legal_where_a_topic_is(text):
    text = text.replace("*", "")
    assert is_legal_pattern(text) == is_legal_topic(text)


@given(patterns, patterns, short_topics, short_topics)
def test_in_a_pattern_of_groups_each_side_matches_its_own_part(of_topics, of_groups, topic, group):
    is_granted = f"{topic}/{group}" in TopicPatterns([f"{of_topics}/{of_groups}"])
    assert is_granted == (model(of_topics, topic) and model(of_groups, group))
    assert f"{topic}/{group}" in TopicPatterns(["*"])


@pytest.mark.parametrize(
    "pattern", ["", "orders", "orders/", "/billing", "a/b/c", "**", "./a", "a/..", "a b/c"]
)
def test_a_pattern_of_groups_has_a_topic_and_a_group(pattern):
    assert not is_legal_group_pattern(pattern)
    assert all(map(is_legal_group_pattern, ["*", "*/*", "orders/*", "*/billing", "a.b/c-d"]))


def test_no_topic_makes_a_pattern_slow():
    # With a regular expression this test would not end.
    assert "a" * 249 not in TopicPatterns(["*".join("a" * 60) + "*b"])
