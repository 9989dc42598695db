"""Streams of the records of a topic."""

from __future__ import annotations

import json

import pytest
from twisted.internet.defer import CancelledError, fail

from sampleapp.errors import BrokerStopped, BrokerUnavailable, InvalidParameters, UnknownPartition
from sampleapp.records.positions import PositionExpired, PositionUnknown, TopicReplaced
from sampleapp.web.read.registry import StreamKind
from tests.support.event_streams import EventReader
from tests.support.stream_clients import Client, StreamService


@pytest.fixture
def service():
    return StreamService(partitions=2)


@pytest.fixture
def topic(service):
    return service.topic


def joined(service, query="", **more):
    """A client that gets what is live."""
    client = service.client(query, **more)
    service.run(1)
    assert service.places.numbers[StreamKind.RECORDS].behind == 0
    return client.read()


# The beginning


def test_a_stream_begins_with_the_position_at_the_end(service, topic):
    topic.append(0, b"old")
    client = service.client().read()
    assert client.reader.events == []
    assert 1000 <= client.reader.retry_ms <= 5000
    assert client.reader.last_event_id == "id0~1.0"


def test_its_head_says_that_it_is_a_stream_and_depends_on_accept(service):
    headers = dict(service.open().headers)
    assert headers[b"Content-Type"] == b"text/event-stream"
    assert headers[b"Vary"] == b"Accept"
    assert headers[b"Cache-Control"] == b"no-store"


def test_a_stream_from_the_first_record_goes_on_with_what_comes(service, topic):
    for number in range(1200):
        topic.append(number % 2, b"%d" % number)
    client = service.client("from=earliest")
    service.run(2)
    topic.append(0, b"live")
    service.run(1)
    client.read().require_everything()
    assert len(client.values) == 1201


@pytest.mark.parametrize("start", ["1970-01-01T00:00:03Z", "offset:3", "-2"])
def test_a_stream_begins_at_a_time_at_an_offset_or_with_the_last_records(service, topic, start):
    for _ in range(5):
        topic.append(0)
    client = service.client(f"from={start}").read()
    assert client.reader.ids[0] == "id0~3.0"
    assert [record["offset"] for record in client.records] == [3, 4]


@pytest.mark.parametrize(
    ("query", "fields", "first"),
    [
        ("from=id0~1.0", {}, 1),
        ("from=id0~", {}, 0),
        ("from=earliest&last_event_id=id0~2.0", {}, 2),
        ("from=earliest&last_event_id=id0~2.0", {"last_event_id": "id0~3.0"}, 3),
        ("from=earliest", {"last_event_id": ""}, 0),
    ],
)
def test_the_last_id_wins_over_the_query(service, topic, query, fields, first):
    for _ in range(5):
        topic.append(0)
    client = Client(service, query)
    client.connect(**fields)
    service.run(0.1)
    client.read()
    assert [record["offset"] for record in client.records] == list(range(first, 5))


def test_what_comes_while_a_client_begins_is_not_missed(service, topic):
    client = service.client(settle_s=0)
    for _ in range(5):
        topic.append(0)
        service.run(0.002)
        topic.append(1)
    service.run(1)
    assert len(client.read().records) == 10


@pytest.mark.parametrize("wait_s", [0.001, 0.02, 0.05, 0.1, 0.2, 0.4])
def test_what_comes_soon_after_the_first_stream_of_a_topic_has_begun_comes_at_once(service, topic, wait_s):
    client = service.client(settle_s=wait_s)
    topic.append(0, b"a")
    service.run(0.05)
    assert client.read().values == ["a"]


# What is live


def test_what_comes_is_sent_with_the_position_after_it(service, topic):
    client = joined(service)
    for partition, value in ((1, b"a"), (0, b"b")):
        topic.append(partition, value)
        service.run(0.1)
    client.read()
    assert client.values == ["a", "b"]
    assert [event.event_id for event in client.reader.events] == ["id0~0.1", "id0~1.1"]


def test_all_who_are_up_to_date_share_one_following_and_each_event(service, topic):
    clients = [joined(service) for _ in range(10)]
    reads = topic.reads
    topic.append(0, b"a")
    service.run(1)
    assert [client.read().values for client in clients] == [["a"]] * 10
    assert len({id(client.sink.events[-1]) for client in clients}) == 1
    assert len(topic.followings) == 1
    assert topic.reads == reads


