"""Wires the parts that share messages among workers, with a client of their own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from math import inf
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from sampleapp.brokers.kafka.batches import DEFAULT_MAX_BATCH_BYTES
from sampleapp.brokers.kafka.cluster_client import ClusterClient
from sampleapp.brokers.kafka.consumer.discovery import Topics
from sampleapp.brokers.kafka.work.failures import NOT_SUPPORTED
from sampleapp.brokers.kafka.work.groups import Groups
from sampleapp.brokers.kafka.work.lease_tokens import LeaseToken
from sampleapp.brokers.kafka.work.pulls import METADATA_AGE_S, Pulls
from sampleapp.brokers.kafka.work.sessions import Sessions
from sampleapp.brokers.shared.deliveries import LEASE_LOST
from sampleapp.brokers.shared.work import NOT_DONE, NOT_KNOWN
from sampleapp.errors import (
    BrokerIncompatible,
    BrokerStopped,
    BrokerUnavailable,
    LeaseLost,
    OutcomeUnknown,
    PublishError,
    UnknownTopic,
    WorkError,
    WorkNotSupported,
)
from sampleapp.interfaces import IWorkBroker
from sampleapp.model import Acknowledged, Extended, Lease, ReadRequest, ReadResult, Verdicts

T = TypeVar("T")


@implementer(IWorkBroker)
class GroupWork:
    """
    Implements `IWorkBroker` on share groups.

    Nothing is kept that another instance would need. The first call opens the first connection.
    """

    _log = Logger()

    def __init__(
        self,
        *,
        client: ClusterClient,
        read: Callable[[ReadRequest], Deferred[ReadResult]],
        clock: IReactorTime,
        now: Callable[[], float],
        most_leases: int,
        max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
    ) -> None:
        """
        :param client: is closed at the end. Nothing else uses its connections.
        :param read: see `sampleapp.interfaces.IBroker.read`; for backlogs.
        :param now: returns the time of day, in seconds since the epoch.
        :param most_leases: the most leases at a time.
        :param max_batch_bytes: maximum size of a batch after decompression; a larger one is not given.
        """
        self._client = client
        self._topics = Topics(client=client, clock=clock)
        self._groups = Groups(client=client, read=read, clock=clock)
        self._sessions = Sessions(
            client=client,
            clock=clock,
            now=now,
            most_leases=most_leases,
            max_batch_bytes=max_batch_bytes,
        )
        self._pulls = Pulls(topics=self._topics, groups=self._groups, sessions=self._sessions, clock=clock)
        self._is_stopped = False

    @property
    def given_up(self) -> int:
        """See `IWorkBroker.given_up`. It counts those that this instance knows of."""
        return self._sessions.given_up.total

    @property
    def leases(self) -> int:
        """See `IWorkBroker.leases`."""
        return self._sessions.leases

    def pull(self, topic: str, group: str, *, most: int, wait_s: float) -> Deferred[Lease | None]:
        """See `IWorkBroker.pull`."""
        if self._is_stopped:
            return _fail_stopped()
        return self._pulls.pull(topic, group, most=most, wait_s=wait_s).addErrback(self._translate)

    def acknowledge(self, topic: str, group: str, lease: bytes, verdicts: Verdicts) -> Deferred[Acknowledged]:
        """See `IWorkBroker.acknowledge`."""
        return self._begin(lambda: self._acknowledge(topic, group, lease, verdicts))

    def extend(self, topic: str, group: str, lease: bytes) -> Deferred[Extended]:
        """See `IWorkBroker.extend`."""
        return self._begin(lambda: self._extend(topic, group, lease))

    def backlog(self, topic: str, group: str) -> Deferred[int | None]:
        """See `IWorkBroker.backlog`."""
        return self._begin(lambda: self._backlog(topic, group), is_read=True)

    async def stop(self) -> None:
        """End the pulls that wait, release the messages of all leases, and close the connections."""
        self._is_stopped = True
        self._pulls.stop()
        await self._groups.stop()
        await self._sessions.stop()
        await self._client.close()
        await self._pulls.wait_until_idle()

    def _begin(
        self, work: Callable[[], Coroutine[Deferred[Any], Any, T]], *, is_read: bool = False
    ) -> Deferred[T]:
        if self._is_stopped:
            return _fail_stopped()
        # Without a canceller, it ignores the result after it is cancelled.
        result: Deferred[T] = Deferred()
        working = Deferred.fromCoroutine(work())
        working.addErrback(self._translate, is_read=is_read)
        working.chainDeferred(result)
        return result

    def _translate(self, failure: Failure, *, is_read: bool = False) -> Failure:
        if failure.check(BrokerIncompatible):
            return Failure(WorkNotSupported(NOT_SUPPORTED))
        if self._is_stopped and failure.check(PublishError) and not failure.check(OutcomeUnknown):
            return Failure(BrokerStopped("The service is stopping."))
        if not failure.check(PublishError, WorkError, CancelledError):
            self._log.failure("A bug in the service: a call about a lease failed", failure=failure)
            return Failure(BrokerUnavailable(NOT_DONE) if is_read else OutcomeUnknown(NOT_KNOWN))
        return failure

    async def _acknowledge(self, topic: str, group: str, lease: bytes, verdicts: Verdicts) -> Acknowledged:
        token = await self._token(topic, lease)
        return await self._sessions.acknowledge(topic, group, token, verdicts)

    async def _extend(self, topic: str, group: str, lease: bytes) -> Extended:
        token = await self._token(topic, lease)
        return await self._sessions.extend(topic, group, token)

    async def _backlog(self, topic: str, group: str) -> int | None:
        view = await self._topics.get(topic, max_age_s=METADATA_AGE_S)
        return await self._groups.backlog(topic, group, view)

    async def _token(self, topic: str, lease: bytes) -> LeaseToken:
        """
        Decode a lease, if it is one of this topic.

        :raise LeaseLost: it is not.
        """
        token = LeaseToken.read(lease)
        try:
            # The topic may have been made again since it was asked for.
            for max_age_s in (inf, 0.0):
                view = await self._topics.get(topic, max_age_s=max_age_s)
                if view.topic_id == token.topic_id:
                    return token
        except UnknownTopic as error:
            raise LeaseLost(LEASE_LOST) from error
        raise LeaseLost(LEASE_LOST)


def _fail_stopped() -> Deferred[Any]:
    return fail(BrokerStopped("The service is stopping."))
