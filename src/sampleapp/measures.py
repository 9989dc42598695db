"""
What brokers count, in plain numbers.

Counting has to cost next to nothing, so whoever counts adds to integers of its own, and whoever wants to know
reads them. What they are called where they are shown is no matter of theirs.
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
"""Bounds for what takes time."""
RECORDS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
"""Bounds for how many records there are in something."""
BYTES: Final = (128, 256, 512, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216)
"""Bounds for how large something is."""


class Distribution:
    """How many values there were, by their size, and what they add up to."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """:param bounds: ascending; each is the greatest value that is counted with it."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """How many values there were up to each bound and above the one before; last, those above all."""
        self.total: float = 0
        """The sum of the values."""

    def add(self, value: float) -> None:
        """Count a value; a negative one, which only a clock that was set back brings about, as 0."""
        if value < 0:  # noqa: PLR1730 -- a call of max() takes as long as all the rest
            value = 0
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Waiting(Struct, frozen=True, kw_only=True):
    """What a broker has accepted and not answered yet."""

    records: int
    bytes: int
    """What they take of the limit."""
    limit_bytes: int | None
    """How much may wait; ``None`` where nothing ever waits."""


class Measures(Struct, frozen=True, kw_only=True):
    """What every broker can tell of itself."""

    waiting: Waiting


class KafkaMeasures(Measures, frozen=True, kw_only=True):
    """What the Kafka broker can tell of itself: counted since the start, and as of now."""

    requests: Mapping[tuple[str, int], int]
    """Requests that were sent, by the name of the API and the node id of the broker; a negative one is an
    address whose node id was not known yet."""
    retries: int
    """Batches that were to be sent again because an attempt had failed."""
    batch_records: Distribution
    """Records, of each batch that was sent."""
    batch_bytes: Distribution
    """Bytes, of each batch that was sent, compressed as it was."""
    throttled_s: float
    """How long brokers have asked for a pause because of a quota, in seconds."""
    acknowledgement_s: Distribution
    """From when a Produce request was sent until its answer, in seconds."""


class SQLiteMeasures(Measures, frozen=True, kw_only=True):
    """What the SQLite broker can tell of itself: counted since the start, and as of now."""

    commit_records: Distribution
    """Records, of each transaction that was committed."""
    commit_s: Distribution
    """From when the records were handed to the thread of the file until they were on the disk, in seconds."""
    failed_commits: int
    """Transactions of which nothing was stored, or it is not known."""
    file_bytes: int
    """The size of the file when it was last written to; 0 before that."""
    wal_bytes: int
    """The size of its write-ahead log when it was last written to; 0 before that."""
