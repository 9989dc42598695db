"""Open streams and waiting pages: their limits, the rights of their callers, and their numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Final, TypeAlias

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from sampleapp.access import AccessError, Caller, Right, TooManyStreamsOfCaller
from sampleapp.web.gate import TO_CONSUME, Gate, Grant
from sampleapp.web.request_errors import TooManyStreams, TooManyTopics
from sampleapp.web.server import Limits, Request

__all__ = ["RIGHT_LOST", "OnRightLost", "OpenStream", "OpenStreams", "StreamKind", "StreamNumbers"]

RIGHT_LOST: Final = "right"
"""The reason for the end of a stream whose caller has lost its right."""

_CHECK_S: Final = 1.0
"""Rights are checked every second, so that a stream ends within 5 s, also if there are 10,000 to check."""
_SLICE_S: Final = 0.002
_CHECKED_BETWEEN_CLOCK_READS: Final = 100
"""Streams without a change, which take 20 microseconds."""
_CHECKED_AT_ONCE: Final = 2000
_RETRY_AFTER_S: Final = 30.0

OnRightLost: TypeAlias = Callable[[AccessError], None]
"""Called at most once, in a turn of its own, with the error that the same request would get now."""


class StreamKind(Enum):
    """The kind of a long answer: the label ``kind`` of metrics."""

    RECORDS = "records"
    """A stream of the records of a topic."""
    CHANGES = "changes"
    """A stream of the readings as they change (``/changes``)."""
    PAGE = "page"
    """A page that waits for its first record. Pages have places of their own beside streams."""

    @property
    def in_words(self) -> str:
        """The plural, for refusals."""
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
    """The place of one stream or waiting page, which its source holds until it is closed."""

    __slots__ = ("_grant", "_is_closed", "_is_lost", "_on_right_lost", "_streams", "kind", "place", "topic")

    def __init__(
        self,
        streams: OpenStreams,
        *,
        kind: StreamKind,
        place: tuple[bool, str],
        topic: str | None,
        grant: Grant | None,
        on_right_lost: OnRightLost,
    ) -> None:
        self._streams = streams
        self._grant = grant
        self._on_right_lost = on_right_lost
        self._is_closed = False
        self._is_lost = False
        self.kind = kind
        self.place = place
        """The group of places that it counts in: True for pages, and the name of the caller."""
        self.topic = topic
        """The topic that is followed for it; ``None`` for the readings."""

    @property
    def numbers(self) -> StreamNumbers:
        """The numbers of all streams of this kind."""
        return self._streams.numbers[self.kind]

    @property
    def must_be_checked(self) -> bool:
        """True if the caller may have lost its right."""
        return not (self._is_closed or self._is_lost or self._grant is None or self._grant.is_current)

    def check(self) -> None:
        """Check the right of the caller in full, and end the stream if it is lost."""
        if self._grant is None:
            return
        try:
            self._grant.check()
        except AccessError as error:
            self._is_lost = True
            self._on_right_lost(error)

    def close(self, reason: str) -> None:
        """
        Give the place back. Only the first call has an effect.

        :param reason: the reason for the end: one of a few fixed words, for metrics.
        """
        if not self._is_closed:
            self._is_closed = True
            # It refers to the source of the stream, which refers to this place.
            self._on_right_lost = _ignore
            self._streams.remove(self, RIGHT_LOST if self._is_lost else reason)


class OpenStreams:
    """All open streams and waiting pages of the service."""

    _log = Logger()

    def __init__(
        self, *, clock: IReactorTime, gate: Gate | None = None, limits: Limits | None = None
    ) -> None:
        """
        :param clock: schedules the checks of rights, while there is a stream.
        :param gate: knows the rights of callers; by default any caller has all rights, and no limit of its
            own.
        """
        limits = Limits() if limits is None else limits
        self.limit = limits.max_streams
        """The most streams, and the most waiting pages."""
        self._most_topics = limits.max_followed_topics
        self._limit_per_caller = limits.max_streams_per_caller
        self._clock = clock
        self._gate = gate
        self._open: set[OpenStream] = set()
        self._places: Counter[bool] = Counter()
        self._places_of_callers: Counter[tuple[bool, str]] = Counter()
        self._topics: Counter[str] = Counter()
        self._timer: IDelayedCall | None = None
        self.numbers: dict[StreamKind, StreamNumbers] = {kind: StreamNumbers() for kind in StreamKind}
        """The numbers of each kind."""
        self.refusals: Counter[str] = Counter(
            {"max-streams": 0, "max-streams-per-caller": 0, "max-followed-topics": 0}
        )
        """Streams and pages that were refused since the start, by the option that is the limit."""

    def open_records(self, request: Request, topic: str, on_right_lost: OnRightLost) -> OpenStream:
        """
        Take a place for a stream of the records of a topic.

        :raise TooManyStreams: all places are taken.
        :raise TooManyTopics: streams and waiting pages read too many other topics.
        :raise AccessError: the caller has too many streams, or has lost its right since it was admitted.
        """
        return self._take(StreamKind.RECORDS, request, partial(_may_consume, topic), on_right_lost, topic)

    def open_page(self, request: Request, topic: str, on_right_lost: OnRightLost) -> OpenStream:
        """Take a place for a page that waits for a record of a topic. Raises as `open_records` does."""
        return self._take(StreamKind.PAGE, request, partial(_may_consume, topic), on_right_lost, topic)

    def open_changes(self, request: Request, on_right_lost: OnRightLost) -> OpenStream:
        """Take a place for a stream of the readings. Raises as `open_records` does."""
        return self._take(StreamKind.CHANGES, request, _may_read, on_right_lost)

    def _take(
        self,
        kind: StreamKind,
        request: Request,
        may: Callable[[Caller], bool],
        on_right_lost: OnRightLost,
        topic: str | None = None,
    ) -> OpenStream:
        grant = None if self._gate is None else self._gate.grant(request, may)
        is_page = kind is StreamKind.PAGE
        if self._places[is_page] >= self.limit:
            self.refusals["max-streams"] += 1
            raise TooManyStreams(self.limit, what=kind.in_words)
        if topic is not None and topic not in self._topics and len(self._topics) >= self._most_topics:
            self.refusals["max-followed-topics"] += 1
            raise TooManyTopics(self._most_topics)
        place = is_page, "" if grant is None else grant.caller.name
        if grant is not None:
            limit = self._limit_of(grant.caller)
            if self._places_of_callers[place] >= limit:
                self.refusals["max-streams-per-caller"] += 1
                raise TooManyStreamsOfCaller(limit, what=kind.in_words, retry_after_s=_RETRY_AFTER_S)
            self._places_of_callers[place] += 1
        self._places[is_page] += 1
        self.numbers[kind].open += 1
        if topic is not None:
            self._topics[topic] += 1
        stream = OpenStream(
            self, kind=kind, place=place, topic=topic, grant=grant, on_right_lost=on_right_lost
        )
        self._open.add(stream)
        if grant is not None and self._timer is None:
            self._timer = self._clock.callLater(_CHECK_S, self._check_all)
        return stream

    def _limit_of(self, caller: Caller) -> int:
        return self._limit_per_caller if caller.max_streams is None else caller.max_streams

    def remove(self, stream: OpenStream, reason: str) -> None:
        """Take a stream that has ended from the open ones; for `OpenStream.close`, which is called once."""
        numbers, place = self.numbers[stream.kind], stream.place
        self._open.discard(stream)
        numbers.open -= 1
        numbers.ended[reason] += 1
        self._places[place[0]] -= 1
        if stream.topic is not None:
            self._topics[stream.topic] -= 1
            if not self._topics[stream.topic]:
                del self._topics[stream.topic]
        if place in self._places_of_callers:
            self._places_of_callers[place] -= 1
            if not self._places_of_callers[place]:
                # Issuers can make any number of callers.
                del self._places_of_callers[place]
        if not self._open and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_all(self) -> None:
        self._check_some(list(self._open))

    def _check_some(self, left: list[OpenStream]) -> None:
        """Check the streams in slices, between which requests are served; then wait for the next time."""
        # It is this call that runs, and the last stream may end in it.
        self._timer = None
        until_s = self._clock.seconds() + _SLICE_S
        for _ in range(_CHECKED_AT_ONCE // _CHECKED_BETWEEN_CLOCK_READS):
            some = left[-_CHECKED_BETWEEN_CLOCK_READS:]
            del left[-_CHECKED_BETWEEN_CLOCK_READS:]
            while some:
                stream = some.pop()
                if stream.must_be_checked:
                    self._check(stream)
                    if self._clock.seconds() >= until_s:
                        left += some
                        break
            if not left or self._clock.seconds() >= until_s:
                break
        if self._open:
            delay_s, then = (0.0, partial(self._check_some, left)) if left else (_CHECK_S, self._check_all)
            self._timer = self._clock.callLater(delay_s, then)

    def _check(self, stream: OpenStream) -> None:
        try:
            stream.check()
        except Exception:  # noqa: BLE001 -- whatever it was, the rights of the others are checked
            self._log.failure("A fault in ending a stream whose caller has lost its right")


def _ignore(_error: AccessError) -> None:
    pass


def _may_consume(topic: str, caller: Caller) -> bool:
    return TO_CONSUME.is_granted(caller, topic)


def _may_read(caller: Caller) -> bool:
    return caller.has(Right.READ)
