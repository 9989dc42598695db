"""REST Proxy's API v2 in front of Kafka: what is in the log, read by a consumer that is not ours."""

from __future__ import annotations

import json
from base64 import b64encode
from contextlib import closing

import pytest

from tests.real_kafka.admin import new_topic
from tests.real_kafka.reading import read_all
from tests.real_kafka.service import connect

pytestmark = [pytest.mark.one_version, pytest.mark.release]

V2 = "application/vnd.kafka.v2+json"
JSON = "application/vnd.kafka.json.v2+json"
BINARY = "application/vnd.kafka.binary.v2+json"
EVERY_BYTE = bytes(range(256))


@pytest.fixture
def service(one_node, start_service):
    return start_service(one_node)


@pytest.fixture
def topic(one_node):
    return one_node.admin.create(new_topic("of-rest-proxy"), partitions=3)


def ask(service, method, target, body=None, content_type=None):
    """Make one request; returns the status and the document that is the answer."""
    headers = {"Accept": V2} | ({} if content_type is None else {"Content-Type": content_type})
    with closing(connect(service)) as connection:
        connection.request(method, target, body, headers)
        response = connection.getresponse()
        assert response.headers["Content-Type"] == V2
        return response.status, json.load(response)


def produce(service, target, records, content_type):
    """Publish; returns the partition and the offset of each record, in order."""
    body = records if isinstance(records, bytes) else json.dumps({"records": records}).encode()
    status, document = ask(service, "POST", target, body, content_type)
    assert (status, document["key_schema_id"], document["value_schema_id"]) == (200, None, None)
    assert {(each["error_code"], each["error"]) for each in document["offsets"]} == {(None, None)}
    return [(each["partition"], each["offset"]) for each in document["offsets"]]


def stored_at(cluster, topic):
    """The key and the value of each record in the log, by its partition and offset."""
    return {
        (each.partition, each.offset): (each.key, each.value) for each in read_all(cluster.bootstrap, topic)
    }


def test_keys_and_values_of_json_are_in_the_log_as_their_compact_text(one_node, service, topic):
    body = rb"""{"records": [
        {"key": "o-1", "value": {"b": 1e7, "a": [ -0, 1.50, "\u00e9\ud83d\ude00\u001f" ], "b": 2}},
        {"key": {"id": 7}, "value": "text", "partition": 2},
        {"value": [true, null]},
        {"key": null, "value": 0, "partition": 1},
        {"key": "o-1", "value": null},
        {"key": "", "partition": 2}
    ]}"""
    places = produce(service, f"/topics/{topic}", body, JSON)
    found = stored_at(one_node, topic)
    assert [found[place] for place in places] == [
        (b'"o-1"', rb'{"b":1e7,"a":[-0,1.50,"\u00e9\ud83d\ude00\u001f"],"b":2}'),
        (b'{"id":7}', b'"text"'),
        (None, b"[true,null]"),
        (None, b"0"),
        (b'"o-1"', None),
        (b'""', None),
    ]
    assert [places[n][0] for n in (1, 3, 5)] == [2, 1, 2]
    assert places[0][0] == places[4][0]
    assert len(found) == 6


def test_keys_and_values_of_binary_are_in_the_log_byte_for_byte(one_node, service, topic):
    contents = [(EVERY_BYTE, EVERY_BYTE), (None, b"\xff"), (b"", b""), (b"\x00", None), (None, None)]
    records = [
        {
            "key": None if key is None else b64encode(key).decode(),
            "value": None if value is None else b64encode(value).decode().rstrip("="),
            "partition": n % 3,
        }
        for n, (key, value) in enumerate(contents)
    ]
    places = produce(service, f"/topics/{topic}", records, BINARY)
    assert places == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1)]
    assert stored_at(one_node, topic) == dict(zip(places, contents, strict=True))


def test_records_go_to_the_partition_of_the_path_unless_they_name_one_themselves(one_node, service, topic):
    records = [{"value": 1}, {"key": "k", "value": 2}, {"value": 3, "partition": 0}, {"value": 4}]
    places = produce(service, f"/topics/{topic}/partitions/2", records, JSON)
    assert places == [(2, 0), (2, 1), (0, 0), (2, 2)]
    assert stored_at(one_node, topic) == {
        (2, 0): (None, b"1"),
        (2, 1): (b'"k"', b"2"),
        (0, 0): (None, b"3"),
        (2, 2): (None, b"4"),
    }


def test_a_long_record_and_many_short_ones_are_all_in_the_log(one_node, service, topic):
    long = {"key": "long", "value": [n + 0.5 for n in range(50_000)], "partition": 0}
    short = [{"key": f"k{n}", "value": n} for n in range(2000)]
    places = produce(service, f"/topics/{topic}", [*short[:1000], long, *short[1000:]], JSON)
    found = stored_at(one_node, topic)
    assert len(found) == len(set(places)) == 2001
    expected = [(json.dumps(each["key"]).encode(), json.dumps(each["value"]).encode()) for each in short]
    long_text = json.dumps(long["value"], separators=(",", ":")).encode()
    expected.insert(1000, (b'"long"', long_text))
    assert [found[place] for place in places] == expected


def test_what_is_wrong_with_one_record_keeps_all_of_them_out(one_node, service, topic):
    good = {"key": "aw==", "value": "Zg=="}
    rejections = [
        (f"/topics/{new_topic('no-such')}", [good], (404, 40401)),
        (f"/topics/{topic}", [good, {**good, "partition": 3}], (404, 40402)),
        (f"/topics/{topic}/partitions/3", [good], (404, 40402)),
        (f"/topics/{topic}", [good, {"value": "not base64"}], (422, 40801)),
        (f"/topics/{topic}", [good, {"valeu": "Zg=="}], (422, 422)),
    ]
    for target, records, expected in rejections:
        body = json.dumps({"records": records}).encode()
        status, document = ask(service, "POST", target, body, BINARY)
        assert (status, document["error_code"]) == expected, document
    assert stored_at(one_node, topic) == {}


def test_topics_and_their_partitions_are_told_as_kafka_has_them(one_node, service, topic):
    status, names = ask(service, "GET", "/topics")
    assert (status, topic in names) == (200, True)
    leaders = one_node.admin.leaders(topic)
    partitions = [
        {
            "partition": number,
            "leader": leaders[number],
            "replicas": [{"broker": leaders[number], "leader": True, "in_sync": True}],
        }
        for number in range(3)
    ]
    document = {"name": topic, "configs": {}, "partitions": partitions}
    assert ask(service, "GET", f"/topics/{topic}") == (200, document)
    assert ask(service, "GET", f"/topics/{topic}/partitions") == (200, partitions)
    assert ask(service, "GET", f"/topics/{topic}/partitions/2") == (200, partitions[2])
    for target, code in ((f"/topics/{topic}-not", 40401), (f"/topics/{topic}/partitions/3", 40402)):
        status, rejection = ask(service, "GET", target)
        assert (status, rejection["error_code"]) == (404, code)
