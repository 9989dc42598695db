"""
The follower of the readings' topics, and the encoding of the readings: once for all requests that wait.

They are encoded in several turns of the reactor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import CooperativeTask, Cooperator, TaskStopped
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from sampleapp.concurrency.slices import cooperator_on
from sampleapp.errors import ReadingsNotReady
from sampleapp.interfaces import IBroker, IRecordBatchObserver, ISubscription
from sampleapp.model import MEDIA_TYPES, ConsumerRecord, Version
from sampleapp.readings import NotAReading, Readings, Representation, Snapshot
from sampleapp.readings.changes import Changes

ENCODED_AT_ONCE: Final = 256 * 1024
"""Work in one turn of the reactor, as `Snapshot.encode` counts it: some 4,000 readings, in 1 to 3 ms."""


class SharedEncoding:
    """
    The encoding of one collection in one version.

    One snapshot is encoded at a time. A request that arrives during this time shares it. If a reading has
    changed since the snapshot was taken, the request waits for the next one, which is taken when this one is
    encoded. So no request gets a state that is older than itself, and at most two snapshots have requests
    waiting, however many requests arrive while readings change.
    """

    def __init__(
        self,
        readings: Readings,
        version: Version,
        *,
        cooperator: Cooperator,
        at_once: int = ENCODED_AT_ONCE,
    ) -> None:
        """
        :param cooperator: see `sampleapp.concurrency.slices.cooperator_on`.
        :param at_once: the work to do in one turn of the reactor; see `Snapshot.encode`.
        """
        self._readings = readings
        self._version = version
        self._cooperator = cooperator
        self._at_once = at_once
        self._snapshot: Snapshot | None = None
        self._task: CooperativeTask[Iterator[None]] | None = None
        self._stopped_because = ""
        # For the snapshot that is being encoded, and for the one after it.
        self._served: list[Deferred[Representation]] = []
        self._waiting: list[Deferred[Representation]] = []

    def representation(self) -> Representation | Deferred[Representation]:
        """
        Return the current collection, or a Deferred if encoding takes more than one turn of the reactor.

        The Deferred fires with the collection as it was at one moment, now or later. It fails with
        `ReadingsNotReady` when `stop` is called. Cancelling it stops the waiting only.

        :raise ReadingsNotReady: encoding takes more than one turn, and `stop` was called.
        """
        made = self._readings.encoded_representation(self._version)
        if made is not None:
            return made
        waiting: Deferred[Representation] = Deferred()
        if self._snapshot is not None:
            is_current = self._readings.is_current(self._snapshot)
            (self._served if is_current else self._waiting).append(waiting)
            return waiting
        snapshot = self._readings.snapshot(self._version)
        if snapshot.encode(at_once=self._at_once):
            return snapshot.representation()
        if self._stopped_because:
            raise ReadingsNotReady(self._stopped_because)
        self._snapshot = snapshot
        self._served.append(waiting)
        self._task = self._cooperator.cooperate(self._work(snapshot))
        self._task.whenDone().addErrback(self._fail)
        return waiting

    def stop(self, reason: str) -> None:
        """Stop encoding; requests that wait fail with `ReadingsNotReady`, which says the reason."""
        self._stopped_because = reason
        if self._task is not None:
            # Cooperator.stop() would stop the tasks of other encodings, too.
            self._task.stop()

    def _work(self, snapshot: Snapshot) -> Iterator[None]:
        while self._served:
            while not snapshot.encode(at_once=self._at_once):
                yield
            representation = snapshot.representation()
            while self._served:
                self._served.pop(0).callback(representation)
                # Sending the beginning of a large response takes some milliseconds, too.
                yield
            self._served, self._waiting = self._waiting, []
            if self._served:
                self._snapshot = snapshot = self._readings.snapshot(self._version)
        self._snapshot = self._task = None

    def _fail(self, failure: Failure) -> None:
        if failure.check(TaskStopped):
            failure = Failure(ReadingsNotReady(self._stopped_because))
        failed = [*self._served, *self._waiting]
        self._served, self._waiting, self._snapshot = [], [], None
        self._task = None
        for waiting in failed:
            waiting.errback(failure)


_ENCODED_AT_ONCE: Final = 512 * 1024
"""As `ENCODED_AT_ONCE`, for both versions together: some 5,000 readings, in 2 to 4 ms."""
_STILL_READ: Final = "The stored readings are still being read; ask again."
_LOG_INTERVAL_S: Final = 10.0
"""The least time between two log lines about skipped records: a topic may hold nothing else."""


@implementer(IRecordBatchObserver)
class ReadingsFollower:
    """The readings of one topic, from its first record on."""

    _log = Logger()

    def __init__(self, *, broker: IBroker, topic: str, clock: IReactorTime) -> None:
        """
        :param topic: the topic whose records are the readings.
        :param clock: schedules encoding and log lines.
        """
        self._broker = broker
        self._topic = topic
        self._clock = clock
        self._cooperator = cooperator_on(clock)
        self.changes = Changes(clock=clock, unavailable_reason=self.unavailable_reason)
        """The changes of the readings, also after the topic was deleted and created again."""
        self._begin()
        self._subscription: ISubscription | None = None
        self._encoding: IDelayedCall | None = None
        self._log_again: IDelayedCall | None = None
        self._skipped_since_logged = 0
        self.skipped = 0
        """The number of records that were skipped since the start, for metrics."""

    def _begin(self) -> None:
        self._is_complete = False
        self._readings = Readings()
        self.changes.use(self._readings)
        self._encodings = {
            version: SharedEncoding(self._readings, version, cooperator=self._cooperator)
            for version in MEDIA_TYPES
        }

    def start(self) -> None:
        """Begin to follow the topic."""
        self._subscription = self._broker.follow(topic=self._topic, observer=self)

    def stop(self) -> Deferred[None]:
        """Stop following; fires with ``None`` when nothing is left running, and never fails."""
        self._stop_encoding("The service is stopping.")
        self.changes.ignore()
        if self._log_again is not None:
            self._log_again.cancel()
            self._log_again = None
            if self._skipped_since_logged > 0:
                self._log_skipped()
        return succeed(None) if self._subscription is None else self._subscription.stop()

    @property
    def lag(self) -> int | None:
        """The number of records that are not read yet, if it is known. See `ISubscription.lag`."""
        return None if self._subscription is None else self._subscription.lag()

    @property
    def is_complete(self) -> bool:
        """True once all records have been read that the topic had at the start, or when created again."""
        return self._is_complete

    @property
    def count(self) -> int:
        """The number of readings."""
        return len(self._readings)

    def unavailable_reason(self) -> str | None:
        """
        Return the reason why readings are not served.

        :return: sentences that may be shown to any caller: the reason why not all records have been read that
            were in the topic at the start, or when it was created again. ``None`` when readings are served.
        """
        if self._is_complete:
            return None
        unavailable_reason = None if self._subscription is None else self._subscription.unavailable_reason()
        if unavailable_reason is None:
            return _STILL_READ
        return f"{unavailable_reason} The readings are served once all of them have been read."

    def representation(self, version: Version) -> Representation | Deferred[Representation]:
        """
        Return the current collection, or a Deferred if encoding takes more than one turn of the reactor.

        The Deferred fires with the collection as it was at one moment, now or later, or fails with
        `ReadingsNotReady`; see `SharedEncoding`.

        :raise ReadingsNotReady: not all records have been read that were in the topic at the start, or when
            it was created again. Its message has the reason, if there is one.
        """
        unavailable_reason = None if self._is_complete else self.unavailable_reason()
        if unavailable_reason is not None:
            raise ReadingsNotReady(unavailable_reason)
        return self._readings.encoded_representation(version) or self._encodings[version].representation()

    def record_received(self, record: ConsumerRecord) -> None:
        """Apply one record to the collection, or skip it; see `IRecordObserver`."""
        try:
            self._readings.apply(record)
        except NotAReading as reason:
            self._skip(record, reason)

    def records_received(self, records: Sequence[ConsumerRecord]) -> None:
        """Apply some records to the collection, or skip them; see `IRecordBatchObserver`."""
        for record, reason in self._readings.apply_all(records):
            self._skip(record, reason)

    def caught_up(self) -> None:
        """Serve the readings as soon as all are encoded; see `IRecordObserver`."""
        # Encode now: otherwise the first request for a million readings would wait for half a second.
        self._encode(self._readings.encode(at_once=_ENCODED_AT_ONCE))

    def _encode(self, steps: Iterator[None]) -> None:
        self._encoding = None
        try:
            for _ in steps:
                self._encoding = self._clock.callLater(0, self._encode, steps)
                return
        except Exception:  # noqa: BLE001 -- in that case, requests encode the readings
            self._log.failure(
                "Encoding the readings of the topic {topic} failed; the first request for them encodes them",
                topic=self._topic,
            )
        self._is_complete = True
        self.changes.complete()
        self._log.info(
            "Serving {count} readings of the topic {topic}.", count=len(self._readings), topic=self._topic
        )

    def _stop_encoding(self, reason: str) -> None:
        for shared in self._encodings.values():
            shared.stop(reason)
        if self._encoding is not None:
            self._encoding.cancel()
            self._encoding = None

    def reset(self) -> None:
        """Start again without readings; see `IRecordObserver`."""
        self._log.warn(
            "The {count} readings of the topic {topic} are discarded. It is read from its first record on, "
            "as soon as it exists.",
            topic=self._topic,
            count=len(self._readings),
        )
        self._stop_encoding(_STILL_READ)
        self._begin()

    def _skip(self, record: ConsumerRecord, reason: NotAReading) -> None:
        self.skipped += 1
        self._skipped_since_logged += 1
        self._last_skipped = record, str(reason)
        if self._log_again is None:
            self._log_skipped_and_wait()

    def _log_skipped_and_wait(self) -> None:
        self._log_again = None
        if self._skipped_since_logged > 0:
            self._log_skipped()
            self._log_again = self._clock.callLater(_LOG_INTERVAL_S, self._log_skipped_and_wait)

    def _log_skipped(self) -> None:
        record, reason = self._last_skipped
        self._log.warn(
            "Skipped {count} record(s) of the topic {topic} that are not readings; the last one at partition "
            "{partition}, offset {offset}: {reason}.",
            count=self._skipped_since_logged,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            reason=reason,
        )
        self._skipped_since_logged = 0
