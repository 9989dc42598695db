"""Positions as text, and back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.model import OffsetAndEpoch
from sampleapp.records.positions import (
    InvalidPosition,
    Position,
    PositionTooLong,
    format_position,
    parse_position,
    position_after,
)

topic_ids = st.text("ABYZabyz0189_-", min_size=1, max_size=16)
plain_offsets = st.integers(0, 2**63 - 1) | st.integers(0, 3)
offsets = plain_offsets | st.builds(OffsetAndEpoch, plain_offsets, st.integers(0, 2**31 - 1))
places = st.lists(st.none() | st.just("-") | offsets, max_size=40)


def position_of(topic_id, given_places):
    numbered = list(enumerate(given_places))
    return Position(
        topic_id,
        {partition: cursor for partition, cursor in numbered if isinstance(cursor, int)},
        frozenset(partition for partition, cursor in numbered if cursor == "-"),
    )


@given(topic_ids, places)
def test_a_position_comes_back_from_its_text(topic_id, given_places):
    position = position_of(topic_id, given_places)
    text = format_position(position)
    # Not only equal: offsets are equal whatever their epochs are.
    assert repr(parse_position(text)) == repr(position)
    assert re.fullmatch(r"[A-Za-z0-9_~.-]+", text)


@given(topic_ids, places)
def test_no_other_text_of_the_same_position_is_shorter(topic_id, given_places):
    parts = ["" if each is None else each if each == "-" else repr(each) for each in given_places]
    written = f"{topic_id}~{'.'.join(parts)}"
    text = format_position(parse_position(written))
    assert text == written.rstrip(".")


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("_~", Position("_", {})),
        ("pVqT3f8WQb6~42", Position("pVqT3f8WQb6", {0: 42})),
        ("a-b_C~0.-..7", Position("a-b_C", {0: 0, 3: 7}, frozenset({1}))),
        ("1~..", Position("1", {})),
        ("-~-.-", Position("-", {}, frozenset({0, 1}))),
        ("x~9223372036854775807", Position("x", {0: 2**63 - 1})),
        ("x~007", Position("x", {0: 7})),
        ("x~42e3", Position("x", {0: OffsetAndEpoch(42, 3)})),
        (
            "x~0e0.-.7.9e2147483647",
            Position("x", {0: OffsetAndEpoch(0, 0), 2: 7, 3: OffsetAndEpoch(9, 2**31 - 1)}, frozenset({1})),
        ),
    ],
)
def test_a_position_names_each_partition_by_its_place(text, position):
    assert repr(parse_position(text)) == repr(position)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "~",
        "~1",
        "x",
        "x~1~2",
        "x~-1",
        "x~--",
        "x~1,2",
        "x~+1",
        "x~ 1",
        "x~1\n",
        "x~1_0",
        "x~\N{ARABIC-INDIC DIGIT ONE}",
        "\N{LATIN SMALL LETTER E WITH ACUTE}~1",
        "seventeen-letters~1",
        "x~9223372036854775808",
        "x~99999999999999999999",
        "x~9223372036854775808e1",
        "x~1e2147483648",
        "x~1e",
        "x~e1",
        "x~-e1",
        "x~1e-1",
        "x~1e2e3",
        "x~1E2",
        "x~1e12345678901",
    ],
)
def test_any_other_text_is_rejected(text):
    with pytest.raises(InvalidPosition, match=r"is not a position|is over"):
        parse_position(text)


@given(st.text() | st.text("~.-0123456789aeZ_", max_size=30))
def test_any_text_is_a_position_or_rejected(text):
    try:
        position = parse_position(text)
    except InvalidPosition as error:
        assert str(error).startswith(("is ", "has "))  # noqa: PT017 -- half of the texts are positions
    else:
        assert parse_position(format_position(position)) == position


def test_a_position_has_4096_characters_at_most():
    text = "x~" + ".".join(["1"] * 2047) + "2"
    assert len(text) == 4096
    assert format_position(parse_position(text)) == text
    with pytest.raises(PositionTooLong, match="partition"):
        parse_position(text + "3")
    with pytest.raises(PositionTooLong, match="partition"):
        format_position(Position("x", dict.fromkeys(range(2048), 10)))
    with pytest.raises(PositionTooLong):
        format_position(Position("x", {2**31 - 1: 0}))


def test_one_that_would_be_longer_is_given_without_epochs():
    # Its topic's id looks like one.
    offsets = {partition: OffsetAndEpoch(12_345, 678) for partition in range(600)}
    assert format_position(Position("1e2", offsets)) == "1e2~" + ".".join(["12345"] * 600)
    few = dict(list(offsets.items())[:400])
    assert format_position(Position("1e2", few)) == "1e2~" + ".".join(["12345e678"] * 400)


def test_a_reader_of_some_partitions_names_none_behind_them():
    assert format_position(position_after("x", {1: 5, 3: 0})) == "x~-.5.-.0"
    assert format_position(position_after("x", {0: 5, 2: 6}, frozenset({4}))) == "x~5.-.6..-"
    assert format_position(position_after("x", {})) == "x~"


@given(topic_ids, st.dictionaries(st.integers(0, 50), offsets))
def test_a_reader_goes_on_where_it_was(topic_id, read):
    position = parse_position(format_position(position_after(topic_id, read)))
    assert repr(position.offsets) == repr(dict(sorted(read.items())))
    assert position.skipped == set(range(max(read, default=0))) - set(read)
