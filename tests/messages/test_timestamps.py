"""Which texts and numbers are timestamps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.messages.timestamps import InvalidTimestamp, parse_timestamp
from tests.support import strategies

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

offsets = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda minutes: timezone(timedelta(minutes=minutes)))
# An offset may move a time to the day before or after; datetime must have that day.
moments = st.datetimes(datetime(1970, 1, 3), datetime(9999, 12, 29), timezones=offsets)  # noqa: DTZ001 -- they get one


@given(moments, st.sampled_from("Tt"))
def test_a_date_time_with_an_offset_is_read_to_the_millisecond(moment, separator):
    expected = (moment - EPOCH) // timedelta(milliseconds=1)
    assert parse_timestamp(moment.isoformat(separator)) == expected


@given(strategies.numbers_of_time)
def test_milliseconds_are_taken_as_they_are(timestamp_ms):
    assert parse_timestamp(timestamp_ms) == timestamp_ms


@pytest.mark.parametrize(
    ("text", "timestamp_ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t00:00:00z", 0),
        ("1970-01-01T00:00:00-00:00", 0),
        ("1970-01-01T23:59:00+23:59", 0),
        ("1970-01-01T00:00:00.0009999Z", 0),
        ("1970-01-01T00:00:00.5Z", 500),
        (f"1970-01-01T00:00:00.123{'9' * 5000}Z", 123),
        ("2000-02-29T00:00:00Z", 951_782_400_000),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000),
        ("2016-12-31T23:59:60.25Z", 1_483_228_800_250),
        ("1990-12-31T15:59:60-08:00", 662_688_000_000),
        ("2017-01-01T00:59:60+01:00", 1_483_228_800_000),
        ("9999-12-31T23:59:59.999-23:59", 253_402_387_139_999),
    ],
)
def test_the_corners_of_the_grammar_are_read(text, timestamp_ms):
    assert parse_timestamp(text) == timestamp_ms


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (-1, "is before 1970"),
        (-1_795_363_727_918, "is before 1970"),
        ("1969-12-31T23:59:59.9999Z", "is before 1970"),
        ("1970-01-01T00:00:00+00:01", "is before 1970"),
        ("0001-01-01T00:00:00+23:59", "is before 1970"),
        ("0000-01-01T00:00:00Z", "has a day that does not exist"),
        ("2026-02-29T00:00:00Z", "has a day that does not exist"),
        ("2026-13-01T00:00:00Z", "has a day that does not exist"),
        ("2026-01-01T24:00:00Z", "has a time of day that does not exist"),
        ("2026-01-01T00:60:00Z", "has a time of day that does not exist"),
        ("2026-01-01T00:00:61Z", "has a time of day that does not exist"),
        ("2026-01-01T00:00:00+24:00", "has an offset that does not exist"),
        ("2026-01-01T00:00:00+01:60", "has an offset that does not exist"),
        ("2016-12-31T23:59:60+01:00", "has a second 60 that cannot be a leap second"),
        ("2016-12-30T23:59:60Z", "has a second 60 that cannot be a leap second"),
        ("0001-01-01T00:00:60+23:59", "has a second 60 that cannot be a leap second"),
        ("9999-12-31T23:59:60-23:59", "has a second 60 that cannot be a leap second"),
        *[
            (text, "is not a date-time of RFC 3339 with an offset")
            for text in (
                *(
                    "",
                    "now",
                    "2026-01-01",
                    "2026-01-01T00:00:00",
                    "2026-01-01 00:00:00Z",
                    "2026-01-01T00:00Z",
                ),
                f"2026-01-01T00:00:00.{'0' * 10_000}Z",
                *("2026-01-01T00:00:00.Z", "2026-01-01T00:00:00,5Z", "2026-01-01T00:00:00+0100"),
                *("20260101T000000Z", "2026-01-01T00:00:00Z\n", " 2026-01-01T00:00:00Z", "1700000000000"),
                *(
                    "2026-01-01T00:00:00+01",
                    "٢٠٢٦-01-01T00:00:00Z",
                    "12026-01-01T00:00:00Z",
                    "-2026-01-01T00:00:00Z",
                ),
            )
        ],
    ],
)
def test_what_is_no_timestamp_is_told_why(written, why):
    with pytest.raises(InvalidTimestamp, match=why):
        parse_timestamp(written)


@given(
    st.sampled_from(
        [
            *[("seconds", 1), ("milliseconds", 10**3), ("microseconds", 10**6), ("nanoseconds", 10**9)],
        ]
    ),
    st.integers(10**8, 10**11 - 1),
)
def test_a_time_in_another_unit_is_rejected_with_the_name_of_its_unit(unit, seconds):
    name, factor = unit
    if name == "milliseconds":
        assert parse_timestamp(seconds * factor) == seconds * 1000
    else:
        with pytest.raises(InvalidTimestamp, match=f"looks like {name}, not milliseconds"):
            parse_timestamp(seconds * factor)


@given(st.integers(0, 2**70) | st.integers(0, 10**15))
def test_a_number_is_a_time_exactly_if_it_has_12_to_14_digits(number):
    if len(str(number)) in (12, 13, 14):
        assert parse_timestamp(number) == number
    else:
        with pytest.raises(InvalidTimestamp, match="those have 12 to 14 digits"):
            parse_timestamp(number)


@given(st.text("0123456789-+:.TtZz ", max_size=35) | st.text())
def test_any_text_is_a_timestamp_or_rejected(text):
    try:
        timestamp_ms = parse_timestamp(text)
    except InvalidTimestamp:
        return
    assert 0 <= timestamp_ms < 2**63
