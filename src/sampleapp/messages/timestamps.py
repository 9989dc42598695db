"""Parsing of timestamps: milliseconds since the epoch, or a date-time of RFC 3339."""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import date
from typing import Final

EARLIEST_NUMBER: Final = 10**11
"""The least number that is taken for milliseconds: 12 digits, in 1973."""
LATEST_NUMBER: Final = 10**14 - 1
"""The greatest number that is taken for milliseconds: 14 digits, in 5138."""
_OTHER_UNITS: Final = ((EARLIEST_NUMBER, "seconds"), (10**17, "microseconds"))
"""Units of the same times, each with the number below which it is meant; nanoseconds above all."""

# Section 5.6; "T" and "Z" may be in lower case there. A space instead of the "T" is not of the grammar.
# The grammar does not limit fractions, but no clock is that precise, and a megabyte of digits takes 60 ms.
_DATE_TIME: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9999}))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_MINUTES_OF_DAY: Final = 24 * 60
_LEAP_SECOND: Final = 60
_MOST_HOURS: Final = 23
_MOST_MINUTES: Final = 59


class InvalidTimestamp(ValueError):
    """A value is not a timestamp. The message says why, as the end of a sentence about the value."""


def parse_timestamp(written: int | str) -> int:
    """
    Parse a timestamp.

    A leap second (``23:59:60`` UTC, on the last day of a month) is the second after it, as in POSIX.
    Fractions of a millisecond are cut off.

    A number of another unit would be a time of 1970 or of the far future. Kafka's retention deletes such a
    record soon after it was acknowledged, or never.

    :param written: milliseconds since the epoch, from `EARLIEST_NUMBER` to `LATEST_NUMBER`, or a date-time
        from 1970 on with an offset (RFC 3339, section 5.6), as ``2026-03-01T12:00:00.5+01:00``.
    :return: milliseconds since the epoch, at least 0.
    :raise InvalidTimestamp: it is not a timestamp, the day or time does not exist, or it is out of range.
    """
    timestamp_ms = _parse_date_time(written) if isinstance(written, str) else written
    if timestamp_ms < 0:
        raise InvalidTimestamp("is before 1970")
    if isinstance(written, int) and not EARLIEST_NUMBER <= written <= LATEST_NUMBER:
        unit = next((unit for limit, unit in _OTHER_UNITS if written < limit), "nanoseconds")
        raise InvalidTimestamp(f"looks like {unit}, not milliseconds: those have 12 to 14 digits")
    return timestamp_ms


def _parse_date_time(text: str) -> int:
    match = _DATE_TIME.fullmatch(text)
    if match is None:
        raise InvalidTimestamp("is not a date-time of RFC 3339 with an offset")
    year, month, day, hour, minute, second, fraction, sign, offset_hours, offset_minutes = match.groups()
    try:
        days = date(int(year), int(month), int(day)).toordinal() - _EPOCH_DAY
    except ValueError as error:
        raise InvalidTimestamp("has a day that does not exist") from error
    hours, minutes, seconds = int(hour), int(minute), int(second)
    if hours > _MOST_HOURS or minutes > _MOST_MINUTES or seconds > _LEAP_SECOND:
        raise InvalidTimestamp("has a time of day that does not exist")
    minutes += days * _MINUTES_OF_DAY + hours * 60
    if sign is not None:
        offset = int(offset_hours), int(offset_minutes)
        if offset > (_MOST_HOURS, _MOST_MINUTES) or offset[1] > _MOST_MINUTES:
            raise InvalidTimestamp("has an offset that does not exist")
        east = offset[0] * 60 + offset[1]
        minutes -= east if sign == "+" else -east
    if seconds == _LEAP_SECOND and not _ends_a_month(minutes):
        raise InvalidTimestamp("has a second 60 that cannot be a leap second")
    return (minutes * 60 + seconds) * 1000 + (0 if fraction is None else int(f"{fraction[:3]:0<3}"))


def _ends_a_month(minutes: int) -> bool:
    """Check for the last minute of a month, in UTC, since 1970: leap seconds are only there."""
    days, minute = divmod(minutes, _MINUTES_OF_DAY)
    if days < 0 or minute != _MINUTES_OF_DAY - 1:
        return False
    day = date.fromordinal(_EPOCH_DAY + days)
    return day.day == monthrange(day.year, day.month)[1]
