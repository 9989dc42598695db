"""Observers that record their calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from zope.interface import implementer

from sampleapp.interfaces import IPositionObserver, IRecordBatchObserver, IRecordObserver
from sampleapp.model import ConsumerRecord
from sampleapp_testing.waiting import eventually

__all__ = ["BatchRecorder", "PositionRecorder", "Recorder"]


@implementer(IRecordObserver)
class Recorder:
    """An observer that records all calls, in order."""

    def __init__(
        self,
        *,
        on_record: Callable[[ConsumerRecord], object] | None = None,
        on_caught_up: Callable[[], object] | None = None,
        on_reset: Callable[[], object] | None = None,
    ) -> None:
        """
        :param on_record: is called with each record, after it was recorded.
        :param on_caught_up: is called at each call of `caught_up`.
        :param on_reset: is called at each call of `reset`.
        """
        self.records: list[ConsumerRecord] = []
        """The records that it received."""
        self.caught_up_at: list[int] = []
        """The number of records at each call of `caught_up`."""
        self.reset_at: list[int] = []
        """The number of records at each call of `reset`."""
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
        """Wait until this number of records has been received, and `caught_up` was called."""
        await eventually(lambda: len(self.records) >= count and self.caught_up_at)
        return self.records

    def values(self) -> list[bytes | None]:
        """Return the values of the records."""
        return [record.value for record in self.records]


@implementer(IRecordBatchObserver)
class BatchRecorder(Recorder):
    """A `Recorder` that takes batches of records."""

    def __init__(
        self, *, on_batch: Callable[[Sequence[ConsumerRecord]], object] | None = None, **options: Any
    ) -> None:
        """
        :param on_batch: is called with each batch, after it was recorded.
        :param options: of `Recorder`.
        """
        super().__init__(**options)
        self.batches: list[int] = []
        """The number of records of each batch."""
        self._on_batch = on_batch

    def records_received(self, records: Sequence[ConsumerRecord]) -> None:
        """See `IRecordBatchObserver.records_received`."""
        self.records += records
        self.batches.append(len(records))
        if self._on_batch is not None:
            self._on_batch(records)


@implementer(IPositionObserver)
class PositionRecorder(BatchRecorder):
    """A `BatchRecorder` that is told of positions."""

    def __init__(self, **options: Any) -> None:
        """:param options: of `BatchRecorder`."""
        super().__init__(**options)
        self.begun: dict[int, int] = {}
        """The last offset of `begun_at`, by partition."""
        self.positions: dict[int, int] = {}
        """The offset to come next, by partition."""

    def records_received(self, records: Sequence[ConsumerRecord]) -> None:
        """See `IRecordBatchObserver.records_received`."""
        partition = records[0].partition
        assert records[0].offset >= self.positions[partition], "a record that was passed"
        self.positions[partition] = records[-1].offset + 1
        super().records_received(records)

    def begun_at(self, partition: int, offset: int) -> None:
        """See `IPositionObserver.begun_at`."""
        self.begun[partition] = self.positions[partition] = offset

    def passed(self, partition: int, offset: int) -> None:
        """See `IPositionObserver.passed`."""
        assert offset > self.positions[partition], "it goes back"
        self.positions[partition] = offset

    def reset(self) -> None:
        """See `IRecordObserver.reset`."""
        self.begun, self.positions = {}, {}
        super().reset()
