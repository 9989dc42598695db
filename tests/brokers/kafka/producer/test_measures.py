"""The producer's measures, compared with the requests that arrived at a cluster in memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.kafka_simulator import Fate
from tests.support.kafka_simulator.publishing import LATENCY_S, ProducerSetup, keys_of, publish_now, warm


def measures(world):
    return world.producer.measures(requests={})


@examples(50)
@given(bursts=st.lists(st.lists(st.sampled_from([b"a", b"b", None]), min_size=1, max_size=20), max_size=6))
def test_every_record_is_in_one_batch_when_nothing_goes_wrong(bursts):
    world = ProducerSetup()
    for burst in bursts:
        for key in burst:
            world.publish(b"v", key=key)
        assert measures(world).waiting.records == len(burst)
        world.advance(0.5)
    counted = measures(world)
    assert counted.batch_records.total == sum(map(len, bursts))
    assert sum(counted.batch_records.counts) == sum(counted.batch_bytes.counts)
    assert (counted.retries, counted.throttled_s) == (0, 0)
    assert sum(counted.acknowledgement_s.counts) == world.producer.requests
    assert (counted.waiting.records, counted.waiting.bytes) == (0, 0)


def test_the_time_to_the_acknowledgement_is_that_of_the_request():
    world = warm()
    before = measures(world).acknowledgement_s.total
    publish_now(world, b"v")
    assert measures(world).acknowledgement_s.total - before == pytest.approx(LATENCY_S)


def test_records_wait_until_all_is_known_of_them():
    world = warm(partitions=2)
    world.decide(lambda: Fate.LATE)
    for key in keys_of(2):
        world.publish(b"v", key=key)
        world.publish(b"w", key=key, topic="unknown")
    waiting = measures(world).waiting
    assert waiting.records == 4
    assert waiting.bytes == world.producer.buffered_bytes > 0
    assert waiting.limit_bytes == 64 * 1024 * 1024
    world.advance(60)
    assert measures(world).waiting.records == 0


def test_an_attempt_that_is_made_again_counts_as_a_retry():
    world = warm()
    fates = iter([Fate.TOO_FEW_REPLICAS, Fate.TOO_FEW_REPLICAS])
    world.decide(lambda: next(fates, Fate.ANSWERED))
    publish_now(world, b"v")
    counted = measures(world)
    assert counted.retries == 2
    assert counted.batch_records.total == 1 + 3


def test_the_pauses_that_brokers_ask_for_add_up():
    world = warm()
    world.cluster.throttle_ms = 250
    for _ in range(3):
        publish_now(world, b"v")
    assert measures(world).throttled_s == pytest.approx(0.75)
