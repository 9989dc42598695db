"""Share sessions: the leases that this instance has given, and requests about those of any instance."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar
from uuid import UUID

from msgspec import Struct, field
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
    ShareFetched,
    ShareFetchRequest,
)
from sampleapp.brokers.kafka.work.acquired_records import decode
from sampleapp.brokers.kafka.work.connections import ConnectionPool
from sampleapp.brokers.kafka.work.failures import rejected, unanswered
from sampleapp.brokers.kafka.work.lease_tokens import LeaseToken, acknowledgements, runs_of
from sampleapp.brokers.shared.deliveries import LEASE_LOST, PULL_BYTES, verdicts_by_id
from sampleapp.brokers.shared.work import NOT_KNOWN, GivenUp
from sampleapp.concurrency.slices import TimeSlices
from sampleapp.errors import (
    BrokerUnavailable,
    LeaseLost,
    OutcomeUnknown,
    PublishError,
    TooManyLeases,
    WorkError,
)
from sampleapp.model import Acknowledged, Extended, Lease, Verdicts

R = TypeVar("R", ShareAcknowledged, ShareFetched)

TIMEOUT_S: Final = 5.0
"""Seconds to wait for the response of a broker."""
_MARGIN_MS: Final = 1000
"""A lease ends so long before Kafka's lock, in milliseconds: clocks of instances may differ by that."""
_CLEAN_UP_S: Final = 2.0
"""Seconds after the end of a lease until its session is ended."""
_MOST_OF_GAPS: Final = 20
"""Fetches that find only offsets without records."""
_PROBED_AT_ONCE: Final = 16
_NO_EPOCH: Final = 2**30
"""An epoch that no session reaches."""
_MOST_PASSED: Final = 64
"""More requests in a session than there are within one lease."""
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


class Member(Struct, frozen=True, kw_only=True):
    """A member of a share group, which has one session on one broker; makes the requests in it."""

    node_id: int
    group: str
    topic: str
    topic_id: UUID
    partitions: Sequence[int]
    """Those that records are acquired from; the node leads them."""
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    """The member id as bytes, without which no broker takes an acknowledgement."""

    def fetch(self, epoch: int, *, most: int, wait_ms: int) -> ShareFetchRequest:
        """Return a request for records."""
        return ShareFetchRequest(
            group=self.group,
            member_id=self.secret.hex(),
            session_epoch=epoch,
            topic_id=self.topic_id,
            partitions=() if epoch else self.partitions,
            max_wait_ms=wait_ms,
            max_records=most,
            max_bytes=PULL_BYTES,
        )

    def request(
        self, epoch: int, types: Mapping[tuple[int, int], AcknowledgeType] = {}
    ) -> ShareAcknowledgeRequest:
        """Return a request with this number. Without acknowledgements, it tells if the session goes on."""
        return ShareAcknowledgeRequest(
            group=self.group,
            member_id=self.secret.hex(),
            session_epoch=epoch,
            topic_id=self.topic_id,
            acknowledgements=acknowledgements(types),
        )


