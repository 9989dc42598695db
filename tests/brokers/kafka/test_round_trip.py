"""A producer and a subscription of one cluster in memory: all that is stored is read, whatever is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.brokers.kafka.batches import Codec
from tests.support.examples import examples
from tests.support.kafka_simulator import Fate, FollowingSetup
from tests.support.kafka_simulator.publishing import TIMEOUT_S, ProducerSetup, assert_true

COUNT = 20

pytestmark = pytest.mark.usefixtures("bytes_on_the_wire")


@examples(40)
@given(fates=st.lists(st.sampled_from(list(Fate)), max_size=30), codec=st.sampled_from(list(Codec)))
def test_a_following_is_told_exactly_what_the_producer_has_stored(fates, codec):
    world = ProducerSetup(partitions=3, brokers=(1, 2), codec=codec)
    reading = FollowingSetup(world.cluster)
    plan = iter(fates)
    world.decide(lambda: next(plan, Fate.ANSWERED))
    for number in range(COUNT):
        world.publish(b"%d" % number * 50, key=[b"a", b"b", b"c", None][number % 4])
        world.advance(0.05)
    world.advance(5 * TIMEOUT_S, step_s=0.05)
    assert_true(world)
    reading.until(sum(map(len, world.cluster.values())))
    reading.assert_each_exactly_once()
    world.producer.stop()
    reading.stop()
