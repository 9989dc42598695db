"""Event streams as bytes, read back by the algorithm of the specification."""

from __future__ import annotations

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.records.event_stream import (
    END_OF_EVENT,
    begin_event,
    encode_event,
    encode_id,
    encode_retry,
    escape_line_ends,
)
from tests.support.event_streams import EventReader, ReadEvent

IDS = st.none() | st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=30)


@given(st.lists(st.tuples(st.text(), st.sampled_from(["", "reading", "gap"]), IDS)), st.integers(1, 50))
def test_any_json_comes_back_with_its_event_and_id(events, size):
    reader = EventReader()
    sent = b"".join(
        encode_event(escape_line_ends(msgspec.json.encode(text)), event=event, event_id=event_id)
        for text, event, event_id in events
    )
    for at in range(0, len(sent), size):
        reader.feed(sent[at : at + size])
    expected, last_id = [], ""
    for text, event, event_id in events:
        last_id = last_id if event_id is None else event_id
        expected.append((event or "message", text, last_id))
    assert [(event, json.loads(data), its_id) for event, data, its_id in reader.events] == expected


@given(st.text())
def test_no_client_finds_the_end_of_a_line_inside_the_data(text):
    assert len(escape_line_ends(msgspec.json.encode(text)).decode().splitlines()) == 1


def test_an_event_may_come_in_pieces():
    reader = EventReader()
    reader.feed(begin_event(event="readings", event_id="7"))
    reader.feed(b"[1,")
    assert reader.feed(b"2]" + END_OF_EVENT) == [ReadEvent("readings", "[1,2]", "7")]
    assert encode_event(b"[1,2]", event="readings", event_id="7") == (
        begin_event(event="readings", event_id="7") + b"[1,2]" + END_OF_EVENT
    )


def test_an_id_alone_is_kept_and_is_no_event():
    reader = EventReader()
    assert reader.feed(encode_id("id~1.2")) == []
    assert reader.last_event_id == "id~1.2"
    reader.feed(encode_event(b"1", event_id=""))
    assert reader.last_event_id == ""


def test_the_time_to_wait_is_in_milliseconds():
    reader = EventReader()
    assert reader.feed(encode_retry(1500)) == []
    assert (reader.retry_ms, reader.last_event_id) == (1500, "")
