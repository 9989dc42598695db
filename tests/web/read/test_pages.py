"""``GET /topics/{topic}/records``: pages of records."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.address import IPv4Address
from twisted.internet.defer import CancelledError, fail
from twisted.internet.task import Clock, deferLater
from twisted.web.server import Site

from sampleapp import errors
from sampleapp.brokers.memory import MemoryBroker
from sampleapp.model import ConsumerRecord, Record
from sampleapp.records.positions import parse_position
from sampleapp.web.read.registry import StreamKind
from sampleapp.web.server import BodyMemory
from tests.support.callers import by, caller
from tests.support.in_memory import Connection, request_bytes
from tests.support.record_pages import PATH, PageService
from tests.web.http import assert_problem
from tests.web.server.test_connections import NarrowTransport

TWO = caller("one", 'consume = ["*"]') + caller("two", 'consume = ["*"]')


@pytest.fixture
def service():
    return PageService(partitions=2)


@pytest.fixture
def topic(service):
    return service.topic


def numbers_of_waits(service):
    return service.gateway.streams.numbers[StreamKind.PAGE]


# What is in a page


def test_a_page_has_lines_a_position_and_a_link_to_the_next_one(service, topic):
    topic.append(0, b"a", b"k")
    topic.append(1, b"b")
    page = service.page("?limit=2")
    assert page.status == 200
    assert page.body == (
        b'{"topic":"t","partition":0,"offset":0,"timestamp":0,"key":"k","content":"a","headers":{}}\n'
        b'{"topic":"t","partition":1,"offset":0,"timestamp":0,"content":"b","headers":{}}\n'
    )
    assert page.headers[b"content-type"] == b"application/x-ndjson"
    assert page.headers[b"position"] == b"id0~1.1"
    assert page.headers[b"link"] == b'<?from=id0~1.1&limit=2>; rel="next"'
    assert page.headers[b"up-to-date"] == b"true"
    assert page.headers[b"vary"] == b"Accept"
    assert page.headers[b"cache-control"] == b"no-store"


def test_without_a_record_the_answer_is_204_with_the_same_headers(service, topic):
    topic.append(0)
    page = service.page("?from=latest")
    assert (page.status, page.body) == (204, b"")
    assert page.headers[b"position"] == b"id0~1.0"
    assert page.headers[b"link"] == b'<?from=id0~1.0>; rel="next"'
    assert page.is_up_to_date
    assert page.headers[b"vary"] == b"Accept"


def test_a_page_that_is_not_the_last_does_not_say_that_it_is_up_to_date(service, topic):
    for _ in range(3):
        topic.append(0)
    page = service.page("?limit=2")
    assert (page.places, page.position) == ([(0, 0), (0, 1)], "id0~2.0")
    assert not page.is_up_to_date
    page = service.page(page.next)
    assert (page.places, page.position) == ([(0, 2)], "id0~3.0")
    assert page.is_up_to_date


def test_a_page_has_about_a_mebibyte(service, topic):
    for _ in range(5):
        topic.append(0, b"x" * 400_000)
    assert len(service.page().records) == 3


def test_a_record_of_any_size_is_in_a_page(service, topic):
    topic.append(0, b"\x00" * 3_000_000)
    assert service.page().places == [(0, 0)]


def test_a_head_request_gets_the_same_fields_without_the_body(service, topic):
    topic.append(0, b"a")
    page, head = service.page(), service.page(method="HEAD")
    different = {b"date", b"x-request-id"}
    assert {name: value for name, value in head.headers.items() if name not in different} == {
        name: value for name, value in page.headers.items() if name not in different
    }
    assert (head.status, head.body) == (200, b"")


def test_control_records_are_passed(service, topic):
    for _ in range(3):
        topic.end_transaction(0)
    page = service.page()
    assert (page.status, page.position) == (204, "id0~3.0")
    assert page.is_up_to_date


def test_a_request_for_an_offset_and_a_time_begins_there(service, topic):
    for _ in range(4):
        topic.append(1)
    assert service.page("?from=id0~0.2").places == [(1, 2), (1, 3)]
    assert service.page("?from=1970-01-01T00:00:02Z").places == [(1, 2), (1, 3)]
    assert service.page("?from=1970-01-01T00:00:03%2B00:00").places == [(1, 3)]
    assert service.page("?from=100000000000").position == "id0~0.4"
    assert service.page("?from=offset:3").places == [(1, 3)]
    assert service.page("?from=offset:9").position == "id0~0.4"
    assert service.page("?from=-2").places == [(1, 2), (1, 3)]


@pytest.mark.parametrize(
    ("query", "link"),
    [
        ("?wait=0&limit=500", b"<?from=id0~0.0>"),
        ("?key=a%20%26b&limit=7&wait=5", b"<?from=id0~0.0&key=a%20%26b&limit=7&wait=5>"),
        ("?header=a%3Ab:c&header=z:", b"<?from=id0~0.0&header=a:b:c&header=z:>"),
        ("?key_hex=ff00", b"<?from=id0~0.0&key=%FF%00>"),
        ("?partition=1,0", b"<?from=id0~0.0&partition=0-1>"),
        ("?partition=1", b"<?from=id0~-.0&partition=1>"),
    ],
)
def test_the_link_repeats_the_other_parameters(service, query, link):
    asked = service.ask(query)
    service.run(6, step=0.5, until=lambda: asked.is_answered)
    assert asked.page.headers[b"link"].startswith(link)


# Which records


operations = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([None, b"", b"k", b"\xff"]), st.booleans()), max_size=30
)


@given(
    operations,
    st.integers(1, 4),
    st.none() | st.sets(st.integers(0, 2), min_size=1),
    st.none() | st.sampled_from([b"", b"k", b"\xff"]),
    st.sampled_from(["earliest", "latest", "1970-01-01T00:00:04Z", "id0~", "id0~1..2", "id0~.-"]),
)
def test_walking_pages_gives_exactly_what_is_in_the_topic(log, limit, partitions, key, start):
    service = PageService(partitions=3)
    topic = service.topic
    for partition, record_key, is_control in log:
        if is_control:
            topic.end_transaction(partition)
        else:
            topic.append(partition, b"v", record_key)
    query = f"?from={start}&limit={limit}"
    if partitions is not None:
        if start == "id0~.-" and 1 in partitions:
            start, query = "id0~", f"?from=id0~&limit={limit}"
        query += "&partition=" + ",".join(map(str, partitions))
    if key is not None:
        query += "&key=" + quote(key)
    if start == "id0~1..2" and (not topic.logs[0] or len(topic.logs[2]) < 2):
        assert service.page(query).status == (
            410
            if partitions is None
            or (0 in partitions and not topic.logs[0])
            or (2 in partitions and len(topic.logs[2]) < 2)
            else service.page(query).status
        )
        return
    read, last = service.walk(query)
    begins = {"id0~1..2": {0: 1, 2: 2}}.get(start, {})
    expected = {
        (partition, record.offset)
        for partition, entries in enumerate(topic.logs)
        for record in entries
        if record is not None
        and (partitions is None or partition in partitions)
        and (key is None or record.key == key)
        and record.offset >= begins.get(partition, 0)
        and start != "latest"
        and (not start.endswith("Z") or record.timestamp_ms >= 4000)
        and (start != "id0~.-" or partitions is not None or partition != 1)
    }
    places = [(record["partition"], record["offset"]) for record in read]
    assert len(places) == len(set(places))
    assert set(places) == expected
    for partition in range(3):
        offsets = [offset for number, offset in places if number == partition]
        assert offsets == sorted(offsets)
    # And then what comes.
    topic.append(0, b"new", key)
    asked_for = (partitions is None or 0 in partitions) and len(topic.logs[0]) - 1
    after = service.page(last.next).places
    assert after == ([] if asked_for is False else [(0, len(topic.logs[0]) - 1)])


def test_partitions_that_are_not_asked_for_are_not_read(service, topic):
    topic.append(0)
    topic.append(1)
    page = service.page("?partition=1")
    assert (page.places, page.position) == ([(1, 0)], "id0~-.1")
    # What a position says of others is ignored, and those behind are left out.
    page = service.page("?partition=0&from=id0~.77")
    assert (page.places, page.position) == ([(0, 0)], "id0~1")


def test_a_partition_that_a_position_skips_stays_skipped_and_new_ones_are_read(service, topic):
    topic.append(0)
    topic.append(1)
    page = service.page("?from=id0~-")
    assert (page.places, page.position) == ([(1, 0)], "id0~-.1")
    assert topic.reads == 1
    topic.add_partition()
    topic.append(2)
    page = service.page(page.next)
    assert (page.places, page.position) == ([(2, 0)], "id0~-.1.1")


def test_new_partitions_are_read_from_their_first_record(service, topic):
    page = service.page("?from=latest")
    topic.add_partition()
    topic.append(2)
    assert service.page(page.next).places == [(2, 0)]


def test_a_search_for_a_key_stops_after_a_hundred_thousand_records_and_can_be_continued(service, topic):
    topic.logs[0] += [
        ConsumerRecord(topic="t", partition=0, offset=offset, timestamp_ms=0, key=b"o", value=b"")
        for offset in range(100_005)
    ]
    topic.append(0, b"here", b"k")
    page = service.page("?key=k")
    assert (page.status, page.position) == (204, "id0~100000.0")
    assert not page.is_up_to_date
    page = service.page(page.next)
    assert (page.places, page.is_up_to_date) == ([(0, 100_005)], True)


def test_a_search_for_a_key_stops_after_sixteen_mebibytes(service, topic):
    for _ in range(40):
        topic.append(0, b"x" * 600_000, b"o")
    page = service.page("?key=k")
    assert page.status == 204
    assert 16 << 20 <= parse_position(page.position).offsets[0] * 600_000 < 18 << 20


def test_a_search_that_fails_later_returns_what_was_found(service, topic):
    for _ in range(5001):
        topic.append(0, b"", b"k")
    asked = service.ask("?key=k&limit=10000", settle_s=0)
    service.clock.advance(0.001)
    topic.is_reachable = False
    service.run(0.2)
    assert len(asked.page.records) == 5000
    assert asked.page.position == "id0~5000.0"


def test_no_partition_starves_in_a_search(service, topic):
    for _ in range(300):
        topic.append(0, b"", b"k")
    topic.append(1, b"", b"k")
    target, seen = "?key=k&limit=10", 0
    while True:
        page = service.page(target)
        seen += 1
        if (1, 0) in page.places:
            break
        target = page.next
    assert seen < 15


# Waiting


def test_a_page_waits_for_its_first_record(service, topic):
    asked = service.ask("?from=latest&wait=30")
    service.run(5, step=0.1)
    assert not asked.is_answered
    assert numbers_of_waits(service).open == 1
    reads = topic.reads
    service.run(5, step=0.1)
    assert topic.reads == reads
    topic.append(1, b"now")
    service.run(0.2)
    assert asked.page.places == [(1, 0)]
    assert numbers_of_waits(service).open == 0
    assert numbers_of_waits(service).ended == {"record": 1}


def test_a_wait_ends_with_204(service, topic):
    topic.append(0)
    asked = service.ask("?from=latest&wait=30")
    service.run(29, step=0.5)
    assert not asked.is_answered
    service.run(1.5, step=0.5)
    assert (asked.page.status, asked.page.position) == (204, "id0~1.0")
    assert asked.page.is_up_to_date
    assert numbers_of_waits(service).ended == {"time": 1}


def test_a_page_with_a_record_does_not_wait(service, topic):
    topic.append(0)
    assert service.ask("?wait=60", settle_s=0.02).page.places == [(0, 0)]


def test_a_page_waits_for_its_key_and_its_partition(service, topic):
    with_key = service.ask("?from=latest&wait=30&key=k")
    with_partition = service.ask("?from=latest&wait=30&partition=1")
    service.run(2, step=0.1)
    topic.append(0, b"", b"other")
    service.run(1)
    assert not with_key.is_answered
    assert not with_partition.is_answered
    topic.append(0, b"", b"k")
    service.run(2, step=0.01)
    assert with_key.page.places == [(0, 1)]
    topic.append(1)
    service.run(2, step=0.01)
    assert with_partition.page.places == [(1, 0)]


def test_a_page_and_a_wait_are_for_the_records_with_all_headers(service, topic):
    shop, web = ("source", b"shop"), ("source", b"web")
    for headers in [(), (shop,), (web,), (shop, ("a", None)), (web, shop), (("source", None),)]:
        topic.append(0, b"v", b"k", headers=headers)
    assert service.page("?header=source:shop").places == [(0, 1), (0, 3), (0, 4)]
    assert service.page("?header=source:shop&header=source:web").places == [(0, 4)]
    assert service.page("?header=source:shop&key=other").status == 204
    assert service.page("?header=source:").status == 204
    assert service.page("?header=source:shop&limit=1").position == "id0~2.0"
    waiting = service.ask("?from=latest&wait=30&header=source:web&key=k")
    for headers in [(shop,), (), (web,)]:
        assert not waiting.is_answered
        topic.append(0, b"v", b"k", headers=headers)
        service.run(2, step=0.1)
    assert waiting.page.places == [(0, 8)]


def test_a_page_waits_for_a_new_partition(service, topic):
    asked = service.ask("?from=latest&wait=30")
    service.run(1, step=0.1)
    topic.add_partition()
    topic.append(2)
    service.run(2, step=0.01)
    assert asked.page.places == [(2, 0)]


def test_a_page_whose_position_skips_a_partition_waits_for_a_new_one_and_not_for_that(service, topic):
    asked = service.ask("?from=id0~-.0&wait=30")
    service.run(1, step=0.1)
    reads = topic.reads
    topic.append(0)
    service.run(2, step=0.01)
    assert topic.reads == reads
    assert not asked.is_answered
    topic.add_partition()
    topic.append(2)
    service.run(2, step=0.01)
    assert asked.page.places == [(2, 0)]
    assert asked.page.position == "id0~-.0.1"


def test_a_wait_ends_when_the_topic_is_made_again(service, topic):
    asked = service.ask("?from=latest&wait=30")
    service.run(1, step=0.1)
    topic.make(2)
    service.run(3, step=0.01)
    assert asked.page.kind == "topic-replaced"


def test_a_client_that_has_gone_ends_its_wait(service, topic):
    asked = service.ask("?from=latest&wait=30")
    service.run(1, step=0.1)
    asked.connection.lose()
    assert numbers_of_waits(service).open == 0
    assert numbers_of_waits(service).ended == {"client": 1}
    service.run(1, step=0.1)
    reads = topic.reads
    topic.append(0)
    service.run(1, step=0.1)
    assert topic.reads == reads


def test_a_client_that_has_gone_ends_its_search(service, topic):
    topic.logs[0] += [
        ConsumerRecord(topic="t", partition=0, offset=offset, timestamp_ms=0, key=b"o", value=b"")
        for offset in range(50_000)
    ]
    asked = service.ask("?key=k", settle_s=0)
    service.clock.advance(0.001)
    asked.connection.lose()
    service.run(0.1)
    assert topic.reads <= 2
    assert service.site.body_memory.reserved == 0


def test_pages_that_wait_do_not_count_among_requests_that_wait_for_the_broker(service):
    service = PageService(max_waiting=1)
    for _ in range(3):
        service.ask("?from=latest&wait=30")
    assert service.site.waiting == 0
    assert service.site.body_memory.reserved == 0


def test_too_many_pages_that_wait_are_rejected():
    service = PageService(max_streams=2)
    waiting = [service.ask("?from=latest&wait=30") for _ in range(2)]
    page = service.page("?from=latest&wait=30")
    assert (page.status, page.kind) == (503, "too-many-streams")
    assert page.headers[b"retry-after"]
    # A page that does not wait is served.
    assert service.page("?from=latest").status == 204
    waiting[0].connection.lose()
    assert not service.ask("?from=latest&wait=30").is_answered


def test_a_wait_ends_when_the_service_stops(service):
    asked = [service.ask("?from=latest&wait=30") for _ in range(50)]
    service.gateway.end_waits()
    service.run(0.1)
    assert {each.page.status for each in asked} == {204}
    assert numbers_of_waits(service).ended == {"drain": 50}
    assert service.page("?from=latest&wait=30").status == 204


def test_a_wait_ends_when_the_caller_loses_its_right():
    service = PageService(callers=caller("one", 'consume = ["t"]'))
    asked = service.ask("?from=latest&wait=30", headers=[by("one")])
    service.run(1, step=0.1)
    assert not asked.is_answered
    service.use_callers(caller("one", 'consume = ["other"]'))
    service.run(5, step=0.1)
    assert (asked.page.status, asked.page.kind) == (403, "not-granted")


def test_a_right_that_is_lost_while_a_waiting_page_reads_is_not_forgotten():
    service = PageService(callers=caller("one", 'consume = ["t"]'))
    topic = service.topic
    asked = service.ask("?from=latest&wait=30", headers=[by("one")])
    service.run(1, step=0.1)
    read = topic.read

    def slow(request):
        return deferLater(service.clock, 5, read, request)

    topic.read = slow
    topic.append(0)
    service.run(0.1)
    service.use_callers(caller("one", 'consume = ["other"]'))
    service.run(10, step=0.1)
    assert (asked.page.status, asked.page.kind) == (403, "not-granted")


# What cannot be read on


def test_records_that_are_gone_are_said_with_a_position_to_resume(service, topic):
    for _ in range(4):
        topic.append(0)
        topic.append(1)
    topic.expire(0, 3)
    page = service.page("?from=id0~1.2")
    assert_problem(page, 410)
    assert page.kind == "position-expired"
    assert page.problem["gone"] == [{"partition": 0, "asked": 1, "earliest": 3}]
    assert page.problem["resume"] == "id0~3.2"
    assert service.page(f"?from={page.problem['resume']}").places == [(0, 3), (1, 2), (1, 3)]
    # Of partitions that are not asked for, nothing is said.
    assert service.page("?from=id0~1.2&partition=1").status == 200
    assert service.page("?from=id0~1.2&partition=0").problem["resume"] == "id0~3"
    assert service.page("?from=earliest").status == 200


def test_the_position_to_resume_at_has_all_partitions_that_were_asked_for(service, topic):
    for _ in range(4):
        topic.append(0)
        topic.append(1)
    topic.expire(1, 3)
    for partitions in ("", "&partition=0-1"):
        resume = service.page(f"?from=id0~.2{partitions}").problem["resume"]
        assert resume == "id0~0.3"
        assert service.page(f"?from={resume}{partitions}").places == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 3)]


def test_records_that_go_while_a_key_is_looked_for_are_said_by_the_next_page(service, topic):
    topic.logs[0] += [
        ConsumerRecord(
            topic="t",
            partition=0,
            offset=offset,
            timestamp_ms=0,
            value=b"",
            key=b"o" if 0 < offset < 9_999 else b"k",
        )
        for offset in range(10_000)
    ]
    read = topic.read

    def expiring(request):
        if topic.reads == 1:
            topic.expire(0, 8_000)
        return read(request)

    topic.read = expiring
    page = service.page("?key=k")
    assert page.places == [(0, 0)]
    page = service.page(f"?from={page.position}&key=k")
    assert page.kind == "position-expired"
    assert page.problem["gone"] == [{"partition": 0, "asked": 5_000, "earliest": 8_000}]
    assert service.page(f"?from={page.problem['resume']}&key=k").places == [(0, 9_999)]


def test_a_topic_that_was_made_again_is_said(service, topic):
    topic.append(0)
    position = service.page().position
    topic.make(1)
    topic.append(0)
    topic.append(0)
    for query in (f"?from={position}", f"?from={position}&partition=0", "?from=other~"):
        page = service.page(query)
        assert_problem(page, 410)
        assert page.kind == "topic-replaced"


def test_a_position_beyond_the_end_is_said(service, topic):
    topic.append(0)
    for query in (
        "?from=id0~2",
        "?from=id0~1.1",
        "?from=id0~1.0.0",
        "?from=id0~.-.-",
        "?from=id0~2.1&limit=1",
    ):
        page = service.page(query)
        assert_problem(page, 410)
        assert page.kind == "position-unknown"


@pytest.mark.parametrize(
    ("target", "status", "kind"),
    [
        ("?partition=2", 404, "unknown-partition"),
        ("?partition=0-5&from=id0~", 404, "unknown-partition"),
        ("?from=id0~-.-", 422, "invalid-parameters"),
        ("?from=id0~-.-.-", 410, "position-unknown"),
        ("?from=id0~.-.-", 410, "position-unknown"),
        ("?from=id1~.-", 410, "topic-replaced"),
        ("?from=id0~-&partition=0", 422, "invalid-parameters"),
        ("?from=now", 422, "invalid-parameters"),
        ("?x=1", 422, "invalid-parameters"),
        ("?last_event_id=id0~x", 422, "invalid-parameters"),
        ("/topics/a%20b/records", 422, "invalid-parameters"),
        ("/topics/t/records/", 404, "blank"),
        ("/topics/t/records/0", 404, "blank"),
        ("/topics/t/record%73/", 404, "blank"),
    ],
)
def test_wrong_requests_are_rejected_in_one_form_whatever_they_accept(service, target, status, kind):
    for accept in (b"*/*", b"application/vnd.kafka.v2+json", b"text/event-stream"):
        page = service.page(target, headers=[(b"Accept", accept)])
        assert_problem(page, status)
        assert page.kind == kind
        assert page.headers[b"vary"] == b"Accept"


def test_a_position_that_becomes_too_long_is_rejected_with_the_way_out():
    service = PageService(partitions=2500)
    page = service.page()
    assert (page.status, page.kind) == (422, "invalid-parameters")
    assert "partition" in page.problem["detail"]
    page = service.page("?partition=0-9")
    assert (page.status, page.position) == (204, "id0~" + ".".join("0" * 10))


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.UnknownTopic, 404),
        (errors.TopicNotAuthorized, 403),
        (errors.BrokerUnavailable, 503),
        (errors.BrokerIncompatible, 503),
        (errors.BrokerStopped, 503),
    ],
)
def test_an_error_of_the_broker_becomes_a_problem(service, topic, kind, status):
    def reject(*_):
        raise kind("It failed.")

    def answer(answer, *_):
        answer.errback(kind("It failed."))

    topic._response = answer  # noqa: SLF001 -- the broker's only way to fail so
    page = service.page()
    assert_problem(page, status)
    assert page.headers[b"vary"] == b"Accept"
    assert page.problem["detail"] == "It failed."
    assert (b"retry-after" in page.headers) == (status == 503)


def test_other_methods_get_405(service):
    for method in ("POST", "DELETE", "PUT"):
        page = service.page(method=method)
        assert page.status == 405
        assert page.headers[b"allow"] == b"GET, HEAD, OPTIONS"
        assert page.headers[b"vary"] == b"Accept"


def test_the_right_to_read_a_topic_is_needed():
    service = PageService(callers=caller("one", 'consume = ["t"]', 'publish = ["*"]', "read = true"))
    assert service.page().status == 401
    assert service.page(headers=[by("one")]).status == 204
    page = service.page("/topics/other/records?from=nonsense", headers=[by("one")])
    assert (page.status, page.headers[b"vary"]) == (422, b"Accept")
    page = service.page("/topics/other/records", headers=[by("one")])
    assert (page.status, page.kind) == (403, "not-granted")


def test_the_route_is_one_label_of_metrics(service):
    routes = []
    service.site.on_response = lambda exchange, _: routes.append(exchange.route)
    service.page()
    assert routes == ["/topics/{topic}/records"]


# Memory


class PeakMemory(BodyMemory):
    """A budget that remembers its peak."""

    peak = 0

    def add(self, owner, more):
        super().add(owner, more)
        self.peak = max(self.peak, self.reserved)


MANY_HEADERS = tuple((f"n{number:03}", b"") for number in range(1000))


def test_a_page_counts_what_its_records_hold_while_it_is_encoded_and_then_its_lines(service, topic):
    memory = service.site.body_memory = PeakMemory(1 << 28)
    topic.append(0, b"a" * 1000)
    assert service.page().status == 200
    assert 1200 < memory.peak < 3000
    assert memory.reserved == 0
    for _ in range(20):
        topic.append(0, headers=MANY_HEADERS)
    page = service.page("?from=id0~1.0&limit=10")
    assert len(page.records) == 10
    assert 10 * 1000 * 150 < memory.peak < 10 * 1000 * 250
    assert memory.reserved == 0


def test_an_unread_page_is_counted_until_it_is_read(service, topic):
    for _ in range(10):
        topic.append(0, b"a" * 10_000)
    connection = service.connect(NarrowTransport)
    connection.send(request_bytes("GET", PATH))
    service.run(1, step=0.1)
    assert 100_000 < service.site.body_memory.reserved < 110_000
    while connection.transport.let_client_read():
        pass
    assert service.site.body_memory.reserved == 0


@pytest.mark.parametrize("query", ["", "?key=k", "?from=latest&wait=60"])
def test_pages_that_are_asked_for_at_once_take_no_more_than_the_memory_and_are_all_answered_in_the_end(query):
    service = PageService()
    memory = service.site.body_memory = PeakMemory(4 << 20)
    connections = [service.connect(NarrowTransport) for _ in range(40)]
    if not query.endswith("60"):
        publish_many_headers(service.broker)
    for connection in connections:
        connection.send(request_bytes("GET", PATH + query))
    service.run(1, step=0.1)
    if query.endswith("60"):
        publish_many_headers(service.broker)
        service.run(1, step=0.1)
    statuses = [connection.sent[9:12] for connection in connections]
    assert set(statuses) == {b"200", b"503"}
    assert 2 << 20 < memory.peak <= 4 << 20
    for connection in connections:
        while connection.transport.let_client_read():
            pass
    assert memory.reserved == 0
    assert service.page(query.partition("?from=latest")[0]).status == 200


def publish_many_headers(topic):
    for _ in range(20):
        topic.append(0, b"v", key=b"k", headers=MANY_HEADERS)


def test_a_small_page_is_answered_when_large_requests_fill_their_part():
    service = PageService(max_body_memory=4 << 20)
    service.site.body_memory.add("", (4 << 20) * 7 // 8)
    service.broker.append(0, b"v" * 1000)
    assert service.page().status == 200
    service.broker.append(0, b"v" * 100_000)
    assert service.page().status == 503


def test_a_page_of_one_caller_s_part_is_rejected_when_its_unread_pages_fill_it():
    service = PageService(callers=TWO)
    service.site.body_memory.add("one", service.site.body_memory.limit // 2)
    service.broker.append(0, b"v")
    reads = service.topic.reads
    page = service.page(headers=[by("one")])
    assert (page.status, page.kind) == (429, "body-memory-of-caller-full")
    assert service.topic.reads == reads
    assert service.page(headers=[by("two")]).status == 200


# Turns


def ask_from(service, host, headers=(), query=""):
    """Ask for a page from an address; it is not answered yet."""
    connection = service.connect()
    connection.transport.peerAddr = IPv4Address("TCP", host, 40000)
    connection.send(request_bytes("GET", PATH + query, headers))
    return connection


@pytest.mark.parametrize("query", ["", "?key=k", "?wait=9"])
@pytest.mark.parametrize("callers", [None, TWO])
def test_many_pages_of_one_caller_or_address_delay_one_of_another_by_a_few(callers, query):
    service = PageService(callers=callers)
    for _ in range(20):
        service.topic.append(0, b"v" * 50_000, b"k")
    one, two = ([by("one")], [by("two")]) if callers else ([], [])
    hosts = ("127.0.0.1", "127.0.0.1") if callers else ("192.0.2.1", "192.0.2.2")
    many = [ask_from(service, hosts[0], one, query) for _ in range(100)]
    other = ask_from(service, hosts[1], two, query)
    service.run(5, until=lambda: other.sent)
    assert other.sent.startswith(b"HTTP/1.1 200")
    assert sum(bool(each.sent) for each in many) <= 20
    service.run(20, until=lambda: all(each.sent for each in many))
    assert all(each.sent.startswith(b"HTTP/1.1 200") for each in many)


def test_pages_whose_partition_has_a_frozen_leader_do_not_hold_up_others(service, topic):
    topic.append(0, b"v")
    topic.frozen = {1}
    many = [service.ask("?from=id0~0.0&partition=1", settle_s=0) for _ in range(16)]
    other = service.ask("?partition=0", settle_s=2)
    assert other.page.status == 200
    assert not any(each.is_answered for each in many)
    service.run(10)
    assert [each.page.status for each in many] == [503] * 16


def test_a_page_that_has_waited_long_for_its_turn_is_rejected(service, topic):
    topic.frozen = {0}
    many = [service.ask("?partition=0&from=id0~0.0", settle_s=0) for _ in range(1000)]
    service.run(40, step=0.05)
    assert {each.page.status for each in many} == {503}
    assert "waited 30 seconds" in many[-1].page.problem["detail"]
    topic.frozen = set()
    topic.append(0, b"v")
    assert service.page("?partition=0").status == 200


def test_pages_whose_clients_go_while_they_wait_for_a_turn_leave_it_to_others(service, topic):
    topic.frozen = {1}
    many = [service.ask("?from=id0~0.0&partition=1", settle_s=0) for _ in range(100)]
    for each in many:
        each.connection.lose()
    topic.append(0, b"v")
    assert service.page("?partition=0").status == 200


# Other ways to serve, and other brokers


def test_a_site_of_twisted_web_answers_alike(service, topic):
    topic.append(0, b"a")
    site = Site(service.gateway.app.resource(), reactor=service.clock)
    for query in ("", "?from=latest", "?from=id0~9", "?x=1"):
        connection = Connection(site)
        connection.send(request_bytes("GET", PATH + query))
        service.run(0.1)
        (answer,) = connection.responses(["GET"])
        page = service.page(query)
        assert (answer.status, answer.body) == (page.status, page.body)
        for name in (b"position", b"link", b"up-to-date", b"vary"):
            assert answer.headers.get(name) == page.headers.get(name)


def test_a_client_of_a_site_of_twisted_web_that_has_gone_ends_its_wait(service):
    connection = Connection(Site(service.gateway.app.resource(), reactor=service.clock))
    connection.send(request_bytes("GET", PATH + "?from=latest&wait=30"))
    service.run(0.1)
    assert numbers_of_waits(service).open == 1
    connection.lose()
    service.run(0.1)
    assert numbers_of_waits(service).open == 0


@pytest.mark.parametrize("accept", [b"*/*", b"text/event-stream"])
def test_a_read_that_the_broker_cancels_is_not_a_page_without_records(
    service, topic, accept, no_failure_is_lost
):
    topic.read = lambda _: fail(CancelledError())
    page = service.page("", headers=[(b"Accept", accept)])
    assert page.status == 500
    assert no_failure_is_lost.pop().check(CancelledError)


def test_the_memory_broker_is_read_and_waited_for():
    clock = Clock()
    broker = MemoryBroker(clock=clock)

    class Service(PageService):
        make_clock = staticmethod(lambda: clock)

    service = Service(broker=broker)
    broker.start()

    def publish(value):
        broker.publish(Record(topic="t", key=b"k", value=value, timestamp_ms=1))

    assert service.page().kind == "unknown-topic"
    publish(b"0")
    first = service.page()
    assert [each["content"] for each in first.records] == ["0"]
    asked = service.ask(first.next + "&wait=10")
    assert not asked.is_answered
    publish(b"1")
    service.run(1, until=lambda: asked.is_answered)
    assert [each["content"] for each in asked.page.records] == ["1"]
    assert json.loads(service.page("?from=x~1").body)["status"] == 410


def test_a_caller_reads_pages_also_where_its_part_is_smaller_than_a_whole_one():
    service = PageService(callers=TWO, max_body_memory=1 << 20)
    service.broker.append(0, b"v")
    assert service.page(headers=[by("one")]).status == 200
