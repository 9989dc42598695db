"""
The interfaces between the layers.

A method with a later result returns a `Deferred`, never a coroutine, also where a coroutine implements it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeAlias

from twisted.internet.defer import Deferred
from zope.interface import Attribute, Interface

from sampleapp.errors import PublishError
from sampleapp.measures import Measures
from sampleapp.model import (
    EARLIEST,
    Acknowledged,
    ConsumerRecord,
    Extended,
    FromOffsets,
    Health,
    Lease,
    ReadRequest,
    ReadResult,
    Record,
    RecordMetadata,
    Start,
    TopicDescription,
    Verdicts,
)

__all__ = [
    "CHECK_TIMEOUT_S",
    "IBroker",
    "IMeasured",
    "IPositionObserver",
    "IRecordBatchObserver",
    "IRecordObserver",
    "IReloadable",
    "ISubscription",
    "IVerifiesClients",
    "IWorkBroker",
    "Outcome",
]

CHECK_TIMEOUT_S: Final = 1.0
"""The most seconds that `IBroker.check_topics` takes if it must not create topics."""

Outcome: TypeAlias = RecordMetadata | PublishError
"""The result for one record of a batch: its position, or the error if it is not known to be published."""


class IRecordObserver(Interface):
    """An observer of the records of a topic; see `IBroker.follow`."""

    def record_received(record: ConsumerRecord) -> None:
        """
        Handle the next record.

        Must not raise: a broker logs the exception, counts the record as delivered, and continues.
        """

    def caught_up() -> None:
        """
        Handle the end of the records that were in the topic when following began.

        Called exactly once, also for a topic that was empty or did not exist; and once more after each
        `reset`, when every record that was then in the new topic has been delivered.
        """

    def reset() -> None:
        """
        Discard all records that were delivered: the topic was deleted, and perhaps created again.

        The records of the new topic follow, from its first one on, and then `caught_up` once more, also
        for a new topic that is empty or does not exist. Only brokers whose topics can be deleted call it.
        """


class IRecordBatchObserver(IRecordObserver):
    """
    An observer that takes many records at once, because a call for each record would be expensive.

    A broker calls `records_received` instead of `IRecordObserver.record_received`.
    """

    def records_received(records: Sequence[ConsumerRecord]) -> None:
        """
        Handle the next records of one partition: at least one, in the order of their offsets.

        A broker delivers all of them in one turn of the reactor, so this must return within milliseconds.
        Must not raise: a broker logs the exception, counts all of them as delivered, and continues.
        """


class IPositionObserver(IRecordBatchObserver):
    """
    An observer that is also told from which offset on records are delivered.

    With it, an observer knows that it has missed nothing between its own reading and the following.
    """

    def begun_at(partition: int, offset: int) -> None:
        """
        Handle the start of a partition: of its records, those from this offset on are delivered.

        Called once for each partition, before its first record and also if it is empty; after each `reset`;
        and whenever following goes on at a later offset, because records were deleted or cannot be read:
        those before this offset are not delivered any more.
        """

    def passed(partition: int, offset: int) -> None:
        """Handle offsets without records, such as control records: nothing before this offset follows."""


class ISubscription(Interface):
    """A subscription to a topic, until it is stopped."""

    def stop() -> Deferred[None]:
        """
        Stop delivering, from this call on.

        :return: fires with ``None`` once nothing of the subscription is left running. Never fails, and may
            be called more than once.
        """

    def unavailable_reason() -> str | None:
        """
        Return the reason why records cannot be read at the moment.

        Returns at once, from the last known state, without asking the broker.

        :return: one or more sentences that may be shown to any caller: without paths, addresses or secrets.
            ``None`` if there is no such reason.
        """

    def is_lasting() -> bool:
        """Return true if retries do not help: an operator must repair the stored data."""

    def exists() -> bool | None:
        """
        Return whether the topic exists, and the partition, if only one is followed.

        :return: the last known state; ``None`` while it is not known.
        """

    def lag() -> int | None:
        """
        Return the number of records, or of offsets that may have one, that are not delivered yet.

        Returns at once, from the last known state, without asking the broker.

        :return: ``None`` while it is not known. It may stay above 0 if the last offsets have no record.
        """


class IBroker(Interface):
    """
    A store of records, in order, in the partitions of named topics.

    The contract that every implementation passes is `sampleapp_testing.BrokerContract`.
    """

    work: IWorkBroker | None = Attribute(
        "The groups of workers of its topics; ``None`` if it has none, or before it has started."
    )

    def check() -> None:
        """
        Check the configuration, before anything is started, for faults that certainly prevent operation.

        Called before the reactor runs, so it may block for a moment on a file, but never on a network.

        :raise StartUpError: a file, or an option, is not usable.
        """

    def start() -> None:
        """
        Start, in the background. Returns at once, also if the broker is unreachable.

        Records may be published from now on; they wait, within limits, until the broker is reached.
        """

    def publish(record: Record) -> Deferred[RecordMetadata]:
        """
        Append one record to its topic.

        Records with the same topic and key are appended in the order of the calls. One with an identity may
        be appended after records of later calls.

        A record with an identity is appended unless one with the same id was, within the time that the
        broker remembers ids. Then the result is a `sampleapp.model.ReplayedRecord` with the position of the
        first; or `sampleapp.errors.IdempotencyKeyReused` if the fingerprints differ. A record that was
        rejected does not use its id. After any other failure, the same record may be published again.

        :return: fires once the record is as safe as the broker can make it: on disk, or with all in-sync
            replicas. Fails with a `sampleapp.errors.PublishError`, and with nothing else. Cancelling it
            stops the waiting only: the record may still be published.
        """

    def publish_many(records: Sequence[Record]) -> Deferred[list[Outcome]]:
        """
        Append many records, each to its topic.

        Records with the same topic and key are appended in their order, after those of earlier calls. If
        accepting them takes more than a few milliseconds, it takes several turns of the reactor, and records
        of later calls may come between them. If the broker must ask whether a topic takes identities, as at
        the first one, all of the call may be appended after records of later calls. Those with an identity
        have no order with those without one, and records of other calls may come between them.

        :param records: records of any topics. The sequence must not change before the Deferred fires.
        :return: fires when the outcome of every record is known, with a list of them in order. The list is
            the caller's: nothing else refers to it. Fails with a `sampleapp.errors.PublishError`, and with
            nothing else, if all records are rejected together, for example because they exceed the broker's
            buffer, or one of them has an identity that its topic does not allow: then none of them was
            published. Cancelling it stops the waiting only.
        """

    def check_topics(
        topics: Collection[str], *, create: bool = True, identified: bool = False
    ) -> Deferred[Mapping[str, PublishError]]:
        """
        Find the topics that cannot be published to.

        A broker that creates topics by itself may create topics that do not exist. A single topic that is
        known is not looked up again, so this is cheap for a topic that is in use: if it was deleted, none of
        its records is published. Several topics are looked up, unless they were a moment ago.

        :param create: true if a broker that creates topics by itself may do so now. If false, a topic that
            publishing would create counts as one that can be published to, and the broker has
            `sampleapp.interfaces.CHECK_TIMEOUT_S` to answer: topics without a response by then are left out.
        :param identified: true if the records have an identity. If there are topics that take none, the
            errors are those of these topics, and no topic is created.
        :return: fires with the error for each topic that cannot be published to, as `publish` would fail: the
            topic does not exist, its name is not allowed, this service may not publish to it, or the broker
            cannot be asked. Empty if no error is known. Of thousands of topics, some may not be checked once
            an error is found. Never fails; cancelling it stops the waiting only.
        """

    def list_topics() -> Deferred[Sequence[str]]:
        """
        List the existing topics, without the broker's internal ones.

        A hundred thousand topics take many turns of the reactor, each of a few milliseconds. Records are
        published in between.

        :return: fires with their names, sorted. Fails with `sampleapp.errors.BrokerUnavailable`, and with
            nothing else, if the broker cannot be asked. Cancelling it stops the waiting only.
        """

    def describe_topics(topics: Collection[str]) -> Deferred[Sequence[TopicDescription]]:
        """
        Describe the partitions of topics.

        :param topics: the names of the topics.
        :return: fires with the topics that exist, sorted by name. Fails as `list_topics` does. Cancelling it
            stops the waiting only.
        """

    def read(request: ReadRequest) -> Deferred[ReadResult]:
        """
        Read the next committed records of some partitions of a topic, without waiting for new ones.

        Nothing is kept between two calls: reading goes on when the caller passes the positions of the
        result. A partition of which records are gone, or that ends before the offset, is reported and not
        read; the others are read. All records between the position that was passed and the one that is
        returned are in the result, unless the records were never committed, were compacted away, or do not
        have the key of the request.

        With a limit above 0, either a record is returned, or a position moves, or there was nothing
        more to read. No partition is left out call after call because others have many records.

        :param request: the partitions to read, and the limits. If no partition is read, the result still has
            the topic's id and its number of partitions.
        :return: fires with the records, and the position of each partition that was asked for. Fails with
            `sampleapp.errors.UnknownTopic`, `sampleapp.errors.UnknownPartition` if ``starts`` names a
            partition that the topic does not have, `sampleapp.errors.TopicNotAuthorized`,
            `sampleapp.errors.BrokerUnavailable`, `sampleapp.errors.BrokerIncompatible` or, after `stop`,
            `sampleapp.errors.BrokerStopped`, and with nothing else. Cancelling it stops the waiting only.
        """

    def follow(
        *,
        topic: str,
        observer: IRecordObserver,
        start: Start | FromOffsets = EARLIEST,
        partition: int | None = None,
    ) -> ISubscription:
        """
        Read a topic from its first record on, and then every record that is added, as it is added.

        Records of one partition arrive in the order of their offsets, each exactly once. Nothing is
        delivered before this call has returned. Failures while reading are logged, are among the reasons of
        `health`, which stays ready, and are retried until reading succeeds.

        :param topic: its name; a topic that does not exist counts as empty, and is not created.
        :param observer: is called on the reactor's thread.
        :param start: another position to begin at, in the partitions that exist now; a topic that is created
            later is read from its first record. `FromOffsets` has one for each partition.
        :param partition: the only partition to read; all by default.
        """

    def health() -> Health:
        """
        Return whether a record that is published now is expected to be stored, and the reasons for failures.

        Returns at once, from the last known state, without asking the broker.
        """

    def stop(*, deadline_s: float) -> Deferred[None]:
        """
        Reject new records with `sampleapp.errors.BrokerStopped`, finish those that were accepted, and
        stop every subscription.

        :param deadline_s: seconds to wait. Records that were not sent by then fail with
            `sampleapp.errors.BrokerStopped`, records that may have been stored with
            `sampleapp.errors.OutcomeUnknown`, and records that certainly were not stored with the reason.
        :return: fires with ``None`` when all records are finished and every resource is released. Never
            fails, and may be called more than once, and without a `start`.
        """


class IWorkBroker(Interface):
    """
    Shares the messages of a topic among the workers of a group; see `IBroker.work`.

    A message is with one worker at a time, under a lease, from its first attempt on until it is accepted or
    rejected, or given up after its last attempt. A group begins at the topic's first message. The leases
    outlive the process if the records do, and any process on the same records takes any lease.

    The contract is `sampleapp_testing.WorkContract`. Besides the errors that are named here, every method
    fails with `sampleapp.errors.BrokerUnavailable` if nothing was done, with
    `sampleapp.errors.OutcomeUnknown` if that is not known, with `sampleapp.errors.TopicNotAuthorized`, with
    `sampleapp.errors.WorkNotSupported` if this cluster has no groups of workers, and, after `stop`, with
    `sampleapp.errors.BrokerStopped`; and with nothing else.
    """

    leases: int = Attribute(
        "The leases of this instance that go on; those that ended elsewhere may count for a time."
    )
    given_up: int = Attribute(
        "The messages that this process has given up since its start, after their last attempt."
    )

    def pull(topic: str, group: str, *, most: int, wait_s: float) -> Deferred[Lease | None]:
        """
        Take messages that are free, under a lease: first those that were given before.

        :param topic: its name; it is not created.
        :param group: its name, with the form of a topic's name; it is created.
        :param most: the maximum of messages, at least 1. There may be fewer if they are large.
        :param wait_s: seconds to wait for the first message.
        :return: fires with the lease; with ``None`` if none has come by then, or when the broker stops. Fails
            with `sampleapp.errors.UnknownTopic`, or with `sampleapp.errors.TooManyLeases` when this instance
            has given the most leases, also while it waits. Leases that have ended, at any instance, make room
            for others. Cancelling it ends the waiting; if it has messages already, they are released.
        """

    def acknowledge(topic: str, group: str, lease: bytes, verdicts: Verdicts) -> Deferred[Acknowledged]:
        """
        End a lease, with a verdict for each of its messages.

        :param lease: the latest token of the lease.
        :return: fires when the verdicts are as safe as records are. Fails with `sampleapp.errors.LeaseLost`
            if it has ended, or is of another group; or with `sampleapp.errors.UnknownIds`, in which case it
            goes on. A repeat after `sampleapp.errors.OutcomeUnknown` fails with `LeaseLost` if the first call
            was done. Cancelling it stops the waiting only.
        """

    def extend(topic: str, group: str, lease: bytes) -> Deferred[Extended]:
        """
        Replace a lease by a new one, which lasts as long as a new lease does from now on.

        :param lease: the latest token of the lease, which has ended afterwards.
        :return: fires with the new one. Fails as `acknowledge` does, or with `sampleapp.errors.TooManyLeases`
            if it is a lease of another instance. Cancelling it stops the waiting only.
        """

    def backlog(topic: str, group: str) -> Deferred[int | None]:
        """
        Count the messages of a topic that a group has neither accepted nor rejected nor given up.

        Offsets without a record may count until the group has passed them.

        :return: fires with the number, or with ``None`` if the group does not exist. Fails with
            `sampleapp.errors.UnknownTopic`. Cancelling it stops the waiting only.
        """


class IMeasured(Interface):
    """A broker with measures, which metrics show. A broker need not provide this."""

    def measures() -> Measures:
        """
        Return the counts since the broker was created, and current values.

        Returns at once, without asking the broker. The result may continue to count, and must not be changed.
        """


class IReloadable(Interface):
    """
    A component whose files may be replaced while it runs: certificates, passwords.

    A broker may provide this; one that does not has no such files.
    """

    reloaded_paths = Attribute("The files, as a sequence of `pathlib.Path`. They do not change.")

    def reload() -> None:
        """
        Read the files again, and use their new contents from now on.

        Blocks on files for a moment, but never on a network.

        :raise StartUpError: a file is not valid; in that case nothing has changed. The message names the file
            and has nothing of its contents.
        """


class IVerifiesClients(Interface):
    """
    A mark of TLS contexts that verify the certificates of clients.

    An object that provides it is the application data of an `OpenSSL.SSL.Context`. Handshakes with a
    certificate that is not valid, or from an authority that is not trusted, fail in such a context.
    """
