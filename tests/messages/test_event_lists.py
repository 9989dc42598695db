"""Batches of CloudEvents, against decoding them with Python's own decoder."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sampleapp.errors import InvalidMessage, MalformedMessage
from sampleapp.messages.event_lists import EventList
from sampleapp.messages.idempotency_key import IdempotencyScope
from sampleapp.model import Record
from tests.support import strategies

GOOD = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
TRACE = (("traceparent", b"00-1"),)
HEADERS = (("content-type", b"application/cloudevents+json"), *TRACE)


def read(body, *, key=None, max_event=10_000, scope=None):
    events = EventList(body, topic="t", key=key, max_event=max_event, now_ms=7, of_request=TRACE, scope=scope)
    while events.read():
        pass
    return events


def rejected(events):
    return [(each.number, type(each.error)) for each in events.rejected]


events = st.fixed_dictionaries(
    {name: st.just(value) for name, value in GOOD.items()},
    optional={"partitionkey": st.sampled_from(["k", "ä"]), "data": strategies.json_values},
)


@given(
    st.lists(events, max_size=5),
    st.sampled_from([(",", ":"), (" ,\n", " :\t")]),
    st.sampled_from([{}, {"ensure_ascii": False}]),
    st.none() | st.just(b"q"),
)
@example([{**GOOD, "data": r'"]}\"\\'}], (",", ":"), {}, None)
def test_each_event_becomes_a_record_with_its_text(listed, separators, style, key):
    body = json.dumps(listed, separators=separators, **style).encode()
    found = read(b" \r\n" + body + b"\t", key=key)
    assert [json.loads(record.value) for record in found.records] == listed
    for record, event in zip(found.records, listed, strict=True):
        own = event["partitionkey"].encode() if "partitionkey" in event else None
        assert record == Record(
            topic="t", key=own if key is None else key, value=record.value, timestamp_ms=7, headers=HEADERS
        )
        assert record.value in body
    assert (found.count, found.rejected, list(found.topics)) == (len(listed), [], ["t"])


@given(st.lists(st.sampled_from(["{}", "1", '"a,]"', "null", "[[1],{}]", "nul", '{"a":}', json.dumps(GOOD)])))
def test_each_event_that_is_wrong_is_named_and_no_other(texts):
    kinds = {"nul": MalformedMessage, '{"a":}': MalformedMessage, json.dumps(GOOD): None}
    expected = [(number, kinds.get(text, InvalidMessage)) for number, text in enumerate(texts)]
    found = read(f"[{','.join(texts)}]".encode())
    assert rejected(found) == [(number, kind) for number, kind in expected if kind is not None]
    assert len(found.records) == texts.count(json.dumps(GOOD))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[",
        b"[{}",
        b"[{},",
        b"[{},]",
        b"[,]",
        b"[{}]]",
        b"[{}] x",
        b"[{} {}]",
        b'["',
        b"[}",
        b"[{",
    ],
)
def test_a_body_that_is_not_an_array_is_malformed(body):
    with pytest.raises(MalformedMessage):
        read(body)


@given(st.binary(max_size=20) | st.text('[]{},":\\ a1', max_size=20).map(str.encode))
def test_any_body_is_read_if_it_is_an_array_and_rejected_otherwise(body):
    try:
        document = json.loads(body.decode())
    except ValueError:
        document = None
    try:
        found = read(body)
    except MalformedMessage:
        assert not isinstance(document, list)
    else:
        is_json = all(kind is InvalidMessage for _, kind in rejected(found))
        assert isinstance(document, list) == is_json
        assert found.records == []


def test_an_event_may_be_as_long_as_a_message_and_no_longer():
    event = json.dumps(GOOD).encode()
    assert len(read(b"[%b,%b]" % (event, event), max_event=len(event)).records) == 2
    for longer in (event[:-1] + b" }", event[:-1] + b',"data":"%b"}' % (b"x" * 100), b'"%b"' % (b"x" * 100)):
        with pytest.raises(InvalidMessage, match="more than"):
            read(b"[%b,%b]" % (longer, event), max_event=len(event))


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b",".join([json.dumps(GOOD).encode()] * 5000) + b"]",
        b"[{}" + b",{}" * 20_000 + b"]",
        b"[" + b"[" * 500_000,
        b"[" + rb"\"" * 500_000,
        b'["' + rb"\"" * 500_000,
        b'[{"' + rb"\"" * 500_000,
    ],
)
def test_a_large_body_is_read_in_many_steps_or_rejected_quickly(body):
    events = EventList(body, topic="t", key=None, max_event=1 << 20, now_ms=7)
    counts = [0]
    try:
        while events.read():
            counts.append(events.count)
    except MalformedMessage:
        assert events.records == []
    assert max((after - before for before, after in pairwise(counts)), default=0) <= 200


@given(
    st.lists(st.text('a"\\[]{},ä', min_size=1, max_size=5), min_size=1, max_size=3), st.integers(0, 20_000)
)
def test_events_of_any_length_end_where_they_end(units, padding):
    listed = [{**GOOD, "pad": "x" * padding, "data": unit * 10_000, unit: [unit] * 2000} for unit in units]
    body = json.dumps(listed, ensure_ascii=False).encode()
    assert [json.loads(record.value) for record in read(body, max_event=1 << 20).records] == listed


@pytest.mark.parametrize(
    "body",
    [
        b'["' + rb"\"" * 500_000,
        b'[{"a":"' + rb"\"" * 500_000,
        b"[" + b" " * 8_000_000,
        b"[1" + b"\n" * 8_000_000 + b",1]",
        b"[%b]" % json.dumps(GOOD).encode() + b" " * 8_000_000,
        b"[[" + b'"",' * 300_000 + b'""]]',
        b"[" * 450_000 + b"]" * 450_000,
    ],
    ids=["string", "string in an event", "before", "between", "after", "strings", "brackets"],
)
def test_the_end_of_an_event_is_sought_in_many_steps(body):
    events = EventList(body, topic="t", key=None, max_event=1 << 20, now_ms=7)
    steps = 1
    with suppress(MalformedMessage):
        while events.read():
            steps += 1
    # Each of a hundred thousand tokens, or of a megabyte without any.
    assert steps > 7


def test_beyond_100_faults_only_an_event_that_is_not_json_is_sought():
    found = read(b"[" + b"{}," * 60 + b"nul," + b"{},nul," * 60 + b"{}]")
    assert [kind for _, kind in rejected(found)].count(MalformedMessage) == 1
    assert len(found.rejected) == 26
    found = read(b"[" + b"{}," * 60 + b"nul]")
    assert rejected(found)[-1] == (60, MalformedMessage)


def test_the_identity_of_an_event_is_its_text_its_key_and_its_number():
    def identities(*listed, key=None):
        scope = IdempotencyScope(caller="c", key="k")
        found = read(json.dumps(listed).encode(), key=key, scope=scope)
        return [record.identity for record in found.records]

    other = {**GOOD, "id": "2"}
    first, second = identities(GOOD, other)
    assert [first] == identities(GOOD)
    assert first.id == identities(other)[0].id
    assert first.fingerprint != identities(other)[0].fingerprint
    assert second.fingerprint == identities(other)[0].fingerprint
    assert first.fingerprint != identities(GOOD, key=b"k")[0].fingerprint
