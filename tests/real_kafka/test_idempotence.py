"""Retries inside the producer neither repeat a record nor change the order of a key's records."""

from __future__ import annotations

import time
from collections import defaultdict

import pytest
import pytest_twisted
from twisted.internet.task import LoopingCall

from sampleapp.errors import OutcomeUnknown, PublishError
from sampleapp.model import RecordMetadata
from tests.real_kafka.admin import new_topic
from tests.real_kafka.dropping_proxy import DroppingProxy, Loss
from tests.real_kafka.reading import read_all
from tests.real_kafka.service import in_thread, kafka_url, running
from tests.real_kafka.versions import UNCLEAN_ELECTIONS, needs
from tests.support.brokers import eventually, outcomes, record, settled

KEYS = 20
AT_ONCE = 30
LOSSES_OF_A_KIND = 12
MOST_WAITING = 5_000


@pytest.fixture
def proxied(one_node):
    """A function that makes a proxy, at the address that the node tells clients of that listener."""
    proxies = []

    def proxied(**options):
        ports = one_node.node(1).ports
        proxy = DroppingProxy(port=ports["PROXIED-ADVERTISED"], target=ports["PROXIED"], **options)
        proxies.append(proxy)
        return proxy

    yield proxied
    for each in proxies:
        each.close()


def assert_exactly_once_in_order(stored, sent, ends):
    """
    What was acknowledged is where the answer says, and nothing is there twice.

    :param ends: a `RecordMetadata` or a `PublishError` for each record that was sent.
    """
    by_place = {(each.partition, each.offset): each.value for each in stored}
    values = set(by_place.values())
    assert len(values) == len(stored), "a record is there twice"
    for each, end in zip(sent, ends, strict=True):
        if isinstance(end, RecordMetadata):
            assert by_place[end.partition, end.offset] == each.value
        elif not end.possibly_published:
            assert each.value not in values
    by_key = defaultdict(list)
    for each in stored:
        by_key[each.key].append(int(each.value))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def records(topic, first):
    """Some records, whose values are rising numbers."""
    # For a broker that is restarted, a producer whose records are a day old has gone away.
    now = {"timestamp_ms": int(time.time() * 1000)}
    numbers = range(first, first + AT_ONCE)
    return [record(topic, b"%d" % n, key=b"%d" % (n % KEYS), **now) for n in numbers]


async def publish_more(broker, topic, sent, ends):
    """Publish some more records, each key's without waiting for the one before."""
    more = records(topic, len(sent))
    sent += more
    ends += await settled(broker, more)


@pytest.mark.parametrize("partitions", [1, 6])
@pytest_twisted.ensureDeferred
async def test_dozens_of_lost_connections_lose_and_repeat_nothing(one_node, proxied, partitions):
    topic = await in_thread(one_node.admin.create, new_topic("dropped"), partitions=partitions)
    proxy = proxied(loss_of_one_in=8, seed=partitions)
    sent, ends = [], []
    async with running(kafka_url(one_node, addresses=proxy.address)) as broker:
        while min(proxy.losses[loss] for loss in Loss) < LOSSES_OF_A_KIND:
            await publish_more(broker, topic, sent, ends)
    assert [end for end in ends if not isinstance(end, RecordMetadata)] == []
    assert_exactly_once_in_order(await in_thread(read_all, one_node.bootstrap, topic), sent, ends)


@pytest_twisted.ensureDeferred
async def test_connections_that_are_lost_while_nothing_is_published_cost_nothing(one_node, proxied):
    topic = await in_thread(one_node.admin.create, new_topic("idle"))
    proxy = proxied()
    sent, ends = [], []
    async with running(kafka_url(one_node, addresses=proxy.address)) as broker:
        for _ in range(10):
            proxy.drop_all()
            await publish_more(broker, topic, sent, ends)
    assert [end for end in ends if not isinstance(end, RecordMetadata)] == []
    assert_exactly_once_in_order(await in_thread(read_all, one_node.bootstrap, topic), sent, ends)


@pytest_twisted.ensureDeferred
async def test_a_record_whose_outcome_was_given_up_comes_once_or_never(one_node, proxied):
    topic = await in_thread(one_node.admin.create, new_topic("held"))
    proxy = proxied()
    sent, ends = [], []
    async with running(kafka_url(one_node, addresses=proxy.address, delivery_timeout=2)) as broker:
        await publish_more(broker, topic, sent, ends)
        for _ in range(3):
            proxy.hold()
            await publish_more(broker, topic, sent, ends)
            assert all(isinstance(end, PublishError) for end in ends[-AT_ONCE:])
            proxy.resume()
            await eventually(lambda: broker.health().ready)
            await publish_more(broker, topic, sent, ends)
            assert all(isinstance(end, RecordMetadata) for end in ends[-AT_ONCE:])
    assert_exactly_once_in_order(await in_thread(read_all, one_node.bootstrap, topic), sent, ends)


