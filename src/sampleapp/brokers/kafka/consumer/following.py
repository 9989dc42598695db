"""One ongoing reading of a topic: all its partitions, from their first record on."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from sampleapp.brokers.kafka.client import Client
from sampleapp.brokers.kafka.consumer.delivery import Delivery
from sampleapp.brokers.kafka.consumer.discovery import Discovery
from sampleapp.brokers.kafka.consumer.fetching import Fetching
from sampleapp.brokers.kafka.consumer.positions import Positions
from sampleapp.brokers.shared.condition import Condition
from sampleapp.brokers.shared.pause import Pause
from sampleapp.interfaces import IFollowing, IRecordObserver
from sampleapp.model import EARLIEST, Start

__all__ = ["Following"]


@implementer(IFollowing)
class Following:
    """
    One reading of one topic, with a client of its own.

    One loop keeps up with the metadata (`Discovery`), and for each broker that leads partitions another one
    reads them (`Fetching`), so that a broker that is slow or dead holds up its own partitions only. What they
    know of the partitions is in `Positions`; what was read goes through `Delivery`.

    A log that was replaced by another one, because the topic was deleted and made again, or an unclean
    election has cut it off, is read from its first record, whatever was delivered before. That is noticed
    where the new log ends before the position, or was missing for a while; one that comes at once and is
    longer cannot be told from the old one.
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
        metadata_interval_s: float,
        start: Start = EARLIEST,
        partition: int | None = None,
        ended: Callable[[Following], None],
    ) -> None:
        """
        :param new_client: is called once, if the following begins.
        :param condition: learns whether reading works; this following is the part it is told of.
        :param metadata_interval_s: seconds until a change that hinders nothing, as a new partition, is
            looked for.
        :param start: where to begin; see `IBroker.follow`.
        :param partition: the only one to read.
        :param ended: is called when the following was stopped and nothing of it is left running.
        """
        self.topic = topic
        self._new_client = new_client
        self._clock = clock
        self._condition = condition
        self._metadata_interval_s = metadata_interval_s
        self._ended = ended
        self._positions = Positions(start=start, only=partition)
        self._delivery = Delivery(topic=topic, observer=observer, positions=self._positions, clock=clock)
        self._pause = Pause(clock)
        self._client: Client | None = None
        self._client_closed: Deferred[None] = Deferred()
        self._discovery: Discovery | None = None
        self._fetching: dict[int, Fetching] = {}
        self._fetching_ends: list[Deferred[None]] = []
        self._stopped = False
        self._running = False
        self._stop_waiters: list[Deferred[None]] = []

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
        # Each caller waits for itself: what one does with its Deferred is nothing to the others.
        waiter: Deferred[None] = Deferred()
        self._stop_waiters.append(waiter)
        if first:
            self._end()
        return waiter

    def obstacle(self) -> str | None:
        """See `IFollowing.obstacle`."""
        return None

    def is_lasting(self) -> bool:
        """See `IFollowing.is_lasting`: another broker may have what one has lost."""
        return False

    def exists(self) -> bool | None:
        """See `IFollowing.exists`."""
        return self._positions.exists

    def _end(self) -> None:
        self._delivery.stop()
        self._pause.end()
        if self._discovery is not None:
            self._discovery.stop()
        for fetching in self._fetching.values():
            fetching.stop()
        if self._client is not None:
            # Who waits for an answer goes on, and ends, at once.
            self._client.close().addCallback(self._client_closed.callback)

    async def _run(self) -> None:
        # Nothing arrives while `follow` is still running.
        await self._pause.sleep(0)
        if not self._stopped:
            try:
                await self._read(self._new_client())
            except Exception:  # noqa: BLE001 -- nothing cancels this, and it has to be possible to stop it
                self._log.failure("Following topic {topic} has failed", topic=self.topic)
                self._condition.bad(self, f"The topic {self.topic} is not followed any more; see the log.")
                await self._pause.sleep(None)
        self._condition.forget(self)
        self._running = False
        self._ended(self)
        waiters, self._stop_waiters = self._stop_waiters, []
        for waiter in waiters:
            waiter.callback(None)

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
        )
        await self._discovery.run()
        for end in self._fetching_ends:
            await end
        await self._client_closed

    def _changed(self) -> None:
        """What is known of the partitions is not what it was."""
        for node_id in self._positions.leaders() - self._fetching.keys():
            self._begin_fetching(node_id)
        for fetching in list(self._fetching.values()):
            fetching.wake()
        self._report()
        self._delivery.check_caught_up()

    def _begin_fetching(self, node_id: int) -> None:
        if self._stopped or self._client is None or self._discovery is None:
            return
        fetching = Fetching(
            node_id=node_id,
            topic=self.topic,
            client=self._client,
            positions=self._positions,
            delivery=self._delivery,
            clock=self._clock,
            changed=self._changed,
            look_again=self._discovery.look_again,
        )
        self._fetching[node_id] = fetching
        self._fetching_ends.append(Deferred.fromCoroutine(fetching.run()))

    def _report(self) -> None:
        if self._stopped or self._discovery is None:
            return
        reason = self._discovery.reason or self._positions.reason
        if reason is not None:
            self._condition.bad(self, reason)
        elif self._positions.begun:
            self._condition.good(self)
