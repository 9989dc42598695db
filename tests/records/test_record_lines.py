"""Records as lines of JSON."""

from __future__ import annotations

import json
from base64 import b64decode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sampleapp.client._messages import decode_record
from sampleapp.model import ConsumerRecord
from sampleapp.records.record_lines import record_line, record_lines
from tests.support.strategies import texts, topics

octets = st.binary(max_size=30) | texts.map(str.encode)
headers = st.lists(st.tuples(texts, st.none() | octets), max_size=4).map(tuple)
records = st.builds(
    ConsumerRecord,
    topic=topics,
    partition=st.integers(0, 2**31 - 1),
    offset=st.integers(0, 2**63 - 1),
    timestamp_ms=st.integers(-1, 2**63 - 1),
    key=st.none() | octets,
    value=st.none() | octets,
    headers=headers,
)


def record(**fields):
    defaults = {
        "topic": "t",
        "partition": 0,
        "offset": 42,
        "timestamp_ms": 1_795_363_727_918,
        "key": b"k",
        "value": b"v",
    }
    return ConsumerRecord(**{**defaults, **fields})


def octets_of(line, name):
    if f"{name}_base64" in line:
        assert name not in line
        return b64decode(line[f"{name}_base64"], validate=True)
    return None if line.get(name) is None else line[name].encode()


@given(records)
def test_a_record_can_be_made_again_from_its_line(read):
    text = record_line(read)
    line = json.loads(text)
    texts = [(name, content.encode()) for name, content in line["headers"].items()]
    others = [
        (name, None if content is None else b64decode(content, validate=True))
        for name, content in line.get("headers_base64", [])
    ]
    # Each of them in order; of a name that repeats, all are in the list.
    assert texts == [each for each in read.headers if each in texts]
    assert others == [each for each in read.headers if each not in texts]
    assert not {name for name, _ in texts} & {name for name, _ in others}
    assert ("key" in line or "key_base64" in line) == (read.key is not None)
    assert "content" in line or "content_base64" in line
    assert read == ConsumerRecord(
        topic=line["topic"],
        partition=line["partition"],
        offset=line["offset"],
        timestamp_ms=line["timestamp"],
        key=octets_of(line, "key"),
        value=octets_of(line, "content"),
        headers=read.headers,
    )
    assert decode_record(text) == replace(read, headers=(*texts, *others))
    assert len(text.decode().splitlines()) == 1


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({}, b'"key":"k","content":"v","headers":{}}'),
        ({"key": None}, b'"content":"v","headers":{}}'),
        ({"key": b""}, b'"key":"","content":"v","headers":{}}'),
        ({"value": None}, b'"key":"k","content":null,"headers":{}}'),
        ({"value": b""}, b'"key":"k","content":"","headers":{}}'),
        (
            {"key": b"\xff", "value": b"\x00\xff"},
            b'"key_base64":"/w==","content_base64":"AP8=","headers":{}}',
        ),
        # Half of a pair of surrogates is not UTF-8.
        ({"value": b"\xed\xa0\x80"}, b'"key":"k","content_base64":"7aCA","headers":{}}'),
        ({"value": '"\\\r\n\x85\u2028\u2029\u2030ä'.encode()}, None),
        ({"headers": (("a", b"1"), ("b", b""))}, b'"headers":{"a":"1","b":""}}'),
        (
            {"headers": (("a", b"1"), ("b", b"3"), ("a", b"2"))},
            b'"headers":{"b":"3"},"headers_base64":[["a","MQ=="],["a","Mg=="]]}',
        ),
        (
            {"headers": (("a", b"\xff"), ("b", b"3"))},
            b'"headers":{"b":"3"},"headers_base64":[["a","/w=="]]}',
        ),
        ({"headers": (("a", None),)}, b'"headers":{},"headers_base64":[["a",null]]}'),
    ],
)
def test_a_line_has_the_members_in_this_order(fields, end):
    if end is None:
        end = rb'"content":"\"\\\r\n\u0085\u2028\u2029' + '\u2030ä","headers":{}}'.encode()
    line = record_line(record(**fields))
    assert line.startswith(b'{"topic":"t","partition":0,"offset":42,"timestamp":1795363727918,')
    assert line.endswith(end)


def test_every_line_has_an_end():
    assert record_lines([]) == b""
    assert record_lines([record(), record(offset=43)]).count(b"}\n") == 2


def test_a_large_value_is_encoded_as_a_small_one_is():
    characters = "".join(map(chr, range(0x300))) + "\u2028\ud7ff\ue000\U0001f600"
    small = json.loads(record_line(record(value=characters.encode())))
    large = record_line(record(value=(characters * 100).encode()))
    assert json.loads(large)["content"] == small["content"] * 100
    assert len(large.decode().splitlines()) == 1
    quoted = msgspec.json.encode(characters)[1:-1].decode()
    for character, escape in [("\x85", "\\u0085"), ("\u2028", "\\u2028")]:
        quoted = quoted.replace(character, escape)
    assert large.count(quoted.encode()) == 100
