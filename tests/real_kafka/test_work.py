"""Groups of workers on Kafka's share groups: the contract, and sessions that are never left behind."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.task import deferLater

from sampleapp.brokers import WorkSettings, from_url
from sampleapp.brokers.kafka.work.pulls import METADATA_AGE_S
from sampleapp.errors import BrokerUnavailable, LeaseLost, OutcomeUnknown
from sampleapp.model import ALL, Verdicts
from sampleapp_testing import WorkContract
from tests.real_kafka.admin import new_topic
from tests.real_kafka.cluster import Cluster
from tests.real_kafka.service import connect, for_each_version, in_thread, kafka_url
from tests.real_kafka.share_groups import SESSIONS, SETTINGS, SHORTEST_LOCK, ShareGroup, free_sessions
from tests.real_kafka.versions import SHARE_GROUPS, needs
from tests.real_kafka.writing import produce
from tests.support.brokers import record, within
from tests.support.live_service import LiveService
from tests.support.waiting import wait_until

pytestmark = needs(SHARE_GROUPS)

LOCK_S = 6.0


@pytest.fixture(scope="module")
def many_sessions(version, tmp_path_factory):
    """A broker with short locks, and room for many sessions."""
    settings = {
        **SETTINGS,
        "group.share.max.share.sessions": "200",
        "group.share.record.lock.duration.ms": f"{LOCK_S * 1000:.0f}",
    }
    directory = tmp_path_factory.mktemp(f"kafka-{version}-work")
    with Cluster(version=version, nodes=1, directory=directory, settings=settings) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def few_sessions(version, tmp_path_factory):
    """A broker with room for ten sessions."""
    directory = tmp_path_factory.mktemp(f"kafka-{version}-few")
    with Cluster(version=version, nodes=1, directory=directory, settings=SETTINGS) as cluster:
        yield cluster


@for_each_version
class Work(WorkContract):
    lease_s = LOCK_S
    is_shared = True

    @pytest.fixture(autouse=True)
    def _cluster(self, many_sessions):
        self.url = kafka_url(many_sessions, auto_create="true")

    @contextmanager
    def new_broker(self):
        yield self.again(None)

    def again(self, broker):
        return from_url(self.url, reactor=reactor, work=WorkSettings(most_leases=self.most_leases))

    async def test_a_cancelled_pull_takes_no_message(self):
        """As in the contract, but a pull that has only begun may take one, and give it back."""
        async with self.working(1) as (broker, topic):
            await self.acknowledged(broker, topic, await self.all_pulled(broker, topic, 1), accept=ALL)
            cancelled, waiting = (broker.work.pull(topic, "workers", most=1, wait_s=30) for _ in range(2))
            await deferLater(reactor, 1)
            cancelled.addErrback(lambda _: None)
            cancelled.cancel()
            await within(broker.publish(record(topic, b"next")))
            lease = await within(waiting)
            assert [(each.record.value, each.attempts) for each in lease.messages] == [(b"next", 1)]

    async def end_leases(self):
        await deferLater(reactor, LOCK_S + 0.5)


@asynccontextmanager
async def running(cluster):
    """One more instance."""
    broker = from_url(kafka_url(cluster), reactor=reactor)
    broker.start()
    try:
        yield broker
    finally:
        await within(broker.stop(deadline_s=20))


async def pulled(broker, group, *, most=1):
    """Pull messages, of which there are some, when there is room for a session."""
    lease = None
    while lease is None:
        with suppress(BrokerUnavailable):
            lease = await within(broker.work.pull(group.topic, group.name, most=most, wait_s=1))
    return lease


async def ended_or_lost(outcome):
    """Wait for the response about a lease of half a second, which may end first."""
    with suppress(LeaseLost, OutcomeUnknown):
        await within(outcome)


async def never_answered(group, one, two):
    await pulled(one, group)


async def acknowledged(group, one, two):
    lease = await pulled(one, group)
    await ended_or_lost(one.work.acknowledge(group.topic, group.name, lease.token, Verdicts(accept=ALL)))


async def acknowledged_by_another(group, one, two):
    lease = await pulled(one, group)
    await ended_or_lost(two.work.acknowledge(group.topic, group.name, lease.token, Verdicts(release=ALL)))


async def extended_by_another(group, one, two):
    lease = await pulled(one, group)
    await ended_or_lost(two.work.extend(group.topic, group.name, lease.token))


async def cancelled(group, one, two):
    pulling = one.work.pull(group.topic, group.name, most=1, wait_s=1)
    pulling.addErrback(lambda _: None)
    pulling.cancel()
    await deferLater(reactor, 0)


async def cancelled_while_it_waits(group, one, two):
    idle = f"{group.name}-idle"
    pulling = one.work.pull(group.topic, idle, most=1, wait_s=60)
    # When the group is ready, it gets a message before it is cancelled.
    pulling.addCallback(
        lambda lease: one.work.acknowledge(group.topic, idle, lease.token, Verdicts(accept=ALL))
    )
    pulling.addErrback(lambda _: None)
    await deferLater(reactor, 0.1)
    pulling.cancel()


async def stopped(group, one, two):
    async with running(group.cluster) as three:
        await pulled(three, group)


FAULTS = [
    never_answered,
    acknowledged,
    acknowledged_by_another,
    extended_by_another,
    cancelled,
    cancelled_while_it_waits,
    stopped,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest_twisted.ensureDeferred
async def test_no_session_is_left_by_three_times_as_many_leases_as_there_are_sessions(fault, few_sessions):
    group = await in_thread(lambda: ShareGroup(few_sessions, records=200, **SHORTEST_LOCK))
    group.cluster = few_sessions
    async with running(few_sessions) as one, running(few_sessions) as two:
        for _ in range(3 * SESSIONS):
            await fault(group, one, two)
        # A consumer that comes now gets in.
        lease = await pulled(two, group)
        await ended_or_lost(two.work.acknowledge(group.topic, group.name, lease.token, Verdicts()))
        idle = await in_thread(ShareGroup, few_sessions)
        await in_thread(
            wait_until, lambda: free_sessions(idle) == SESSIONS, "no session is left on the broker"
        )


@pytest_twisted.ensureDeferred
async def test_a_pull_without_a_session_is_refused_and_names_the_setting(few_sessions):
    group = await in_thread(lambda: ShareGroup(few_sessions, records=200))
    async with running(few_sessions) as one:
        leases = [await pulled(one, group) for _ in range(SESSIONS)]
        with pytest.raises(BrokerUnavailable, match=r"group\.share\.max\.share\.sessions"):
            await within(one.work.pull(group.topic, group.name, most=1, wait_s=0))
        for lease in leases:
            await within(one.work.acknowledge(group.topic, group.name, lease.token, Verdicts(accept=ALL)))
        assert (await pulled(one, group)).messages[0].record.offset == SESSIONS


async def accepted_in_eight_pulls(broker, topic, group):
    """Pull without waiting, accept what comes, and return the values."""
    found = []
    for _ in range(8):
        lease = await within(broker.work.pull(topic, group, most=1, wait_s=0))
        if lease is not None:
            found += [each.record.value for each in lease.messages]
            await within(broker.work.acknowledge(topic, group, lease.token, Verdicts(accept=ALL)))
    return found


@pytest_twisted.ensureDeferred
async def test_pulls_that_do_not_wait_find_messages_in_a_new_group(many_sessions):
    topic = await in_thread(many_sessions.admin.create, new_topic("work"))
    await in_thread(lambda: produce(many_sessions, topic, [b"a"], partition=0))
    async with running(many_sessions) as broker:
        assert await accepted_in_eight_pulls(broker, topic, "new") == [b"a"]


@pytest_twisted.ensureDeferred
async def test_pulls_that_do_not_wait_find_messages_in_a_new_partition(many_sessions):
    topic = await in_thread(many_sessions.admin.create, new_topic("work"))
    await in_thread(lambda: produce(many_sessions, topic, [b"a"], partition=0))
    async with running(many_sessions) as broker:
        lease = await within(broker.work.pull(topic, "workers", most=1, wait_s=20))
        await within(broker.work.acknowledge(topic, "workers", lease.token, Verdicts(accept=ALL)))
        await in_thread(lambda: many_sessions.admin.add_partitions(topic, 2))
        await in_thread(lambda: produce(many_sessions, topic, [b"b"], partition=1))
        await deferLater(reactor, METADATA_AGE_S + 1)
        assert await accepted_in_eight_pulls(broker, topic, "workers") == [b"b"]


@pytest_twisted.ensureDeferred
async def test_markers_of_transactions_are_neither_given_nor_backlog(many_sessions):
    topic = await in_thread(many_sessions.admin.create, new_topic("work"))
    await in_thread(lambda: produce(many_sessions, topic, [b"a", b"b"], partition=0, transaction="one"))
    await in_thread(
        lambda: produce(many_sessions, topic, [b"c"], partition=0, transaction="two", commit=False)
    )
    async with running(many_sessions) as broker:
        found = []
        while len(found) < 2:
            lease = await within(broker.work.pull(topic, "workers", most=10, wait_s=10))
            found += [each.record.value for each in lease.messages]
            await within(broker.work.acknowledge(topic, "workers", lease.token, Verdicts(accept=ALL)))
        assert found == [b"a", b"b"]
        assert await within(broker.work.pull(topic, "workers", most=10, wait_s=1)) is None
        await eventually_equal(lambda: broker.work.backlog(topic, "workers"), 0)


async def eventually_equal(ask, expected):
    while await within(ask()) != expected:
        await deferLater(reactor, 0.1)


@pytest_twisted.ensureDeferred
async def test_a_lease_that_another_instance_has_extended_outlives_the_first(many_sessions):
    group = await in_thread(lambda: ShareGroup(many_sessions, records=2))
    async with running(many_sessions) as two:
        async with running(many_sessions) as one:
            lease = await pulled(one, group, most=2)
            tokens = [lease.token]
            for each in (two, one, two):
                extended = await within(each.work.extend(group.topic, group.name, tokens[-1]))
                tokens.append(extended.token)
        assert await within(two.work.pull(group.topic, group.name, most=2, wait_s=0)) is None
        for token in tokens[:-1]:
            with pytest.raises(LeaseLost):
                await within(two.work.acknowledge(group.topic, group.name, token, Verdicts(accept=ALL)))
        found = await within(two.work.acknowledge(group.topic, group.name, tokens[-1], Verdicts(accept=ALL)))
        assert found.accepted == len(lease.messages)


def ask(service, group, action, body):
    connection = connect(service)
    try:
        path = f"/topics/{group.topic}/groups/{group.name}/{action}"
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"null")
    finally:
        connection.close()


@pytest.mark.parametrize("end", [LiveService.kill, LiveService.stop])
def test_instances_that_end_leave_no_session(end, few_sessions, start_service):
    group, idle = ShareGroup(few_sessions, records=200), ShareGroup(few_sessions)
    for _ in range(3):
        # Half a second for leases without an acknowledgement.
        service = start_service(few_sessions, service_options=["--drain-timeout", "1"])
        for _ in range(SESSIONS):
            status, lease = ask(service, group, "pull", {"wait": 10})
            assert status == 200, lease
        end(service)
        wait_until(lambda: free_sessions(idle) == SESSIONS, "no session is left on the broker")


def test_a_worker_acknowledges_at_another_instance_over_http(many_sessions, start_service):
    group = ShareGroup(many_sessions, records=3)
    one, two = start_service(many_sessions), start_service(many_sessions)
    status, lease = ask(one, group, "pull", {"max": 3, "wait": 10})
    assert (status, lease["messages"][0]["id"]) == (200, "0-0")
    assert ask(two, group, "extend", {"lease": lease["lease"]})[0] == 200
    assert ask(two, group, "ack", {"lease": lease["lease"], "accept": "all"})[0] == 409