def test_nothing_is_sent_twice_to_who_joins_while_events_are_on_their_way(service, topic):
    first = [joined(service) for _ in range(100)]
    topic.deliver_at_once = 50
    for _ in range(50):
        topic.append(0)
    later = []
    for _ in range(20):
        service.clock.advance(0.001)
        later.append(service.client(settle_s=0))
    service.run(1)
    for client in [*first, *later]:
        client.read().require_everything()
    assert [len(client.records) for client in first] == [50] * 100


def test_only_records_of_the_key_are_sent_and_the_position_moves_over_others(service, topic):
    client = joined(service, "key=a", key=b"a")
    for key in (b"b", b"a", None, b"", b"b"):
        topic.append(0, key or b"", key)
    service.run(1)
    assert client.read().values == ["a"]
    service.run(20)
    assert client.read().reader.last_event_id == "id0~5.0"


def test_a_broker_that_compares_keys_reads_no_other_records_of_the_past(service, topic):
    topic.compares_keys = True
    for number in range(1200):
        topic.append(0, b"%d" % number, b"a" if number % 400 == 7 else b"b")
    client = service.client("key=a&from=earliest", key=b"a")
    service.run(1)
    assert client.read().values == ["7", "407", "807"]
    assert topic.records_read == 3
    topic.append(0, b"live", b"a")
    service.run(20)
    client.read().require_everything()
    assert client.reader.last_event_id == "id0~1201.0"


def test_only_records_with_the_headers_are_sent_live_and_from_the_past(service, topic):
    shop = ("source", b"shop")
    for headers in [(shop,), (), (("a", b""), shop)]:
        topic.append(0, b"past", headers=headers)
    client = joined(service, "header=source:shop&from=earliest", headers=(shop,))
    for headers in [(), (shop,), (("source", b"web"),)]:
        topic.append(0, b"live", headers=headers)
    service.run(1)
    assert [record["offset"] for record in client.read().records] == [0, 2, 4]


def test_the_empty_key_is_a_key(service, topic):
    client = joined(service, "key=", key=b"")
    for key in (None, b"", b"a"):
        topic.append(0, b"v", key)
    service.run(1)
    assert [record["offset"] for record in client.read().records] == [1]


def test_positions_of_a_stream_of_some_partitions_leave_out_the_others(service, topic):
    topic.add_partition()
    client = joined(service, "partition=1", partitions={1})
    assert client.reader.last_event_id == "id0~-.0"
    topic.append(0)
    topic.append(1, b"one")
    topic.append(2)
    service.run(1)
    assert client.read().values == ["one"]
    assert client.reader.last_event_id == "id0~-.1"


def test_a_partition_that_a_position_leaves_out_stays_out_and_new_ones_come(service, topic):
    client = Client(service, partitions={1, 2})
    client.connect(last_event_id="id0~-.0")
    service.run(1)
    client.read()
    assert client.reader.last_event_id == "id0~-.0"
    topic.add_partition()
    for partition in range(3):
        topic.append(partition, b"%d" % partition)
    service.run(1)
    assert sorted(client.read().values) == ["1", "2"]
    assert client.reader.last_event_id == "id0~-.1.1"


def test_a_new_partition_is_read_from_its_first_record(service, topic):
    client = joined(service)
    topic.add_partition()
    topic.append(2, b"new")
    service.run(1)
    assert client.read().values == ["new"]
    assert client.reader.last_event_id == "id0~0.0.1"


def test_a_partition_whose_first_records_are_gone_when_it_is_noticed_is_read_as_far_as_it_is_there(
    service, topic
):
    client = joined(service)
    topic.hold_following(is_held=True)
    topic.add_partition()
    for _ in range(5):
        topic.append(2)
    topic.expire(2, 3)
    topic.hold_following(is_held=False)
    service.run(2)
    client.read().require_everything()
    assert [record["offset"] for record in client.records] == [3, 4]


def test_long_positions_are_on_the_last_event_of_a_group_only(topic, service):
    for _ in range(70):
        topic.add_partition()
    topic.deliver_at_once = 10
    client = joined(service)
    for _ in range(5):
        topic.append(0)
    service.run(1)
    client.read().require_everything()
    blocks = [block for block in client.sink.sent.split(b"\n\n") if b"data: " in block]
    assert len(blocks) == 5
    assert 1 <= sum(b"id: " in block for block in blocks) <= 2
    assert b"id: " in blocks[-1]


