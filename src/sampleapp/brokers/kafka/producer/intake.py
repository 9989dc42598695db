"""
Many records on their way in.

They are looked at first, and the room for all of them is reserved; then they are put into the queues. Both
take several turns of the reactor if they are many, so that nobody else has to wait. The queues are kept short
for a while, so that what others publish to the same partitions does not stand behind all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from sampleapp.brokers.kafka.batches import record_size, record_sizes
from sampleapp.brokers.kafka.producer.accumulator import Accumulator
from sampleapp.brokers.kafka.producer.outcomes import Outcomes
from sampleapp.brokers.kafka.producer.partition_queue import Pending
from sampleapp.brokers.kafka.producer.partitioner import hash_keys
from sampleapp.brokers.kafka.producer.results import illegal_topic
from sampleapp.brokers.kafka.producer.topic import Load, Topic
from sampleapp.errors import PublishError, RecordRefused
from sampleapp.interfaces import Outcome
from sampleapp.model import Record

__all__ = ["Intake"]

_AT_ONCE: Final = 1000
"""So many are taken in in one turn, however long it takes: nothing that is published later overtakes them."""
_TURN_S: Final = 0.0005
"""How long one turn may take, in seconds."""
_STEP: Final = 250
"""After so many records the time is looked at."""
_LONG_QUEUE_BYTES: Final = 64 * 1024
"""A queue that has more, together with what is on its way, gets nothing for now."""
_PAUSE_S: Final = 0.001
"""How long to wait where all queues are long, in seconds."""
_PATIENCE: Final = 0.1
"""For which part of the time to deliver records they may wait here, where that time does not run."""


class _Loads:
    """What goes to one topic, by the ways that it goes."""

    __slots__ = ("by_partition", "count", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.count = len(topic.queues)
        self.by_partition: dict[int | None, Load] = {}
        """Under ``None`` what any may get; and everything, while it is not known which there are."""


class Intake:
    """The records of one `sampleapp.interfaces.IBroker.publish_many`, until all of them are in the queues."""

    def __init__(
        self,
        records: Sequence[Record],
        *,
        accumulator: Accumulator,
        worked: Callable[[], None],
        ended: Callable[[Intake], None],
        clock: IReactorTime,
    ) -> None:
        """
        :param records: at least one.
        :param worked: called at the end of each turn, in which the sender may have got something to do.
        :param ended: called when all of them are, or none will be any more.
        """
        self._records = records
        self._accumulator = accumulator
        self._worked = worked
        self._ended = ended
        self._clock = clock
        self._outcomes = Outcomes(len(records))
        self._by_topic: dict[str, _Loads | None] = {}
        """``None`` for a topic whose name is not allowed."""
        self._loads: list[Load] = []
        self._is_reserved = False
        self._steps: Generator[float, None, None] = self._work()
        self._call: IDelayedCall | None = None
        self._now_s = 0.0
        """When the turn began, in seconds of the reactor's clock."""

    def begin(self) -> Deferred[list[Outcome]]:
        """
        Take in what can be taken in at once; the rest follows in the next turns.

        :return: see `sampleapp.interfaces.IBroker.publish_many`.
        """
        self._accumulator.begin_intake()
        self._turn()
        return self._outcomes.done

    def give_up(self, error: PublishError) -> None:
        """Take in no more."""
        if self._call is not None:
            self._call.cancel()
            self._call = None
        self._steps.close()
        if self._is_reserved:
            for load in self._loads:
                self._accumulator.give_back(load, error)
        else:
            self._forget_topics()
            self._outcomes.refuse(error)
        self._end()

    def _turn(self) -> None:
        self._call = None
        clock = self._clock
        self._now_s = clock.seconds()
        until_s = self._now_s + _TURN_S
        for pause_s in self._steps:
            if pause_s or (clock.seconds() >= until_s and self._takes_turns):
                self._call = clock.callLater(pause_s, self._turn)
                break
        else:
            self._end()
        self._worked()

    def _end(self) -> None:
        self._accumulator.end_intake()
        self._ended(self)

    @property
    def _takes_turns(self) -> bool:
        return len(self._records) > _AT_ONCE

    def _work(self) -> Generator[float, None, None]:
        """
        Do all of it.

        :return: yields wherever others may have their turn: how long that has to take, in seconds.
        """
        records = self._records
        for start in range(0, len(records), _STEP):
            self._sort(records[start : start + _STEP], start)
            yield 0
        error = self._accumulator.reserve(self._loads)
        if error is not None:
            self._forget_topics()
            self._outcomes.refuse(error)
            return
        self._is_reserved = True
        yield from self._place(self._loads)

    def _place(self, loads: Sequence[Load]) -> Generator[float, None, None]:
        patient_until_s = self._now_s
        if self._takes_turns:
            patient_until_s += _PATIENCE * self._accumulator.delivery_timeout_s
        while loads:
            pause_s = _PAUSE_S
            for load in loads:
                is_patient = self._now_s < patient_until_s and self._accumulator.outage is None
                if not (is_patient and load.is_behind(_LONG_QUEUE_BYTES)):
                    self._accumulator.place(load, _STEP, now_s=self._now_s)
                    pause_s = 0
                    yield 0
            loads = [load for load in loads if load.records]
            if loads and pause_s:
                yield pause_s

    def _sort(self, records: Sequence[Record], start: int) -> None:
        """Find out which way each record goes, and how much room all that go the same way take."""
        outcomes, by_topic = self._outcomes, self._by_topic
        deadline_s = self._now_s + self._accumulator.delivery_timeout_s
        hashes = hash_keys([record.key for record in records])
        name, loads = None, None
        for index, record, hashed, size in zip(
            range(start, start + len(records)), records, hashes, _sizes(records), strict=True
        ):
            if record.topic != name:
                name = record.topic
                loads = by_topic[name] if name in by_topic else self._loads_of(name)
            if loads is None or size is None:
                outcomes.put(index, illegal_topic() if loads is None else _illegal_header())
                continue
            partition, count = record.partition, loads.count
            if not count:
                partition = None
            elif partition is None:
                if hashed is not None:
                    partition = hashed % count
            elif not 0 <= partition < count:
                outcomes.put(index, self._accumulator.has_no_partition(loads.topic, partition))
                continue
            load = loads.by_partition.get(partition)
            if load is None:
                load = loads.by_partition[partition] = self._load(loads.topic, partition)
            load.size += size
            load.records.append(Pending(record, size, deadline_s, outcomes, index))

    def _loads_of(self, name: str) -> _Loads | None:
        topic = self._accumulator.topic(name)
        loads = self._by_topic[name] = None if topic is None else _Loads(topic)
        return loads

    def _load(self, topic: Topic, partition: int | None) -> Load:
        load = Load(topic, None if partition is None else topic.queues[partition])
        self._loads.append(load)
        return load

    def _forget_topics(self) -> None:
        for name in self._by_topic:
            self._accumulator.forget_unused(name)


def _sizes(records: Sequence[Record]) -> Sequence[int | None]:
    """Return how large records are; ``None`` for one that cannot be encoded."""
    try:
        return record_sizes(records)
    except UnicodeEncodeError:
        return [_size(record) for record in records]


def _size(record: Record) -> int | None:
    try:
        return record_size(record)
    except UnicodeEncodeError:
        return None


def _illegal_header() -> RecordRefused:
    return RecordRefused("The name of a header has no UTF-8 form.")
