"""Parsing of times on the command line."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime, timedelta, timezone

from sampleapp.messages.timestamps import InvalidTimestamp, parse_timestamp

__all__ = ["MAX_INT64", "date_time", "milliseconds"]

MAX_INT64 = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECONDS = re.compile(r"@(?P<digits>[0-9]{1,19})")


def milliseconds(text: str) -> int | None:
    """
    Parse a time.

    :param text: such as ``2026-11-21T08:00:00Z``, or ``@1795248000000``, in milliseconds since the epoch.
    :return: milliseconds since the epoch; ``None`` if it is not a time, or has no offset from UTC.
    """
    number = _MILLISECONDS.fullmatch(text)
    if number is not None:
        value = int(number["digits"])
        return value if value <= MAX_INT64 else None
    with suppress(InvalidTimestamp):
        return parse_timestamp(text)
    # For example without seconds, or with a space between day and time.
    try:
        # Python 3.10 does not know Z.
        time = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
    except ValueError:
        return None
    return None if time.tzinfo is None else round(time.timestamp() * 1000)


def date_time(timestamp_ms: int) -> datetime:
    """
    Convert milliseconds since the epoch to a time in UTC.

    The service takes numbers of 12 to 14 digits only.

    :raise OverflowError: it is after the year 9999.
    """
    return _EPOCH + timedelta(milliseconds=timestamp_ms)
