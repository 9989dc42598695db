"""Followings when the cluster fails."""

from __future__ import annotations

import pytest
import pytest_twisted

from sampleapp.brokers.kafka.error_code import ErrorCode
from tests.brokers.kafka.faults.running import (
    FOR_EVER,
    numbered,
    running,
)
from tests.support.brokers import Recorder, eventually, record, settled, within
from tests.support.mock_cluster import (
    DROP_CONNECTION,
    FETCH,
    LIST_OFFSETS,
)

pytestmark = pytest.mark.usefixtures("short_fetches")


@pytest.mark.parametrize(
    ("api_key", "code"),
    [
        (FETCH, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (FETCH, DROP_CONNECTION),
        (LIST_OFFSETS, ErrorCode.LEADER_NOT_AVAILABLE),
        (LIST_OFFSETS, DROP_CONNECTION),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_following_goes_on_after_an_error_and_is_told_each_record_once(mock, api_key, code):
    recorder = Recorder()
    async with running(mock.bootstrap) as broker:
        await settled(broker, numbered(20))
        mock.push_errors(api_key, code)
        broker.follow(topic="t", observer=recorder)
        await recorder.until(20)
        mock.push_errors(api_key, code)
        await settled(broker, numbered(20, start=20))
        await recorder.until(40)
    assert [int(each) for each in recorder.values()] == list(range(40))
    assert recorder.caught_up_at == [20]


@pytest_twisted.ensureDeferred
async def test_a_topic_that_may_not_be_read_is_a_reason_not_to_be_ready_until_it_may(mock):
    recorder = Recorder()
    async with running(mock.bootstrap) as broker:
        await settled(broker, numbered(3))
        mock.push_errors(FETCH, *[ErrorCode.TOPIC_AUTHORIZATION_FAILED] * FOR_EVER)
        broker.follow(topic="t", observer=recorder)
        await eventually(lambda: "topic t" in " ".join(broker.health().reasons))
        assert recorder.caught_up_at == []
        mock.clear_errors(FETCH)
        await recorder.until(3)
        await eventually(lambda: broker.health().ready)


@pytest_twisted.ensureDeferred
async def test_a_following_goes_with_the_leader_and_outlives_its_brokers(mock):
    recorder = Recorder()
    async with running(mock.bootstrap) as broker:
        await settled(broker, numbered(10))
        broker.follow(topic="t", observer=recorder)
        await recorder.until(10)
        for turn, leader in enumerate([1, 2, 3], 1):
            mock.set_leader("t", 0, leader)
            await settled(broker, numbered(10, start=10 * turn))
            await recorder.until(10 * turn + 10)
        mock.broker_down()
        await eventually(lambda: not broker.health().ready)
        mock.broker_up()
        await settled(broker, numbered(10, start=40))
        await recorder.until(50)
        await eventually(lambda: broker.health().ready)
    assert [int(each) for each in recorder.values()] == list(range(50))


@pytest_twisted.ensureDeferred
async def test_a_following_that_is_out_of_range_begins_with_the_first_record_that_is_left(mock):
    recorder = Recorder()
    async with running(mock.bootstrap) as broker:
        # The mock keeps five megabytes of a partition, and forgets what came first.
        for n in range(10):
            await within(broker.publish(record("t", b"%d" % n + bytes(900_000), key=b"k")))
        broker.follow(topic="t", observer=recorder)
        await recorder.until(5)
    numbers = [each.offset for each in recorder.records]
    assert numbers == list(range(numbers[0], 10))
    assert numbers[0] > 0
