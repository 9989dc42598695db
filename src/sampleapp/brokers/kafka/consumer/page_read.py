"""One read of a topic: rounds of requests to the leaders of its partitions, until the page is filled."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from sampleapp.brokers.kafka.batches import UnreadableBatch, read_gradually
from sampleapp.brokers.kafka.cluster_client import RequestFailed
from sampleapp.brokers.kafka.consumer.discovery import Topics, TopicView
from sampleapp.brokers.kafka.consumer.leaders import Leaders, ReadSlots
from sampleapp.brokers.kafka.consumer.offsets import Extent, Name, extent_requests, extents_in
from sampleapp.brokers.kafka.consumer.page import PageBuilder, PartitionRead
from sampleapp.brokers.kafka.consumer.read_failures import (
    NO_WHOLE_BATCH,
    NOT_AUTHORIZED,
    no_leader,
    read_failed,
    rejected,
    unreadable,
)
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import Fetched, FetchRequest
from sampleapp.concurrency.slices import TimeSlices
from sampleapp.errors import BrokerIncompatible, BrokerUnavailable, TopicNotAuthorized, UnknownPartition
from sampleapp.model import ConsumerRecord, FromEnd, FromTime, ReadRequest, ReadResult

_METADATA_AGE_S: Final = 5.0
"""Partitions that were added, and a topic that was made again, are noticed after this time at most."""
_RESOLVING_METADATA_AGE_S: Final = 0.5
"""ListOffsets names topics, so a start is resolved in the topic of this moment, whatever its id."""
_ADDED_S: Final = (0.0, 0.1)
"""The delays, in seconds, before a topic is loaded again for a partition that it does not seem to have."""
_DEADLINE_S: Final = 5.0
"""After this time, in seconds, a read returns what it has, or fails if it has nothing."""
_UNREADABLE_AFTER_S: Final = 1.5
"""A partition that cannot be read is left out after this time if others can be read, in seconds."""
_PARTITIONS_AT_ONCE: Final = 500
"""Maximum partitions in a request."""
_VISITED_AT_ONCE: Final = 100
"""Partitions in responses that are visited in one slice, besides those of one leader."""
_LEAST_BYTES: Final = 64 * 1024
_MOST_BYTES: Final = 4 * 1024 * 1024
_LEAST_PARTITION_BYTES: Final = 16 * 1024
_GUESSED_RECORD_BYTES: Final = 512
_WORKING_BYTES: Final = 1024 * 1024
"""Memory of a round besides its responses: chunks of decompressed batches."""
_TIERED_WAIT_MS: Final = 300
"""See `PageRead._empty`."""
_MOST_EMPTY: Final = 2
_MOST_SHORT: Final = 3
_TOPIC_ID_LENGTH: Final = 16
_NO_TOPIC_ID: Final = "_"


class _MadeAgain(Exception):
    """The topic was deleted and made again during the read, which must begin again."""


class PageRead:
    """
    One read.

    Each round asks the leaders of all partitions that are not settled, with Fetch. ListOffsets comes before
    that for starts that are relative to the end or to a time, and for offsets that are not in the log. A page
    from offsets takes one Fetch to each leader.
    """

    def __init__(
        self,
        request: ReadRequest,
        *,
        topics: Topics,
        leaders: Leaders,
        slots: ReadSlots,
        slices: TimeSlices,
        clock: IReactorTime,
        max_batch_bytes: int,
    ) -> None:
        """
        :param slots: are taken for the time of a round.
        :param max_batch_bytes: maximum size of a batch after decompression.
        """
        self._request = request
        self._topics = topics
        self._leaders = leaders
        self._slots = slots
        self._slices = slices
        self._clock = clock
        self._max_batch_bytes = max_batch_bytes
        self._partitions: list[PartitionRead] = []
        self._fetch_bytes = self._visited = 0

    async def run(self) -> ReadResult:
        """
        Read.

        :raise sampleapp.errors.PublishError: one of those that `IBroker.read` names.
        """
        self._deadline_s = self._clock.seconds() + _DEADLINE_S
        view = await self._view()
        while True:
            try:
                return await self._read(view)
            except _MadeAgain:
                view = await self._view()

    async def _view(self) -> TopicView:
        topic, starts = self._request.topic, self._request.starts
        view = await self._topics.get(topic, max_age_s=_METADATA_AGE_S)
        if self._resolves_starts(view):
            view = await self._topics.get(topic, max_age_s=_RESOLVING_METADATA_AGE_S)
        for delay_s in _ADDED_S:
            if starts.keys() <= view.leaders.keys():
                return view
            # They may have been added since, or not be known to the broker that was asked.
            if delay_s:
                await deferLater(self._clock, delay_s)
            view = await self._topics.get(topic, max_age_s=0)
        missing = min(starts.keys() - view.leaders.keys(), default=None)
        if missing is not None:
            raise UnknownPartition(
                f"The topic has no partition {missing}, only {len(view.leaders)}, numbered from 0."
            )
        return view

    def _resolves_starts(self, view: TopicView) -> bool:
        request = self._request
        return (
            request.limit <= 0
            or any(isinstance(start, FromEnd | FromTime) for start in request.starts.values())
            or (
                isinstance(request.others, FromEnd | FromTime)
                and not view.leaders.keys() <= request.starts.keys()
            )
        )

    async def _read(self, view: TopicView) -> ReadResult:
        request = self._request
        page = PageBuilder(
            limit=request.limit, max_bytes=request.max_bytes, slices=self._slices, clock=self._clock
        )
        self._partitions = await self._select(view)
        self._fetch_bytes = min(
            max(request.limit * _GUESSED_RECORD_BYTES, _LEAST_BYTES), max(request.max_bytes, _LEAST_BYTES)
        )
        while True:
            # With a full page, only the positions of the other partitions are still asked for.
            open_ones = [
                each
                for each in self._partitions
                if not each.is_settled
                and (each.is_suspect or each.is_unverified or each.position is None or not page.is_full)
            ]
            now_s = self._clock.seconds()
            if not open_ones or self._may_end(open_ones, page, now_s=now_s):
                break
            due = [each for each in open_ones if each.retry_at_s <= now_s]
            if not due:
                await deferLater(self._clock, min(each.retry_at_s for each in open_ones) - now_s)
                continue
            suspects = [each for each in due if each.is_suspect or (page.is_full and not each.is_unverified)]
            if suspects:
                if page.count or any(each.offset is not None for each in suspects):
                    # Of the topic that was fetched from, not of another one that has its name now.
                    view = await self._refreshed(view)
                await self._locate(suspects, view)
            else:
                await self._fetch(due, view, page)
            if any(each.failures for each in due):
                view = await self._refreshed(view)
        return await self._result(view)

    async def _select(self, view: TopicView) -> list[PartitionRead]:
        request, found = self._request, []
        for number in sorted(view.leaders):
            start = request.starts.get(number, request.others)
            if start is not None:
                log_start = view.log_starts.get(number, 0)
                found.append(PartitionRead(number, start, check=request.limit <= 0, log_start=log_start))
            if len(found) % _PARTITIONS_AT_ONCE == _PARTITIONS_AT_ONCE - 1:
                await self._slices.next()
        return found

    def _may_end(self, open_ones: Sequence[PartitionRead], page: PageBuilder, *, now_s: float) -> bool:
        """
        Return ``True`` if the read must wait no longer for the partitions that are not settled.

        :raise BrokerUnavailable: they cannot be left out.
        """
        is_late = now_s >= self._deadline_s
        if not is_late and any(not each.failures or each.is_being_confirmed for each in open_ones):
            return False
        unresolved = [each for each in open_ones if each.position is None]
        if not is_late and (unresolved or not page.count):
            began_s = self._deadline_s - _DEADLINE_S
            if unresolved or len(open_ones) == len(self._partitions) or now_s - began_s < _UNREADABLE_AFTER_S:
                return False
        failed = unresolved or [each for each in open_ones if each.failures]
        if not failed and not page.count and not any(each.has_moved for each in self._partitions):
            raise BrokerUnavailable("Too many reads wait for Kafka.")
        if unresolved or (failed and len(failed) == len(self._partitions) and not page.count):
            raise BrokerUnavailable(failed[0].failure or "Kafka has not answered in time.")
        return True

    async def _refreshed(self, view: TopicView) -> TopicView:
        """:return: the view that is loaded from now on; the old one if that fails for the moment."""
        try:
            new = await self._topics.get(self._request.topic, max_age_s=0)
        except BrokerUnavailable as error:
            now_s = self._clock.seconds()
            for each in self._partitions:
                if each.failures:
                    each.fail(str(error), now_s=now_s)
            return view
        if new.topic_id != view.topic_id or not view.leaders.keys() <= new.leaders.keys():
            raise _MadeAgain
        return new

    # Positions

    async def _locate(self, partitions: Sequence[PartitionRead], view: TopicView) -> None:
        for_leaders = self._by_leader(partitions, view)
        topic = self._request.topic
        times = {
            (topic, each.number): each.start.timestamp_ms
            for each in partitions
            if each.position is None and isinstance(each.start, FromTime)
        }
        asked = {}
        for node_id, led in for_leaders.items():
            names = [(topic, each.number) for each in led]
            led_times = {name: times[name] for name in names if name in times}
            asked[node_id] = extent_requests(names, times=led_times, leader_epochs=view.leader_epochs)
        async with self._slots.slot(_WORKING_BYTES, leader=_only(for_leaders)):
            if self._clock.seconds() >= self._deadline_s:
                return
            responses = await self._leaders.ask(asked)
        for node_id, led in for_leaders.items():
            await self._visit(led)
            response = responses[node_id]
            if isinstance(response, RequestFailed):
                self._unanswered(led, response)
            else:
                self._take_extents(led, extents_in(response, times=times))

    def _take_extents(self, led: Sequence[PartitionRead], extents: Mapping[Name, Extent]) -> None:
        now_s = self._clock.seconds()
        for partition in led:
            extent = extents.get((self._request.topic, partition.number))
            if extent is None:
                partition.fail("Kafka's answer does not have the partition.", now_s=now_s)
                continue
            if extent.error:
                self._rejected(partition, extent.error)
                continue
            is_again = partition.position is not None and self._request.limit > 0
            if not partition.locate(extent, now_s=now_s):
                partition.fail("The position is beyond the end.", now_s=now_s)
            elif is_again and not partition.is_settled:
                # Another broker, a former leader, has answered that the position is not in the log.
                partition.fail("Kafka's brokers do not agree on the leader of the partition.", now_s=now_s)
            else:
                partition.succeed()
                partition.is_settled = partition.is_settled or self._request.limit <= 0

    # Records

    async def _fetch(self, due: Sequence[PartitionRead], view: TopicView, page: PageBuilder) -> None:
        for_leaders = self._by_leader(_rotated(due), view)
        is_tiered = all(each.empty_responses for each in due)
        size = self._fetch_bytes
        if page.count:
            size = min(size, max(_LEAST_BYTES, 2 * page.room * (page.bytes // page.count + 1)))
        asked = {
            node_id: [self._fetch_request(led, view, size, is_tiered=is_tiered)]
            for node_id, led in for_leaders.items()
        }
        page_bytes = page.room_bytes + _WORKING_BYTES
        async with self._slots.slot(len(asked) * size + page_bytes, leader=_only(for_leaders)) as slot:
            if self._clock.seconds() >= self._deadline_s:
                # It has waited for its turn all the time.
                return
            responses = await self._leaders.ask(asked)
            received_bytes = sum(
                len(each.records)
                for response in responses.values()
                if isinstance(response, list)
                for each in response[0]
            )
            slot.grow_to(received_bytes + page_bytes)
            with_records: list[PartitionRead] = []
            for node_id, led in for_leaders.items():
                await self._visit(led)
                response = responses[node_id]
                if isinstance(response, RequestFailed):
                    self._unanswered(led, response)
                else:
                    with_records += self._take_fetched(led, response[0], view)
            del responses
            await self._fill(page, with_records)
            for each in with_records:
                each.source = iter(())
        self._fetch_bytes = min(2 * self._fetch_bytes, _MOST_BYTES)

    def _fetch_request(
        self, led: Sequence[PartitionRead], view: TopicView, size: int, *, is_tiered: bool
    ) -> FetchRequest:
        topic = self._request.topic
        return FetchRequest(
            topics=[(topic, [(each.number, each.offset or 0) for each in led])],
            max_wait_ms=_TIERED_WAIT_MS if is_tiered else 0,
            min_bytes=1,
            max_bytes=size,
            partition_max_bytes=max(_LEAST_PARTITION_BYTES, size // min(len(led), 8)),
            read_committed=True,
            topic_ids={} if view.topic_id is None else {topic: view.topic_id},
            leader_epochs=view.leader_epochs,
        )

    def _take_fetched(
        self, led: Sequence[PartitionRead], response: Sequence[Fetched], view: TopicView
    ) -> list[PartitionRead]:
        """:return: the partitions with records to decode."""
        now_s = self._clock.seconds()
        by_number = {each.partition: each for each in response if each.topic == self._request.topic}
        found: list[PartitionRead] = []
        for partition in led:
            fetched = by_number.pop(partition.number, None)
            if fetched is None:
                # A broker that throttles leaves out every partition (KIP-219).
                partition.fail("Kafka throttles the service.", now_s=now_s)
            elif fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                partition.is_suspect = True
            elif fetched.error:
                self._rejected(partition, fetched.error)
            else:
                partition.succeed()
                stable, high = fetched.last_stable_offset, fetched.high_watermark
                partition.end = high if stable < 0 else stable
                partition.is_held = 0 <= stable < high
                view.log_starts[partition.number] = fetched.log_start_offset
                if not partition.confirm(fetched.log_start_offset):
                    continue
                partition.is_unverified = False
                if fetched.diverging is not None:
                    partition.follow_divergence(fetched.diverging)
                elif fetched.records:
                    partition.empty_responses = 0
                    partition.source = read_gradually(
                        fetched.records,
                        topic=self._request.topic,
                        partition=partition.number,
                        position=partition.offset or 0,
                        aborted=fetched.aborted,
                        max_batch_bytes=self._max_batch_bytes,
                    )
                    found.append(partition)
                else:
                    self._empty(partition, is_alone=not found)
        return found

    def _empty(self, partition: PartitionRead, *, is_alone: bool) -> None:
        """
        Take a response without records.

        Before the end it is normal if the limits left no room. It also happens if compaction has removed the
        last records below the high watermark, or if a broker with tiered storage (KIP-405) needs time to
        get them; so it is asked once more, and may wait. After that, there is nothing to read for now.
        """
        if partition.is_up_to_date:
            partition.is_settled = True
        elif is_alone:
            partition.empty_responses += 1
            if partition.empty_responses >= _MOST_EMPTY:
                partition.end = partition.position
                partition.is_settled = True

    async def _fill(self, page: PageBuilder, partitions: Sequence[PartitionRead]) -> None:
        before = {each.number: each.position for each in partitions}
        left = list(partitions)
        while left:
            try:
                await page.fill(left)
                break
            except UnreadableBatch as error:
                broken = next(each for each in left if each.number == error.partition)
                left.remove(broken)
                self._unreadable(broken, error.fault)
        for each in left:
            if page.is_full or each.is_settled:
                continue
            each.is_settled = each.is_up_to_date
            each.short_responses = each.short_responses + 1 if each.position == before[each.number] else 0
            if each.short_responses >= _MOST_SHORT:
                self._unreadable(each, NO_WHOLE_BATCH)

    # Errors

    def _unanswered(self, partitions: Iterable[PartitionRead], error: RequestFailed) -> None:
        if error.reason.incompatible:
            raise read_failed(error)
        now_s = self._clock.seconds()
        for each in partitions:
            each.fail(error.reason.public, now_s=now_s)

    def _rejected(self, partition: PartitionRead, code: int) -> None:
        """
        Take an error code for a partition.

        :raise TopicNotAuthorized: the service may not read the topic.
        :raise BrokerIncompatible: the topic cannot be read in this way.
        """
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise TopicNotAuthorized(NOT_AUTHORIZED)
        if code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
            raise BrokerIncompatible(
                "Kafka keeps the topic in a format without times: read it from an offset instead."
            )
        failure = rejected(self._request.topic, partition.number, code)
        partition.fail(failure.public, now_s=self._clock.seconds())

    def _unreadable(self, partition: PartitionRead, fault: str) -> None:
        failure = unreadable(self._request.topic, partition.number, partition.position, fault)
        partition.fail(failure.public, now_s=self._clock.seconds())

    # Helpers

    def _by_leader(
        self, partitions: Iterable[PartitionRead], view: TopicView
    ) -> dict[int, list[PartitionRead]]:
        """Group partitions, up to the limit of a request; those without a leader fail."""
        found: dict[int, list[PartitionRead]] = {}
        for each in partitions:
            node_id = view.leaders[each.number]
            if node_id is None:
                failure = no_leader(self._request.topic, each.number)
                each.fail(failure.public, now_s=self._clock.seconds())
                continue
            led = found.setdefault(node_id, [])
            if len(led) < _PARTITIONS_AT_ONCE:
                led.append(each)
        return found

    async def _visit(self, partitions: Sequence[PartitionRead]) -> None:
        """Wait for the next slice if these partitions, and those before, are many."""
        self._visited += len(partitions)
        if self._visited > _VISITED_AT_ONCE:
            self._visited = 0
            await self._slices.next()

    async def _result(self, view: TopicView) -> ReadResult:
        records: list[ConsumerRecord] = []
        positions: dict[int, int] = {}
        ends: dict[int, int] = {}
        for index, each in enumerate(self._partitions, 1):
            number, position = each.number, 0 if each.position is None else each.offset or 0
            positions[number] = position
            # Of a partition that was not reached, or not asked, there may be more.
            ends[number] = position + 1 if each.end is None else each.end
            if each.gone is None and each.beyond is None:
                records += each.records
            if index % _PARTITIONS_AT_ONCE == 0:
                await self._slices.next()
        return ReadResult(
            topic_id=_text_of(view.topic_id),
            records=records,
            positions=positions,
            ends=ends,
            gone=tuple(each.gone for each in self._partitions if each.gone is not None),
            beyond={each.number: each.beyond for each in self._partitions if each.beyond is not None},
            held=frozenset(each.number for each in self._partitions if each.is_held),
            partitions=len(view.leaders),
        )


def _rotated(partitions: Sequence[PartitionRead]) -> Sequence[PartitionRead]:
    """
    Return the partitions in the order in which they are served.

    The first one changes with the positions, so that small pages do not come from one partition only. One
    whose next batch did not fit is first: then Kafka sends the batch, whatever its size (KIP-74).
    """
    if len(partitions) == 1:
        return partitions
    first = sum(each.position or 0 for each in partitions) % len(partitions)
    rotated = [*partitions[first:], *partitions[:first]]
    if any(each.short_responses for each in partitions):
        rotated.sort(key=lambda each: -each.short_responses)
    return rotated


def _only(node_ids: Collection[int]) -> int | None:
    return next(iter(node_ids)) if len(node_ids) == 1 else None


def _text_of(topic_id: UUID | None) -> str:
    """Return the first characters of the id as Kafka's tools print it, in base64url (RFC 4648, section 5)."""
    if topic_id is None:
        return _NO_TOPIC_ID
    return base64.urlsafe_b64encode(topic_id.bytes).decode()[:_TOPIC_ID_LENGTH]
