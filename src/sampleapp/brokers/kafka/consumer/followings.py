"""All followings of a broker, from its start to its stop."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from sampleapp.brokers.kafka.client import Client
from sampleapp.brokers.kafka.consumer.following import Following
from sampleapp.brokers.shared.condition import Condition
from sampleapp.interfaces import IFollowing, IRecordObserver
from sampleapp.model import EARLIEST, Start

__all__ = ["Followings"]

_METADATA_INTERVAL_S = 10.0


class Followings:
    """Whoever follows a topic of this broker."""

    def __init__(
        self,
        *,
        new_client: Callable[[], Client],
        clock: IReactorTime,
        condition: Condition,
        metadata_interval_s: float = _METADATA_INTERVAL_S,
    ) -> None:
        """
        :param new_client: makes the client of one following, which closes it at its end.
        :param condition: learns of each following whether it works.
        :param metadata_interval_s: seconds until a new partition of a topic is found, at most.
        """
        self._new_client = new_client
        self._clock = clock
        self._condition = condition
        self._metadata_interval_s = metadata_interval_s
        self._all: list[Following] = []
        self._started = False
        self._stopped = False

    def follow(
        self,
        *,
        topic: str,
        observer: IRecordObserver,
        start: Start = EARLIEST,
        partition: int | None = None,
    ) -> IFollowing:
        """See `IBroker.follow`. Nothing is read before `start`; after `stop` it is stopped already."""
        following = Following(
            topic=topic,
            observer=observer,
            start=start,
            partition=partition,
            new_client=self._new_client,
            clock=self._clock,
            condition=self._condition,
            metadata_interval_s=self._metadata_interval_s,
            ended=self._forget,
        )
        if self._stopped:
            following.stop()
            return following
        self._all.append(following)
        if self._started:
            following.begin()
        return following

    def start(self) -> None:
        """Begin to read for those who follow already, and for those to come."""
        self._started = True
        for following in list(self._all):
            following.begin()

    def stop(self) -> Deferred[None]:
        """
        Stop all of them, for ever.

        :return: fires with ``None`` once nothing of them is left running. Never fails.
        """
        self._stopped = True
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        for stopping in [following.stop() for following in list(self._all)]:
            await stopping

    def _forget(self, following: Following) -> None:
        if following in self._all:
            self._all.remove(following)
