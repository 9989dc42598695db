"""Which topics take records with an identity: their configuration, and the right to read them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError
from twisted.logger import LogLevel, formatEvent
from twisted.python.failure import Failure

from sampleapp.brokers import IdempotencySettings
from sampleapp.brokers.kafka import config
from sampleapp.brokers.kafka.broker import KafkaBroker
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.idempotent_topics import MOST_AGE_S, REFRESH_S
from sampleapp.brokers.kafka.protocol import (
    OF_BROKER,
    OF_TOPIC,
    DescribeConfigsRequest,
    FetchRequest,
    ProduceRequest,
)
from sampleapp.errors import (
    BrokerUnavailable,
    IdempotencyNotEnabled,
    OutcomeUnknown,
    PublishTimedOut,
    RecordRefused,
    UnknownTopic,
)
from sampleapp.messages.idempotency_key import IdempotencyScope
from sampleapp.model import RecordMetadata, ReplayedRecord
from tests.support.brokers import record
from tests.support.examples import examples
from tests.support.kafka_simulator import Cluster, Fate, SimulatedClient, reason
from tests.support.logs import logged

NOW_S = 1_795_248_000.5
HOUR_MS = 3600 * 1000
DAY_MS = 24 * HOUR_MS
DELIVERY_S = 20
SETTINGS = IdempotencySettings(is_enabled_for=lambda topic: topic != "off", records_per_s=1e6, burst=10**6)
KEPT = {"cleanup.policy": "delete", "retention.ms": str(7 * DAY_MS), "retention.bytes": "-1"}


class World:
    """The service on a simulated cluster that remembers a key for a day, and a record for a week."""

    def __init__(self, *, expires_ms=DAY_MS, name="producer.id.expiration.ms", **options):
        self.cluster = cluster = Cluster()
        cluster.has_readers = True
        for node_id in cluster.brokers:
            cluster.configs[OF_BROKER, str(node_id)] = {name: str(expires_ms)}
        self.configure()

        class Simulated(KafkaBroker):
            def _new_client(self):
                world.listener = self._cluster_health
                return SimulatedClient(cluster)

        world = self
        query = "&".join(f"{name}={value}" for name, value in options.items())
        self.broker = Simulated(
            config.parse(f"kafka://127.0.0.1:1?delivery_timeout={DELIVERY_S}&{query}".rstrip("&")),
            reactor=cluster.clock,
            idempotency=SETTINGS,
            now=lambda: NOW_S + cluster.clock.seconds(),
        )
        self.broker.start()
        cluster.run(1)

    def configure(self, topic="t", **values):
        self.cluster.configs[OF_TOPIC, topic] = {
            **KEPT,
            **{name.replace("_", "."): str(value) for name, value in values.items()},
        }

    def begin(self, name="k", topic="t"):
        return told(self.broker.publish(self.identified(name, topic)))

    def publish(self, name="k", topic="t", *, within_s=2):
        found = self.begin(name, topic)
        self.cluster.run(within_s)
        [outcome] = found
        return outcome

    def check(self, *topics):
        found = told(self.broker.check_topics(topics, identified=True))
        self.cluster.run(2)
        return {topic: type(error) for topic, error in found[0].items()}

    def identified(self, name, topic="t", *, age_ms=0):
        identity = IdempotencyScope(caller="", key=name).identity(0, topic=topic, key=None, value=b"v")
        at_ms = int(1000 * (NOW_S + self.cluster.clock.seconds())) - age_ms
        return record(topic, b"v", identity=identity, timestamp_ms=at_ms)

    def asked(self, kind=DescribeConfigsRequest):
        return [request for _, request in self.cluster.asked if type(request) is kind]

    def stored(self):
        return len(self.cluster.produces)

    def fate(self, kind, fate):
        self.cluster.fates[kind] = lambda: fate

    def stop(self):
        stopped = told(self.broker.stop(deadline_s=1))
        # With the requests that arrive late.
        self.cluster.run(20)
        assert stopped == [None]
        assert self.cluster.clock.getDelayedCalls() == []


def told(answer):
    found = []
    answer.addBoth(lambda result: found.append(result.value if isinstance(result, Failure) else result))
    return found


@pytest.fixture
def world():
    world = World()
    yield world
    world.stop()


def warnings(events):
    return [formatEvent(each) for each in events]


RETENTIONS_MS = st.sampled_from([-1, 0, 3000, DAY_MS - 1, DAY_MS, 7 * DAY_MS]) | st.integers(-1, 2**63 - 1)


@examples(60)
@given(
    policy=st.sampled_from(["delete", "compact", "compact,delete", "delete,compact", ""]),
    retention_ms=RETENTIONS_MS,
    expires_ms=st.sampled_from([3000, DAY_MS]),
    name=st.sampled_from(["producer.id.expiration.ms", "transactional.id.expiration.ms"]),
)
@example(policy="delete", retention_ms=3000, expires_ms=DAY_MS, name="producer.id.expiration.ms")
@example(policy="compact", retention_ms=3000, expires_ms=DAY_MS, name="producer.id.expiration.ms")
def test_a_topic_takes_keys_exactly_if_its_records_are_kept_as_long_as_brokers_remember_keys(
    policy, retention_ms, expires_ms, name
):
    world = World(expires_ms=expires_ms, name=name)
    world.configure(cleanup_policy=policy, retention_ms=retention_ms)
    is_kept = "delete" not in policy or retention_ms == -1 or retention_ms >= expires_ms
    found = world.publish()
    if is_kept:
        assert type(found) is RecordMetadata
        assert world.check("t") == {}
    else:
        assert type(found) is IdempotencyNotEnabled
        assert f"retention.ms={retention_ms}" in str(found)
        assert f"{name}={expires_ms}" in str(found)
        assert world.check("t") == {"t": IdempotencyNotEnabled}
    assert world.stored() == is_kept
    world.stop()


def test_requests_share_a_question_and_those_without_a_key_ask_nothing(world):
    plain = told(world.broker.publish(record("t")))
    world.cluster.run(1)
    assert type(plain[0]) is RecordMetadata
    assert world.asked() == []
    found = [world.begin(f"{number}") for number in range(20)]
    world.cluster.run(1)
    assert [type(outcome) for each in found for outcome in each] == [RecordMetadata] * 20
    # The first one asks; those that come in the meantime share the next question.
    assert len(world.asked()) == 2
    world.cluster.run(REFRESH_S - 1.5)
    world.publish("later", within_s=0.1)
    assert len(world.asked()) == 2


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_record_whose_caller_stops_waiting_while_its_topic_is_asked_about_is_published(world, is_alone):
    sent = world.identified("k")
    answer = world.broker.publish(sent) if is_alone else world.broker.publish_many([sent])
    answer.cancel()
    assert isinstance(*told(answer), CancelledError)
    world.cluster.run(2)
    assert world.stored() == 1
    assert type(world.publish("k")) is ReplayedRecord


def test_while_records_come_their_topic_is_asked_about_every_few_seconds_and_none_waits_for_it(world):
    world.publish("first")
    asked, began_s = len(world.asked()), world.cluster.clock.seconds()
    for number in range(100):
        assert type(world.publish(f"{number}", within_s=0.3)) is RecordMetadata
    world.fate(DescribeConfigsRequest, Fate.LATE)
    for number in range(6):
        assert type(world.publish(f"late {number}", within_s=0.1)) is RecordMetadata
    passed_s = world.cluster.clock.seconds() - began_s
    assert passed_s / MOST_AGE_S <= len(world.asked()) - asked <= passed_s / REFRESH_S + 1
    # Nothing is asked while no record comes.
    world.fate(DescribeConfigsRequest, Fate.ANSWERED)
    world.cluster.run(10)
    asked = len(world.asked())
    world.cluster.run(300)
    assert len(world.asked()) == asked


@examples(40)
@given(pauses_s=st.lists(st.floats(0.05, 40), min_size=1, max_size=30))
def test_no_record_is_judged_by_a_configuration_that_is_older_than_a_few_seconds(pauses_s):
    world = World()
    changed_s, accepted_s = None, []
    for number, pause_s in enumerate(pauses_s):
        if number == len(pauses_s) // 2:
            world.configure(retention_ms=3000)
            changed_s = world.cluster.clock.seconds()
        began_s = world.cluster.clock.seconds()
        if type(world.publish(f"{number}", within_s=pause_s)) is RecordMetadata:
            accepted_s.append(began_s)
    assert max(accepted_s, default=0) < changed_s + MOST_AGE_S
    world.stop()


@pytest.mark.parametrize("event", ["lost", "leaders_changed"])
@pytest.mark.parametrize("is_under_way", [True, False])
def test_after_a_change_of_the_cluster_a_topic_is_asked_about_before_its_next_record(
    world, event, is_under_way
):
    world.publish("first")
    stored = world.stored()
    if is_under_way:
        # An answer to a question from before the change does not count.
        world.cluster.run(MOST_AGE_S)
        world.begin("before")
    getattr(world.listener, event)(*(("kafka1", 9092) if event == "lost" else ()))
    world.configure(retention_ms=3000)
    assert type(world.publish("again")) is IdempotencyNotEnabled
    assert world.stored() - stored <= is_under_way


def test_one_request_is_about_all_topics_in_use(world):
    topics = [f"t{number}" for number in range(20)]
    for topic in topics:
        world.cluster.add_partitions(1, topic=topic)
        world.configure(topic)
        world.publish(topic=topic, within_s=0.1)
    asked, began_s = len(world.asked()), world.cluster.clock.seconds()
    for number in range(200):
        assert type(world.publish(f"{number}", topics[number % 20], within_s=0.1)) is RecordMetadata
    assert len(world.asked()) - asked <= (world.cluster.clock.seconds() - began_s) / REFRESH_S + 1


def test_a_topic_that_takes_keys_now_takes_the_next_one(world):
    world.configure(retention_ms=3000)
    assert type(world.publish("refused", within_s=0.1)) is IdempotencyNotEnabled
    world.configure()
    assert type(world.publish("refused", within_s=0.1)) is RecordMetadata
    world.cluster.unreadable.add("t")
    assert type(world.publish("second", within_s=0.1)) is OutcomeUnknown
    assert type(world.publish("third", within_s=0.1)) is IdempotencyNotEnabled
    world.cluster.unreadable.clear()
    assert type(world.publish("third", within_s=0.1)) is RecordMetadata


def test_a_topic_that_may_not_be_read_takes_no_keys_and_nothing_is_published(world):
    world.cluster.unreadable.add("t")
    with logged(LogLevel.warn) as events:
        for _ in range(3):
            found = world.publish()
            assert type(found) is IdempotencyNotEnabled
            assert "not allowed to read" in str(found)
            assert world.check("t") == {"t": IdempotencyNotEnabled}
            world.cluster.run(100)
    assert len(warnings(events)) == 1
    assert world.stored() == 0
    plain = told(world.broker.publish(record("t")))
    world.cluster.run(1)
    assert [type(each) for each in plain] == [RecordMetadata]
    world.cluster.unreadable.clear()
    assert type(world.publish()) is RecordMetadata


def test_a_right_to_read_that_is_lost_is_noticed_at_the_next_record(world):
    assert type(world.publish("first")) is RecordMetadata
    world.cluster.unreadable.add("t")
    assert type(world.publish("second")) is OutcomeUnknown
    stored = world.stored()
    assert type(world.publish("third")) is IdempotencyNotEnabled
    assert world.stored() == stored


@pytest.mark.parametrize(
    ("resource", "code", "words"),
    [
        ((OF_TOPIC, "t"), ErrorCode.TOPIC_AUTHORIZATION_FAILED, "DescribeConfigs on the topic"),
        ((OF_TOPIC, "t"), ErrorCode.INVALID_REQUEST, "INVALID_REQUEST"),
        ((OF_TOPIC, "t"), {}, "does not tell"),
        ((OF_TOPIC, "t"), {**KEPT, "retention.ms": "a week"}, "does not tell"),
        ("brokers", ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "DescribeConfigs on the cluster"),
        ("brokers", {}, "does not tell"),
        ((OF_TOPIC, "t"), {**KEPT, "retention.bytes": "1000"}, "retention.bytes=1000"),
    ],
)
def test_what_cannot_be_known_is_a_warning_once(world, resource, code, words):
    numbers = [(OF_BROKER, str(node_id)) for node_id in world.cluster.brokers]
    for each in numbers if resource == "brokers" else [resource]:
        world.cluster.configs[each] = code
    with logged(LogLevel.warn) as events:
        for number in range(4):
            assert type(world.publish(f"{number}")) is RecordMetadata
            world.cluster.run(2 * MOST_AGE_S)
    assert len(world.asked()) > 1
    [line] = warnings(events)
    assert words in line
    assert "producer.id.expiration.ms" in line


def test_what_a_broker_said_counts_until_it_says_something_else(world):
    world.configure(retention_ms=3000)
    assert type(world.publish()) is IdempotencyNotEnabled
    world.fate(DescribeConfigsRequest, Fate.LOST_ON_THE_WAY)
    world.cluster.run(60)
    assert type(world.publish(within_s=10)) is IdempotencyNotEnabled


@pytest.mark.parametrize("fate", [Fate.NOT_SENT, Fate.LOST_ON_THE_WAY, Fate.ANSWER_LOST, Fate.LATE])
def test_a_configuration_that_is_not_told_delays_a_request_by_seconds_at_most(world, fate):
    world.fate(DescribeConfigsRequest, fate)
    with logged(LogLevel.warn) as events:
        assert type(world.publish(within_s=6)) is RecordMetadata
    assert len(warnings(events)) == 2


def test_brokers_that_do_not_answer_at_all_are_an_outage_in_which_nothing_is_published(world):
    world.fate(FetchRequest, Fate.LATE)
    found = world.publish(within_s=DELIVERY_S)
    assert type(found) is BrokerUnavailable
    assert world.stored() == 0
    world.cluster.cut_off(reason())
    assert type(world.publish(within_s=DELIVERY_S)) is BrokerUnavailable
    world.cluster.mend()
    world.fate(FetchRequest, Fate.ANSWERED)
    world.cluster.run(2)
    assert type(world.publish()) is RecordMetadata


def test_the_time_for_the_question_is_part_of_the_time_of_the_request(world):
    world.fate(DescribeConfigsRequest, Fate.LATE)
    world.fate(ProduceRequest, Fate.LATE)
    one = world.begin("one")
    many = told(world.broker.publish_many([world.identified(f"{number}") for number in range(3)]))
    world.cluster.run(DELIVERY_S - 0.1)
    assert one + many == []
    world.cluster.run(0.2)
    assert [type(each) for each in one + many[0]] == [PublishTimedOut] * 4


def test_a_topic_that_does_not_exist_is_made_before_it_is_judged():
    world = World(auto_create="true")
    world.configure("new", retention_ms=3000)
    assert type(world.publish(topic="new", within_s=8)) is IdempotencyNotEnabled
    assert len(world.cluster.topics["new"]) > 0
    assert world.check("newer") == {}
    assert type(world.publish(topic="newest", within_s=8)) is RecordMetadata
    world.stop()


def test_a_topic_that_does_not_exist_and_is_not_made_is_unknown(world):
    assert type(world.publish(topic="absent", within_s=5)) is UnknownTopic
    assert world.check("absent") == {"absent": UnknownTopic}


def test_where_one_topic_takes_none_none_is_made():
    world = World(auto_create="true")
    world.configure(retention_ms=3000)
    assert world.check("t", "new") == {"t": IdempotencyNotEnabled}
    assert world.check("off", "new") == {"off": IdempotencyNotEnabled}
    assert "new" not in world.cluster.topics
    world.stop()


def test_where_brokers_forget_sooner_the_time_of_a_message_must_be_closer():
    world = World(expires_ms=HOUR_MS)
    world.publish("first")
    for age_ms, kind in [(HOUR_MS // 2, RecordMetadata), (HOUR_MS // 2 + 1000, RecordRefused)]:
        for sign in (-1, 1):
            found = told(world.broker.publish(world.identified(f"{sign * age_ms}", age_ms=sign * age_ms)))
            world.cluster.run(1)
            assert [type(each) for each in found] == [kind]
    assert "within 0.5 hours" in str(found[0])
    world.stop()


def test_records_that_were_deleted_are_a_warning_once(world):
    first = world.publish()
    world.cluster.logs[0].start = world.cluster.logs[0].end
    with logged(LogLevel.warn) as events:
        for _ in range(3):
            assert world.publish() == ReplayedRecord(topic="t", partition=0, offset=first.offset)
    [line] = warnings(events)
    assert "deleted" in line


def test_thousands_of_topics_are_asked_about_in_requests_of_a_hundred(world):
    topics = [f"t{number}" for number in range(250)]
    for topic in topics:
        world.cluster.add_partitions(1, topic=topic)
        world.configure(topic)
    world.configure(topics[-1], retention_ms=3000)
    assert world.check(*topics) == {topics[-1]: IdempotencyNotEnabled}
    # With the broker's own configuration.
    assert [len(each.resources) for each in world.asked()] == [101, 101, 51]


def test_a_topic_without_requests_is_forgotten(world):
    world.publish()
    world.cluster.run(900)
    world.configure("other")
    world.cluster.add_partitions(1, topic="other")
    world.publish(topic="other")
    world.configure(retention_ms=3000)
    # Nothing is known of it any more.
    assert type(world.publish("k2")) is IdempotencyNotEnabled


def test_a_stop_answers_those_that_wait(world):
    world.fate(FetchRequest, Fate.LATE)
    found = world.begin()
    world.cluster.run(0.1)
    world.stop()
    assert [type(each) for each in found] == [BrokerUnavailable]
    assert world.stored() == 0
