"""Keeping up with the metadata: topics that come, partitions that are added, leaders, rights."""

from __future__ import annotations

from twisted.logger import capturedLogs, formatEvent

from sampleapp.brokers.kafka.error_code import ErrorCode
from tests.support.kafka_simulator import Cluster


def test_partitions_that_are_added_are_read_from_their_first_record(setup):
    cluster = Cluster(partitions=2)
    cluster.logs[0].append(b"a")
    following = setup(cluster)
    following.catch_up()
    cluster.add_partitions(2)
    for number in (2, 3):
        cluster.logs[number].append(b"new", b"newer")
    cluster.until(lambda: len(following.values) == 5, within_s=11)
    following.assert_each_exactly_once()
    assert following.recorder.caught_up_at == [1]


def test_a_topic_that_does_not_exist_is_empty_until_it_does(setup):
    cluster = Cluster(partitions=0)
    following = setup(cluster)
    with capturedLogs() as events:
        cluster.run(0.9)
        assert (
            following.unavailable_reason == "Kafka does not know the topic at the moment; it is asked again."
        )
        following.catch_up()
        assert 1 <= cluster.clock.seconds() < 2
        cluster.run(20)
        assert following.reasons == ()
        assert following.unavailable_reason is None
        cluster.add_partitions(2)[0].append(b"first")
        cluster.until(lambda: following.values, within_s=1)
    assert following.values == [b"first"]
    assert [formatEvent(event) for event in events] == [
        "The topic t does not exist in Kafka. Create it; it is read as soon as it exists.",
        "The topic t exists now, with 2 partition(s). Reading begins.",
    ]
    assert following.recorder.caught_up_at == [0]


def test_a_broker_that_has_not_heard_of_the_topic_yet_is_asked_again(setup):
    cluster = Cluster()
    cluster.logs[0].append(b"a")
    cluster.ignorant = 3
    following = setup(cluster)
    following.catch_up()
    assert following.recorder.caught_up_at == [1]


def test_a_name_that_no_topic_can_have_is_told(setup):
    cluster = Cluster()
    cluster.topic_errors = {"t": ErrorCode.INVALID_TOPIC_EXCEPTION}
    following = setup(cluster)
    following.catch_up()
    cluster.run(1)
    assert following.reasons == ("Kafka does not allow a topic of the name t.",)


def test_metadata_is_not_asked_for_all_the_time(setup):
    cluster = Cluster(partitions=40, brokers=range(40))
    for broker in cluster.brokers:
        cluster.slow[broker] = 0.02 * broker
    for log in cluster.logs.values():
        log.errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    setup(cluster)
    cluster.run(3)
    assert 2 < len(cluster.loads) <= 31


def test_when_no_broker_answers_it_tries_again_until_one_does(setup):
    cluster = Cluster()
    cluster.logs[0].append(b"a")
    cluster.down = {1, 2, 3}
    following = setup(cluster)
    cluster.run(60)
    assert following.reasons == ("The topic t cannot be read: 10.0.0.1:9092 refuses connections.",)
    assert following.unavailable_reason == "The topic cannot be read: No broker answers."
    cluster.down = set()
    cluster.until(lambda: following.caught_up, within_s=6)
    assert following.values == [b"a"]
    assert following.reasons == ()


def test_a_partition_without_a_leader_is_told_and_read_when_it_has_one(setup):
    cluster = Cluster(partitions=2)
    cluster.logs[1].append(b"a")
    cluster.logs[1].leader = None
    following = setup(cluster)
    cluster.run(5)
    assert following.reasons == ("Partition 1 of the topic t has no leader, so nothing can be read from it.",)
    assert following.unavailable_reason == "Partition 1 has no leader, so nothing can be read from it."
    assert not following.caught_up
    cluster.logs[1].leader = 3
    cluster.until(lambda: following.caught_up, within_s=2)
    assert following.values == [b"a"]
    cluster.run(1)
    assert following.reasons == ()


def test_a_topic_that_may_not_be_read_is_told_and_read_when_it_may(setup):
    cluster = Cluster()
    cluster.logs[0].append(b"a")
    cluster.topic_errors = {"t": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    following = setup(cluster)
    cluster.run(30)
    assert following.reasons == (
        "The service is not allowed to read the topic t; it needs the right DESCRIBE.",
    )
    assert following.unavailable_reason == "The service is not allowed to read the topic."
    assert not following.caught_up
    cluster.topic_errors = {}
    cluster.logs[0].errors = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    cluster.until(lambda: following.reasons and "READ" in following.reasons[0], within_s=6)
    assert following.catch_up() == [b"a"]
    assert following.reasons == ()


def test_an_error_of_the_topic_that_passes_is_survived(setup):
    cluster = Cluster()
    cluster.logs[0].append(b"a")
    cluster.topic_errors = {"t": ErrorCode.LEADER_NOT_AVAILABLE}
    following = setup(cluster)
    cluster.run(0.05)
    assert following.reasons == ()
    cluster.run(1)
    assert following.reasons == ("The topic t cannot be read: Kafka answers LEADER_NOT_AVAILABLE.",)
    cluster.topic_errors = {}
    assert following.catch_up() == [b"a"]


def test_before_kafka_has_answered_that_is_what_it_waits_for(setup):
    cluster = Cluster()
    cluster.silent = {1, 2, 3}
    cluster.ignorant = 1
    following = setup(cluster)
    cluster.run(0.001)
    assert following.unavailable_reason == "Kafka has not answered yet."
    cluster.silent = set()
    following.catch_up()
    assert following.unavailable_reason is None
