"""Pages of the records of a topic: lines of JSON, and the position to continue at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from itertools import chain, groupby, repeat
from operator import attrgetter
from typing import Final
from urllib.parse import quote_from_bytes

from msgspec import Struct
from twisted.internet.defer import CancelledError, Deferred, TimeoutError  # noqa: A004 -- Twisted's
from twisted.internet.interfaces import IReactorTime

from sampleapp.concurrency.slices import TimeSlices
from sampleapp.errors import SampleAppError, forget_frames
from sampleapp.feeds import Feeds
from sampleapp.model import HEADER_BYTES, ConsumerRecord, ReadResult
from sampleapp.records.positions import Cursor
from sampleapp.records.read_parameters import (
    DEFAULT_LIMIT,
    PageParameters,
)
from sampleapp.records.record_lines import record_lines
from sampleapp.web.access_control import AuthorizedTopic
from sampleapp.web.read.registry import LongPoll, OpenStreams, StreamKind
from sampleapp.web.read.topic_reads import ReadTurn, ReadTurns, TopicReads
from sampleapp.web.responses import Headers, Response
from sampleapp.web.server import Request

_PAGE_BYTES: Final = 1024 * 1024
"""About the most bytes of keys, values and headers in a page."""
_RECORD_BYTES: Final = 256
"""The memory of a record besides that of its key, value and headers, in bytes."""
_MORE_OF_HEADER: Final = 160 - HEADER_BYTES
"""The memory of a header besides its part of `ConsumerRecord.size`, in bytes."""

_MOST_SEARCHED: Final = 100_000
"""The most records that one request with a key looks at."""
_MOST_SEARCHED_BYTES: Final = 16 * 1024 * 1024
_SEARCHED_AT_ONCE: Final = 5000
"""Records of one read: to look for a key in them takes a millisecond or two."""
_MOST_READS: Final = 100
"""For topics with long gaps between their records, as after compaction."""

_ENCODED_AT_ONCE: Final = 500
"""Records and headers that are encoded in one turn of the reactor: a millisecond."""
_BYTES_AT_ONCE: Final = 256 * 1024

_PAUSES_S: Final = (0.05, 0.2, 1.0)
"""Pauses after waits that found nothing, so that an error in the shared following costs little."""

_VARY: Final = (b"Vary", b"Accept")
_NO_STORE: Final = (b"Cache-Control", b"no-store")
_TYPE: Final = (b"Content-Type", b"application/x-ndjson")
_UP_TO_DATE: Final = (b"Up-To-Date", b"true")


class _Found(Struct):
    """The records of a page, as far as they were found."""

    records: list[ConsumerRecord]
    is_up_to_date: bool
    """True if there were no more committed records."""
    has_moved: bool = True
    """False if reading has stalled, for example since a partition has no leader."""

    @property
    def may_wait(self) -> bool:
        """True if nothing was found, and reading on at once would find nothing."""
        return not self.records and (self.is_up_to_date or not self.has_moved)


class _Search:
    """A search for the records with a key, or with headers."""

    def __init__(self, key: bytes | None, headers: Sequence[tuple[str, bytes]], limit: int) -> None:
        """
        :param key: as for `ConsumerRecord.matches`, like ``headers``.
        :param limit: the most records to find.
        """
        self._key = key
        self._headers = headers
        self._limit = limit
        self._found_bytes = 0
        self.found_memory = 0
        """The memory of the records so far, in bytes."""
        self._searched = 0
        self._searched_bytes = 0
        self.found: Final[list[ConsumerRecord]] = []
        """The records so far."""

    @property
    def _is_full(self) -> bool:
        return len(self.found) >= self._limit or self._found_bytes >= _PAGE_BYTES

    @property
    def is_over(self) -> bool:
        """True if the page is full, or one request has looked at enough."""
        return (
            self._is_full or self._searched >= _MOST_SEARCHED or self._searched_bytes >= _MOST_SEARCHED_BYTES
        )

    def look_at(self, result: ReadResult) -> Mapping[int, int]:
        """
        Look at more records.

        :return: if the page is full, the offset of the first record of each partition that was not looked at.
        """
        left: dict[int, int] = {}
        parts = _by_partition(result.records)
        # Each partition is the first one some time, however many records with the key another has.
        turn = sum(result.positions.values()) % len(parts) if parts else 0
        for part in (*parts[turn:], *parts[:turn]):
            for record in part:
                if self._is_full:
                    left[record.partition] = record.offset
                    break
                if record.matches(self._key, self._headers):
                    self.found.append(record)
                    self._found_bytes += record.size
                    self.found_memory += memory_of([record])
        self._searched += len(result.records) + result.left_out
        self._searched_bytes += sum([record.size for record in result.records])
        return left


class _WaitingPage(LongPoll):
    """A page that waits for a record, for a limited time."""

    __slots__ = ("_clock", "_ends_s", "_pauses_s")

    def __init__(
        self, streams: OpenStreams, request: Request, topic: str, clock: IReactorTime, wait_s: float
    ) -> None:
        """:param wait_s: the most seconds, from now on."""
        super().__init__(streams, kind=StreamKind.PAGE, request=request, topic=topic, ended_by="record")
        self._clock = clock
        self._ends_s = clock.seconds() + wait_s
        self._pauses_s = chain((0.0,), _PAUSES_S, repeat(_PAUSES_S[-1]))

    async def pause(self) -> None:
        """Wait for a moment, the longer the more often."""
        delay_s = next(self._pauses_s)
        left_s = self._ends_s - self._clock.seconds()
        if delay_s and left_s > 0 and not self.is_over:
            slept: Deferred[bool] = Deferred(lambda _: timer.cancel())
            timer = self._clock.callLater(min(delay_s, left_s), slept.callback, True)  # noqa: FBT003 -- as above
            await self.until(slept)

    async def until(self, waiting: Deferred[bool]) -> bool:
        """
        Wait for a Deferred.

        :return: its result; false if the wait is over before that. If the result is false, the wait is over.
        :raise AccessError: the caller has lost its right.
        """
        left_s = max(0.0, self._ends_s - self._clock.seconds())
        reason = "drain"
        try:
            if await self.wait(waiting.addTimeout(left_s, self._clock)):
                return True
        except TimeoutError as error:
            forget_frames(error)
            self.check()
            reason = "time"
        if not self.is_over:
            self.end(reason)
        return False


class RecordPages:
    """Answers requests for pages."""

    def __init__(
        self,
        reads: TopicReads,
        feeds: Feeds,
        *,
        clock: IReactorTime,
        slices: TimeSlices,
        streams: OpenStreams,
    ) -> None:
        """
        :param feeds: tells when it is worth reading again.
        :param clock: measures waits.
        :param slices: for encoding many records.
        :param streams: limits the number of pages that wait.
        """
        self._turns = ReadTurns(reads, clock)
        self._feeds = feeds
        self._clock = clock
        self._slices = slices
        self._streams = streams
        self._is_stopping = False

    def end_waits(self) -> None:
        """Answer the pages that wait, gradually, since the service stops. Later ones do not wait."""
        self._is_stopping = True
        Deferred.fromCoroutine(self._streams.end_waits(StreamKind.PAGE, self._slices))

    def open(self, request: Request, topic: AuthorizedTopic) -> Deferred[Response]:
        """
        Read a page, and wait for its first record if the request says so.

        :param request: its ``checked`` are the `PageParameters`.
        :return: fires with the response, or fails with the errors of `_page`. Cancelling it ends the reading.
        """
        return Deferred.fromCoroutine(self._page(request, topic, request.checked))

    async def _page(self, request: Request, topic: AuthorizedTopic, parameters: PageParameters) -> Response:
        """
        Read a page, and wait for its first record if the request says so.

        :raise PositionError: the position cannot be continued.
        :raise InvalidParameters: the position would be too long, or reads nothing.
        :raise PublishError: the broker cannot read the topic.
        :raise BodyMemoryFull: other requests leave too little memory.
        :raise BodyMemoryOfCallerFull: the caller's other requests leave too little of its part.
        :raise BodyNeedsTooMuchMemory: no page may have as much.
        :raise TooManyStreams: too many pages wait.
        :raise AccessError: the caller has too many pages that wait, or has lost its right.
        """
        cursor = Cursor(topic, parameters.start, parameters.partitions)
        turn = self._turns.turn(request)
        try:
            found = await self._find(request, turn, cursor, parameters)
            if parameters.wait_s and found.may_wait and not self._is_stopping:
                turn.end()
                found = await self._wait(request, turn, cursor, parameters, found)
            return await self._encode(request, turn, cursor, parameters, found)
        finally:
            turn.end()

    async def _find(
        self, request: Request, turn: ReadTurn, cursor: Cursor, parameters: PageParameters
    ) -> _Found:
        """Read up to a page of records; with a key or headers, search for them."""
        if parameters.key is not None or parameters.headers:
            return await self._search(request, turn, cursor, parameters)
        for _ in range(_MOST_READS):
            before = cursor.offsets
            result = await self._read(request, turn, cursor, parameters.limit)
            has_moved = before != cursor.offsets
            if result.records or result.is_up_to_date or not has_moved:
                return _Found(list(result.records), result.is_up_to_date, has_moved)
        # Only records that were aborted, or control records, were there so far.
        return _Found([], is_up_to_date=False)

    async def _read(
        self,
        request: Request,
        turn: ReadTurn,
        cursor: Cursor,
        limit: int,
        *,
        key: bytes | None = None,
        found_memory: int = 0,
    ) -> ReadResult:
        """
        Wait for a turn, read the next records, count their memory, and move behind them.

        :param key: see `ReadRequest`.
        :param found_memory: the memory of the records that are there already, in bytes.
        """
        # After those of others, if it has read before.
        turn.end()
        await turn.begin()
        if request.reservation is not None and not found_memory:
            # Reading a page for nothing would keep others waiting.
            request.reservation.require_part(_PAGE_BYTES)
        # Brokers limit how much is read at one time; from here on it is counted.
        result = await turn.read(cursor, limit=limit, max_bytes=_PAGE_BYTES, key=key)
        if request.reservation is not None:
            request.reservation.resize(found_memory + memory_of(result.records))
        cursor.require_all(result)
        cursor.require_partition(result)
        cursor.advance(result)
        return result

    async def _search(
        self, request: Request, turn: ReadTurn, cursor: Cursor, parameters: PageParameters
    ) -> _Found:
        """Read until there is a page of records with the key and headers, or enough was looked at."""
        search = _Search(parameters.key, parameters.headers, parameters.limit)
        for _ in range(_MOST_READS):
            before = cursor.offsets
            try:
                result = await self._read(
                    request,
                    turn,
                    cursor,
                    _SEARCHED_AT_ONCE,
                    key=parameters.key,
                    found_memory=search.found_memory,
                )
            except SampleAppError as error:
                if search.found:
                    # The next request gets the error.
                    forget_frames(error)
                    break
                raise
            if result.records:
                await self._slices.next()
            left = search.look_at(result)
            if request.reservation is not None:
                request.reservation.resize(search.found_memory)
            if left:
                cursor.move_to(left)
                break
            has_moved = before != cursor.offsets
            if result.is_up_to_date or not has_moved:
                return _Found(search.found, result.is_up_to_date, has_moved)
            if search.is_over:
                break
        return _Found(search.found, is_up_to_date=False)

    async def _wait(
        self, request: Request, turn: ReadTurn, cursor: Cursor, parameters: PageParameters, found: _Found
    ) -> _Found:
        """
        Wait for a first record, and read it.

        :param found: was found before, without a record.
        """
        if request.client_has_finished:
            # It may have gone, and nothing else would show it until a record comes.
            return found
        wait = _WaitingPage(self._streams, request, cursor.topic, self._clock, parameters.wait_s)
        request.end_wait = partial(wait.end, "client")
        try:
            while not found.records and await self._wait_once(wait, cursor, parameters.key):
                found = await self._find(request, turn, cursor, parameters)
                wait.check()
                if not found.may_wait:
                    break
                turn.end()
        except CancelledError:
            wait.ended_by = "client"
            raise
        except SampleAppError:
            wait.ended_by = "error"
            raise
        finally:
            request.end_wait = None
            wait.close(wait.ended_by)
        return found

    async def _wait_once(self, wait: _WaitingPage, cursor: Cursor, key: bytes | None) -> bool:
        """Wait until reading again is worth it; return false to answer without a record."""
        await wait.pause()
        wait.check()
        return not wait.is_over and await wait.until(
            self._feeds.wait(
                cursor.topic,
                cursor.offsets,
                topic_id=cursor.topic_id,
                key=key,
                others=cursor.partitions is None,
                skipped=cursor.skipped,
            )
        )

    async def _encode(
        self, request: Request, turn: ReadTurn, cursor: Cursor, parameters: PageParameters, found: _Found
    ) -> Response:
        position = cursor.position_text().encode("ascii")
        headers: Headers = (
            _VARY,
            _NO_STORE,
            (b"Position", position),
            (b"Link", b'<%b>; rel="next"' % _next_page(position, parameters)),
        )
        if found.is_up_to_date:
            headers = (*headers, _UP_TO_DATE)
        if not found.records:
            return Response(HTTPStatus.NO_CONTENT, headers)
        await turn.begin()
        chunks = []
        reservation = request.reservation
        for some in slices_of(found.records):
            await self._slices.next()
            chunks.append(record_lines(some))
            if reservation is not None:
                # Records and lines are there at the same time.
                reservation.resize(reservation.size + len(chunks[-1]))
        await self._slices.free_gradually(found.records)
        response = Response(
            HTTPStatus.OK, (_TYPE, *headers), chunks[0] if len(chunks) == 1 else tuple(chunks)
        )
        if reservation is not None:
            reservation.resize(response.length)
        return response


def _next_page(position: bytes, parameters: PageParameters) -> bytes:
    """Return a relative reference to the next page: it is right behind any proxy (RFC 3986, section 4.2)."""
    query = [b"from=" + position]
    if parameters.partitions is not None:
        query.append(b"partition=" + _ranges(parameters.partitions))
    if parameters.key is not None:
        query.append(b"key=" + quote_from_bytes(parameters.key, safe="").encode("ascii"))
    for name, content in parameters.headers:
        header = b"%b:%b" % (name.encode(), content)
        query.append(b"header=" + quote_from_bytes(header, safe=":").encode("ascii"))
    if parameters.limit != DEFAULT_LIMIT:
        query.append(b"limit=%d" % parameters.limit)
    if parameters.wait_s:
        query.append(b"wait=%d" % parameters.wait_s)
    return b"?" + b"&".join(query)


def _ranges(partitions: Sequence[int]) -> bytes:
    """Return ascending numbers as in a query, such as ``0,4-7``."""
    ranges: list[list[int]] = []
    for partition in partitions:
        if ranges and partition == ranges[-1][1] + 1:
            ranges[-1][1] = partition
        else:
            ranges.append([partition, partition])
    return b",".join(b"%d" % first if first == last else b"%d-%d" % (first, last) for first, last in ranges)


def _by_partition(records: Sequence[ConsumerRecord]) -> list[list[ConsumerRecord]]:
    """Split records that are grouped by partition."""
    return [list(part) for _, part in groupby(records, attrgetter("partition"))]


def memory_of(records: Sequence[ConsumerRecord]) -> int:
    """Return the memory of records, in bytes."""
    return sum([_RECORD_BYTES + record.size + _MORE_OF_HEADER * len(record.headers) for record in records])


def slices_of(records: list[ConsumerRecord]) -> Iterator[list[ConsumerRecord]]:
    """Split records into parts that are each encoded within a millisecond or two; a large record is one."""
    part: list[ConsumerRecord] = []
    weight = length = 0
    for record in records:
        part.append(record)
        weight += 1 + len(record.headers)
        length += record.size
        if weight >= _ENCODED_AT_ONCE or length >= _BYTES_AT_ONCE:
            yield part
            part, weight, length = [], 0, 0
    if part:
        yield part