def test_more_partitions_than_a_position_has_room_for_are_rejected(service, topic):
    for _ in range(3000):
        topic.add_partition()
    rejection = service.open().value
    assert isinstance(rejection, InvalidParameters)
    assert "partition" in str(rejection)
    assert service.open("partition=1999").source is not None


def test_offsets_without_records_are_passed(service, topic):
    client = joined(service)
    for _ in range(3):
        topic.append(0)
        topic.end_transaction(0)
    service.run(20)
    client.read().require_everything()
    assert client.reader.last_event_id == "id0~6.0"


# Quiet streams, and the end


def test_a_quiet_stream_says_its_position_every_15_seconds(service, topic):
    clients = [joined(service), joined(service, "partition=0", partitions={0})]
    sent = [len(client.sink.sent) for client in clients]
    service.run(47)
    beats = [client.sink.sent[length:] for client, length in zip(clients, sent, strict=True)]
    assert beats == [b"id: id0~0.0\n\n" * 3, b"id: id0~0\n\n" * 3]


def test_a_stream_ends_by_itself_after_about_ten_minutes_and_goes_on(service, topic):
    client = joined(service)
    service.run(539, step=1)
    assert client.is_connected
    service.run(125, step=1)
    assert client.sink.ended_by == "age"
    client.read()
    topic.append(0, b"meanwhile")
    client.connect()
    service.run(0.1)
    assert client.read().values == ["meanwhile"]


def test_a_stream_ends_when_the_service_stops(service):
    client = joined(service)
    client.sink.source.draining()
    assert client.sink.ended_by == "drain"


def test_nothing_is_left_when_all_clients_have_gone(service, topic):
    clients = [joined(service), service.client("from=earliest"), service.client(settle_s=0)]
    for client in clients:
        client.cut()
    service.run(100)
    assert len(service.feeds) == 0
    assert topic.followings == []
    assert service.clock.getDelayedCalls() == []
    assert service.places.numbers[StreamKind.RECORDS].open == 0


def test_a_stream_whose_read_is_cancelled_by_the_broker_is_cut_and_reported(
    service, topic, no_failure_is_lost
):
    for _ in range(2000):
        topic.append(0)
    client = service.client("from=earliest", settle_s=0.001)
    topic.read = lambda _: fail(CancelledError())
    service.run(1)
    assert not client.read().is_connected
    assert no_failure_is_lost.pop().check(CancelledError)
    del topic.read
    client.connect()
    service.run(1)
    client.read().require_everything()


def test_who_gives_up_before_the_answer_leaves_nothing(service):
    asking, failures = service.ask(), []
    asking.addErrback(failures.append)
    asking.cancel()
    assert failures[0].check(CancelledError)
    assert service.places.numbers[StreamKind.RECORDS].open == 0
    assert service.clock.getDelayedCalls() == []


# Who reads slowly


def test_who_falls_behind_reads_by_himself_when_he_can_take_more(service, topic):
    slow, fast = joined(service), joined(service)
    slow.stop_reading()
    topic.deliver_at_once = 10
    for number in range(300):
        topic.append(0, b"%d" % number)
    service.run(1)
    numbers = service.places.numbers[StreamKind.RECORDS]
    assert numbers.behind == 1
    assert len(slow.sink.events) < 10
    assert len(fast.read().values) == 300
    slow.read_on()
    service.run(1)
    slow.read().require_everything()
    assert numbers.behind == 0
    reads = topic.reads
    topic.append(0, b"live")
    service.run(1)
    assert (slow.read().values[-1], topic.reads) == ("live", reads)


def test_who_reads_by_himself_when_following_stops_begins_no_other_following(service, topic):
    client = joined(service)
    client.stop_reading()
    topic.append(0, b"last")
    service.run(1)
    service.feeds.stop()
    client.read_on()
    service.run(40)
    assert topic.followings == []
    assert len(service.feeds) == 0
    assert client.read().values == ["last"]
    client.cut()
    assert service.clock.getDelayedCalls() == []


def test_history_is_read_only_as_fast_as_the_client_takes_it(service, topic):
    for _ in range(40):
        topic.append(0, b"x" * 50_000)
    client = service.client("from=earliest", unsent=1)
    service.run(5)
    assert len(client.sink.sent) < 250_000
    client.sink.unsent = 0
    service.run(5)
    client.read().require_everything()


