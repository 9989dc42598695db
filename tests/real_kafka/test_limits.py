"""What Kafka rejects, and what the service answers then."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.real_kafka.admin import new_topic
from tests.real_kafka.listeners import USER, write_credentials
from tests.real_kafka.reading import read_all
from tests.real_kafka.service import connect, post, post_on
from tests.real_kafka.versions import ACLS, SCRAM, needs
from tests.support.waiting import wait_until

pytestmark = pytest.mark.release

# A batch of one record without headers: 61 bytes, and the record, whose own length, and that of the value,
# take two or three bytes each for these sizes (zigzag varints), the other parts one, the empty key none.
MAX_MESSAGE_BYTES = 20_000
OVERHEAD = 61 + 3 + 1 + 1 + 1 + 1 + 3 + 1
# Once every now and then the broker may not have heard yet of what the controller has.
SOON_S = 10
UNKNOWN_TOPIC_S = 2


def problem(answer):
    status, body = answer
    return status, body.get("type", "").removeprefix("urn:sampleapp:problem:")


@pytest.fixture
def service(one_node, start_service):
    return start_service(one_node)


@pytest.fixture
def small_messages(one_node):
    return one_node.admin.create(new_topic("small"), partitions=1, max_message_bytes=MAX_MESSAGE_BYTES)


def test_a_record_of_just_the_size_that_the_topic_takes(one_node, service, small_messages):
    largest = "x" * (MAX_MESSAGE_BYTES - OVERHEAD)
    assert post(service, small_messages, largest)[0] == 200
    assert problem(post(service, small_messages, largest + "x")) == (413, "record-too-large")
    assert post(service, small_messages, "after it")[0] == 200
    stored = read_all(one_node.bootstrap, small_messages)
    assert [each.value.decode() for each in stored] == [largest, "after it"]


def test_a_record_that_is_too_large_takes_no_others_with_it(one_node, service, small_messages):
    too_large = "x" * (MAX_MESSAGE_BYTES - OVERHEAD + 1)
    # Each of them fits, and a few of them together do not fit into one batch.
    contents = [f"{n} " + "y" * 5_000 for n in range(60)]
    for n in range(0, len(contents), 20):
        contents.insert(n, too_large)
    with ThreadPoolExecutor(len(contents)) as threads:
        answers = list(threads.map(lambda content: post(service, small_messages, content, key="k"), contents))
    for content, answer in zip(contents, answers, strict=True):
        expected = (413, "record-too-large") if content is too_large else (200, "")
        assert problem(answer) == expected
    stored = {each.offset: each.value.decode() for each in read_all(one_node.bootstrap, small_messages)}
    assert stored == {b["offset"]: c for c, (s, b) in zip(contents, answers, strict=True) if s == 200}
    assert len(stored) == 60


def test_a_record_that_no_broker_takes(one_node, start_service):
    # The broker's own limit is about a mebibyte, and was a million bytes; the service's own, on bodies, comes
    # before it by default.
    service = start_service(one_node, service_options=["--max-body", "4000000"])
    topic = one_node.admin.create(new_topic("large"))
    assert problem(post(service, topic, "x" * 1_100_000)) == (413, "record-too-large")
    assert post(service, topic, "x" * 990_000)[0] == 200


def test_too_few_replicas_in_sync(three_nodes, start_service):
    admin = three_nodes.admin
    topic = admin.create(new_topic("in-sync"), assignment=[[1, 2]], min_insync_replicas=2)
    admin.wait_until_in_sync(topic, 2)
    service = start_service(three_nodes, delivery_timeout=3)
    assert post(service, topic, "before", key="k")[0] == 200
    three_nodes.node(2).stop()
    admin.wait_until_in_sync(topic, 1)
    begun_s = time.monotonic()
    assert problem(post(service, topic, "meanwhile", key="k")) == (503, "broker-unavailable")
    assert time.monotonic() - begun_s < 6
    three_nodes.restore()
    admin.wait_until_in_sync(topic, 2)
    assert post(service, topic, "after", key="k")[0] == 200
    stored = [each.value for each in read_all(three_nodes.bootstrap, topic)]
    assert stored == [b"before", b"after"]


@pytest.fixture
def restricted_service(one_node, start_service, tmp_path):
    """The service as a user for whom there are rules."""
    credentials = write_credentials(tmp_path)
    return start_service(one_node, listener="SASL", sasl="SCRAM-SHA-512", credentials=credentials)


@needs(SCRAM, ACLS)
@pytest.mark.parametrize(
    ("allowed", "denied"), [(["DESCRIBE"], ["WRITE"]), ([], ["DESCRIBE", "WRITE"]), (["READ"], [])]
)
def test_a_topic_that_may_not_be_written_to(one_node, restricted_service, allowed, denied):
    forbidden = one_node.admin.create(new_topic("forbidden"))
    open_to_all = one_node.admin.create(new_topic("open"))
    one_node.admin.rule(forbidden, USER, allow=allowed, deny=denied)
    begun_s = time.monotonic()
    answers = [post(restricted_service, forbidden, "x") for _ in range(3)]
    assert time.monotonic() - begun_s < 2 * UNKNOWN_TOPIC_S
    assert [problem(each) for each in answers] == [(403, "topic-not-authorized")] * 3
    assert post(restricted_service, open_to_all, "x")[0] == 200
    assert read_all(one_node.bootstrap, forbidden) == []


@needs(SCRAM, ACLS)
def test_a_topic_that_may_be_written_to_from_now_on(one_node, restricted_service):
    topic = one_node.admin.create(new_topic("allowed"))
    one_node.admin.rule(topic, USER, allow=["READ"])
    assert problem(post(restricted_service, topic, "x")) == (403, "topic-not-authorized")
    one_node.admin.rule(topic, USER, allow=["WRITE"])
    wait_until(
        lambda: post(restricted_service, topic, "x")[0] == 200, "it may be written to", deadline_s=SOON_S
    )


def test_an_unknown_topic_is_answered_within_two_seconds_and_is_not_created(one_node, service):
    topic = new_topic("unknown")
    took_s = []
    for _ in range(3):
        begun_s = time.monotonic()
        assert problem(post(service, topic, "x")) == (404, "unknown-topic")
        took_s.append(time.monotonic() - begun_s)
    # On a busy machine one may take longer.
    assert min(took_s) < UNKNOWN_TOPIC_S
    assert not one_node.admin.exists(topic)


def test_an_unknown_topic_is_created_where_that_is_asked_for(one_node, start_service):
    service = start_service(one_node, auto_create="true")
    topic = new_topic("created")
    status, body = post(service, topic, "x")
    assert (status, body["offset"]) == (200, 0)
    assert [each.value for each in read_all(one_node.bootstrap, topic)] == [b"x"]


def test_a_topic_is_published_to_soon_after_it_was_made(one_node, service):
    topic = new_topic("later")
    assert post(service, topic, "x")[0] == 404
    one_node.admin.create(topic)
    wait_until(lambda: post(service, topic, "x")[0] == 200, "it is known", deadline_s=SOON_S)


def test_a_topic_that_is_deleted_and_made_again(one_node, service):
    topic = one_node.admin.create(new_topic("deleted"), partitions=3)
    connection = connect(service)
    for n in range(10):
        assert post_on(connection, topic, f"{n}", key=f"{n}")[0] == 200
    one_node.admin.delete(topic)
    begun_s = time.monotonic()
    assert problem(post_on(connection, topic, "x", key="0")) == (404, "unknown-topic")
    assert time.monotonic() - begun_s < SOON_S
    assert not one_node.admin.exists(topic)
    # With fewer partitions than it had: a key's place is another one now.
    one_node.admin.create(topic, partitions=1)
    answers = []

    def is_published():
        answers.append(post_on(connection, topic, f"again {len(answers)}", key="0"))
        return answers[-1][0] == 200

    wait_until(is_published, "it is known again", deadline_s=SOON_S)
    for n in range(10):
        assert post_on(connection, topic, f"{n}", key=f"{n}")[0] == 200
    connection.close()
    assert {status for status, _ in answers} <= {200, 404}
    stored = [each.value.decode() for each in read_all(one_node.bootstrap, topic)]
    assert stored == [f"again {len(answers) - 1}", *map(str, range(10))]