@pytest_twisted.ensureDeferred
async def test_without_idempotence_a_lost_answer_is_an_outcome_that_is_not_known(one_node, proxied):
    topic = await in_thread(one_node.admin.create, new_topic("unnumbered"), partitions=3)
    proxy = proxied(loss_of_one_in=5, seed=1)
    sent, ends = [], []
    async with running(kafka_url(one_node, addresses=proxy.address, idempotence="false")) as broker:
        while min(proxy.losses[loss] for loss in Loss) < LOSSES_OF_A_KIND:
            await publish_more(broker, topic, sent, ends)
    assert {type(end) for end in ends} == {RecordMetadata, OutcomeUnknown}
    assert_exactly_once_in_order(await in_thread(read_all, one_node.bootstrap, topic), sent, ends)


@pytest_twisted.ensureDeferred
async def test_many_records_at_once_while_leaders_are_killed_and_frozen(three_nodes):
    """As the service has them when many callers publish with the same keys, and nobody waits for anybody."""
    admin = three_nodes.admin
    topic = await in_thread(admin.create, new_topic("many"), partitions=6)
    await in_thread(admin.wait_until_in_sync, topic, 3)
    first, second, _ = three_nodes.nodes
    sent, published = [], []

    def publish_some():
        # So that an outage does not pile up more than is needed to see the order that is kept.
        if sum(not each.called for each in published[-MOST_WAITING:]) < MOST_WAITING:
            sent.extend(more := records(topic, len(sent)))
            published.extend(broker.publish(each) for each in more)

    async with running(kafka_url(three_nodes)) as broker:
        publishing = LoopingCall(publish_some)
        ended = publishing.start(0.02)
        first.kill9()
        await in_thread(admin.wait_until_in_sync, topic, 2)
        first.start()
        await in_thread(admin.wait_until_in_sync, topic, 3)
        second.freeze()
        await in_thread(admin.wait_until_in_sync, topic, 2)
        second.thaw()
        await in_thread(admin.wait_until_in_sync, topic, 3)
        publishing.stop()
        await ended
        ends = await outcomes(published)
    assert sum(isinstance(end, RecordMetadata) for end in ends) > MOST_WAITING
    assert_exactly_once_in_order(await in_thread(read_all, three_nodes.bootstrap, topic), sent, ends)


@needs(UNCLEAN_ELECTIONS)
@pytest.mark.parametrize("is_under_way", [False, True])
@pytest_twisted.ensureDeferred
async def test_after_an_unclean_election_a_new_producer_id_goes_on(three_nodes, is_under_way):
    """The new leader lacks what was stored last, and takes the next sequence number for a wrong one."""
    admin = three_nodes.admin
    controller = await in_thread(three_nodes.controller)
    leader, follower = (node for node in three_nodes.nodes if node is not controller)
    topic = await in_thread(
        admin.create,
        new_topic("unclean"),
        assignment=[[leader.number, follower.number]],
        min_insync_replicas=1,
        unclean_leader_election_enable="true",
    )
    await in_thread(admin.wait_until_in_sync, topic, 2)
    sent, ends = [], []
    async with running(kafka_url(three_nodes, delivery_timeout=60)) as broker:
        await publish_more(broker, topic, sent, ends)
        follower.kill9()
        await in_thread(admin.wait_until_in_sync, topic, 1)
        await publish_more(broker, topic, sent, ends)
        leader.kill9()
        follower.start()
        if not is_under_way:
            await in_thread(admin.wait_until_led_by, topic, follower.number)
        await publish_more(broker, topic, sent, ends)
        await publish_more(broker, topic, sent, ends)
    # Not in a thread: see Node.start.
    three_nodes.restore()
    stored = [each.value for each in await in_thread(read_all, three_nodes.bootstrap, topic)]
    values = [each.value for each in sent]
    first, lost, wrongly_numbered, last = (values[n : n + AT_ONCE] for n in range(0, 4 * AT_ONCE, AT_ONCE))
    their_ends = {type(end) for end in ends[2 * AT_ONCE : 3 * AT_ONCE]}
    # What only the old leader had is gone, by the choice of whoever allows such elections; and of what was
    # on its way to that one nobody can say whether it is among that.
    assert their_ends == {RecordMetadata} or (is_under_way and their_ends == {OutcomeUnknown})
    assert stored == first + (wrongly_numbered if their_ends == {RecordMetadata} else []) + last
    assert {type(end) for end in ends[:60] + ends[90:]} == {RecordMetadata}
    assert not set(lost) & set(stored)
