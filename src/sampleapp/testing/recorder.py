"""An observer that remembers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from zope.interface import implementer

from sampleapp.interfaces import IRecordBatchObserver, IRecordObserver
from sampleapp.model import ConsumerRecord
from sampleapp.testing.waiting import eventually

__all__ = ["BatchRecorder", "Recorder"]


@implementer(IRecordObserver)
class Recorder:
    """Keeps everything that it is told, in order."""

    def __init__(
        self,
        *,
        on_record: Callable[[ConsumerRecord], object] | None = None,
        on_caught_up: Callable[[], object] | None = None,
        on_reset: Callable[[], object] | None = None,
    ) -> None:
        """
        :param on_record: is called with each record, after it was kept.
        :param on_caught_up: is called each time it is told that it has caught up.
        :param on_reset: is called each time it is told that the topic was deleted.
        """
        self.records: list[ConsumerRecord] = []
        """What it was told."""
        self.caught_up_at: list[int] = []
        """How many records there were each time it was told that it has caught up."""
        self.reset_at: list[int] = []
        """How many records there were each time it was told that the topic was deleted."""
        self._on_record = on_record
        self._on_caught_up = on_caught_up
        self._on_reset = on_reset

    def record_received(self, record: ConsumerRecord) -> None:
        """See `IRecordObserver.record_received`."""
        self.records.append(record)
        if self._on_record is not None:
            self._on_record(record)

    def caught_up(self) -> None:
        """See `IRecordObserver.caught_up`."""
        self.caught_up_at.append(len(self.records))
        if self._on_caught_up is not None:
            self._on_caught_up()

    def reset(self) -> None:
        """See `IRecordObserver.reset`."""
        self.reset_at.append(len(self.records))
        if self._on_reset is not None:
            self._on_reset()

    async def until(self, count: int) -> list[ConsumerRecord]:
        """Wait until that many records have come, and it has caught up."""
        await eventually(lambda: len(self.records) >= count and self.caught_up_at)
        return self.records

    def values(self) -> list[bytes | None]:
        """Return the values of the records."""
        return [record.value for record in self.records]


@implementer(IRecordBatchObserver)
class BatchRecorder(Recorder):
    """As `Recorder`, and takes many records at once."""

    def __init__(
        self, *, on_batch: Callable[[Sequence[ConsumerRecord]], object] | None = None, **options: Any
    ) -> None:
        """
        :param on_batch: is called with the records that came at once, after they were kept.
        :param options: of `Recorder`.
        """
        super().__init__(**options)
        self.batches: list[int] = []
        """How many records came at once, each time."""
        self._on_batch = on_batch

    def records_received(self, records: Sequence[ConsumerRecord]) -> None:
        """See `IRecordBatchObserver.records_received`."""
        self.records += records
        self.batches.append(len(records))
        if self._on_batch is not None:
            self._on_batch(records)
