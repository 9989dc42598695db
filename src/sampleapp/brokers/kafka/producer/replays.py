"""
Telling the first record with an identity from one that is sent again.

The broker answers both with the position of the first (see `partition_queue`). So each record with an
identity gets a header: a nonce of this attempt, 8 bytes, and the beginning of the identity's fingerprint, 24
bytes, in hexadecimal digits, since readers get headers that are text in a simpler form. After the
acknowledgement, the record at that position is fetched, in one request with those of other partitions. With
the nonce of this attempt, it is this record. With another nonce and the same digest, this record was sent
before. With another digest, another record was published with the same key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from secrets import token_bytes
from typing import Any, Final

from msgspec.structs import replace
from twisted.internet import defer
from twisted.internet.defer import CancelledError, Deferred, DeferredSemaphore, fail, maybeDeferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.batches import BATCH_OVERHEAD, UnreadableBatch, read_batches
from sampleapp.brokers.kafka.cluster_client import SERVICE_FAULT, ClusterClient, RequestFailed
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import (
    EARLIEST,
    Fetched,
    FetchRequest,
    ListedOffset,
    ListOffsetsRequest,
    Request,
)
from sampleapp.concurrency.failures import LogLimit
from sampleapp.concurrency.rates import Backoff
from sampleapp.concurrency.waiting import Waiters
from sampleapp.errors import IdempotencyKeyReused, OutcomeUnknown, PublishError, PublishTimedOut
from sampleapp.model import FINGERPRINT_HEADER, Record, RecordMetadata, ReplayedRecord

_NONCE_BYTES: Final = 8
_NONCE_DIGITS: Final = 2 * _NONCE_BYTES
_DIGEST_BYTES: Final = 24
_MOST_FETCHES: Final = 16
"""Maximum number of fetches of one record under way: each has a whole record in memory."""
_SHARED_FETCHES: Final = 2
"""Maximum fetches of several records under way at one leader, which answers one after the other."""
_SHARED_BYTES: Final = 1024 * 1024
"""Maximum size of the answer to one of these."""
_ATTEMPT_S: Final = 5.0
_BACKOFF: Final = Backoff(first_s=0.02, max_s=0.4)
_PATIENT_MS: Final = 300
"""The time that a broker may wait for data from tiered storage (KIP-405), in milliseconds."""
_MOST_EMPTY: Final = 2
"""After this number of responses without records in a row, there are none from the position on."""

_NOT_READ: Final = (
    "The record is stored, but it was not known in time whether it was new. Send the same request again, "
    "with the same idempotency key."
)


def with_fingerprint(record: Record) -> Record:
    """Return a record that has an identity with the header by which it is known later."""
    if record.identity is None:
        return record
    fingerprint = token_bytes(_NONCE_BYTES) + record.identity.fingerprint[:_DIGEST_BYTES]
    return replace(record, headers=(*record.headers, (FINGERPRINT_HEADER, fingerprint.hex().encode("ascii"))))


def fingerprint_of(headers: tuple[tuple[str, bytes | None], ...]) -> bytes:
    """Return the value of the last header that `with_fingerprint` makes; empty if there is none."""
    return next((value for name, value in reversed(headers) if name == FINGERPRINT_HEADER and value), b"")


class _Leader:
    """The records that wait to be fetched from one leader together."""

    __slots__ = ("under_way", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[tuple[str, int], deque[tuple[RecordMetadata, int, Deferred[bytes]]]] = {}
        """Of each partition: places, expected sizes, and who waits."""
        self.under_way = 0
        """Requests that are not answered, or will be sent in the next turn of the reactor."""

    def take(self) -> list[tuple[RecordMetadata, int, Deferred[bytes]]]:
        """Remove and return the next record of each partition that still has a waiter."""
        some = []
        for partition, waiting in list(self.waiting.items()):
            while waiting and waiting[0][2].called:
                waiting.popleft()
            if waiting:
                some.append(waiting.popleft())
            if not waiting:
                del self.waiting[partition]
        return some


class _NotNow(Exception):
    """The record could not be fetched at this attempt."""


class ReplayDetection:
    """
    Finds out, with one Fetch, whether an acknowledged record is new.

    Its connections are its own: a broker answers the requests of one connection in order, and a Fetch must
    not wait behind Produce requests, which wait for replicas.
    """

    _log = Logger()

    def __init__(
        self,
        *,
        new_client: Callable[[], ClusterClient],
        clock: IReactorTime,
        not_readable: Callable[[str], None] = lambda _: None,
    ) -> None:
        """
        :param new_client: makes a client, at the first record with an identity.
        :param not_readable: called with the name of a topic that this service is not allowed to read.
        """
        self._new_client = new_client
        self._clock = clock
        self._not_readable = not_readable
        self._limit = LogLimit(clock)
        self._client: ClusterClient | None = None
        self._places = DeferredSemaphore(_MOST_FETCHES)
        self._leaders: dict[int, _Leader] = {}
        """The leaders at which records are, or will be, fetched together."""
        self._under_way: set[Deferred[RecordMetadata]] = set()
        self._idle: Waiters[None] = Waiters()
        self._is_given_up = False

    def resolve(
        self, metadata: RecordMetadata, *, fingerprint: bytes, size: int, deadline_s: float
    ) -> Deferred[RecordMetadata]:
        """
        Resolve the acknowledgement of a record with an identity.

        :param metadata: the position that the broker has answered.
        :param fingerprint: see `fingerprint_of`; without the record, whose room in the buffer is released.
        :param size: see `record_size`.
        :param deadline_s: when the record's caller must be answered, in seconds of the reactor's clock.
        :return: fires with the metadata if the record is new, or with a `ReplayedRecord`. Fails with
            `IdempotencyKeyReused` if the record there is another one, or `OutcomeUnknown` if it could not be
            compared. Cancelling it stops the waiting only.
        """
        left_s = deadline_s - self._clock.seconds()
        if self._is_given_up or left_s <= 0:
            return fail(PublishTimedOut(_NOT_READ))
        if self._client is None:
            self._client = self._new_client()
        work = Deferred.fromCoroutine(self._resolve(self._client, metadata, fingerprint, size))
        self._under_way.add(work)
        work.addTimeout(left_s, self._clock)
        work.addErrback(self._as_publish_error)
        work.addBoth(self._ended, work)
        return work

    def when_idle(self) -> Deferred[None]:
        """Return a Deferred that fires with ``None`` when no record is being fetched."""
        return self._idle.wait() if self._under_way else succeed(None)

    def give_up(self) -> None:
        """Fail everything that is under way, and all later calls."""
        self._is_given_up = True
        for work in list(self._under_way):
            work.cancel()

    def stop(self) -> Deferred[None]:
        """
        Give up, and close the connections.

        :return: fires when they are closed.
        """
        self.give_up()
        client, self._client = self._client, None
        return succeed(None) if client is None else client.close()

    def _ended(
        self, result: RecordMetadata | Failure, work: Deferred[RecordMetadata]
    ) -> RecordMetadata | Failure:
        self._under_way.discard(work)
        if not self._under_way:
            self._idle.succeed(None)
        return result

    def _as_publish_error(self, failure: Failure) -> Failure:
        if failure.check(PublishError):
            return failure
        if failure.check(defer.TimeoutError):
            return Failure(PublishTimedOut(_NOT_READ))
        if failure.check(CancelledError):
            # Unless the service stops, it was the caller that has cancelled it.
            return Failure(OutcomeUnknown(_NOT_READ)) if self._is_given_up else failure
        self._log.failure("A bug in the service: fetching a published record failed", failure=failure)
        return Failure(OutcomeUnknown(SERVICE_FAULT.public))

    async def _resolve(
        self, client: ClusterClient, stored: RecordMetadata, fingerprint: bytes, size: int
    ) -> RecordMetadata:
        records = await self._fetch_with_others(client, stored, BATCH_OVERHEAD + size)
        found = _fingerprint_in(records, stored)
        if found is None:
            await self._places.acquire()
            try:
                found = await self._fetch(client, stored)
            finally:
                self._places.release()
        if found == fingerprint:
            return stored
        if found == b"":
            # For example of a topic that was deleted and made again since.
            raise OutcomeUnknown("Another record is at the place where the broker has stored this one.")
        if found is None or found[_NONCE_DIGITS:] == fingerprint[_NONCE_DIGITS:]:
            return ReplayedRecord(topic=stored.topic, partition=stored.partition, offset=stored.offset)
        raise IdempotencyKeyReused("Another record was published with this idempotency key.")

    def _fetch_with_others(self, client: ClusterClient, stored: RecordMetadata, size: int) -> Deferred[bytes]:
        """
        Fetch the batch at a position, in one request with those of other partitions of its leader.

        :param size: the expected size of the batch.
        :return: fires with the batch, and perhaps some of what follows; empty if it must be fetched alone,
            which alone tells why: it may be larger. Never fails.
        """
        node_id = client.leader_of(stored.topic, stored.partition)
        if node_id is None:
            return succeed(b"")
        leader = self._leaders.setdefault(node_id, _Leader())
        found: Deferred[bytes] = Deferred()
        leader.waiting.setdefault((stored.topic, stored.partition), deque()).append((stored, size, found))
        if leader.under_way < _SHARED_FETCHES:
            leader.under_way += 1
            # The other records of the same Produce response come in this turn of the reactor.
            self._clock.callLater(0, self._fetch_next, client, node_id)
        return found

    def _fetch_next(self, client: ClusterClient, node_id: int) -> None:
        leader = self._leaders[node_id]
        some = leader.take()
        if not some:
            leader.under_way -= 1
            if not leader.under_way:
                del self._leaders[node_id]
            return

        def answered(response: list[Fetched] | Failure) -> None:
            records = (
                {}
                if isinstance(response, Failure)
                else {(each.topic, each.partition): each.records for each in response if not each.error}
            )
            for stored, _, found in some:
                if not found.called:
                    found.callback(records.get((stored.topic, stored.partition), b""))
            self._fetch_next(client, node_id)

        # A fault of the service ends this request as well: its callers must not wait until their deadlines.
        maybeDeferred(_fetch_together, client, node_id, some).addBoth(answered)

    async def _fetch(self, client: ClusterClient, stored: RecordMetadata) -> bytes | None:
        """
        Fetch the fingerprint of the record at a position, however long it takes.

        :return: empty if the record has none; ``None`` if it is not there any longer.
        """
        failures = empty = 0
        while True:
            try:
                fetched = await self._fetch_once(client, stored, wait_ms=_PATIENT_MS if empty else 0)
            except (_NotNow, RequestFailed):
                await self._load(client, stored.topic)
            else:
                if fetched is None:
                    return None
                if fetched.records:
                    return _fingerprint_in(fetched.records, stored)
                # A leader that was elected just now may not know that its followers have the record.
                empty = empty + 1 if stored.offset < fetched.high_watermark else 0
                if empty >= _MOST_EMPTY:
                    return None
            await deferLater(self._clock, _BACKOFF.delay_s(failures))
            failures += 1

    async def _fetch_once(
        self, client: ClusterClient, stored: RecordMetadata, *, wait_ms: int
    ) -> Fetched | None:
        """
        Fetch the batch at a position, or the next one.

        :return: ``None`` if the record was deleted.
        :raise _NotNow: try again.
        :raise RequestFailed: try again.
        """
        request = FetchRequest(
            topics=[(stored.topic, [(stored.partition, stored.offset)])],
            max_wait_ms=wait_ms,
            min_bytes=1,
            # A batch that is larger comes whole (KIP-74), and alone.
            max_bytes=1,
            partition_max_bytes=1,
            # An open transaction in front of the record hides nothing.
            read_committed=False,
            **_expected(client, stored),
        )
        fetched: Fetched = await self._ask_leader(client, stored, request)
        if fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._require_deleted(client, stored)
            if self._limit.is_news(stored.topic, "deleted"):
                self._log.warn(
                    "Records of the topic {topic} were deleted before their idempotency keys expired. When a "
                    "Kafka broker restarts or another replica leads, it may forget such keys, and a repeat "
                    "may make a second record. Delete no younger records than producer.id.expiration.ms.",
                    topic=stored.topic,
                )
            return None
        if fetched.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            self._not_readable(stored.topic)
            raise OutcomeUnknown(
                "The record is stored, but this service is not allowed to read the topic, which idempotency "
                "keys require."
            )
        if fetched.error:
            raise _NotNow
        return fetched

    async def _require_deleted(self, client: ClusterClient, stored: RecordMetadata) -> None:
        """:raise _NotNow: the leader has records from this offset on, or none up to it."""
        listed = await self._ask_leader(
            client,
            stored,
            ListOffsetsRequest(topics=[(stored.topic, [(stored.partition, EARLIEST)])], read_committed=False),
        )
        if listed.error or listed.offset <= stored.offset:
            raise _NotNow

    async def _ask_leader(
        self, client: ClusterClient, stored: RecordMetadata, request: Request[list[Any]]
    ) -> Any:
        leader = client.leader_of(stored.topic, stored.partition)
        if leader is None:
            raise _NotNow
        response: list[Fetched | ListedOffset] = await client.request(leader, request, timeout_s=_ATTEMPT_S)
        for each in response:
            if (each.topic, each.partition) == (stored.topic, stored.partition):
                return each
        # A broker that throttles leaves out every partition (KIP-219).
        raise _NotNow

    async def _load(self, client: ClusterClient, topic: str) -> None:
        try:
            await client.load_metadata([topic], auto_create=False)
        except RequestFailed:
            # The next attempt loads it again.
            return


def _fetch_together(
    client: ClusterClient, node_id: int, some: list[tuple[RecordMetadata, int, Deferred[bytes]]]
) -> Deferred[list[Fetched]]:
    by_topic: dict[str, list[tuple[int, int]]] = {}
    expected: dict[str, Any] = {"topic_ids": {}, "leader_epochs": {}}
    for stored, _, _ in some:
        by_topic.setdefault(stored.topic, []).append((stored.partition, stored.offset))
        for name, known in _expected(client, stored).items():
            expected[name].update(known)
    most = max(size for _, size, _ in some)
    request = FetchRequest(
        topics=list(by_topic.items()),
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=min(most * len(some), _SHARED_BYTES),
        partition_max_bytes=most,
        read_committed=False,
        **expected,
    )
    return client.request(node_id, request, timeout_s=_ATTEMPT_S)


def _expected(client: ClusterClient, stored: RecordMetadata) -> dict[str, Any]:
    topic_id = client.topic_id(stored.topic)
    epoch = client.leader_epoch_of(stored.topic, stored.partition)
    return {
        "topic_ids": {} if topic_id is None else {stored.topic: topic_id},
        "leader_epochs": {(stored.topic, stored.partition): epoch},
    }


def _fingerprint_in(data: bytes, stored: RecordMetadata) -> bytes | None:
    pages = read_batches(
        data, topic=stored.topic, partition=stored.partition, position=stored.offset, aborted=()
    )
    try:
        for page in pages:
            if page.too_large:
                raise OutcomeUnknown("The record is stored, but is too large to be read.")
            for record in page.records:
                # With an offset behind it, the record itself was compacted away.
                return fingerprint_of(record.headers) if record.offset == stored.offset else None
    except UnreadableBatch as error:
        raise OutcomeUnknown(f"The record is stored, but cannot be read: {error.fault}.") from error
    return None
