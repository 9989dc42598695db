"""Many followings, which share one fetcher for each broker."""

from __future__ import annotations

import gc
import weakref

import pytest
from twisted.logger import capturedLogs

from sampleapp.brokers.kafka.protocol import FetchRequest, SessionFetchRequest
from sampleapp.model import EARLIEST, FromEnd
from tests.support.brokers import Recorder
from tests.support.kafka_simulator import Cluster, values

TOPICS = [f"t{number}" for number in range(50)]


def many(setup, cluster, topics=TOPICS, **options):
    """Follow many topics; return the first following and the recorders of the others."""
    for topic in topics:
        cluster.add_partitions(3, topic=topic)
    first = setup(cluster)
    recorders = {topic: Recorder() for topic in topics}
    for topic, recorder in recorders.items():
        first.follow(recorder, topic=topic, **options)
    cluster.until(lambda: all(each.caught_up_at for each in recorders.values()))
    return first, recorders


def test_fifty_idle_topics_take_two_requests_a_second_of_each_broker(setup):
    cluster = Cluster()
    many(setup, cluster)
    cluster.run(2)
    cluster.asked.clear()
    cluster.loads.clear()
    cluster.run(10)
    assert len(cluster.asked) <= 3 * 2 * 10 + 3
    assert len(cluster.loads) <= 2 * (1 + len(TOPICS))
    # In a session, partitions without changes are not named.
    assert {type(request) for _, request in cluster.asked} == {SessionFetchRequest}
    assert all(not request.topics and not request.forgotten for _, request in cluster.asked)
    assert len({client for client in cluster.clients if not client.closed}) == 2


def test_a_record_of_one_of_them_is_read_at_once_and_only_its_position_is_sent(setup):
    cluster = Cluster()
    _, recorders = many(setup, cluster)
    cluster.run(2)
    for number in range(20):
        cluster.fetches.clear()
        cluster.topics["t7"][1].append(b"%d" % number)
        cluster.until(lambda count=number: len(recorders["t7"].records) > count, within_s=0.1)
        named = [request.topics for _, request in cluster.fetches if request.topics]
        assert named in ([], [[("t7", [(1, number + 1)])]])
    assert not any(each.records for topic, each in recorders.items() if topic != "t7")


class Name(str):
    """A name that a weak reference may refer to."""

    __slots__ = ("__weakref__",)


def follow_for_a_while(first, topic):
    """:return: a weak reference to the name of the topic."""
    first.cluster.add_partitions(3, topic="left")
    recorder = Recorder()
    following = first.follow(recorder, topic=topic)
    first.cluster.until(lambda: recorder.caught_up_at)
    first.cluster.topics["left"][0].append(b"x")
    first.cluster.until(lambda: recorder.records)
    following.stop()
    first.cluster.run(2)
    return weakref.ref(topic)


def test_nothing_of_a_topic_that_is_not_followed_any_longer_is_kept(setup):
    cluster = Cluster(brokers=(1,))
    first, _ = many(setup, cluster, topics=["a"])
    name = follow_for_a_while(first, Name("left"))
    for requests in (cluster.asked, cluster.fetches, cluster.loads):
        requests.clear()
    gc.collect()
    assert name() is None, gc.get_referrers(name())


def test_a_broker_without_sessions_is_asked_for_everything_each_time(setup):
    cluster = Cluster(brokers=(1,))
    cluster.has_sessions = False
    _, recorders = many(setup, cluster, topics=["a", "b"])
    cluster.run(2)
    cluster.fetches.clear()
    cluster.topics["a"][2].append(b"x")
    cluster.until(lambda: recorders["a"].records, within_s=0.1)
    cluster.run(1)
    assert all(len(request.topics) == 3 and request.session_epoch == 0 for _, request in cluster.fetches)


@pytest.mark.parametrize("error", [70, 71, 106, -1])
def test_a_session_that_the_broker_does_not_know_any_longer_is_begun_again(setup, error):
    cluster = Cluster(brokers=(1,))
    first, recorders = many(setup, cluster, topics=["a", "b"])
    cluster.run(2)
    cluster.fetches.clear()
    with capturedLogs() as events:
        cluster.sessions[1].errors = [error]
        cluster.run(0.6)
        cluster.topics["b"][0].append(b"x")
        cluster.until(lambda: recorders["b"].records, within_s=0.1)
    assert events == []
    assert first.reasons == ()
    epochs = [request.session_epoch for _, request in cluster.fetches]
    assert 0 in epochs
    assert epochs[-1] > 0


def test_a_broker_that_has_started_again_is_asked_for_everything_once(setup):
    cluster = Cluster(brokers=(1,))
    _, recorders = many(setup, cluster, topics=["a", "b"])
    cluster.run(2)
    cluster.fetches.clear()
    cluster.sessions[1].forget()
    cluster.run(1)
    cluster.topics["b"][0].append(b"x")
    cluster.until(lambda: recorders["b"].records, within_s=0.1)
    assert sum(len(request.topics) == 3 for _, request in cluster.fetches) == 1


def test_an_error_of_every_request_is_told_and_not_asked_about_all_the_time(setup):
    cluster = Cluster(brokers=(1,))
    first, _ = many(setup, cluster, topics=["a"])
    cluster.has_sessions = False
    cluster.sessions[1].begin = lambda *_, **__: -1
    cluster.run(1)
    cluster.asked.clear()
    cluster.run(60)
    assert len(cluster.asked) < 400
    assert first.unavailable_reason is None or "UNKNOWN_SERVER_ERROR" in first.unavailable_reason


