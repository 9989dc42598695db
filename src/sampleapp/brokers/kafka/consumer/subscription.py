"""The following of one topic: wires discovery, fetching and delivery."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import UUID

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from sampleapp.brokers.kafka.batches import DEFAULT_MAX_BATCH_BYTES
from sampleapp.brokers.kafka.consumer.consumer import Consumer
from sampleapp.brokers.kafka.consumer.delivery import Delivery
from sampleapp.brokers.kafka.consumer.discovery import Discovery
from sampleapp.brokers.kafka.consumer.partition import FollowedPartition, Positions
from sampleapp.brokers.kafka.protocol import Fetched
from sampleapp.brokers.shared.health import HealthTracker
from sampleapp.concurrency.waiting import Pause, Waiters
from sampleapp.interfaces import IRecordObserver, ISubscription
from sampleapp.model import EARLIEST, FromOffsets, Start

METADATA_INTERVAL_S: Final = 10.0
"""The time between two loads of metadata without errors, in seconds."""
_CHECK_S: Final = 0.5
"""The interval of checks while the passing of time alone may change something, in seconds."""
_MAX_LISTED: Final = 5


@implementer(ISubscription)
class Subscription:
    """
    Reads one topic.

    A loop loads the metadata (`Discovery`). `Positions` has the state of the partitions. The fetchers of
    their leaders read them, for all subscriptions (`Consumer`), so a slow or dead broker delays only its own
    partitions. `Delivery` passes records to the observer.

    A topic that was deleted and created again is read from its first record on, after the observer was told
    to discard all records. The new topic is recognised by its id (KIP-516). If the brokers have no topic ids,
    it is recognised if the topic was missing for a while, has fewer partitions, or has a log that ends before
    the position; a longer topic that is created at once cannot be told from the old one. A log may also be
    cut before the position, as by an unclean leader election, and grow again, which its leader finds by the
    epoch of the position (KIP-320): then the whole topic is read again, too, so that the observer has what
    the topic has, as after a restart.
    """

    _log = Logger()

    def __init__(
        self,
        *,
        topic: str,
        observer: IRecordObserver,
        consumer: Consumer,
        clock: IReactorTime,
        health_tracker: HealthTracker,
        start: Start | FromOffsets = EARLIEST,
        partition: int | None = None,
        ended: Callable[[Subscription], None],
        metadata_interval_s: float = METADATA_INTERVAL_S,
        max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
    ) -> None:
        """
        :param consumer: has the connections and the fetchers.
        :param health_tracker: keeps the state of reading; this subscription is one of its parts.
        :param ended: called when the following was stopped and nothing of it is running any longer.
        :param metadata_interval_s: the time between two loads of metadata without errors, in seconds. New
            partitions are found by them.
        :param start: see `IBroker.follow`.
        :param partition: the only partition to read; ``None`` for all.
        :param max_batch_bytes: maximum size of a batch after decompression; a larger one is skipped.
        """
        self.topic = topic
        self._consumer = consumer
        self._clock = clock
        self._health_tracker = health_tracker
        self._metadata_interval_s = metadata_interval_s
        self._ended = ended
        self._positions = Positions(follower=self, start=start, only=partition)
        self._delivery = Delivery(
            topic=topic,
            observer=observer,
            positions=self._positions,
            clock=clock,
            max_batch_bytes=max_batch_bytes,
        )
        self._pause = Pause(clock)
        self._discovery: Discovery | None = None
        self._check: IDelayedCall | None = None
        self._transactions = _OpenTransactions(topic=topic, health_tracker=health_tracker)
        self._stopped = False
        self._running = False
        self._has_failed = self._has_joined = False
        self._stop_waiters: Waiters[None] = Waiters()

    def begin(self) -> None:
        """Begin to read, unless it was stopped already. Records arrive in later turns of the reactor."""
        if not self._stopped and not self._running:
            self._running = True
            Deferred.fromCoroutine(self._run())

    def stop(self) -> Deferred[None]:
        """See `ISubscription.stop`."""
        first, self._stopped = not self._stopped, True
        if not self._running:
            self._ended(self)
            return succeed(None)
        waiting = self._stop_waiters.wait()
        if first:
            self._end()
        return waiting

    def unavailable_reason(self) -> str | None:
        """See `ISubscription.unavailable_reason`."""
        if self._stopped or self._discovery is None:
            return None
        if self._has_failed:
            return "The topic is not followed any longer."
        failure = self._discovery.failure or self._positions.failure
        if failure is not None:
            return failure.public
        return self._transactions.public or self._discovery.waits_for

    def is_lasting(self) -> bool:
        """See `ISubscription.is_lasting`. Never: after an error, another broker may have the records."""
        return False

    def exists(self) -> bool | None:
        """See `ISubscription.exists`."""
        return self._positions.exists

    def lag(self) -> int | None:
        """See `ISubscription.lag`. It counts offsets up to the high watermarks, including control records."""
        return self._positions.lag

    # Follower

    @property
    def topic_id(self) -> UUID | None:
        """See `Follower.topic_id`."""
        return None if self._discovery is None else self._discovery.topic_id

    def start_in(self, partition: int) -> Start:
        """See `Follower.start_in`."""
        return self._positions.start_in(partition)

    def tell_located(self, partition: FollowedPartition, *, before: int | None) -> None:
        """See `Follower.tell_located`."""
        self._delivery.tell_located(partition, before=before)

    async def deliver(self, partition: FollowedPartition, fetched: Fetched, *, began_s: float) -> None:
        """See `Follower.deliver`."""
        self._delivery.begin_slice(began_s)
        await self._delivery.deliver(partition, fetched)

    def changed(self) -> None:
        """See `Follower.changed`. A fault must not end the loop that calls this."""
        try:
            self._report()
            self._delivery.check_caught_up()
        except Exception:  # noqa: BLE001 -- any fault; reading goes on, and this is called again
            self._log.failure("Updating the partitions of topic {topic} failed", topic=self.topic)

    def refresh_metadata(self) -> None:
        """See `Follower.refresh_metadata`."""
        if self._discovery is not None:
            self._discovery.refresh()

    def reset(self, why: str | None) -> None:
        """See `Follower.reset`. Without a reason, it has been logged."""
        if why is not None:
            self._log.warn(
                "{why}. The topic {topic} is read again from its first record on", why=why, topic=self.topic
            )
        self._positions.reset()
        self._delivery.reset()

    # Running

    def _end(self) -> None:
        self._delivery.stop()
        self._pause.end()
        self._positions.reset()
        if self._discovery is not None:
            self._discovery.stop()
        if self._check is not None:
            self._check.cancel()
            self._check = None

    async def _run(self) -> None:
        # No record may arrive before `IBroker.follow` has returned.
        await self._pause.sleep(0)
        if not self._stopped:
            try:
                await self._read()
            except Exception:  # noqa: BLE001 -- any fault: `stop` must still work
                self._log.failure(
                    "Following topic {topic} has failed. It is not read until the service is restarted",
                    topic=self.topic,
                )
                self._has_failed = True
                self._positions.reset()
                self._health_tracker.expect(
                    self, f"The topic {self.topic} is not followed any longer; see the log."
                )
                await self._pause.sleep(None)
        if self._has_joined:
            await self._delivery.ended()
            await self._consumer.leave(self.topic)
        self._health_tracker.forget(self)
        self._consumer.log.ended(self)
        self._transactions.forget()
        self._running = False
        self._ended(self)
        self._stop_waiters.succeed(None)

    async def _read(self) -> None:
        """Read until stopped."""
        client = self._consumer.join(self.topic)
        self._has_joined = True
        self._discovery = Discovery(
            topic=self.topic,
            client=client,
            positions=self._positions,
            clock=self._clock,
            interval_s=self._metadata_interval_s,
            changed=self._assign,
            reset=self.reset,
        )
        await self._discovery.run()

    def _assign(self) -> None:
        """Have the partitions read from their leaders. A fault must not end the loop that calls this."""
        try:
            for partition in list(self._positions):
                self._consumer.assign(partition)
            self._consumer.wake()
        except Exception:  # noqa: BLE001 -- any fault; this is called again
            self._log.failure("Updating the partitions of topic {topic} failed", topic=self.topic)
        self.changed()

    def _check_later(self) -> None:
        self._check = None
        self.changed()

    def _report(self) -> None:
        if self._stopped or self._discovery is None:
            return
        failure = self._discovery.failure or self._positions.failure
        if failure is not None:
            self._health_tracker.expect(self, failure.sentence)
            self._consumer.log.failed(self, self.topic, failure)
        elif self._positions.begun:
            self._health_tracker.forget(self)
            self._consumer.log.recovered(self)
        now_s = self._clock.seconds()
        self._transactions.update(self._positions.open_transactions(now_s))
        if self._check is None and self._positions.is_pending(now_s):
            self._check = self._clock.callLater(_CHECK_S, self._check_later)


class _OpenTransactions:
    """Logs, once for all partitions, that open transactions block reading, and the end of that."""

    _log = Logger()

    def __init__(self, *, topic: str, health_tracker: HealthTracker) -> None:
        self.public: str | None = None
        """The reason why reading is blocked, for any caller; ``None`` if it is not."""
        self._topic = topic
        self._health_tracker = health_tracker

    def update(self, partitions: list[FollowedPartition]) -> None:
        """Set the partitions that are blocked."""
        if not partitions:
            if self.public is not None:
                self._log.info(
                    "No open transaction blocks reading the topic {topic} any longer.", topic=self._topic
                )
            self.forget()
            return
        where = ", ".join(f"{each.number} at offset {each.position}" for each in partitions[:_MAX_LISTED])
        if len(partitions) > _MAX_LISTED:
            where += f" and {len(partitions) - _MAX_LISTED} more"
        first = self.public is None
        self.public = f"An open transaction blocks reading, in partition {where}."
        sentence = f"An open transaction blocks reading the topic {self._topic}, in partition {where}."
        self._health_tracker.expect(self, sentence)
        if first:
            self._log.warn(
                "{sentence} Records after it are not read until it is committed or aborted. If its producer "
                "does not run any longer, use kafka-transactions.sh find-hanging, and then abort.",
                sentence=sentence,
            )

    def forget(self) -> None:
        """Note that reading is not blocked."""
        self.public = None
        self._health_tracker.forget(self)
