"""Times for the client."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

__all__ = ["date_time"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def date_time(timestamp_ms: int) -> datetime:
    """
    Convert milliseconds since the epoch to a time in UTC.

    The service takes numbers of 12 to 14 digits only.

    :raise OverflowError: it is after the year 9999.
    """
    return _EPOCH + timedelta(milliseconds=timestamp_ms)