def test_a_new_topic_does_not_wait_behind_the_fetch_of_the_others(setup):
    cluster = Cluster(brokers=(1,))
    first, _ = many(setup, cluster, topics=["a"])
    cluster.add_partitions(2, topic="new")[1].append(*values(3))
    for _ in range(5):
        cluster.run(0.13)
        recorder = Recorder()
        following = first.follow(recorder, topic="new")
        cluster.until(lambda recorder=recorder: recorder.caught_up_at, within_s=0.1)
        assert len(recorder.records) == 3
        cluster.topics["new"][0].append(b"live")
        cluster.until(lambda recorder=recorder: len(recorder.records) > 3, within_s=0.2)
        cluster.topics["new"][0].delete_before(cluster.topics["new"][0].end)
        following.stop()


def test_one_that_takes_long_to_deliver_does_not_hold_up_the_others(setup):
    cluster = Cluster(brokers=(1,))
    first, recorders = many(setup, cluster, topics=["a"])
    cluster.add_partitions(1, topic="slow")[0].append(*values(5000))
    behind = []

    def take(received):
        cluster.clock.rightNow += 0.002
        if received.offset % 500 == 300:
            cluster.topics["a"][0].append(b"x")
        if len(recorders["a"].records) > len(behind):
            behind.append(received.offset % 500 - 300)

    slow = Recorder(on_record=take)
    first.follow(slow, topic="slow")
    cluster.until(lambda: slow.caught_up_at)
    assert [each.value for each in slow.records] == values(5000)
    assert len(behind) == 10
    assert all(0 < each < 50 for each in behind)


@pytest.mark.parametrize("tells_epochs", [True, False])
def test_two_of_one_topic_each_get_everything_and_cost_no_more_than_one(setup, tells_epochs):
    cluster = Cluster(partitions=2, brokers=(1,))
    cluster.tells_epochs = tells_epochs
    for log in cluster.logs.values():
        for number in range(40):
            log.append(*values(100, 100 * number))
    first = setup(cluster, start=FromEnd(0))
    first.catch_up()
    late = Recorder(on_record=cluster.take(0.0005))
    first.follow(late, start=EARLIEST)
    cluster.until(lambda: len(late.records) > 1000)
    cluster.logs[0].append(b"live")
    assert first.until(1) == [b"live"]
    cluster.until(lambda: late.caught_up_at)
    cluster.run(2)
    cluster.asked.clear()
    cluster.run(10)
    assert len(cluster.asked) <= 22
    cluster.logs[1].append(b"last")
    cluster.until(lambda: len(first.values) == 2, within_s=0.1)
    cluster.run(0.1)
    for number, log in cluster.logs.items():
        assert [each.value for each in late.records if each.partition == number] == log.values


@pytest.mark.parametrize("starts", [(EARLIEST, FromEnd(0)), (FromEnd(0), EARLIEST)])
def test_one_at_the_end_of_a_compacted_log_and_one_that_never_comes_there_share_a_request(setup, starts):
    cluster = Cluster(brokers=(1,))
    cluster.logs[0].append(b"a")
    cluster.logs[0].skip(3)
    first = setup(cluster, start=starts[0])
    first.catch_up()
    other = Recorder()
    first.follow(other, start=starts[1])
    cluster.run(10)
    cluster.asked.clear()
    cluster.run(10)
    assert len(cluster.asked) <= 22
    cluster.logs[0].append(b"b")
    cluster.run(0.1)
    read = [[each.value for each in some.records] for some in (first, other)]
    assert read == [[b"a", b"b"] if start is EARLIEST else [b"b"] for start in starts]
    assert first.reasons == ()


def test_a_frozen_broker_holds_up_only_its_own_partitions_of_any_topic(setup):
    cluster = Cluster()
    first, recorders = many(setup, cluster, topics=["a", "b", "c"])
    cluster.silent = {2}
    for step in range(1, 20):
        for topic in recorders:
            for log in cluster.topics[topic].values():
                log.append(b"%d" % step)
        cluster.until(
            lambda step=step: all(len(each.records) >= 2 * step for each in recorders.values()), within_s=0.1
        )
        cluster.run(1)
    # One that comes now is read from the others, too.
    new = Recorder()
    first.follow(new, topic="a")
    cluster.until(lambda: len(new.records) == 38, within_s=1.5)
    cluster.silent = set()
    cluster.until(lambda: all(len(each.records) == 57 for each in recorders.values()), within_s=11)


def test_a_topic_without_an_id_among_others_is_read_by_name(setup):
    cluster = Cluster(brokers=(1,))
    first, recorders = many(setup, cluster, topics=["a"])
    cluster.run(1)
    assert not cluster.fetches[-1][1].uses_ids
    cluster.topics["a"][0].append(b"x")
    cluster.logs[0].append(b"y")
    cluster.until(lambda: recorders["a"].records and first.values)
    assert all(
        request.topic_ids.keys() <= {"t"}
        for _, request in cluster.fetches
        if isinstance(request, SessionFetchRequest | FetchRequest)
    )


def test_the_metadata_of_a_topic_that_nobody_follows_any_longer_is_forgotten(setup):
    cluster = Cluster()
    cluster.add_partitions(1, topic="a")
    first = setup(cluster)
    some = [first.follow(Recorder(), topic="a") for _ in range(2)]
    cluster.run(1)
    client = cluster.clients[0]
    for each in some:
        assert client.partitions_of("a")
        each.stop()
        cluster.run(0.1)
    assert not client.partitions_of("a")
