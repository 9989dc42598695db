"""The SQLite broker: the parts put together, started and stopped."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IReactorFromThreads, IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from sampleapp.brokers.shared.condition import WRITING, Condition
from sampleapp.brokers.shared.single_partition import single_partition
from sampleapp.brokers.shared.stopping import Stopping
from sampleapp.brokers.sqlite.faults import StoreError
from sampleapp.brokers.sqlite.following import Followings
from sampleapp.brokers.sqlite.rows import require_topic_name
from sampleapp.brokers.sqlite.store import Store
from sampleapp.brokers.sqlite.thread import PrivateThread
from sampleapp.brokers.sqlite.writer import Writer
from sampleapp.errors import BrokerStopped, BrokerUnavailable, IllegalTopic, PublishError
from sampleapp.interfaces import IBroker, IFollowing, IMeasured, IRecordObserver, Outcome
from sampleapp.measures import SQLiteMeasures
from sampleapp.model import EARLIEST, Health, Record, RecordMetadata, Start, TopicDescription

__all__ = ["SQLiteBroker"]

BUFFER_BYTES = 64 * 1024 * 1024
PATIENCE_S = 5.0
ANSWER_TIMEOUT_S = 15.0

_UNLOCK_S = 0.25
_LAST_WAIT_S = 5.0
_NOT_STARTED = "The broker was not started yet."
_STOPPED = "The broker was stopped."


@implementer(IBroker, IMeasured)
class SQLiteBroker:
    """
    Records in one SQLite file, with one partition for each topic and offsets from 0 without gaps.

    A publish is answered after its commit was synced to the disk. Topics come into being by being
    published to. Several processes may use the same file at the same time.
    """

    _log = Logger()

    def __init__(
        self,
        *,
        path: str | Path,
        clock: IReactorTime,
        threads: IReactorFromThreads,
        buffer_bytes: int = BUFFER_BYTES,
        patience_s: float = PATIENCE_S,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        """
        :param path: of the file, which is created when it is missing; its directory has to exist.
        :param clock: for polling and deadlines.
        :param threads: brings results back from the private thread.
        :param buffer_bytes: how much may have been accepted and not yet stored.
        :param patience_s: seconds to wait for another process that has the file locked.
        :param answer_timeout_s: seconds to wait for the disk; well above the patience.
        """
        # Absolute from now on: a daemon changes its directory after its options were read.
        self._store = Store(path=Path(path).absolute(), patience_s=patience_s)
        self._thread = PrivateThread(threads=threads)
        self._condition = Condition()
        self._followings = Followings(
            store=self._store, thread=self._thread, clock=clock, condition=self._condition
        )
        self._writer = Writer(
            store=self._store,
            thread=self._thread,
            clock=clock,
            condition=self._condition,
            buffer_bytes=buffer_bytes,
            answer_timeout_s=answer_timeout_s,
            stored=self._followings.stored,
        )
        self._clock = clock
        self._answer_timeout_s = answer_timeout_s
        self._started = False
        self._stopping = Stopping(clock=clock, work=self._stop, deadline_passed=self._deadline_passed)

    def check(self) -> None:
        """See `IBroker.check`. Leaves nothing open, so that the process may fork afterwards."""
        self._store.check()

    def start(self) -> None:
        """See `IBroker.start`."""
        if self._started or self._stopping.is_requested:
            return
        self._started = True
        self._log.info("Records are kept in {path}", path=str(self._store.path))
        self._thread.start()
        self._writer.start()
        self._followings.start()

    def publish(self, record: Record) -> Deferred[RecordMetadata]:
        """See `IBroker.publish`. A record that is published before the start waits for it."""
        return self._writer.publish(record)

    def publish_many(self, records: Sequence[Record]) -> Deferred[list[Outcome]]:
        """
        See `IBroker.publish_many`. Several hundred records go into one transaction, more into several.

        They give way to others after each hundred.
        """
        return self._writer.publish_many(records)

    def check_topics(self, topics: Collection[str]) -> Deferred[Mapping[str, PublishError]]:
        """See `IBroker.check_topics`. A topic that does not exist comes into being with its first record."""
        against = {topic: self._against(topic) for topic in topics}
        return succeed({topic: error for topic, error in against.items() if error is not None})

    def describe_topics(self, topics: Collection[str] | None = None) -> Deferred[Sequence[TopicDescription]]:
        """See `IBroker.describe_topics`."""
        if not self._started or self._stopping.is_requested:
            return fail(BrokerUnavailable(_STOPPED if self._started else _NOT_STARTED))
        names = None if topics is None else frozenset(topics)
        describing: Deferred[Sequence[TopicDescription]] = Deferred.fromCoroutine(self._describe(names))
        return describing.addTimeout(self._answer_timeout_s, self._clock, onTimeoutCancel=_give_up)

    def follow(
        self,
        *,
        topic: str,
        observer: IRecordObserver,
        start: Start = EARLIEST,
        partition: int | None = None,
    ) -> IFollowing:
        """See `IBroker.follow`."""
        return self._followings.follow(topic=topic, observer=observer, start=start, partition=partition)

    def health(self) -> Health:
        """See `IBroker.health`."""
        return self._condition.health()

    def measures(self) -> SQLiteMeasures:
        """See `IMeasured.measures`."""
        return self._writer.measures()

    def stop(self, *, deadline_s: float) -> Deferred[None]:
        """See `IBroker.stop`. Of several calls the earliest deadline counts."""
        return self._stopping.request(deadline_s=deadline_s)

    def _against(self, topic: str) -> PublishError | None:
        if self._stopping.is_requested:
            return BrokerStopped("The service is stopping.")
        try:
            require_topic_name(topic)
        except IllegalTopic as error:
            return error
        return None

    async def _describe(self, topics: Collection[str] | None) -> Sequence[TopicDescription]:
        try:
            names = await self._thread.run(self._store.topics, topics)
        except StoreError as error:
            raise BrokerUnavailable(error.obstacle) from error
        return [single_partition(name) for name in names]

    def _deadline_passed(self) -> None:
        self._store.abandon()
        self._writer.give_up_queue()
        # What is left is the page or the batch that is running. A batch that waited for a lock is soon
        # known not to have been stored, which is better to know than that it may be.
        self._stopping.later(_UNLOCK_S, self._writer.give_up)
        # Nothing waits for a lock any more, so only a disk that does not answer can take longer.
        self._stopping.later(_LAST_WAIT_S, self._leave_behind)

    def _leave_behind(self) -> None:
        self._log.error("{path} does not answer: its thread is left behind.", path=str(self._store.path))
        self._condition.expect(WRITING, _STOPPED, obstacle=_STOPPED)
        self._stopping.finish()

    async def _stop(self) -> None:
        stopping = Deferred.fromCoroutine(self._followings.stop())
        await self._writer.drain()
        await stopping
        if self._started:
            await self._thread.run(self._store.close)
            self._thread.stop()
        self._condition.expect(WRITING, _STOPPED, obstacle=_STOPPED)


def _give_up(_: object, timeout_s: float) -> NoReturn:
    raise BrokerUnavailable(f"The disk has not answered for {timeout_s:g} seconds.")