class Session(Struct, eq=False):
    """
    A share session of this instance, on a connection of its own.

    If another instance has taken it over, or ended it, the epoch is not valid.
    """

    member: Member
    connection: Connection
    epoch: int = 0
    """The number of the next request."""
    ends_ms: int = 0
    """When its messages must be acknowledged: milliseconds since the epoch."""
    lease: LeaseToken | None = None
    """That of its messages, if they are not acknowledged."""
    timer: IDelayedCall | None = None


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
        clock: IReactorTime,
        now: Callable[[], float],
        most_leases: int,
        max_batch_bytes: int,
    ) -> None:
        """
        :param client: for new connections, and for requests about the leases of other instances.
        :param now: returns the time of day, in seconds since the epoch.
        :param most_leases: the most leases at a time.
        :param max_batch_bytes: maximum size of a batch after decompression.
        """
        self._client = client
        # Those of leases that have ended are ended within some seconds, and groups that wait have one, too.
        most_sessions = most_leases + max(1, most_leases // 4)
        self._pool = ConnectionPool(client=client, most=most_sessions, clock=clock)
        self._clock = clock
        self._now = now
        self._most_leases = most_leases
        self._max_batch_bytes = max_batch_bytes
        self._slices = TimeSlices(clock)
        self._leased: dict[bytes, Session] = {}
        """The sessions that have a lease of this instance, by member; those not asked about lately first."""
        self._going_on: set[Session] = set()
        """The sessions that are not being ended, with those that have no lease yet; they own a connection."""
        self._ending: set[Deferred[None]] = set()
        self.given_up = GivenUp(clock)

    @property
    def leases(self) -> int:
        """The number of leases that have not ended, as far as this instance knows."""
        now_ms = self._now_ms()
        return sum([each.ends_ms > now_ms for each in self._leased.values()])

    @property
    def may_wait(self) -> bool:
        """``False`` if fetches take half of the room for leases; further ones should not wait."""
        return 2 * sum([each.lease is None for each in self._going_on]) < max(2, self._most_leases)

    async def fetch(
        self,
        member: Member,
        *,
        most: Callable[[], int],
        most_attempts: int | None,
        wait_ms: int,
        timeout_s: float,
    ) -> tuple[Lease | None, frozenset[int]]:
        """
        Acquire records in the session of a new member, and make a lease of them.

        :param most: returns the maximum number of messages. Those that are more are released.
        :param most_attempts: the attempts after which the group gives a message up; ``None`` if not known.
        :param wait_ms: how long the broker waits for records.
        :param timeout_s: seconds to wait for each response, in addition.
        :return: the lease, or ``None`` without a message; and the error codes of partitions.
        :raise BrokerUnavailable: or another error of `IWorkBroker`.
        """
        session = await self._open(member)
        lease = None
        try:
            for _ in range(_MOST_OF_GAPS):
                # A process that is stopped may read the response much later than it came.
                sent_ms = self._now_ms()
                request = member.fetch(session.epoch, most=most(), wait_ms=wait_ms)
                fetched = await self._ask(session, request, timeout_s=wait_ms / 1000 + timeout_s)
                session.ends_ms = sent_ms + fetched.lock_ms - _MARGIN_MS
                found = await decode(
                    fetched.partitions,
                    topic=member.topic,
                    slices=self._slices,
                    max_batch_bytes=self._max_batch_bytes,
                )
                taken, others = found.messages[: most()], dict(found.others)
                for each in found.messages[len(taken) :]:
                    others[each.record.partition, each.record.offset] = AcknowledgeType.RELEASE
                    found.released.append(each.attempts)
                if others:
                    await self._ask(session, member.request(session.epoch, others), timeout_s=timeout_s)
                    last_attempts = [each for each in found.released if each >= (most_attempts or math.inf)]
                    self.given_up.add(member.topic, member.group, len(last_attempts))
                if taken:
                    token = self._keep(session, runs_of(taken, most_attempts))
                    lease = Lease(token=token, ends_ms=session.ends_ms, messages=taken)
                # Another fetch could acquire the released offsets again, which takes another attempt of each.
                if found.messages or found.released or not others:
                    break
        finally:
            if lease is None:
                self.end(session)
        return lease, found.errors

    def has_last_attempts(self, lease: Lease) -> bool:
        """Return true if a release gives messages of a lease up."""
        return any(LeaseToken.read(lease.token).messages().values())

    def left_s(self, lease: Lease) -> float:
        """Return the seconds until a lease ends."""
        return lease.ends_ms / 1000 - self._now()

    def release(self, lease: Lease) -> None:
        """Release the messages of a lease that no worker has."""
        self.end(self._leased.get(LeaseToken.read(lease.token).member))

    def end(
        self, session: Session | None, error: int = ErrorCode.NONE, *, may_be_moved: bool = False
    ) -> None:
        """
        End a session, unless it is being ended: the broker releases the records that it still holds.

        :param error: why nothing needs to be sent: an answer of the broker, or a lost connection.
        :param may_be_moved: true if another instance may have taken it over, or ended it.
        """
        if session not in self._going_on:
            return
        self._going_on.remove(session)
        self._forget(session)
        ending = Deferred.fromCoroutine(self._end(session, error, may_be_moved=may_be_moved))
        self._ending.add(ending)
        ending.addErrback(self._log_failure)
        ending.addBoth(lambda _: self._ending.discard(ending))

    async def acknowledge(
        self, topic: str, group: str, token: LeaseToken, verdicts: Verdicts
    ) -> Acknowledged:
        """
        End a lease, of any instance.

        :raise LeaseLost: it has ended; or another error of `sampleapp.interfaces.IWorkBroker`.
        """
        self._check_end(token)
        messages = token.messages()
        ids = verdicts_by_id(verdicts, messages)
        types = {each: kind for kind, some in zip(_TYPES, ids, strict=True) for each in some}
        member, session = self._find(topic, group, token)
        answer = await self._answer(member, session, token, types)
        if session is not None:
            session.lease = None
        await self._finish(member, session)
        lost = {each: code for each in token.runs if (code := answer.errors.get(each, _UNKNOWN))}
        if any(code not in _LOST for code in lost.values()):
            raise OutcomeUnknown(NOT_KNOWN)
        accepted, released, refused = ids
        last_attempts = sum(messages[each] for each in released if each[0] not in lost)
        self.given_up.add(member.topic, member.group, last_attempts)
        if lost:
            raise LeaseLost(LEASE_LOST, done={each for each in (*accepted, *refused) if each[0] not in lost})
        return Acknowledged(accepted=len(accepted), released=len(released), rejected=len(refused))

    async def extend(self, topic: str, group: str, token: LeaseToken) -> Extended:
        """
        Extend a lease of any instance. Its session is one of this instance afterwards.

        :raise LeaseLost: it has ended; or another error of `sampleapp.interfaces.IWorkBroker`.
        """
        self._check_end(token)
        member, session = self._find(topic, group, token)
        if session is None or session.connection.is_expiring:
            session = await self._taken_over(member, token)
        sent_ms = self._now_ms()
        types = dict.fromkeys(token.messages(), AcknowledgeType.RENEW)
        answer = await self._answer(member, session, replace(token, epoch=session.epoch), types)
        errors = {answer.errors.get(each, _UNKNOWN) for each in token.runs} - {ErrorCode.NONE}
        if errors:
            self.end(session)
            raise LeaseLost(LEASE_LOST) if errors <= {*_LOST} else OutcomeUnknown(NOT_KNOWN)
        session.epoch += 1
        session.ends_ms = sent_ms + answer.lock_ms - _MARGIN_MS
        return Extended(token=self._keep(session, token.runs), ends_ms=session.ends_ms)

    async def stop(self) -> None:
        """End all sessions, within a second, and close their connections."""
        for session in [*self._leased.values()]:
            self.end(session, may_be_moved=True)
        ending = DeferredList([*self._ending], consumeErrors=True)
        await ending.addTimeout(_STOP_S, self._clock, onTimeoutCancel=lambda *_: None)
        # The connections of the others are closed now.
        self._going_on.clear()
        await self._pool.close_all()

    def _log_failure(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self._log.failure("A bug in the service: ending a share session failed", failure=failure)

    def _now_ms(self) -> int:
        return int(1000 * self._now())

    def _check_end(self, token: LeaseToken) -> None:
        # Kafka answers "done" to a late acknowledgement of a message that another worker has accepted.
        if token.ends_ms <= self._now_ms():
            raise LeaseLost(LEASE_LOST)

    def _find(self, topic: str, group: str, token: LeaseToken) -> tuple[Member, Session | None]:
        """Return the member of a lease, and its session if it is one of this instance, as far as it knows."""
        member = Member(
            node_id=token.node_id,
            group=group,
            topic=topic,
            topic_id=token.topic_id,
            partitions=[*token.runs],
            secret=token.member,
        )
        session = self._leased.get(token.member)
        if session is None or (session.member.group, session.epoch) != (group, token.epoch):
            return member, None
        return member, session

    async def _ask(self, session: Session, request: Request[R], *, timeout_s: float) -> R:
        """Send the next request of a session. After an error of the connection, the session has ended."""
        try:
            answer: R = await session.connection.ask(request, timeout_s=timeout_s)
        except RequestFailed as error:
            self.end(session, _LOST_CONNECTION)
            raise unanswered(error) from error
        if answer.error:
            if answer.error == ErrorCode.SHARE_SESSION_LIMIT_REACHED:
                self._log.warn(
                    "Broker {node} has no room for another share session: see group.share.max.share.sessions",
                    node=session.member.node_id,
                )
            raise rejected(answer.error)
        session.epoch += 1
        return answer

    async def _answer(
        self,
        member: Member,
        session: Session | None,
        token: LeaseToken,
        types: Mapping[tuple[int, int], AcknowledgeType],
    ) -> ShareAcknowledged:
        """
        Send acknowledgements with the epoch of a token, on the connection of its session if it is known.

        :raise LeaseLost: the session has ended, or has another epoch; or another error of `IWorkBroker`.
        """
        request = member.request(token.epoch, types)
        try:
            if session is None or session.connection.is_expiring:
                await self._check_node(token.node_id)
                answer = await self._client.request(token.node_id, request, timeout_s=TIMEOUT_S)
            else:
                answer = await session.connection.ask(request, timeout_s=TIMEOUT_S)
        except RequestFailed as error:
            self.end(session, _LOST_CONNECTION)
            raise unanswered(error, may_be_done=error.sent) from error
        if not answer.error:
            if types and self._now_ms() > token.ends_ms:
                # It may have come after the lock has ended, if this clock is behind: see `_check_end`.
                await self._finish(member, session)
                raise OutcomeUnknown(NOT_KNOWN)
            return answer
        # Another call may have used the epoch, or ended the session.
        if session is not None and session.epoch == token.epoch:
            self.end(session, answer.error)
        if answer.error in (_ENDED, _MOVED):
            raise LeaseLost(LEASE_LOST)
        raise rejected(answer.error)

    async def _check_node(self, node_id: int) -> None:
        """:raise LeaseLost: the broker has left the cluster, and its sessions have ended."""
        if node_id not in self._client.node_ids():
            await self._client.load_metadata(())
            if node_id not in self._client.node_ids():
                raise LeaseLost(LEASE_LOST)

    async def _finish(self, member: Member, session: Session | None) -> None:
        """End the session of a lease that was acknowledged; also that of another instance has ended then."""
        if session is not None:
            self.end(session)
            return
        request = member.request(END_SHARE_SESSION)
        # If this fails, the owner of the connection ends it.
        with suppress(RequestFailed):
            await self._client.request(member.node_id, request, timeout_s=TIMEOUT_S)

    async def _taken_over(self, member: Member, token: LeaseToken) -> Session:
        """
        Move a session to a connection of this instance, which thereby has to end it.

        Its epochs begin at 1 again. Some are passed, so that no earlier token of the lease is valid: they
        come to the epoch of one only when its time is over.
        """
        session = await self._open(member)
        try:
            await self._answer(member, None, token, {})
        except (PublishError, WorkError):
            # Nothing was sent on the connection.
            self.end(session, _ENDED)
            raise
        try:
            await self._ask(session, member.fetch(0, most=0, wait_ms=0), timeout_s=TIMEOUT_S)
            passing = [
                Deferred.fromCoroutine(self._ask(session, member.request(epoch), timeout_s=TIMEOUT_S))
                for epoch in range(1, token.epoch % _MOST_PASSED + 1)
            ]
            await gatherResults(passing, consumeErrors=True)
        except (PublishError, WorkError, FirstError) as error:
            self.end(session)
            raise OutcomeUnknown(NOT_KNOWN) from error
        return session

    async def _open(self, member: Member) -> Session:
        """
        Make a session, which begins with its first fetch. It must be leased, or ended.

        :raise TooManyLeases: or `BrokerUnavailable`, if the broker is not in the cluster.
        """
        if self._is_full:
            await self._free_some()
        if self._is_full:
            raise TooManyLeases(self._most_leases)
        connection = self._pool.take(member.node_id)
        if connection is None:
            raise BrokerUnavailable("The broker is not in the cluster now.")
        session = Session(member, connection)
        self._going_on.add(session)
        return session

    @property
    def _is_full(self) -> bool:
        # Each may get a lease at any moment.
        return self._pool.is_full or len(self._going_on) >= self._most_leases

    async def _free_some(self) -> None:
        """Find sessions that have ended elsewhere."""
        probed = [*self._leased.values()][:_PROBED_AT_ONCE]
        for each in probed:
            # The next call asks about others.
            self._leased[each.member.secret] = self._leased.pop(each.member.secret)
        probing = [Deferred.fromCoroutine(self._free_if_ended(each)) for each in probed]
        await gatherResults(probing)

    async def _free_if_ended(self, session: Session) -> None:
        # Not on its own connection: if its authentication is over, a request would end the session.
        asking = self._client.request(
            session.member.node_id, session.member.request(_NO_EPOCH), timeout_s=TIMEOUT_S
        )
        with suppress(RequestFailed):
            if (await asking).error == _ENDED:
                self.end(session, _ENDED)

    def _keep(self, session: Session, runs: dict[int, list[int]]) -> bytes:
        """
        Keep a session that has a lease, and end it some time after the end of its lease.

        :param runs: the messages of the lease.
        :return: its token.
        :raise LeaseLost: another call has ended it.
        """
        if session not in self._going_on:
            raise LeaseLost(LEASE_LOST)
        self._forget(session)
        session.lease = LeaseToken(
            node_id=session.member.node_id,
            member=session.member.secret,
            topic=session.member.topic_id.bytes,
            epoch=session.epoch,
            ends_ms=session.ends_ms,
            runs=runs,
        )
        self._leased[session.member.secret] = session
        delay_s = max(0.0, session.ends_ms / 1000 - self._now()) + _CLEAN_UP_S
        session.timer = self._clock.callLater(delay_s, self.end, session, may_be_moved=True)
        return session.lease.encoded

    def _forget(self, session: Session) -> None:
        if self._leased.get(session.member.secret) is session:
            del self._leased[session.member.secret]
        timer, session.timer = session.timer, None
        if timer is not None and timer.active():
            timer.cancel()

    async def _end(self, session: Session, error: int, *, may_be_moved: bool) -> None:
        if may_be_moved:
            error = await self._error(session, session.epoch)
        if not error:
            error = await self._error(session, END_SHARE_SESSION)
            if not error and session.lease is not None:
                # Those whose lease has ended without an answer, too.
                count = sum(session.lease.messages().values())
                self.given_up.add(session.member.topic, session.member.group, count)
        # If it has not ended, closing the connection ends it.
        if error in (ErrorCode.NONE, _ENDED):
            self._pool.give_back(session.connection)
        else:
            self._pool.close(session.connection)

    async def _error(self, session: Session, epoch: int) -> int:
        """Send a request without acknowledgements, and return the error code."""
        try:
            return (await session.connection.ask(session.member.request(epoch), timeout_s=TIMEOUT_S)).error
        except RequestFailed:
            return _LOST_CONNECTION