def test_only_some_streams_read_by_themselves_at_one_time(service, topic):
    topic.append(0)
    asking = [service.ask("from=earliest") for _ in range(100)]
    assert topic.reads <= 10
    service.run(1)
    assert all(each.called for each in asking)


def test_streams_whose_partition_has_a_frozen_leader_do_not_hold_up_others(service, topic):
    topic.append(0, b"a")
    topic.frozen = {1}
    rejected, opened = [], []
    for _ in range(16):
        service.ask("partition=1").addErrback(rejected.append)
    service.ask("from=earliest&partition=0").addCallback(opened.append)
    service.run(2)
    assert len(opened) == 1
    assert not rejected
    service.run(10)
    assert [failure.type for failure in rejected] == [BrokerUnavailable] * 16


def test_thousands_of_streams_that_wait_to_read_are_all_rejected_when_the_broker_stops(service, topic):
    answers = []
    for _ in range(3000):
        service.ask("from=earliest").addErrback(answers.append)

    def reject(_):
        return fail(BrokerStopped("The service is stopping."))

    topic.read = reject
    service.run(0.01)
    # Those that were reading already go on.
    assert [failure.type for failure in answers] == [BrokerStopped] * (3000 - topic.reads)
    assert service.places.numbers[StreamKind.RECORDS].open == topic.reads


# What cannot be read on


def test_records_that_expired_before_they_were_read_are_named(service, topic):
    client = joined(service)
    client.stop_reading()
    topic.deliver_at_once = 100
    for _ in range(900):
        topic.append(0)
    service.run(1)
    topic.expire(0, 700)
    client.read_on()
    service.run(1)
    client.read().require_everything()
    ((name, data),) = client.told
    assert name == "gap"
    (gone,) = data["gone"]
    assert (gone["partition"], gone["earliest"]) == (0, 700)
    gap = next(event for event in client.reader.events if event.event == "gap")
    assert gap.event_id == "id0~700.0"


def test_records_that_expire_before_the_feed_has_them_are_named(service, topic):
    client = joined(service)
    topic.hold_following(is_held=True)
    for _ in range(10):
        topic.append(0)
    topic.expire(0, 7)
    topic.hold_following(is_held=False)
    service.run(2)
    client.read().require_everything()
    assert [name for name, _ in client.told] == ["gap"]


def test_who_comes_back_after_records_expired_is_told(service, topic):
    client = joined(service)
    client.cut()
    for _ in range(10):
        topic.append(0)
        topic.append(1)
    topic.expire(0, 7)
    client.connect()
    service.run(1)
    client.read()
    assert client.reader.ids[:2] == ["id0~0.0", "id0~7.0"]
    assert client.told == [("gap", {"gone": [{"partition": 0, "asked": 0, "earliest": 7}]})]
    client.require_everything()


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_topic_that_is_made_again_is_read_from_its_first_record(service, topic, partitions):
    client, of_one = joined(service), joined(service, "partition=0", partitions={0})
    topic.append(0, b"old")
    service.run(1)
    topic.make(partitions)
    topic.append(0, b"new")
    service.run(2)
    for each in (client, of_one):
        each.read().require_everything()
        assert each.values == ["old", "new"]
        assert each.told == [("reset", {"reason": "topic-replaced"})]
    assert client.reader.events[-2].event_id == "id1~"


def test_without_ids_of_topics_the_feed_tells_that_it_was_made_again(service):
    service = StreamService(partitions=1, has_ids=False)
    client = joined(service)
    service.topic.append(0, b"old")
    service.run(1)
    service.topic.make(1)
    for _ in range(3):
        service.topic.append(0, b"new")
    service.run(2)
    assert client.read().values == ["old", "new", "new", "new"]
    assert client.told == [("reset", {"reason": "topic-replaced"})]


def test_without_ids_a_stream_that_skips_a_partition_goes_on_with_fewer_in_a_topic_that_was_made_again():
    service = StreamService(partitions=3, has_ids=False)
    client = service.client("from=_~0.0.-")
    service.run(1)
    service.topic.append(0, b"old")
    service.run(1)
    service.topic.make(1)
    service.topic.append(0, b"new")
    service.run(2)
    assert client.read().values == ["old", "new"]
    assert client.told[0] == ("reset", {"reason": "topic-replaced"})
    assert client.is_connected


