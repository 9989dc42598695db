"""Which records with an identity the Kafka broker accepts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from sampleapp.brokers import IdempotencySettings
from sampleapp.brokers.kafka import config
from sampleapp.brokers.kafka.broker import KafkaBroker
from sampleapp.errors import (
    IdempotencyNotEnabled,
    RecordRefused,
    TooManyIdempotencyKeys,
)
from sampleapp.messages.idempotency_key import IdempotencyScope
from tests.support.brokers import record
from tests.support.kafka_simulator import Cluster, SimulatedClient

NOW_S = 1_795_248_000.5
SET_UP_S = 0.1
LIMIT_MS = 12 * 3600 * 1000
SETTINGS = IdempotencySettings(is_enabled_for=lambda topic: topic == "keys", records_per_s=2.0, burst=10)


class FakeProducer:
    """Takes records, and answers nothing."""

    def __init__(self):
        self.taken = []
        self.made = []

    def publish(self, each):
        self.taken.append(each)
        return Deferred()

    def publish_many(self, records):
        self.taken += records
        return Deferred()

    def check_topics(self, topics):
        self.made += topics
        return succeed({})


@pytest.fixture
def cluster():
    cluster = Cluster()
    cluster.add_partitions(1, topic="keys")
    cluster.has_readers = True
    return cluster


@pytest.fixture
def clock(cluster):
    return cluster.clock


@pytest.fixture
def broker(cluster, clock):
    class Simulated(KafkaBroker):
        def _new_client(self):
            return SimulatedClient(cluster)

    broker = Simulated(
        config.parse("kafka://127.0.0.1:1"),
        reactor=clock,
        idempotency=SETTINGS,
        now=lambda: NOW_S + clock.seconds() - SET_UP_S,
    )
    broker._producer = FakeProducer()  # noqa: SLF001 -- nothing else stands between a call and the producer
    # The topic is asked about once.
    broker.check_topics(["keys"], identified=True)
    cluster.run(SET_UP_S)
    broker._producer.made.clear()  # noqa: SLF001 -- as above
    return broker


@pytest.fixture(params=["publish", "publish_many"])
def publish(request, broker):
    """Publish a record, alone or behind one that has no identity; return what was answered at once."""

    def publish(each):
        if request.param == "publish":
            return responded(broker.publish(each))
        return responded(broker.publish_many([record("other"), each]))

    return publish


def responded(deferred):
    found = []
    deferred.addBoth(found.append)
    return [each.value if isinstance(each, Failure) else each for each in found]


def identified(topic="keys", *, number=0, age_ms=0):
    made = record(topic, timestamp_ms=int(NOW_S * 1000) - age_ms)
    identity = IdempotencyScope(caller="", key="k").identity(number, topic=topic, key=None, value=b"v")
    return replace(made, identity=identity)


def taken(broker):
    return [each for each in broker._producer.taken if each.identity is not None]  # noqa: SLF001 -- as above


def test_a_topic_that_is_not_enabled_takes_no_identity_and_nothing_is_published(broker, publish):
    [error] = publish(identified("other"))
    assert type(error) is IdempotencyNotEnabled
    assert "--idempotent-topic" in str(error)
    assert broker._producer.taken == []  # noqa: SLF001 -- as above
    assert publish(record("other")) == []


def test_a_check_for_identities_makes_no_topic_if_one_is_not_enabled(broker):
    [errors] = responded(broker.check_topics(["keys", "other"], identified=True))
    assert {topic: type(error) for topic, error in errors.items()} == {"other": IdempotencyNotEnabled}
    assert broker._producer.made == []  # noqa: SLF001 -- as above
    assert responded(broker.check_topics(["keys"], identified=True)) == [{}]
    assert responded(broker.check_topics(["other"])) == [{}]
    assert broker._producer.made == ["keys", "other"]  # noqa: SLF001 -- as above


def test_beyond_the_rate_nothing_is_published_until_there_is_room(broker, publish, clock):
    for _ in range(10):
        assert publish(identified()) == []
    [error] = publish(identified())
    assert type(error) is TooManyIdempotencyKeys
    assert error.retry_after_s == 0.5
    assert len(taken(broker)) == 10
    # Those without an identity have no rate.
    assert publish(record("keys")) == []
    clock.advance(0.5)
    assert publish(identified()) == []
    assert len(publish(identified())) == 1


def test_many_count_as_many(broker, clock):
    assert responded(broker.publish_many([identified(number=number) for number in range(8)])) == []
    [error] = responded(broker.publish_many([identified(number=number) for number in range(4)]))
    assert type(error) is TooManyIdempotencyKeys
    assert error.retry_after_s == 1.0
    assert len(taken(broker)) == 8


def test_a_request_that_never_has_room_is_rejected_for_good(broker):
    [error] = responded(broker.publish_many([identified(number=number) for number in range(11)]))
    assert type(error) is RecordRefused
    assert "up to 10 messages" in str(error)
    assert responded(broker.publish_many([identified(number=number) for number in range(10)])) == []


class Looked(list):
    """Records of which it is known how many were looked at."""

    looked = 0

    def __getitem__(self, which):
        found = super().__getitem__(which)
        self.looked += len(found)
        return found

    def __iter__(self):
        self.looked += len(self)
        return super().__iter__()


@pytest.mark.parametrize("identified_at", [None, 0, 99_999])
def test_very_many_records_are_not_all_looked_at_in_one_turn(broker, clock, identified_at):
    records = Looked([record("keys")] * 100_000)
    if identified_at is not None:
        records[identified_at] = identified()
    assert responded(broker.publish_many(records)) == []
    assert records.looked == 20_000
    clock.advance(0.1)
    assert len(broker._producer.taken) == 100_000  # noqa: SLF001 -- as above
    assert taken(broker) == [each for each in records if each.identity is not None]


def test_of_very_many_records_with_an_identity_the_first_ones_show_that_they_are_too_many(broker, clock):
    records = Looked([identified()] * 100_000)
    found = []
    broker.publish_many(records).addBoth(found.append)
    clock.advance(1)
    assert type(found[0].value) is RecordRefused
    assert records.looked == 20_000


@pytest.mark.parametrize("sign", [1, -1])
def test_a_record_that_kafka_would_not_remember_for_long_or_for_ever_is_rejected(broker, publish, sign):
    [error] = publish(identified(age_ms=sign * (LIMIT_MS + 1)))
    assert type(error) is RecordRefused
    assert "12 hours" in str(error)
    assert broker._producer.taken == []  # noqa: SLF001 -- as above
    assert publish(identified(age_ms=sign * LIMIT_MS)) == []


def test_the_age_of_a_record_is_its_age_when_it_is_published(broker, publish, clock):
    clock.advance(1)
    [error] = publish(identified(age_ms=LIMIT_MS - 999))
    assert type(error) is RecordRefused
    assert publish(identified(age_ms=-LIMIT_MS - 1000)) == []
