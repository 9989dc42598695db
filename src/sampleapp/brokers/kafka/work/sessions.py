"""Share sessions: the leases that this instance has given, and requests about those of any instance."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace
from twisted.internet.defer import CancelledError, Deferred, DeferredList, FirstError, gatherResults
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.cluster_client import ClusterClient, Connection, RequestFailed
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import (
    END_SHARE_SESSION,
    AcknowledgeType,
    Request,
    ShareAcknowledged,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
)
from sampleapp.brokers.kafka.work.acquired_records import AcquiredRecords, decode
from sampleapp.brokers.kafka.work.connections import ConnectionPool
from sampleapp.brokers.kafka.work.failures import rejected, unanswered
from sampleapp.brokers.kafka.work.lease_tokens import LeaseToken, acknowledgements, runs_of
from sampleapp.brokers.shared.deliveries import LEASE_LOST, PULL_BYTES, verdicts_by_id
from sampleapp.brokers.shared.work import NOT_KNOWN
from sampleapp.concurrency.slices import TimeSlices
from sampleapp.errors import BrokerUnavailable, LeaseLost, OutcomeUnknown, PublishError, WorkError
from sampleapp.model import Acknowledged, Extended, Lease, Verdicts

R = TypeVar("R")

TIMEOUT_S: Final = 5.0
"""Seconds to wait for the response of a broker."""
_MARGIN_MS: Final = 1000
"""A lease ends so long before Kafka's lock, in milliseconds: clocks of instances may differ by that."""
_CLEAN_UP_S: Final = 2.0
"""Seconds after the end of a lease until its session is ended."""
_PROBED_AT_ONCE: Final = 16
_NO_EPOCH: Final = 2**30
"""An epoch that no session reaches."""
_STOP_S: Final = 1.0
"""Seconds for ending all sessions at the end."""

_UNKNOWN: Final = ErrorCode.UNKNOWN_SERVER_ERROR
_LOST_CONNECTION: Final = ErrorCode.NETWORK_EXCEPTION
_ENDED: Final = ErrorCode.SHARE_SESSION_NOT_FOUND
_MOVED: Final = ErrorCode.INVALID_SHARE_SESSION_EPOCH
_LOST: Final = (
    ErrorCode.INVALID_RECORD_STATE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_ID,
)
"""Errors of a partition whose records are not locked for the session any more, or not on this broker."""
_TYPES: Final = (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT)


class Session(Struct, eq=False, kw_only=True):
    """
    The share session of one member, on a connection of its own.

    Of a session that another instance has taken over, or ended, the epoch is not valid.
    """

    connection: Connection
    node_id: int
    group: str
    topic: tuple[str, UUID]
    """The name and the id."""
    partitions: Sequence[int]
    """Those that records are acquired from; the node leads them."""
    member: bytes
    """The member id as 16 bytes, chosen at random."""
    epoch: int = 0
    """The number of the next request."""
    ends_ms: int = 0
    """When its messages must be acknowledged: milliseconds since the epoch."""
    timer: IDelayedCall | None = None
    is_over: bool = False
    """True if it has ended, or is being ended: its connection is not that of this session any more."""

    def fetch(self, *, most: int, wait_ms: int) -> ShareFetchRequest:
        """Return a request for records."""
        return ShareFetchRequest(
            group=self.group,
            member_id=self.member.hex(),
            session_epoch=self.epoch,
            topic_id=self.topic[1],
            partitions=() if self.epoch else self.partitions,
            max_wait_ms=wait_ms,
            max_records=most,
            max_bytes=PULL_BYTES,
        )

    def request(
        self, epoch: int, types: Mapping[tuple[int, int], AcknowledgeType] = {}
    ) -> ShareAcknowledgeRequest:
        """Return a request with this number. Without acknowledgements, it tells if the session goes on."""
        return _request(self.group, self.member.hex(), self.topic[1], epoch, types)


