"""The feeds of a service: one for each topic that has subscribers or waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from sampleapp.feeds.broadcast import Subscribers
from sampleapp.feeds.feed import Feed
from sampleapp.interfaces import IBroker

_LINGER_S: Final = 30.0
"""A feed is kept for this time after its last use: long polls come back."""


class Feeds:
    """The shared subscription of each topic; created when it is first used."""

    def __init__(
        self,
        broker: IBroker,
        clock: IReactorTime,
        *,
        make_event: Callable[[bytes], Any] = bytes,
        most: int = 100,
    ) -> None:
        """
        :param make_event: makes the event that subscribers receive, from the bytes of whole events. Called
            once for all subscribers of a group.
        :param most: with this number of feeds, an unused one is ended before another is created. Those that
            are used are not limited here.
        """
        self._broker = broker
        self._clock = clock
        self._make_event = make_event
        self._feeds: dict[str, Feed] = {}
        self._ending: dict[str, IDelayedCall] = {}
        self._most = most
        self._is_stopped = False
        self._former_overruns = 0

    def __len__(self) -> int:
        """Return the number of topics that are followed."""
        return len(self._feeds)

    @property
    def overruns(self) -> int:
        """How often the records of a topic came faster than they could be passed on."""
        return self._former_overruns + sum(feed.overruns for feed in self._feeds.values())

    def wait(
        self,
        topic: str,
        positions: Mapping[int, int],
        *,
        topic_id: str = "_",  # noqa: ARG002 -- a topic that was made again ends all waits
        key: bytes | None = None,
        others: bool = True,
        skipped: frozenset[int] = frozenset(),
    ) -> Deferred[bool]:
        """
        Wait for a record. While it waits, nothing is asked of the broker for it.

        :param topic: a topic that exists.
        :param positions: the offset to read next of each partition.
        :param topic_id: the topic's id in the result that the positions are from.
        :param key: the only key to wait for; ``None`` for any record.
        :param others: true to wait also for records of partitions that are not in ``positions``: new ones,
        :param skipped: but for these.
        :return: fires with true when reading again is worth it: there is such a record at or after the
            positions, or there may be, or the topic was made again. Fires with false when the service
            stops. Never fails; cancel it to stop waiting.
        """
        feed = self.feed(topic)
        if feed is None:
            return succeed(False)  # noqa: FBT003 -- see above
        return feed.wait(positions, key=key, others=others, skipped=skipped)

    def epoch(self, topic: str) -> object:
        """Return `Feed.epoch` of a topic's feed; ``None`` if there is none at the moment."""
        feed = self._feeds.get(topic)
        return None if feed is None else feed.epoch

    def feed(self, topic: str) -> Feed | None:
        """
        Return the feed of a topic; create it if there is none, and keep it for half a minute.

        :return: ``None`` after `stop`.
        """
        if self._is_stopped:
            return None
        feed = self._feeds.get(topic)
        if feed is None:
            if len(self._feeds) >= self._most:
                self._end_an_unused_one()
            subscribers = Subscribers(make_event=self._make_event)
            feed = Feed(
                topic, broker=self._broker, clock=self._clock, subscribers=subscribers, unused=self._unused
            )
            self._feeds[topic] = feed
        self._unused(feed)
        return feed

    def stop(self) -> Deferred[None]:
        """Stop all feeds, for good. Waits fire with false; subscribers get nothing more."""
        self._is_stopped = True
        for ending in self._ending.values():
            ending.cancel()
        self._ending.clear()
        feeds, self._feeds = list(self._feeds.values()), {}
        return Deferred.fromCoroutine(_stop_all(feeds))

    def _unused(self, feed: Feed) -> None:
        if self._is_stopped:
            return
        ending = self._ending.get(feed.topic)
        if ending is None:
            self._ending[feed.topic] = self._clock.callLater(_LINGER_S, self._end, feed)
        else:
            ending.reset(_LINGER_S)

    def _end_an_unused_one(self) -> None:
        for feed in self._feeds.values():
            if not feed.is_used and feed.topic in self._ending:
                self._ending[feed.topic].cancel()
                self._end(feed)
                return

    def _end(self, feed: Feed) -> None:
        del self._ending[feed.topic]
        if not feed.is_used and self._feeds.get(feed.topic) is feed:
            del self._feeds[feed.topic]
            self._former_overruns += feed.overruns
            feed.stop()


async def _stop_all(feeds: list[Feed]) -> None:
    for stopping in [feed.stop() for feed in feeds]:
        await stopping
