"""The contract of brokers that share messages among workers; see `sampleapp.interfaces.IWorkBroker`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

from twisted.internet.defer import CancelledError, Deferred

from sampleapp.errors import BrokerStopped, LeaseLost, TooManyLeases, UnknownIds, UnknownTopic
from sampleapp.interfaces import IBroker, IWorkBroker
from sampleapp.model import ALL, Acknowledged, Extended, Lease, LeasedRecord, Verdicts
from sampleapp_testing.contract_base import ContractBase
from sampleapp_testing.publishing import content, new_topic, record, record_offset
from sampleapp_testing.waiting import DEADLINE_S, eventually, outcomes, turns, within

__all__ = ["WorkContract"]

GROUP = "workers"
MessageId = tuple[int, int]


def ids(lease: Lease) -> list[MessageId]:
    """Return the partitions and offsets of the messages of a lease."""
    return [record_offset(each.record) for each in lease.messages]


def values(messages: Sequence[LeasedRecord]) -> list[bytes | None]:
    """Return the values of messages."""
    return [each.record.value for each in messages]


def work_of(broker: IBroker) -> IWorkBroker:
    """Return the groups of workers of a broker."""
    assert broker.work is not None
    return broker.work


class WorkContract(ContractBase):
    """The tests of groups of workers."""

    lease_s: float = 30.0
    """The time of a lease."""
    attempts: int = 5
    """The number of times that a message is given."""
    most_leases: int = 200
    """The most leases of a broker, for `new_broker` and `again`. Tests set it."""
    is_shared: bool = False
    """True if `again` makes another broker also while the first one runs."""
    patience_s: float = DEADLINE_S
    """The time in which messages that are free are given, in seconds."""

    def new_broker(self) -> AbstractContextManager[IBroker]:
        """Return a context manager that yields a broker that is not started, and cleans up afterwards."""
        raise NotImplementedError

    def again(self, broker: IBroker) -> IBroker:
        """Return another broker on the same records (if `durable`, or `is_shared`)."""
        raise NotImplementedError

    async def end_leases(self) -> None:
        """Let time go by until all leases have ended."""
        raise NotImplementedError

    @asynccontextmanager
    async def working(self, count: int = 0) -> AsyncIterator[tuple[IBroker, str]]:
        """Run a broker with a topic of some messages, whose values are their numbers from 0 on."""
        topic = new_topic()
        async with self.running() as broker:
            await within(broker.publish_many([record(topic, b"%d" % n) for n in range(count)]))
            yield broker, topic

    async def pulled(self, broker: IBroker, topic: str, most: int = 1, *, group: str = GROUP) -> Lease:
        """Pull messages, of which there are some."""
        lease = await within(work_of(broker).pull(topic, group, most=most, wait_s=self.patience_s))
        assert lease is not None
        assert 1 <= len(lease.messages) <= most
        assert len(set(ids(lease))) == len(lease.messages)
        assert {each.record.topic for each in lease.messages} == {topic}
        return lease

    async def all_pulled(self, broker: IBroker, topic: str, count: int, *, group: str = GROUP) -> list[Lease]:
        """Pull this many messages, of which a broker may give fewer in one lease, and no more."""
        leases: list[Lease] = []
        while (left := count - sum(len(each.messages) for each in leases)) > 0:
            leases.append(await self.pulled(broker, topic, left, group=group))
        assert await within(work_of(broker).pull(topic, group, most=1, wait_s=0)) is None
        return leases

    async def acknowledged(
        self, broker: IBroker, topic: str, leases: Sequence[Lease], **verdicts: Any
    ) -> list[Acknowledged]:
        """End leases."""
        of_all = Verdicts(**verdicts)
        return [
            await within(work_of(broker).acknowledge(topic, GROUP, each.token, of_all)) for each in leases
        ]

    async def lost(self, broker: IBroker, topic: str, *tokens: bytes, group: str = GROUP) -> None:
        """Check that these leases have ended."""
        for token in tokens:
            found = await outcomes(
                [
                    work_of(broker).acknowledge(topic, group, token, Verdicts(accept=ALL)),
                    work_of(broker).acknowledge(topic, group, token, Verdicts()),
                    work_of(broker).extend(topic, group, token),
                ]
            )
            assert [type(each) for each in found] == [LeaseLost] * 3

    async def test_each_message_is_given_to_one_worker_in_about_the_order_of_the_topic(self) -> None:
        async with self.working(20) as (broker, topic):
            leases = await self.all_pulled(broker, topic, 20)
            messages = [message for lease in leases for message in lease.messages]
            assert sorted(int(value or b"") for value in values(messages)) == list(range(20))
            assert {each.attempts for each in messages} == {1}
            of_partitions: dict[int, list[int]] = {}
            for each in messages:
                of_partitions.setdefault(each.record.partition, []).append(each.record.offset)
            assert all(offsets == sorted(offsets) for offsets in of_partitions.values())
            assert len({each.token for each in leases}) == len(leases)
            assert all(1 <= len(each.token) <= 4096 for each in leases)

    async def test_the_messages_of_a_lease_are_the_records_of_the_topic(self) -> None:
        async with self.working() as (broker, topic):
            sent = [
                record(topic, b"v", key=b"k", headers=(("h", b"1"), ("h", None))),
                record(topic, None, key=b""),
                record(topic, b"", timestamp_ms=1_700_000_000_001),
            ]
            published = [await within(broker.publish(each)) for each in sent]
            leases = await self.all_pulled(broker, topic, 3)
        found = {record_offset(each.record): each.record for lease in leases for each in lease.messages}
        assert {at: content(each) for at, each in found.items()} == {
            (at.partition, at.offset): content(each) for each, at in zip(sent, published, strict=True)
        }

    async def test_a_lease_lasts_from_now_on_for_its_time(self) -> None:
        async with self.working(1) as (broker, topic):
            before_ms = time.time() * 1000
            lease = await self.pulled(broker, topic)
            extended = await within(work_of(broker).extend(topic, GROUP, lease.token))
            # Clocks of machines may differ, and a broker may let a lease end before its own.
            for ends_ms in (lease.ends_ms, extended.ends_ms):
                assert before_ms < ends_ms < before_ms + 1000 * (self.lease_s + 30)
            assert extended.ends_ms >= lease.ends_ms

    async def test_what_is_accepted_or_rejected_is_never_given_again(self) -> None:
        async with self.working(6) as (broker, topic):
            leases = await self.all_pulled(broker, topic, 6)
            done = 0
            for number, lease in enumerate(leases):
                half = frozenset(ids(lease)[number % 2 :: 2])
                found = await within(
                    work_of(broker).acknowledge(
                        topic, GROUP, lease.token, Verdicts(accept=half, reject=frozenset(ids(lease)) - half)
                    )
                )
                assert found == Acknowledged(
                    accepted=len(half), released=0, rejected=len(lease.messages) - len(half)
                )
                done += found.accepted + found.rejected
            assert done == 6
            await self.end_leases()
            assert await within(work_of(broker).pull(topic, GROUP, most=6, wait_s=0)) is None

    async def test_what_is_released_or_not_named_is_given_at_once_as_another_attempt(self) -> None:
        async with self.working(6) as (broker, topic):
            first = await self.all_pulled(broker, topic, 6)
            released = 0
            for lease in first:
                named = frozenset(ids(lease)[::2])
                found = await within(
                    work_of(broker).acknowledge(topic, GROUP, lease.token, Verdicts(release=named))
                )
                released += found.released
            assert released == 6
            again = await self.all_pulled(broker, topic, 6)
            assert {each for lease in again for each in ids(lease)} == {
                each for lease in first for each in ids(lease)
            }
            assert {each.attempts for lease in again for each in lease.messages} == {2}

    async def test_all_means_the_messages_without_another_verdict(self) -> None:
        async with self.working(9) as (broker, topic):
            for verdict in ("accept", "release", "reject"):
                lease = await self.pulled(broker, topic, 3)
                others = [each for each in ("accept", "release", "reject") if each != verdict]
                named: dict[str, Any] = {
                    each: frozenset([one]) for each, one in zip(others, ids(lease), strict=False)
                }
                (found,) = await self.acknowledged(broker, topic, [lease], **{verdict: ALL}, **named)
                counts = {"accept": found.accepted, "release": found.released, "reject": found.rejected}
                assert counts == {
                    **dict.fromkeys(counts, 0),
                    **dict.fromkeys(named, 1),
                    verdict: len(lease.messages) - len(named),
                }

    async def test_a_message_comes_back_when_its_lease_has_ended(self) -> None:
        async with self.working(4) as (broker, topic):
            first = await self.all_pulled(broker, topic, 4)
            await self.end_leases()
            again = await self.all_pulled(broker, topic, 4)
            assert {each for lease in again for each in ids(lease)} == {
                each for lease in first for each in ids(lease)
            }
            assert {each.attempts for lease in again for each in lease.messages} == {2}
            await self.lost(broker, topic, *[each.token for each in first])
            await self.acknowledged(broker, topic, again, accept=ALL)

    async def test_a_lease_that_has_ended_is_lost_even_if_nobody_has_its_messages(self) -> None:
        async with self.working(2) as (broker, topic):
            leases = await self.all_pulled(broker, topic, 2)
            await self.end_leases()
            await self.lost(broker, topic, *[each.token for each in leases])
            assert await within(work_of(broker).backlog(topic, GROUP)) == 2
            again = await self.all_pulled(broker, topic, 2)
            assert {each.attempts for lease in again for each in lease.messages} == {2}

    async def test_a_lease_that_was_acknowledged_is_lost(self) -> None:
        async with self.working(2) as (broker, topic):
            leases = await self.all_pulled(broker, topic, 2)
            await self.acknowledged(broker, topic, leases, accept=ALL)
            await self.lost(broker, topic, *[each.token for each in leases])

    async def test_an_unknown_lease_is_lost(self) -> None:
        async with self.working(1) as (broker, topic):
            unknown = (b"", b"x", bytes(16), bytes(4096))
            await self.lost(broker, topic, *unknown)
            lease = await self.pulled(broker, topic)
            await self.lost(broker, topic, *unknown, lease.token[:-1], lease.token + b"x")
            (found,) = await self.acknowledged(broker, topic, [lease], accept=ALL)
            assert found.accepted == 1

    async def test_a_lease_is_that_of_its_topic_and_group(self) -> None:
        async with self.working(1) as (broker, topic):
            other = new_topic()
            await within(broker.publish(record(other)))
            await self.pulled(broker, other)
            await self.pulled(broker, topic, group="others")
            # Last, since a new group may take most of the time of a lease.
            lease = await self.pulled(broker, topic)
            await self.lost(broker, other, lease.token)
            await self.lost(broker, topic, lease.token, group="others")
            await self.lost(broker, new_topic(), lease.token)
            await self.acknowledged(broker, topic, [lease], accept=ALL)

    async def test_an_acknowledgement_of_other_messages_changes_nothing(self) -> None:
        async with self.working(4) as (broker, topic):
            lease = await self.pulled(broker, topic, 2)
            rest = await self.pulled(broker, topic, 2)
            unknown: list[MessageId] = [*ids(rest), (999_999, 0), (0, 2**62)]
            for verdict in ("accept", "release", "reject"):
                named = frozenset([*ids(lease), *unknown])
                (error,) = await outcomes(
                    [work_of(broker).acknowledge(topic, GROUP, lease.token, Verdicts(**{verdict: named}))]
                )
                assert isinstance(error, UnknownIds)
                assert error.ids == frozenset(unknown)
            (found,) = await self.acknowledged(broker, topic, [lease], accept=frozenset(ids(lease)))
            assert found.accepted == len(lease.messages)
            await self.acknowledged(broker, topic, [rest], accept=ALL)

    async def test_an_extended_lease_replaces_the_one_before(self) -> None:
        async with self.working(3) as (broker, topic):
            lease, *_ = await self.all_pulled(broker, topic, 3)
            count = len(lease.messages)
            tokens = [lease.token]
            for _ in range(self.attempts + 1):
                extended: Extended = await within(work_of(broker).extend(topic, GROUP, tokens[-1]))
                tokens.append(extended.token)
            await self.lost(broker, topic, *tokens[:-1])
            assert await within(work_of(broker).pull(topic, GROUP, most=1, wait_s=0)) is None
            found = await within(work_of(broker).acknowledge(topic, GROUP, tokens[-1], Verdicts()))
            assert found == Acknowledged(accepted=0, released=count, rejected=0)
            # To extend it was not an attempt.
            again = await self.all_pulled(broker, topic, count)
            assert {each.attempts for lease in again for each in lease.messages} == {2}

    async def test_a_message_is_given_up_after_its_last_attempt(self) -> None:
        async with self.working(2) as (broker, topic):
            for attempt in range(1, self.attempts + 1):
                leases = await self.all_pulled(broker, topic, 2)
                messages = [each for lease in leases for each in lease.messages]
                assert [each.attempts for each in messages] == [attempt] * 2
                if attempt % 2:
                    found = await self.acknowledged(broker, topic, leases, release=ALL)
                    is_last = attempt == self.attempts
                    assert sum(each.released for each in found) == 2
                    assert work_of(broker).given_up == (2 if is_last else 0)
                else:
                    await self.end_leases()
            assert await within(work_of(broker).pull(topic, GROUP, most=1, wait_s=0)) is None
            assert await within(work_of(broker).backlog(topic, GROUP)) == 0
            await within(broker.publish(record(topic, b"next")))
            (lease,) = await self.all_pulled(broker, topic, 1)
            assert values(lease.messages) == [b"next"]

    async def test_a_message_whose_last_lease_has_ended_is_given_up(self) -> None:
        async with self.working(1) as (broker, topic):
            for _ in range(self.attempts):
                await self.all_pulled(broker, topic, 1)
                assert await within(work_of(broker).backlog(topic, GROUP)) == 1
                await self.end_leases()
            assert await within(work_of(broker).backlog(topic, GROUP)) == 0
            assert await within(work_of(broker).pull(topic, GROUP, most=1, wait_s=0)) is None
            assert await within(work_of(broker).backlog(topic, GROUP)) == 0

    async def test_the_last_attempt_may_be_accepted(self) -> None:
        async with self.working(1) as (broker, topic):
            for _ in range(self.attempts - 1):
                await self.acknowledged(broker, topic, await self.all_pulled(broker, topic, 1))
            (found,) = await self.acknowledged(
                broker, topic, await self.all_pulled(broker, topic, 1), accept=ALL
            )
            assert found == Acknowledged(accepted=1, released=0, rejected=0)

    async def test_groups_do_not_share_messages(self) -> None:
        async with self.working(3) as (broker, topic):
            for group in ("one", "other"):
                leases = await self.all_pulled(broker, topic, 3, group=group)
                for lease in leases:
                    await within(work_of(broker).acknowledge(topic, group, lease.token, Verdicts(accept=ALL)))
            assert await within(work_of(broker).backlog(topic, "one")) == 0
            assert await within(work_of(broker).backlog(topic, "third")) is None

    async def test_the_backlog_is_what_is_not_done(self) -> None:
        async with self.working(10) as (broker, topic):
            assert await within(work_of(broker).backlog(topic, GROUP)) is None
            lease = await self.pulled(broker, topic, 4)
            assert await within(work_of(broker).backlog(topic, GROUP)) == 10
            one, *rest = ids(lease)
            await self.acknowledged(broker, topic, [lease], accept={one}, reject=frozenset(rest[:1]))
            left = 10 - len(lease.messages[:2])
            assert await within(work_of(broker).backlog(topic, GROUP)) == left
            await within(broker.publish(record(topic)))
            assert await within(work_of(broker).backlog(topic, GROUP)) == left + 1
            await self.all_pulled(broker, topic, left + 1)
            assert await within(work_of(broker).backlog(topic, GROUP)) == left + 1
            await self.end_leases()
            assert await within(work_of(broker).backlog(topic, GROUP)) == left + 1

    async def test_a_topic_that_does_not_exist_is_unknown_and_is_not_created(self) -> None:
        async with self.working() as (broker, topic):
            for wait_s in (0, self.patience_s):
                found = await outcomes(
                    [
                        work_of(broker).pull(topic, GROUP, most=1, wait_s=wait_s),
                        work_of(broker).backlog(topic, GROUP),
                    ]
                )
                assert [type(each) for each in found] == [UnknownTopic] * 2
            assert topic not in await within(broker.list_topics())

    async def refused(self, broker: IBroker, topic: str) -> None:
        """Check that the broker gives no more leases, and that this is said at once."""
        for wait_s in (0, self.lease_s):
            (found,) = await outcomes([work_of(broker).pull(topic, GROUP, most=1, wait_s=wait_s)])
            assert isinstance(found, TooManyLeases)

    async def test_a_lease_more_than_the_most_is_rejected_until_one_is_acknowledged(self) -> None:
        self.most_leases = 2
        async with self.working(4) as (broker, topic):
            leases = [await self.pulled(broker, topic) for _ in range(2)]
            assert work_of(broker).leases == 2
            await self.refused(broker, topic)
            extended = await within(work_of(broker).extend(topic, GROUP, leases[0].token))
            assert work_of(broker).leases == 2
            await self.refused(broker, topic)
            await self.acknowledged(broker, topic, leases[1:], accept=ALL)
            assert work_of(broker).leases == 1
            last = await self.pulled(broker, topic)
            await self.refused(broker, topic)
            await within(work_of(broker).acknowledge(topic, GROUP, extended.token, Verdicts(release=ALL)))
            await self.acknowledged(broker, topic, [last], reject=ALL)
            assert work_of(broker).leases == 0

    async def test_a_lease_whose_time_is_over_makes_room_for_another(self) -> None:
        self.most_leases = 1
        async with self.working(1) as (broker, topic):
            await self.pulled(broker, topic)
            await self.refused(broker, topic)
            await self.end_leases()
            assert work_of(broker).leases == 0
            # A broker may need some seconds for the end.
            ends_s = time.monotonic() + self.patience_s
            lease = None
            while not isinstance(lease, Lease) and time.monotonic() < ends_s:
                (lease,) = await outcomes([work_of(broker).pull(topic, GROUP, most=1, wait_s=0)])
            assert isinstance(lease, Lease)
            assert [each.attempts for each in lease.messages] == [2]

    async def test_a_lease_that_another_broker_has_ended_makes_room(self) -> None:
        if not self.is_shared:
            return
        self.most_leases = 2
        async with self.working(6) as (broker, topic):
            another = self.again(broker)
            another.start()
            try:
                for verdict in ("accept", "release"):
                    leases = [await self.pulled(broker, topic) for _ in range(2)]
                    await self.refused(broker, topic)
                    await self.acknowledged(another, topic, leases[:1], **{verdict: ALL})
                    last = await self.pulled(broker, topic)
                    await self.refused(broker, topic)
                    await self.acknowledged(broker, topic, [leases[1], last], accept=ALL)
            finally:
                await within(another.stop(deadline_s=20))

    async def test_pulls_that_wait_get_no_more_leases_than_the_most(self) -> None:
        self.most_leases = 2
        async with self.working(1) as (broker, topic):
            await self.acknowledged(broker, topic, await self.all_pulled(broker, topic, 1), accept=ALL)
            waiting = [work_of(broker).pull(topic, GROUP, most=1, wait_s=1) for _ in range(5)]
            await turns()
            await within(broker.publish_many([record(topic) for _ in range(5)]))
            found = await outcomes(waiting)
            leases = [each for each in found if isinstance(each, Lease)]
            assert 1 <= len(leases) <= 2
            assert all(isinstance(each, (Lease, TooManyLeases, type(None))) for each in found)
            # A broker may keep a message for a second that arrived after the pulls had ended.
            await eventually(lambda: work_of(broker).leases == len(leases))

    async def test_a_pull_waits_for_a_record(self) -> None:
        async with self.working(1) as (broker, topic):
            await self.acknowledged(broker, topic, await self.all_pulled(broker, topic, 1), accept=ALL)
            waiting = work_of(broker).pull(topic, GROUP, most=5, wait_s=self.patience_s)
            await turns()
            assert not waiting.called
            await within(broker.publish(record(topic, b"next")))
            lease = await within(waiting)
            assert lease is not None
            assert values(lease.messages) == [b"next"]

    async def test_a_pull_waits_for_a_release(self) -> None:
        async with self.working(1) as (broker, topic):
            leases = await self.all_pulled(broker, topic, 1)
            waiting = work_of(broker).pull(topic, GROUP, most=1, wait_s=self.patience_s)
            await turns()
            assert not waiting.called
            await self.acknowledged(broker, topic, leases, release=ALL)
            lease = await within(waiting)
            assert lease is not None
            assert [each.attempts for each in lease.messages] == [2]

    async def test_a_pull_waits_for_the_end_of_a_lease(self) -> None:
        async with self.working(1) as (broker, topic):
            await self.all_pulled(broker, topic, 1)
            waiting = work_of(broker).pull(topic, GROUP, most=1, wait_s=self.lease_s + self.patience_s)
            await turns()
            assert not waiting.called
            await self.end_leases()
            lease = await within(waiting)
            assert lease is not None
            assert [each.attempts for each in lease.messages] == [2]

    async def test_a_pull_without_messages_ends_after_its_time(self) -> None:
        async with self.working(1) as (broker, topic):
            await self.all_pulled(broker, topic, 1)
            waiting = [work_of(broker).pull(topic, GROUP, most=1, wait_s=each) for each in (0, 0.05, 0.1)]
            assert await outcomes(waiting) == [None] * 3

    async def test_waiting_pulls_get_messages_in_their_order(self) -> None:
        async with self.working(1) as (broker, topic):
            await self.acknowledged(broker, topic, await self.all_pulled(broker, topic, 1), accept=ALL)
            waiting = [work_of(broker).pull(topic, GROUP, most=1, wait_s=self.patience_s) for _ in range(30)]
            await within(broker.publish_many([record(topic, b"%d" % n) for n in range(30)]))
            leases: list[Lease] = await outcomes(waiting)
            found = sorted(int(each.messages[0].record.value or b"") for each in leases)
            assert found == list(range(30))

    async def test_a_cancelled_pull_takes_no_message(self) -> None:
        async with self.working(1) as (broker, topic):
            await self.acknowledged(broker, topic, await self.all_pulled(broker, topic, 1), accept=ALL)
            cancelled, waiting = (
                work_of(broker).pull(topic, GROUP, most=1, wait_s=self.patience_s) for _ in range(2)
            )
            await turns()
            cancelled.cancel()
            (error,) = await outcomes([cancelled])
            assert isinstance(error, CancelledError)
            await within(broker.publish(record(topic, b"next")))
            lease = await within(waiting)
            assert lease is not None
            assert [(each.record.value, each.attempts) for each in lease.messages] == [(b"next", 1)]

    async def test_the_messages_of_a_pull_that_is_cancelled_at_once_are_not_kept(self) -> None:
        async with self.working(3) as (broker, topic):
            for _ in range(2):
                cancelled = work_of(broker).pull(topic, GROUP, most=3, wait_s=0)
                if cancelled.called:
                    # Nothing can be cancelled: its worker has the messages.
                    lease = await within(cancelled)
                    await self.acknowledged(broker, topic, [] if lease is None else [lease])
                else:
                    cancelled.cancel()
                    await outcomes([cancelled])
            found: list[MessageId] = []
            while len(found) < 3:
                found += ids(await self.pulled(broker, topic, 3))
            assert len(set(found)) == 3

    async def test_many_workers_share_a_topic(self) -> None:
        async with self.working() as (broker, topic):
            accepted: list[bytes | None] = []

            async def work(number: int) -> None:
                while len(accepted) < 200:
                    lease = await work_of(broker).pull(topic, GROUP, most=1 + number % 4, wait_s=0.5)
                    if lease is None:
                        continue
                    # Released more often, a message would be given up.
                    kept = [each for each in lease.messages[1:] if each.attempts > 1] + [lease.messages[0]]
                    verdicts = Verdicts(accept=frozenset(record_offset(each.record) for each in kept))
                    await work_of(broker).acknowledge(topic, GROUP, lease.token, verdicts)
                    accepted.extend(values(kept))

            await within(broker.publish(record(topic, b"0")))
            workers = [Deferred.fromCoroutine(work(number)) for number in range(16)]
            await within(broker.publish_many([record(topic, b"%d" % n) for n in range(1, 200)]))
            await outcomes(workers)
            assert sorted(int(each or b"") for each in accepted) == list(range(200))
            assert await within(work_of(broker).backlog(topic, GROUP)) == 0

    async def test_a_stop_ends_pulls_that_wait_and_rejects_later_calls(self) -> None:
        async with self.working(1) as (broker, topic):
            lease = await self.pulled(broker, topic)
            waiting = [work_of(broker).pull(topic, GROUP, most=1, wait_s=self.patience_s) for _ in range(3)]
            await turns()
            stopping = broker.stop(deadline_s=DEADLINE_S)
            assert await outcomes(waiting) == [None] * 3
            await within(stopping)
            found = await outcomes(
                [
                    work_of(broker).pull(topic, GROUP, most=1, wait_s=0),
                    work_of(broker).acknowledge(topic, GROUP, lease.token, Verdicts()),
                    work_of(broker).extend(topic, GROUP, lease.token),
                    work_of(broker).backlog(topic, GROUP),
                ]
            )
            assert [type(each) for each in found] == [BrokerStopped] * 4

    async def test_leases_and_what_is_done_outlive_the_broker(self) -> None:
        if not self.durable:
            return
        with self.new_broker() as broker:
            topic = new_topic()
            broker.start()
            await within(broker.publish_many([record(topic, b"%d" % n) for n in range(6)]))
            done, held, released = [await self.pulled(broker, topic, 2) for _ in range(3)]
            await self.acknowledged(broker, topic, [done], accept=ALL)
            await self.acknowledged(broker, topic, [released])
            await within(broker.stop(deadline_s=DEADLINE_S))
            second = self.again(broker)
            second.start()
            try:
                (again,) = await self.all_pulled(second, topic, 2)
                assert ids(again) == ids(released)
                await self.lost(second, topic, done.token, released.token)
                await self.acknowledged(second, topic, [held], accept=ALL)
                assert await within(work_of(second).backlog(topic, GROUP)) == 2
            finally:
                await within(second.stop(deadline_s=DEADLINE_S))