class Sessions:
    """
    Opens, uses and ends share sessions.

    A session that has a lease is ended with it: acknowledged here, or some time after the lease's end. Then
    it is asked about with its own epoch. If it goes on, it is ended. If it has ended, its connection is free.
    If its epoch is another one, an instance has moved it to a connection of its own, or has died between its
    acknowledgement and the end. Closing the connection is right for both: it does not end a session that was
    moved.
    """

    _log = Logger()

    def __init__(
        self,
        *,
        client: ClusterClient,
        pool: ConnectionPool,
        clock: IReactorTime,
        now: Callable[[], float],
        max_batch_bytes: int,
    ) -> None:
        """
        :param client: for requests about the leases of other instances.
        :param now: returns the time of day, in seconds since the epoch.
        :param max_batch_bytes: maximum size of a batch after decompression.
        """
        self._client = client
        self._pool = pool
        self._clock = clock
        self._now = now
        self._max_batch_bytes = max_batch_bytes
        self._slices = TimeSlices(clock)
        self._leased: dict[bytes, Session] = {}
        """The sessions that have a lease of this instance, by member, the oldest first."""
        self._ending: set[Deferred[None]] = set()

    async def open(
        self, node_id: int, *, group: str, topic: tuple[str, UUID], partitions: Sequence[int]
    ) -> Session:
        """
        Make a session, which begins with its first fetch. It must be leased, or ended.

        :raise BrokerUnavailable: there are too many, or the broker is not in the cluster.
        """
        return Session(
            connection=await self._connection(node_id),
            node_id=node_id,
            group=group,
            topic=topic,
            partitions=partitions,
            member=secrets.token_bytes(16),
        )

    async def acquire(self, session: Session, *, most: int, wait_ms: int) -> AcquiredRecords:
        """
        Acquire records, which are locked for the member.

        :raise BrokerUnavailable: or another error of `IWorkBroker`, after which the session has ended.
        """
        # A process that is stopped may read the response much later than it came.
        sent_ms = self._now_ms()
        request = session.fetch(most=most, wait_ms=wait_ms)
        fetched = await self._ask(session, request, timeout_s=wait_ms / 1000 + TIMEOUT_S)
        if fetched.error:
            self.end(session)
            if fetched.error == ErrorCode.SHARE_SESSION_LIMIT_REACHED:
                self._log.warn(
                    "Broker {node} has no room for another share session: see group.share.max.share.sessions",
                    node=session.node_id,
                )
            raise rejected(fetched.error)
        session.epoch += 1
        session.ends_ms = sent_ms + fetched.lock_ms - _MARGIN_MS
        return await decode(
            fetched.partitions,
            topic=session.topic[0],
            slices=self._slices,
            max_batch_bytes=self._max_batch_bytes,
        )

    async def lease(
        self, session: Session, acquired: AcquiredRecords, *, most: int, most_attempts: int | None
    ) -> Lease | None:
        """
        Make a lease of acquired records. Offsets without a message are acknowledged.

        :param most: messages that are more are released.
        :param most_attempts: the attempts after which the group gives a message up; ``None`` if not known.
        :return: ``None`` without a message; then the session may be used again.
        :raise BrokerUnavailable: or another error of `IWorkBroker`, after which the session has ended.
        """
        others = dict(acquired.others)
        for each in acquired.messages[most:]:
            others[each.record.partition, each.record.offset] = AcknowledgeType.RELEASE
        if others:
            answer = await self._ask(session, session.request(session.epoch, others), timeout_s=TIMEOUT_S)
            if answer.error:
                self.end(session)
                raise rejected(answer.error)
            session.epoch += 1
        messages = acquired.messages[:most]
        if not messages:
            return None
        self._keep(session)
        token = LeaseToken(
            node_id=session.node_id,
            member=session.member,
            topic=session.topic[1].bytes,
            epoch=session.epoch,
            ends_ms=session.ends_ms,
            runs=runs_of(messages, most_attempts),
        )
        return Lease(token=token.encoded, ends_ms=session.ends_ms, messages=messages)

    def release(self, lease: Lease) -> None:
        """Release the messages of a lease that no worker has."""
        self.end(self._leased.get(LeaseToken.read(lease.token).member))

    def end(self, session: Session | None) -> None:
        """End a session, if one goes on: the broker releases the records that it still holds."""
        if session is not None and self._mark_over(session):
            self._run(self._end(session))

    async def acknowledge(self, group: str, token: LeaseToken, verdicts: Verdicts) -> Acknowledged:
        """
        End a lease, of any instance.

        :raise LeaseLost: it has ended; or another error of `sampleapp.interfaces.IWorkBroker`.
        """
        self._check_end(token)
        messages = token.messages()
        ids = verdicts_by_id(verdicts, messages)
        types = {each: kind for kind, some in zip(_TYPES, ids, strict=True) for each in some}
        session = self._own(group, token)
        answer = await self._answer(session, group, token, types)
        self._finish(session, group, token)
        lost = {each: code for each in token.runs if (code := answer.errors.get(each, _UNKNOWN))}
        if any(code not in _LOST for code in lost.values()):
            raise OutcomeUnknown(NOT_KNOWN)
        accepted, released, refused = ids
        if lost:
            raise LeaseLost(LEASE_LOST, done={each for each in (*accepted, *refused) if each[0] not in lost})
        return Acknowledged(
            accepted=len(accepted),
            released=len(released),
            rejected=len(refused),
            given_up=sum(messages[each] for each in released),
        )

    async def extend(self, group: str, topic: str, token: LeaseToken) -> Extended:
        """
        Extend a lease of any instance. Its session is one of this instance afterwards.

        :raise LeaseLost: it has ended; or another error of `sampleapp.interfaces.IWorkBroker`.
        """
        self._check_end(token)
        session = self._own(group, token)
        if session is None or session.connection.is_expiring:
            session = await self._taken_over(group, topic, token)
        sent_ms = self._now_ms()
        types = dict.fromkeys(token.messages(), AcknowledgeType.RENEW)
        answer = await self._answer(session, group, replace(token, epoch=session.epoch), types)
        errors = {answer.errors.get(each, _UNKNOWN) for each in token.runs} - {ErrorCode.NONE}
        if errors:
            self.end(session)
            raise LeaseLost(LEASE_LOST) if errors <= {*_LOST} else OutcomeUnknown(NOT_KNOWN)
        session.epoch += 1
        session.ends_ms = sent_ms + answer.lock_ms - _MARGIN_MS
        self._keep(session)
        extended = replace(token, epoch=session.epoch, ends_ms=session.ends_ms)
        return Extended(token=extended.encoded, ends_ms=session.ends_ms)

    async def stop(self) -> None:
        """End all sessions, within a second, and close their connections."""
        for session in [*self._leased.values()]:
            self._clean_up(session)
        ending = DeferredList([*self._ending], consumeErrors=True)
        await ending.addTimeout(_STOP_S, self._clock, onTimeoutCancel=lambda *_: None)
        await self._pool.close_all()

    def _now_ms(self) -> int:
        return int(1000 * self._now())

    def _check_end(self, token: LeaseToken) -> None:
        # Kafka answers "done" to a late acknowledgement of a message that another worker has accepted.
        if token.ends_ms <= self._now_ms():
            raise LeaseLost(LEASE_LOST)

    def _own(self, group: str, token: LeaseToken) -> Session | None:
        """Return the session of a lease if it is one of this instance, as far as it knows."""
        session = self._leased.get(token.member)
        if session is None or (session.group, session.epoch) != (group, token.epoch):
            return None
        return session

    async def _ask(self, session: Session, request: Request[R], *, timeout_s: float) -> R:
        try:
            return await session.connection.ask(request, timeout_s=timeout_s)
        except RequestFailed as error:
            self._settle(session, _LOST_CONNECTION)
            raise unanswered(error) from error

    async def _answer(
        self,
        session: Session | None,
        group: str,
        token: LeaseToken,
        types: Mapping[tuple[int, int], AcknowledgeType],
    ) -> ShareAcknowledged:
        """
        Send acknowledgements with the epoch of a token, on the connection of its session if it is known.

        :raise LeaseLost: the session has ended, or has another epoch; or another error of `IWorkBroker`.
        """
        request = _request(group, token.member_id, token.topic_id, token.epoch, types)
        try:
            if session is None or session.connection.is_expiring:
                await self._check_node(token.node_id)
                answer = await self._client.request(token.node_id, request, timeout_s=TIMEOUT_S)
            else:
                answer = await session.connection.ask(request, timeout_s=TIMEOUT_S)
        except RequestFailed as error:
            if session is not None:
                self._settle(session, _LOST_CONNECTION)
            raise unanswered(error, may_be_done=error.sent) from error
        if not answer.error:
            if types and self._now_ms() > token.ends_ms + _MARGIN_MS:
                # It may have come after the lock has ended: see `_check_end`.
                self._finish(session, group, token)
                raise OutcomeUnknown(NOT_KNOWN)
            return answer
        # Another call may have used the epoch, or ended the session.
        if session is not None and session.epoch == token.epoch:
            self._settle(session, answer.error)
        if answer.error in (_ENDED, _MOVED):
            raise LeaseLost(LEASE_LOST)
        raise rejected(answer.error)

    async def _check_node(self, node_id: int) -> None:
        """:raise LeaseLost: the broker has left the cluster, and its sessions have ended."""
        if node_id not in self._client.node_ids():
            await self._client.load_metadata(())
            if node_id not in self._client.node_ids():
                raise LeaseLost(LEASE_LOST)

    def _finish(self, session: Session | None, group: str, token: LeaseToken) -> None:
        """End the session of a lease that was acknowledged."""
        if session is not None:
            self.end(session)
            return
        request = _request(group, token.member_id, token.topic_id, END_SHARE_SESSION)
        # If this fails, the owner of the connection ends it.
        self._client.request(token.node_id, request, timeout_s=TIMEOUT_S).addErrback(
            lambda failure: failure.trap(RequestFailed) and None
        )

    async def _taken_over(self, group: str, topic: str, token: LeaseToken) -> Session:
        """
        Move a session to a connection of this instance, which thereby has to end it.

        Its epochs begin at 1 again. Those up to the epoch of the token are passed, so that no earlier token
        of the lease is valid.
        """
        session = Session(
            connection=await self._connection(token.node_id),
            node_id=token.node_id,
            group=group,
            topic=(topic, token.topic_id),
            partitions=[*token.runs],
            member=token.member,
        )
        ask = session.connection.ask
        try:
            await self._answer(None, group, token, {})
        except (PublishError, WorkError):
            # Nothing was sent on the connection.
            self._settle(session, _ENDED)
            raise
        try:
            moved = await ask(session.fetch(most=0, wait_ms=0), timeout_s=TIMEOUT_S)
            passing = [
                ask(session.request(epoch), timeout_s=TIMEOUT_S) for epoch in range(1, token.epoch + 1)
            ]
            passed = await gatherResults(passing, consumeErrors=True)
        except (RequestFailed, FirstError) as error:
            self.end(session)
            raise OutcomeUnknown(NOT_KNOWN) from error
        session.epoch = token.epoch + 1
        if moved.error or any(each.error for each in passed):
            self.end(session)
            raise LeaseLost(LEASE_LOST)
        return session

    async def _connection(self, node_id: int) -> Connection:
        if self._pool.is_full:
            await self._free_some()
        if self._pool.is_full:
            raise BrokerUnavailable("Too many leases are out at this instance of the service.")
        connection = self._pool.take(node_id)
        if connection is None:
            raise BrokerUnavailable("The broker is not in the cluster now.")
        return connection

    async def _free_some(self) -> None:
        """Find sessions that other instances have ended."""
        oldest = [*self._leased.values()][:_PROBED_AT_ONCE]
        await DeferredList([Deferred.fromCoroutine(self._probe(each)) for each in oldest])

    async def _probe(self, session: Session) -> None:
        try:
            answer = await session.connection.ask(session.request(_NO_EPOCH), timeout_s=TIMEOUT_S)
        except RequestFailed:
            return
        if answer.error == _ENDED:
            self._settle(session, answer.error)

    def _keep(self, session: Session) -> None:
        """Keep a session that has a lease, and end it some time after the end of its lease."""
        self._forget(session)
        self._leased[session.member] = session
        delay_s = max(0.0, session.ends_ms / 1000 - self._now()) + _CLEAN_UP_S
        session.timer = self._clock.callLater(delay_s, self._clean_up, session)

    def _forget(self, session: Session) -> None:
        if self._leased.get(session.member) is session:
            del self._leased[session.member]
        timer, session.timer = session.timer, None
        if timer is not None and timer.active():
            timer.cancel()

    def _mark_over(self, session: Session) -> bool:
        """:return: ``True`` the first time: the caller disposes of the connection."""
        self._forget(session)
        was_over, session.is_over = session.is_over, True
        return not was_over

    def _run(self, ending: Coroutine[Deferred[Any], Any, None]) -> None:
        running = Deferred.fromCoroutine(ending)
        self._ending.add(running)
        running.addErrback(self._log_failure)
        running.addBoth(lambda _: self._ending.discard(running))

    def _log_failure(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self._log.failure("A bug in the service: ending a share session failed", failure=failure)

    def _clean_up(self, session: Session) -> None:
        self._forget(session)
        self._run(self._end_if_own(session))

    async def _end_if_own(self, session: Session) -> None:
        try:
            answer = await session.connection.ask(session.request(session.epoch), timeout_s=TIMEOUT_S)
        except RequestFailed:
            self._settle(session, _LOST_CONNECTION)
            return
        if answer.error:
            self._settle(session, answer.error)
        else:
            self.end(session)

    async def _end(self, session: Session) -> None:
        try:
            answer = await session.connection.ask(session.request(END_SHARE_SESSION), timeout_s=TIMEOUT_S)
        except RequestFailed:
            self._dispose(session, _LOST_CONNECTION)
        else:
            self._dispose(session, answer.error or _ENDED)

    def _settle(self, session: Session, error: int) -> None:
        if self._mark_over(session):
            self._dispose(session, error)

    def _dispose(self, session: Session, error: int) -> None:
        """Give the connection of a session back if it has ended; close it otherwise, and so end it."""
        if error == _ENDED:
            self._pool.give_back(session.connection)
        else:
            self._pool.close(session.connection)


def _request(
    group: str,
    member_id: str,
    topic_id: UUID,
    epoch: int,
    types: Mapping[tuple[int, int], AcknowledgeType] = {},
) -> ShareAcknowledgeRequest:
    return ShareAcknowledgeRequest(
        group=group,
        member_id=member_id,
        session_epoch=epoch,
        topic_id=topic_id,
        acknowledgements=acknowledgements(types),
    )
