"""Open streams and waiting pages: their limits, the rights of their callers, and their numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum
from functools import partial
from random import Random
from typing import Final, TypeAlias, TypeVar

from twisted.internet.interfaces import IReactorTime

from sampleapp.access import AccessError, Caller, Right, TooManyStreamsOfCaller
from sampleapp.concurrency.sliced_work import Rounds
from sampleapp.web.access_control import TO_CONSUME, AccessControl, Grant
from sampleapp.web.errors import TooManyStreams, TooManyTopics
from sampleapp.web.server import Limits, Request

__all__ = [
    "RIGHT_LOST",
    "OnRightLost",
    "OpenStream",
    "OpenStreams",
    "StreamKind",
    "StreamNumbers",
    "WaitingPage",
]

RIGHT_LOST: Final = "right"
"""The reason for the end of a stream whose caller has lost its right."""

_VISIT_S: Final = 1.0
"""Rights are checked every second, so that a stream ends within 5 s, also if there are 10,000 to check."""
_RETRY_AFTER_S: Final = 30.0

OnRightLost: TypeAlias = Callable[[AccessError], None]
"""Called at most once, in a turn of its own, with the error that the same request would get now."""


T = TypeVar("T")


class StreamKind(Enum):
    """The kind of a long response: the label ``kind`` of metrics."""

    RECORDS = "records"
    """A stream of the records of a topic."""
    CHANGES = "changes"
    """A stream of the readings as they change (``/changes``)."""
    PAGE = "page"
    """A page that waits for its first record. Pages have slots of their own beside streams."""

    @property
    def in_words(self) -> str:
        """The plural, for rejections."""
        return "waiting pages" if self is StreamKind.PAGE else "streams"


class StreamNumbers:
    """The numbers of one kind of streams. The code that sends events adds to them directly."""

    __slots__ = ("behind", "bytes", "ended", "events", "open")

    def __init__(self) -> None:
        self.open = 0
        """Streams that are open now."""
        self.behind = 0
        """Open streams that read for themselves, since they are not up to date."""
        self.events = 0
        """Events that were sent since the start, heartbeats included."""
        self.bytes = 0
        """Bytes of these events."""
        self.ended: Counter[str] = Counter()
        """Streams that ended since the start, by the reason."""


class OpenStream:
    """A stream or a waiting page: its slot among those that are open, and the right of its caller."""

    __slots__ = ("_grant", "_is_closed", "_is_lost", "kind", "slot", "streams", "topic")

    def __init__(
        self, streams: OpenStreams, *, kind: StreamKind, request: Request | None, topic: str | None = None
    ) -> None:
        """
        Take a slot, until `close` is called.

        :param request: its caller must have, and keep, the right to read; may be ``None`` where all callers
            have all rights.
        :param topic: the topic that is followed for it; ``None`` for the readings.
        :raise TooManyStreams: all slots are taken.
        :raise TooManyTopics: streams and waiting pages read too many other topics.
        :raise AccessError: the caller has too many streams, or has lost its right since it was admitted.
        """
        self.streams = streams
        self.kind = kind
        self.topic = topic
        self._is_closed = self._is_lost = False
        self._grant = streams.grant(kind, request, topic)
        self.slot = streams.slot_of(kind, self._grant)
        """The group of slots that it counts in: True for pages, and the name of the caller."""
        streams.add(self)

    def right_lost(self, error: AccessError) -> None:
        """
        End: the caller has lost its right.

        :param error: the error that the same request would get now.
        """

    def visit(self, now_s: float) -> None:
        """
        Check the right of the caller; called every second.

        :param now_s: the time of the reactor's clock, in seconds.
        """
        grant = self._grant
        if grant is None or self._is_lost or grant.is_current:
            return
        try:
            grant.check()
        except AccessError as error:
            self._is_lost = True
            self.right_lost(error)

    def abort(self, reason: str) -> None:
        """End at once, after a fault."""

    def close(self, reason: str) -> None:
        """
        Give the slot back. Only the first call has an effect.

        :param reason: the reason for the end: one of a few fixed words, for metrics.
        """
        if not self._is_closed:
            self._is_closed = True
            self.streams.remove(self, RIGHT_LOST if self._is_lost else reason)


class WaitingPage(OpenStream):
    """The slot of a page that waits for a record of a topic."""

    __slots__ = ("_on_right_lost",)

    def __init__(
        self, streams: OpenStreams, request: Request, topic: str, on_right_lost: OnRightLost
    ) -> None:
        """Take a slot; see `OpenStream`."""
        super().__init__(streams, kind=StreamKind.PAGE, request=request, topic=topic)
        self._on_right_lost = on_right_lost

    def right_lost(self, error: AccessError) -> None:
        """End the wait."""
        self._on_right_lost(error)


class OpenStreams:
    """All open streams and waiting pages of the service."""

    def __init__(
        self,
        *,
        clock: IReactorTime,
        access_control: AccessControl | None = None,
        limits: Limits | None = None,
        random: Random | None = None,
    ) -> None:
        """
        :param clock: measures the life of each stream.
        :param access_control: knows the rights of callers; by default any caller has all rights, and no limit
            of its own.
        :param random: spreads the times at which clients come back.
        """
        limits = Limits() if limits is None else limits
        self.limit = limits.max_streams
        """The most streams, and the most waiting pages."""
        self._most_topics = limits.max_followed_topics
        self._limit_per_caller = limits.max_streams_per_caller
        self.clock = clock
        self.random = Random() if random is None else random  # noqa: S311 -- not a secret
        self._access_control = access_control
        self._open: Rounds[OpenStream] = Rounds(
            clock,
            lambda stream: stream.visit(clock.seconds()),
            fault="A fault in a stream or a waiting page; a stream's connection was cut",
            on_fault=lambda stream: stream.abort("fault"),
            every_s=_VISIT_S,
        )
        self._slots: Counter[bool] = Counter()
        self._slots_by_caller: Counter[tuple[bool, str]] = Counter()
        self._topics: Counter[str] = Counter()
        self.numbers: dict[StreamKind, StreamNumbers] = {kind: StreamNumbers() for kind in StreamKind}
        """The numbers of each kind."""
        self.rejections: Counter[str] = Counter(
            {"max-streams": 0, "max-streams-per-caller": 0, "max-followed-topics": 0}
        )
        """Streams and pages that were rejected since the start, by the option that is the limit."""

    def __len__(self) -> int:
        return len(self._open)

    # For the streams.

    def grant(self, kind: StreamKind, request: Request | None, topic: str | None) -> Grant | None:
        """Check that one more may be opened; see `OpenStream`. Return the right of its caller."""
        may = _may_read if topic is None else partial(_may_consume, topic)
        grant = (
            None
            if self._access_control is None or request is None
            else self._access_control.grant(request, may)
        )
        is_page, name = self.slot_of(kind, grant)
        if self._slots[is_page] >= self.limit:
            self.rejections["max-streams"] += 1
            raise TooManyStreams(self.limit, what=kind.in_words)
        if topic is not None and topic not in self._topics and len(self._topics) >= self._most_topics:
            self.rejections["max-followed-topics"] += 1
            raise TooManyTopics(self._most_topics)
        if grant is not None:
            most = grant.caller.max_streams
            limit = self._limit_per_caller if most is None else most
            if self._slots_by_caller[is_page, name] >= limit:
                self.rejections["max-streams-per-caller"] += 1
                raise TooManyStreamsOfCaller(limit, what=kind.in_words, retry_after_s=_RETRY_AFTER_S)
        return grant

    @staticmethod
    def slot_of(kind: StreamKind, grant: Grant | None) -> tuple[bool, str]:
        """Return `OpenStream.slot`."""
        return kind is StreamKind.PAGE, "" if grant is None else grant.caller.name

    def add(self, stream: OpenStream) -> None:
        """Add a stream that was granted."""
        self._slots[stream.slot[0]] += 1
        self._slots_by_caller[stream.slot] += 1
        self.numbers[stream.kind].open += 1
        if stream.topic is not None:
            self._topics[stream.topic] += 1
        self._open.add(stream)

    def remove(self, stream: OpenStream, reason: str) -> None:
        """Remove a stream that has ended; for `OpenStream.close`, which calls it once."""
        self._open.discard(stream)
        numbers = self.numbers[stream.kind]
        numbers.open -= 1
        numbers.ended[reason] += 1
        self._slots[stream.slot[0]] -= 1
        # Issuers can make any number of callers.
        _take_one(self._slots_by_caller, stream.slot)
        if stream.topic is not None:
            _take_one(self._topics, stream.topic)


def _take_one(counter: Counter[T], key: T) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


def _may_consume(topic: str, caller: Caller) -> bool:
    return TO_CONSUME.is_granted(caller, topic)


def _may_read(caller: Caller) -> bool:
    return caller.has(Right.READ)
