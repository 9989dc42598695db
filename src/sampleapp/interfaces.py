"""
What the layers expect of one another.

Interfaces that hand out a result later return a `Deferred`; a coroutine may stand behind it, but is
never what callers see.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from twisted.internet.defer import Deferred
from zope.interface import Attribute, Interface

from sampleapp.errors import PublishError
from sampleapp.measures import Measures
from sampleapp.model import (
    EARLIEST,
    ConsumerRecord,
    Health,
    Record,
    RecordMetadata,
    Start,
    TopicDescription,
)

__all__ = [
    "IBroker",
    "IFollowing",
    "IMeasured",
    "IRecordBatchObserver",
    "IRecordObserver",
    "IReloadable",
    "IVerifiesClients",
    "Outcome",
]

Outcome: TypeAlias = RecordMetadata | PublishError
"""What became of one of many records: where it is, or why it is not known to be anywhere."""


class IRecordObserver(Interface):
    """Is told of the records of a topic; see `IBroker.follow`."""

    def record_received(record: ConsumerRecord) -> None:
        """
        One more record was read.

        Must not raise: a broker logs what is raised, counts the record as delivered, and goes on.
        """

    def caught_up() -> None:
        """
        Every record that was in the topic when following began has been delivered.

        Called exactly once, also for a topic that was empty or did not exist; and once more after each
        `reset`, when every record that was then in the new topic has been delivered.
        """

    def reset() -> None:
        """
        The topic was deleted, and perhaps made again: everything that was delivered so far is void.

        The records of the new topic follow, from its first one on, and then `caught_up` once more, also
        for a new topic that is empty or does not exist. Only brokers whose topics can be deleted call it.
        """


class IRecordBatchObserver(IRecordObserver):
    """
    Takes many records at once: for an observer to which a call for each record is dear.

    A broker calls `records_received` instead of `IRecordObserver.record_received`.
    """

    def records_received(records: Sequence[ConsumerRecord]) -> None:
        """
        Some more records of one partition were read: at least one, in the order of their offsets.

        They are as many as a broker delivers in one turn of the reactor, so this has to be done within
        milliseconds. Must not raise: a broker logs what is raised, counts all of them as delivered, and goes
        on.
        """


class IFollowing(Interface):
    """One ongoing reading of a topic, until it is stopped."""

    def stop() -> Deferred[None]:
        """
        Deliver nothing more, from this call on.

        :return: fires with ``None`` once nothing of the following is left running. Never fails, and may
            be called more than once.
        """

    def obstacle() -> str | None:
        """
        What keeps it from reading on.

        Answers at once from what is known, without asking the broker.

        :return: one or more sentences that may be shown to any caller: no path, address or secret is in
            them. ``None`` when nothing keeps it.
        """

    def is_lasting() -> bool:
        """Whether the obstacle stays until somebody repairs what is stored: trying again is of no use."""

    def exists() -> bool | None:
        """
        Whether there is what is followed: the topic, and in it the partition, if it is only one.

        :return: as of the last look; ``None`` while that is not known.
        """

    def lag() -> int | None:
        """
        How many records, or offsets that may have one, are still to be delivered.

        Answers at once from what is known, without asking the broker.

        :return: as of the last look; ``None`` while that is not known. It may stay above 0 where there are
            offsets without a record at the end.
        """


class IBroker(Interface):
    """
    A place that keeps records, in order, in the partitions of named topics.

    The contract that every implementation passes is `sampleapp.testing.BrokerContract`.
    """

    def check() -> None:
        """
        Look, before anything is started, for what would certainly keep the broker from working.

        Called before the reactor runs, so it may block for a moment on a file, but never on a network.

        :raise StartUpError: a file, or an option, is not what it has to be.
        """

    def start() -> None:
        """
        Begin to work, in the background. Returns at once, whether or not the broker can be reached.

        Records may be published from now on; they wait, within bounds, until the broker is reached.
        """

    def publish(record: Record) -> Deferred[RecordMetadata]:
        """
        Append one record to its topic.

        Records with the same topic and key are appended in the order of the calls.

        :return: fires once the record is as safe as the broker can make it: on disk, or with all in-sync
            replicas. Fails with a `sampleapp.errors.PublishError`, and with nothing else. Cancelling it
            stops the waiting only: the record may be published all the same.
        """

    def publish_many(records: Sequence[Record]) -> Deferred[list[Outcome]]:
        """
        Append many records, each to its topic.

        Records with the same topic and key are appended in their order, behind those of earlier calls. So
        many that they would take the reactor more than a few milliseconds are taken in over several of its
        turns, and what is published meanwhile may come between them.

        :param records: of any topics. The sequence must not change before the result is there.
        :return: fires once it is known of each record what became of it, with an outcome for each, in order:
            where the record is, or why it is not known to be anywhere. Fails with a
            `sampleapp.errors.PublishError`, and with nothing else, if all of them are refused together, as
            when they are more than the broker has room for: none of them was published then. Cancelling it
            stops the waiting only.
        """

    def check_topics(topics: Collection[str]) -> Deferred[Mapping[str, PublishError]]:
        """
        Find out which of some topics cannot be published to.

        A broker that creates topics by itself may create those that do not exist. What it knows already it
        does not ask for again, so this is cheap for topics that are in use.

        :return: fires with the reason for each topic that cannot, as `publish` would have it: it does not
            exist, its name is not allowed, this service may not publish to it, or the broker cannot be asked.
            Empty when nothing is known against any of them. Of thousands it may leave some out that were
            not looked at, once there are others that cannot. Never fails; cancelling it stops the waiting
            only.
        """

    def describe_topics(topics: Collection[str] | None = None) -> Deferred[Sequence[TopicDescription]]:
        """
        Look which topics there are, and where their partitions are kept.

        :param topics: the only ones to look for; all by default, but for those that are the broker's own.
        :return: fires with those that there are, by name. Fails with
            `sampleapp.errors.BrokerUnavailable`, and with nothing else, if the broker cannot be asked.
            Cancelling it stops the waiting only.
        """

    def follow(
        *,
        topic: str,
        observer: IRecordObserver,
        start: Start = EARLIEST,
        partition: int | None = None,
    ) -> IFollowing:
        """
        Read a topic from its first record on, and then every record that is added, as it is added.

        Records of one partition arrive in the order of their offsets, each exactly once. Nothing is
        delivered before this call has returned. What goes wrong while reading is logged, shows in
        `health`, and is tried again until it works.

        :param topic: its name; a topic that does not exist is empty until it does, and is not created.
        :param observer: is called on the reactor's thread.
        :param start: where to begin instead, in the partitions that there are; a topic that comes into being
            later is read from its first record.
        :param partition: the only one to read; all by default.
        """

    def health() -> Health:
        """
        Whether a record would be expected to be accepted if it were published now, and if not, why.

        Answers at once from what is known, without asking the broker.
        """

    def stop(*, deadline_s: float) -> Deferred[None]:
        """
        Refuse new records with `sampleapp.errors.BrokerStopped`, finish those that were accepted, and
        stop every following.

        :param deadline_s: seconds to wait. What has not begun by then fails with
            `sampleapp.errors.BrokerStopped`, what may have been stored with
            `sampleapp.errors.OutcomeUnknown`, and what is found not to have been stored with the reason.
        :return: fires with ``None`` when all that is done and every resource is released. Never fails,
            and may be called more than once, and without a `start`.
        """


class IMeasured(Interface):
    """A broker that tells what it has counted. Metrics show it; a broker need not provide this."""

    def measures() -> Measures:
        """
        What it has counted since it was made, and how things stand now.

        Answers at once from what is known. What is returned may go on to count, and is not to be changed.
        """


class IReloadable(Interface):
    """
    Reads files that others replace while it works: certificates, passwords.

    A broker may provide it; one that does not has nothing to read again.
    """

    reloaded_paths = Attribute("The files, as a sequence of `pathlib.Path`. They do not change.")

    def reload() -> None:
        """
        Read the files again, and use what is in them from now on.

        Blocks on them for a moment, but never on a network.

        :raise StartUpError: one is not what it has to be; nothing has changed then. The message names it, and
            repeats nothing of what is in it.
        """


class IVerifiesClients(Interface):
    """
    Marks the connections of a TLS context whose clients' certificates can be believed.

    It stands in the application data of an `OpenSSL.SSL.Context`. With a certificate that is not valid, or
    from an authority that is not trusted, no handshake of such a context succeeds.
    """
