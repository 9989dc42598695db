"""Producer ids: when a partition gets another one, and publishing without."""

from __future__ import annotations

import pytest

from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.errors import OutcomeUnknown
from tests.support.kafka_simulator import Fate
from tests.support.kafka_simulator.publishing import ProducerSetup, assert_true, publish_now, warm


def test_one_producer_id_serves_for_as_long_as_nothing_goes_wrong():
    world = warm()
    for burst in range(20):
        for number in range(burst):
            world.publish(b"%d-%d" % (burst, number), key=b"%d" % number)
        world.advance(0.05)
    assert world.cluster.ids_given == 1
    assert_true(world)


def test_a_partition_whose_producer_id_is_not_taken_gets_a_new_one_and_the_others_keep_theirs():
    world = ProducerSetup(partitions=3)
    keys = {}
    for number in range(30):
        [metadata] = publish_now(world, b"%d" % number, key=b"%d" % number)
        keys[metadata.partition] = b"%d" % number
    assert set(keys) == {0, 1, 2}
    given = world.cluster.ids_given
    world.cluster.logs[0].expect_another_number()
    for partition in range(3):
        [metadata] = publish_now(world, b"after %d" % partition, key=keys[partition])
        assert metadata.partition == partition
    assert world.cluster.ids_given == given + 1
    assert_true(world)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED,
    ],
)
def test_an_epoch_or_sequence_error_after_an_unknown_outcome_is_not_taken_for_either(code):
    world = warm(partitions=1)
    fates = iter([Fate.ANSWER_LOST])
    world.decide(lambda: next(fates, Fate.ANSWERED))
    unknown = world.publish(b"unknown")
    world.advance(0.02)
    world.cluster.logs[0].errors = [code]
    world.advance(0.2)
    assert type(unknown[0].value) is OutcomeUnknown
    assert world.cluster.logs[0].errors == []
    [metadata] = publish_now(world, b"next")
    assert world.cluster.values()[0] == [b"first", b"unknown", b"next"]
    assert metadata.offset == 2


def test_a_broker_that_does_not_give_producer_ids_is_published_to_without():
    world = ProducerSetup()
    world.cluster.identity_error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    [metadata] = publish_now(world, b"1")
    assert world.cluster.values()[metadata.partition] == [b"1"]
    fates = iter([Fate.ANSWER_LOST])
    world.decide(lambda: next(fates, Fate.ANSWERED))
    outcome = world.publish(b"2")
    world.advance(1)
    assert type(outcome[0].value) is OutcomeUnknown


def test_a_topic_that_is_idle_for_long_begins_with_another_producer_id_when_it_is_used_again():
    world = warm(partitions=1)
    world.clock.advance(1000)
    world.producer.cluster_reached()
    for number in range(3):
        # The same number of records as the very first batch: the broker must not take it for that one.
        [metadata] = publish_now(world, b"%d" % number)
        assert metadata.offset == number + 1
    assert world.cluster.values()[0] == [b"first", b"0", b"1", b"2"]
