"""One ongoing reading of a topic: all its partitions, from their first record on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from sampleapp.brokers.kafka.batches import DEFAULT_MAX_BATCH_BYTES
from sampleapp.brokers.kafka.client import Client
from sampleapp.brokers.kafka.consumer.delivery import Delivery
from sampleapp.brokers.kafka.consumer.discovery import Discovery
from sampleapp.brokers.kafka.consumer.fetching import Fetching
from sampleapp.brokers.kafka.consumer.positions import Partition, Positions
from sampleapp.brokers.shared.condition import Condition
from sampleapp.brokers.shared.pause import Pause
from sampleapp.brokers.shared.waiters import Waiters
from sampleapp.interfaces import IFollowing, IRecordObserver
from sampleapp.model import EARLIEST, Start

__all__ = ["METADATA_INTERVAL_S", "Following"]

METADATA_INTERVAL_S: Final = 10.0
"""How often to look for what has changed in a cluster while nothing hinders anything, in seconds."""
_MAX_LISTED: Final = 5


@implementer(IFollowing)
class Following:
    """
    One reading of one topic, with a client of its own.

    One loop keeps up with the metadata (`Discovery`), and for each broker that leads partitions another one
    reads them (`Fetching`), so that a broker that is slow or dead holds up its own partitions only. What they
    know of the partitions is in `Positions`; what was read goes through `Delivery`.

    A topic that was deleted and made again is read from its first record on, after the observer was told to
    begin anew. That is noticed by its id (KIP-516). Where the brokers have no ids, it is noticed if it was
    missing for a while, has fewer partitions, or has a log that ends before the position; one that comes at
    once and is longer cannot be told from the old one. A log that ends before the position may also be what
    an unclean election has left: the whole topic is read again then, too, so that what was read is what the
    topic has, as it would be after a restart.
    """

    _log = Logger()

    def __init__(
        self,
        *,
        topic: str,
        observer: IRecordObserver,
        new_client: Callable[[], Client],
        clock: IReactorTime,
        condition: Condition,
        start: Start = EARLIEST,
        partition: int | None = None,
        ended: Callable[[Following], None],
        metadata_interval_s: float = METADATA_INTERVAL_S,
        max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
    ) -> None:
        """
        :param new_client: makes the client, which is closed at the end; called once, if the following begins.
        :param condition: learns whether reading works; this following is the part it is told of.
        :param ended: is called when the following was stopped and nothing of it is left running.
        :param metadata_interval_s: seconds until a change that hinders nothing, as a new partition, is
            looked for.
        :param start: where to begin; see `IBroker.follow`.
        :param partition: the only one to read.
        :param max_batch_bytes: how much the records of a batch may take after decompression; a batch that
            takes more is skipped.
        """
        self.topic = topic
        self._new_client = new_client
        self._clock = clock
        self._condition = condition
        self._metadata_interval_s = metadata_interval_s
        self._ended = ended
        self._positions = Positions(start=start, only=partition)
        self._delivery = Delivery(
            topic=topic,
            observer=observer,
            positions=self._positions,
            clock=clock,
            max_batch_bytes=max_batch_bytes,
        )
        self._pause = Pause(clock)
        self._client: Client | None = None
        self._client_closed: Deferred[None] = Deferred()
        self._discovery: Discovery | None = None
        self._fetching: dict[int, Fetching] = {}
        self._fetching_ends: list[Deferred[None]] = []
        self._transactions = _OpenTransactions(topic=topic, condition=condition)
        self._stopped = False
        self._running = False
        self._has_failed = False
        self._stop_waiters: Waiters[None] = Waiters()

    def begin(self) -> None:
        """Begin to read, unless it was stopped already. What is read arrives later."""
        if not self._stopped and not self._running:
            self._running = True
            Deferred.fromCoroutine(self._run())

    def stop(self) -> Deferred[None]:
        """See `IFollowing.stop`."""
        first, self._stopped = not self._stopped, True
        if not self._running:
            self._ended(self)
            return succeed(None)
        waiting = self._stop_waiters.wait()
        if first:
            self._end()
        return waiting

    def obstacle(self) -> str | None:
        """See `IFollowing.obstacle`."""
        if self._stopped or self._discovery is None:
            return None
        if self._has_failed:
            return "The topic is not followed any more."
        obstacle = self._discovery.obstacle or self._positions.obstacle
        if obstacle is not None:
            return obstacle.public
        return self._transactions.public or self._discovery.waits_for

    def is_lasting(self) -> bool:
        """See `IFollowing.is_lasting`: another broker may have what one has lost."""
        return False

    def exists(self) -> bool | None:
        """See `IFollowing.exists`."""
        return self._positions.exists

    def lag(self) -> int | None:
        """See `IFollowing.lag`: offsets up to the high watermarks, those of markers included."""
        return self._positions.lag

    def _end(self) -> None:
        self._delivery.stop()
        self._pause.end()
        if self._discovery is not None:
            self._discovery.stop()
        for fetching in self._fetching.values():
            fetching.stop()
        if self._client is not None:
            # What waits for an answer goes on, and ends, at once.
            self._client.close().addCallback(self._client_closed.callback)

    async def _run(self) -> None:
        # Nothing arrives while `follow` is still running.
        await self._pause.sleep(0)
        if not self._stopped:
            try:
                await self._read(self._new_client())
            except Exception:  # noqa: BLE001 -- nothing cancels this, and it has to be possible to stop it
                self._log.failure("Following topic {topic} has failed", topic=self.topic)
                self._has_failed = True
                self._condition.bad(self, f"The topic {self.topic} is not followed any more; see the log.")
                await self._pause.sleep(None)
        self._condition.forget(self)
        self._transactions.forget()
        self._running = False
        self._ended(self)
        self._stop_waiters.succeed(None)

    async def _read(self, client: Client) -> None:
        """Read until stopped."""
        self._client = client
        self._discovery = Discovery(
            topic=self.topic,
            client=client,
            positions=self._positions,
            clock=self._clock,
            interval_s=self._metadata_interval_s,
            changed=self._changed,
            begin_anew=self._begin_anew,
        )
        await self._discovery.run()
        for end in self._fetching_ends:
            await end
        await self._client_closed

    def _changed(self) -> None:
        """What is known of the partitions is not what it was."""
        for node_id in self._positions.leaders():
            # Looked up each time: one whose first request fails at once gets here again while it begins.
            if node_id not in self._fetching:
                self._begin_fetching(node_id)
        for fetching in list(self._fetching.values()):
            fetching.wake()
        self._report()
        self._delivery.check_caught_up()

    def _begin_anew(self, why: str | None) -> None:
        """
        What was read is not there any more: forget it all.

        :param why: a clause for the log; ``None`` if that has been said.
        """
        if why is not None:
            self._log.warn(
                "{why}; the topic {topic} is read from its first record on", why=why, topic=self.topic
            )
        self._positions.begin_anew()
        self._delivery.begin_anew()

    def _begin_fetching(self, node_id: int) -> None:
        discovery = self._discovery
        if self._stopped or self._client is None or discovery is None:
            return
        fetching = Fetching(
            node_id=node_id,
            topic=self.topic,
            client=self._client,
            positions=self._positions,
            delivery=self._delivery,
            clock=self._clock,
            topic_id=lambda: discovery.topic_id,
            changed=self._changed,
            look_again=discovery.look_again,
            begin_anew=self._begin_anew,
        )
        self._fetching[node_id] = fetching
        self._fetching_ends.append(Deferred.fromCoroutine(fetching.run()))

    def _report(self) -> None:
        if self._stopped or self._discovery is None:
            return
        obstacle = self._discovery.obstacle or self._positions.obstacle
        if obstacle is not None:
            self._condition.bad(self, obstacle.sentence)
        elif self._positions.begun:
            self._condition.good(self)
        self._transactions.hold_up(self._positions.open_transactions(self._clock.seconds()))


class _OpenTransactions:
    """Says once for all partitions that transactions hold up reading, and when that is over."""

    _log = Logger()

    def __init__(self, *, topic: str, condition: Condition) -> None:
        self.public: str | None = None
        """What holds up reading, for any caller."""
        self._topic = topic
        self._condition = condition

    def hold_up(self, partitions: list[Partition]) -> None:
        """Take in which partitions are held up."""
        if not partitions:
            if self.public is not None:
                self._log.info(
                    "The transactions that held up reading the topic {topic} are over", topic=self._topic
                )
            self.forget()
            return
        where = ", ".join(f"{each.number} at offset {each.position}" for each in partitions[:_MAX_LISTED])
        if len(partitions) > _MAX_LISTED:
            where += f" and {len(partitions) - _MAX_LISTED} more"
        first = self.public is None
        self.public = f"An open transaction holds up reading, in partition {where}."
        sentence = f"An open transaction holds up reading the topic {self._topic}, in partition {where}."
        self._condition.expect(self, sentence)
        if first:
            self._log.warn(
                "{sentence} Nothing after it is read until it is committed or aborted; one whose producer is "
                "gone is found and ended with kafka-transactions.sh find-hanging and abort",
                sentence=sentence,
            )

    def forget(self) -> None:
        """Reading is not held up."""
        self.public = None
        self._condition.forget(self)