@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_who_comes_back_to_a_topic_that_was_made_again_is_told(service, topic, partitions):
    client = joined(service)
    topic.append(0, b"old")
    service.run(1)
    client.cut()
    topic.make(partitions)
    topic.append(0, b"new")
    client.connect()
    service.run(1)
    assert client.read().values == ["old", "new"]
    assert client.told == [("reset", {"reason": "topic-replaced"})]
    client.require_everything()


@pytest.mark.parametrize(
    ("count", "told", "values"),
    [
        (2, [("reset", {"reason": "position-unknown"})], ["old", "old", "old", "0", "1"]),
        (5, [], ["old", "old", "old", "3", "4"]),
    ],
)
def test_without_ids_who_comes_back_is_told_only_if_the_topic_made_again_is_shorter(count, told, values):
    service = StreamService(partitions=1, has_ids=False)
    client = joined(service)
    for _ in range(3):
        service.topic.append(0, b"old")
    service.run(1)
    client.cut()
    service.topic.make(1)
    for number in range(count):
        service.topic.append(0, b"%d" % number)
    client.connect()
    service.run(1)
    assert client.read().values == values
    assert client.told == told


def test_a_position_beyond_the_end_begins_again(service, topic):
    topic.append(0, b"a")
    client = Client(service)
    client.connect(last_event_id="id0~9.0")
    service.run(1)
    client.read()
    assert client.told == [("reset", {"reason": "position-unknown"})]
    assert client.values == ["a"]


@pytest.fixture
def cut_log():
    """A service whose topic has lost the last two of three records, and has three others instead."""
    service = StreamService(has_epochs=True)
    topic = service.topic
    for number in range(3):
        topic.append(0, b"%d" % number)

    def cut():
        topic.cut(0, 1)
        for number in range(3):
            topic.append(0, b"new %d" % number)

    service.cut_log = cut
    return service


VALUES_AFTER_CUT = ["0", "new 0", "new 1", "new 2"]
UNKNOWN = [("reset", {"reason": "position-unknown"})]


def test_an_open_stream_is_told_of_a_log_that_was_cut_and_has_grown_again(cut_log):
    clients = [cut_log.client(query) for query in ("from=earliest", "from=-1", "from=earliest&partition=0")]
    cut_log.run(1)
    assert {client.read().reader.last_event_id for client in clients} == {"id0~3e0"}
    cut_log.cut_log()
    cut_log.run(1)
    for client in clients:
        client.read()
        assert client.told == UNKNOWN
        assert client.values[-4:] == VALUES_AFTER_CUT
        assert client.reader.last_event_id == "id0~4e1"


def test_one_that_comes_back_is_told_also_if_others_read_from_the_same_offset(cut_log):
    cut_log.cut_log()
    clients = []
    # The one without an epoch cannot be told.
    for position in ("id0~3", "id0~3e1", "id0~3e0", "id0~3e1", "id0~3e0"):
        clients.append(Client(cut_log))
        clients[-1].connect(last_event_id=position)
    cut_log.run(1)
    expected = [["new 2"], ["new 2"], VALUES_AFTER_CUT, ["new 2"], VALUES_AFTER_CUT]
    for client, values in zip(clients, expected, strict=True):
        assert client.read().values == values
        assert client.told == (UNKNOWN if values is VALUES_AFTER_CUT else [])
        assert client.reader.last_event_id == "id0~4e1"


def test_a_position_in_the_url_of_a_log_that_was_cut_is_rejected(cut_log):
    cut_log.cut_log()
    rejection = cut_log.open("from=id0~3e0").value
    assert isinstance(rejection, PositionUnknown)
    assert "leader epoch 0 of partition 0 ends at 1, and the position is 3e0." in str(rejection)


@pytest.mark.parametrize(
    ("position", "error"),
    [
        ("id0~1.0", PositionExpired),
        ("other~5.0", TopicReplaced),
        ("other~5.0.0.0.0", TopicReplaced),
        ("id0~9.0", PositionUnknown),
        ("id0~5.0.1", PositionUnknown),
    ],
)
def test_a_position_in_the_url_that_cannot_be_continued_is_rejected(service, topic, position, error):
    for _ in range(5):
        topic.append(0)
    topic.expire(0, 3)
    rejection = service.open(f"from={position}").value
    assert isinstance(rejection, error)
    if error is PositionExpired:
        assert rejection.resume == "id0~3.0"


