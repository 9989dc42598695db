"""The collection of readings and what is sent of it."""

from __future__ import annotations

import json
import math
import struct

import pytest
from hypothesis import example, given

from sampleapp.readings import NotAReading, Readings
from tests.support import strategies


def collection_of(values):
    readings = Readings()
    for reading_id, value in values.items():
        readings.apply(key=reading_id.encode(), value=repr(value).encode())
    return readings


def bits(number):
    assert type(number) is float
    return struct.pack("<d", number)


@given(strategies.collections)
@example({"": -0.0, "\0": 5e-324, '"\\\N{BOM}': 1.7976931348623157e308, "one": 1.0})
def test_both_versions_list_the_same_values_in_the_same_order_bit_for_bit(values):
    readings = collection_of(values)
    version_1 = json.loads(readings.representation(1).body)
    version_2 = json.loads(readings.representation(2).body)

    assert [bits(value) for value in values.values()] == [bits(value) for value in version_1]
    assert [bits(value) for value in values.values()] == [bits(item["value"]) for item in version_2]
    assert list(values) == [item["id"] for item in version_2]
    assert all(list(item) == ["id", "value"] for item in version_2)


@given(strategies.collections)
def test_equal_states_have_equal_tags_and_the_versions_never_share_one(values):
    ours, theirs = collection_of(values), collection_of(values)
    assert ours.representation(1).etag == theirs.representation(1).etag
    assert ours.representation(2).etag == theirs.representation(2).etag
    assert ours.representation(1).etag != ours.representation(2).etag


@given(strategies.collections, strategies.ids, strategies.finite_numbers)
def test_a_tag_changes_exactly_when_the_bytes_do(values, reading_id, value):
    readings = collection_of(values)
    before = [readings.representation(version) for version in (1, 2)]
    readings.apply(key=reading_id.encode(), value=repr(value).encode())
    after = [readings.representation(version) for version in (1, 2)]
    for old, new in zip(before, after, strict=True):
        assert (old.etag == new.etag) == (old.body == new.body)


def test_a_state_is_encoded_once():
    readings = collection_of({"kitchen": 21.5})
    first = readings.representation(1)
    readings.apply(key=b"kitchen", value=b" 21.50\n")
    readings.apply(key=b"cellar", value=None)
    assert readings.representation(1) is first


def test_zero_and_minus_zero_are_different_readings():
    readings = collection_of({"a": 0.0})
    readings.apply(key=b"a", value=b"-0")
    assert readings.representation(1).body == b"[-0.0]"


def test_a_whole_number_is_sent_as_a_floating_point_number():
    assert collection_of({"a": 19.0}).representation(1).body == b"[19.0]"


def test_an_update_keeps_the_place_and_a_removed_reading_comes_back_last():
    readings = collection_of({"a": 1.0, "b": 2.0})
    readings.apply(key=b"a", value=b"3")
    assert readings.representation(1).body == b"[3.0,2.0]"
    readings.apply(key=b"a", value=None)
    assert readings.representation(1).body == b"[2.0]"
    readings.apply(key=b"a", value=b"4")
    assert readings.representation(1).body == b"[2.0,4.0]"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"21.5", 21.5),
        (b"-3", -3.0),
        (b"+1e3", 1000.0),
        (b".5", 0.5),
        (b"5.", 5.0),
        (b" 7\r\n", 7.0),
        (b"1E-2", 0.01),
    ],
)
def test_a_number_may_be_written_as_people_and_programs_do(text, number):
    readings = Readings()
    readings.apply(key=b"a", value=text)
    assert json.loads(readings.representation(1).body) == [number]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"nan",
        b"NaN",
        b"inf",
        b"-Infinity",
        b"1e999",
        b"-1e999",
        b"1_000",
        b"0x10",
        b"21,5",
        b"21.5 C",
        b"1 2",
        "\N{ARABIC-INDIC DIGIT ONE}".encode(),
        b"\xff",
        b"1\0",
        b"e5",
        b".",
        b"true",
        b'"1"',
    ],
)
def test_what_is_no_finite_number_never_becomes_a_reading(text):
    readings = collection_of({"a": 1.0})
    with pytest.raises(NotAReading, match="value"):
        readings.apply(key=b"a", value=text)
    assert readings.representation(1).body == b"[1.0]"


@pytest.mark.parametrize(("key", "why"), [(None, "no key"), (b"\xff", "not UTF-8")])
def test_a_record_without_a_usable_key_is_no_reading(key, why):
    readings = Readings()
    for value in (b"1", None):
        with pytest.raises(NotAReading, match=why):
            readings.apply(key=key, value=value)
    assert len(readings) == 0


@given(strategies.finite_numbers)
def test_every_finite_number_survives_as_text(number):
    readings = collection_of({"a": number})
    (value,) = json.loads(readings.representation(1).body)
    assert math.copysign(1, value) == math.copysign(1, number)
    assert value == number
