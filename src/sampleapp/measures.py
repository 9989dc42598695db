"""
The counts and distributions that a broker reports about itself.

Counting must cost next to nothing: a broker adds to integers of its own, and a reader reads them. Their names
in Prometheus are in `sampleapp.metrics.families`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

__all__ = [
    "BYTES",
    "RECORDS",
    "SECONDS",
    "Distribution",
    "KafkaMeasures",
    "Measures",
    "SQLiteMeasures",
    "Waiting",
]

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bounds for durations."""
RECORDS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
"""Bounds for numbers of records."""
BYTES: Final = (128, 256, 512, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216)
"""Bounds for sizes."""


class Distribution:
    """A histogram: the number of values between bounds, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """:param bounds: ascending; a bound is the greatest value of its own bucket."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """The number of values up to each bound and above the one before; last, those above all bounds."""
        self.total: float = 0
        """The sum of the values."""

    def add(self, value: float) -> None:
        """Count a value; a negative one, which only a clock that was set back causes, as 0."""
        if value < 0:  # noqa: PLR1730 -- a call of max() takes as long as all the rest
            value = 0
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Waiting(Struct, frozen=True, kw_only=True):
    """The records that a broker has accepted and not answered yet."""

    records: int
    bytes: int
    """Their memory, as it counts towards the limit."""
    limit_bytes: int | None
    """The limit; ``None`` for a broker in which nothing ever waits."""


class Measures(Struct, frozen=True, kw_only=True):
    """The measures of every broker."""

    waiting: Waiting


class KafkaMeasures(Measures, frozen=True, kw_only=True):
    """The measures of the Kafka broker: counts since the start, and current values."""

    requests: Mapping[tuple[str, int], int]
    """Requests that were sent, by the name of the API and the node id of the broker; a negative id stands for
    an address whose node id was not known yet."""
    retries: int
    """Batches that had to be sent again because an attempt had failed."""
    batch_records: Distribution
    """The number of records of each batch that was sent."""
    batch_bytes: Distribution
    """The bytes of each batch that was sent, after compression."""
    throttled_s: float
    """The seconds of pause that brokers have asked for because of a quota."""
    acknowledgement_s: Distribution
    """The seconds from sending a Produce request until its response."""
    clock_ahead_s: float | None
    """The seconds by which the clock of this service is ahead of Kafka's; ``None`` if not known."""


class SQLiteMeasures(Measures, frozen=True, kw_only=True):
    """The measures of the SQLite broker: counts since the start, and current values."""

    commit_records: Distribution
    """The number of records of each transaction that was committed."""
    commit_s: Distribution
    """The seconds from handing records to the thread of the file until they were on the disk."""
    failed_commits: int
    """Transactions that were not stored, or not for certain."""
    file_bytes: int
    """The size of the file when it was last written to; 0 before that."""
    wal_bytes: int
    """The size of its write-ahead log when that was last written to; 0 before that."""
