"""The state of one partition during one read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sampleapp.brokers.kafka.batches import TooLargeBatch
from sampleapp.brokers.kafka.consumer.offsets import Extent, first_offset
from sampleapp.brokers.kafka.protocol import follow_divergence
from sampleapp.concurrency.rates import Backoff
from sampleapp.model import (
    ConsumerRecord,
    FromOffset,
    GoneRecords,
    OffsetAndEpoch,
    ReadStart,
    epoch_of,
    with_epoch,
)

_RETRY: Final = Backoff(first_s=0.05, max_s=0.5)
_BEYOND_AFTER_S: Final = 2.0
"""A position counts as beyond the end after this time, in seconds: a former leader may still answer."""


class PartitionRead:
    """One partition: its position, its end, its records, and the reason for which it cannot be read."""

    def __init__(self, number: int, start: ReadStart, *, check: bool, log_start: int = 0) -> None:
        """
        :param check: compare the position with the extent of the partition before anything is read.
        :param log_start: the first offset of the partition, as far as it is known from earlier reads.
        """
        self.number = number
        self.start = start
        self.position: int | None = start if isinstance(start, int) else None
        """The offset to read next; ``None`` until the start is resolved."""
        self.assumed: int | None = None
        """An offset that is fetched in order to resolve the start: the response confirms it."""
        if isinstance(start, FromOffset) and not check:
            self.assumed = max(start.offset, log_start)
        self.end: int | None = None
        """The last stable offset."""
        self.is_held = False
        """``True`` if there are records after the last stable offset."""
        self.is_settled = False
        """``True`` if there is nothing more to do in this read."""
        self.is_unverified = check and epoch_of(self.position or 0) >= 0
        """``True`` if a response to a Fetch must confirm that the log was not cut before the position."""
        self.is_suspect = (check and not self.is_unverified) or (
            self.position is None and self.assumed is None
        )
        """``True`` if its extent must be asked for before it is read."""
        self.gone: GoneRecords | None = None
        self.beyond: int | None = None
        """The end of the log, or of the leader epoch of the position, if the position is beyond it."""
        self.records: list[ConsumerRecord] = []
        self.source: Iterator[ConsumerRecord | TooLargeBatch | int | None] = iter(())
        """The undecoded rest of the last response; see `sampleapp.brokers.kafka.batches.read_gradually`."""
        self.failures = 0
        self.failure: str | None = None
        """The reason why it could not be read at the last attempt, for any caller."""
        self.retry_at_s = 0.0
        self.empty_responses = 0
        """Answers in a row without a record before the end."""
        self.short_responses = 0
        """Answers in a row with no whole batch."""
        self._beyond_since_s: float | None = None

    @property
    def offset(self) -> int | None:
        """The offset to fetch from, with its epoch; ``None`` while ListOffsets must resolve the start."""
        if self.position is None:
            return self.assumed
        # Not at each record, since that would be slow.
        last = self.records[-1] if self.records else None
        return self.position if last is None or last.offset + 1 != self.position else last.next_offset

    @property
    def is_being_confirmed(self) -> bool:
        """``True`` while its position seems to be beyond the end."""
        return self._beyond_since_s is not None

    @property
    def is_up_to_date(self) -> bool:
        """``True`` if the position is at the last stable offset."""
        return self.position is not None and self.end is not None and self.position >= self.end

    @property
    def has_moved(self) -> bool:
        """``True`` unless it is still where the caller has asked for it."""
        return self.position != self.start

    def fail(self, failure: str, *, now_s: float) -> None:
        """Note an error, and back off: each time longer."""
        self.failures += 1
        self.failure = failure
        self.retry_at_s = now_s + _RETRY.delay_s(self.failures)

    def succeed(self) -> None:
        """Note a response without an error."""
        self.failures = 0
        self.failure = None

    def confirm(self, log_start: int) -> bool:
        """
        Resolve the start, an offset that is in the log.

        :param log_start: the first offset of the log; -1 if it is not known.
        :return: ``False`` if the log begins earlier than was known: then fetch from there.
        """
        if self.position is not None or self.assumed is None:
            return True
        first = max(log_start, self.start.offset if isinstance(self.start, FromOffset) else 0)
        if first < self.assumed:
            self.assumed = first
            return False
        self.position = self.assumed if self.end is None else min(self.assumed, self.end)
        return True

    def follow_divergence(self, end: OffsetAndEpoch) -> None:
        """Compare the position with the end of its leader epoch in the log; see `Fetched.diverging`."""
        position = follow_divergence(self.offset or 0, end)
        if position is None:
            self._settle_beyond(end)
        else:
            self.position = position

    def locate(self, extent: Extent, *, now_s: float) -> bool:
        """
        Resolve the start, or compare the position with the extent.

        :return: ``False`` if the position is beyond the end, as far as this broker knows. It counts as
            beyond after a while, in which other brokers should be asked.
        """
        self.end = extent.stable
        self.is_held = extent.stable < extent.latest
        if self.position is None:
            self.position = self._first_offset(extent)
        elif self.position < extent.earliest:
            # Records that were read before are returned first, and the next read tells of the others.
            if not self.records:
                self.gone = GoneRecords(self.number, int(self.position), extent.earliest)
            self.is_settled = True
        elif self.position > extent.latest or 0 <= extent.leader_epoch < epoch_of(self.offset or 0):
            if self._beyond_since_s is None:
                self._beyond_since_s = now_s
            if now_s - self._beyond_since_s < _BEYOND_AFTER_S:
                return False
            self._settle_beyond(with_epoch(extent.latest, extent.leader_epoch))
        else:
            # The leader may have no epochs, as with `message.format.version` 0.10.
            self.position = int(self.position)
        self._beyond_since_s = None
        self.is_suspect = False
        return True

    def _first_offset(self, extent: Extent) -> int:
        if isinstance(self.start, int):
            return self.start
        first, end = first_offset(self.start, extent), extent.readable_end
        return first if first <= end else with_epoch(end, extent.leader_epoch)

    def _settle_beyond(self, end: int) -> None:
        # Records that were read before are returned first, and the next read tells of the others.
        if not self.records:
            self.beyond = end
        self.is_settled = True