@pytest.mark.parametrize(
    ("query", "fields", "pointer"),
    [
        ("from=id0~-.-", {}, "/from"),
        ("last_event_id=id0~-.-", {}, "/last_event_id"),
        ("last_event_id=id0~0.0", {"last_event_id": "id0~-.-"}, "/Last-Event-ID"),
    ],
)
def test_a_position_that_reads_nothing_is_rejected_where_it_is(service, query, fields, pointer):
    rejection = service.open(query, **fields).value
    assert isinstance(rejection, InvalidParameters)
    assert [fault.pointer for fault in rejection.faults] == [pointer]


def test_a_partition_that_the_topic_does_not_have_is_rejected(service):
    assert isinstance(service.open("partition=2").value, UnknownPartition)


# Trouble


def test_a_stream_ends_when_its_partition_is_gone_for_good(service, topic):
    topic.append(1)
    client = joined(service, "partition=1")
    topic.make(1)
    service.run(30)
    assert client.sink.ended_by == "error"
    assert isinstance(service.open("partition=1").value, UnknownPartition)
    # No event could continue its id: the partition that the request names has no first record.
    client.connect()
    assert isinstance(client.rejection.value, UnknownPartition)


def test_while_the_broker_cannot_be_reached_a_stream_stays_and_goes_on(service, topic):
    client = joined(service)
    client.stop_reading()
    for _ in range(10):
        topic.append(0)
    service.run(1)
    topic.is_reachable = False
    client.read_on()
    service.run(40)
    assert client.is_connected
    assert client.read().reader.last_event_id.startswith("id0~")
    topic.is_reachable = True
    service.run(15)
    client.read().require_everything()


def test_a_stream_that_is_ahead_of_the_feed_waits_for_it_or_reads_by_itself(service, topic):
    joined(service)
    topic.hold_following(is_held=True)
    for _ in range(3):
        topic.append(0)
    client = service.client()
    service.run(1)
    topic.append(0, b"a")
    service.run(5)
    assert client.read().values == ["a"]
    topic.hold_following(is_held=False)
    service.run(5)
    topic.append(0, b"b")
    service.run(1)
    client.read().require_everything()
    assert service.places.numbers[StreamKind.RECORDS].behind == 0


def test_records_that_come_faster_than_they_can_be_passed_on_are_read_by_each(service, topic):
    client = joined(service)
    topic.deliver_at_once = 30
    for _ in range(10):
        topic.append(0, b"x" * 1_000_000)
    service.run(5)
    client.read().require_everything()
    assert service.feeds.overruns == 1


def test_without_the_broker_a_stream_is_rejected_and_a_browser_is_told_when_to_come_back(service, topic):
    topic.is_reachable = False
    assert isinstance(service.open().value, BrokerUnavailable)
    answer = service.open(sec_fetch_mode="cors")
    assert answer.status == 200
    reader = EventReader.of(answer.body)
    assert reader.retry_ms == 30_000
    (event,) = reader.events
    assert event.event == "unavailable"
    assert json.loads(event.data)["status"] == 503
    assert service.places.numbers[StreamKind.RECORDS].open == 0


def test_a_fault_of_one_client_does_not_keep_events_from_the_others(service, topic, no_failure_is_lost):
    broken, other = joined(service), joined(service)

    def fail(event):
        raise RuntimeError("the connection is broken")

    broken.sink.write = fail
    topic.append(0, b"a")
    service.run(1)
    assert other.read().values == ["a"]
    assert broken.sink.ended_by == "fault"
    assert [failure.type for failure in no_failure_is_lost] == [RuntimeError]
    no_failure_is_lost.clear()


def test_a_stream_that_leaves_a_feed_that_has_ended_does_not_end_the_next_one(service, topic):
    gone = joined(service)
    gone.stop_reading()
    topic.append(0)
    service.run(100)
    assert len(service.feeds) == 0
    client = service.client()
    service.run(1)
    gone.cut()
    service.run(100)
    assert len(service.feeds) == len(topic.followings) == 1
    topic.append(0, b"a")
    service.run(1)
    assert client.read().values == ["a"]


def test_a_stream_whose_position_has_become_too_long_ends(service, topic):
    topic.deliver_at_once = 3000
    for _ in range(2010):
        topic.add_partition()
    client = joined(service)
    client.stop_reading()
    for _ in range(100):
        topic.add_partition()
    service.run(1)
    topic.append(0)
    service.run(1)
    assert client.sink.ended_by == "position"
    client.connect()
    assert isinstance(client.rejection.value, InvalidParameters)
