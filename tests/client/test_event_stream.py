"""Decoding of event streams, however their bytes are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.client._stream import Event, EventDecoder, EventTooLong

STREAM = (
    b"\xef\xbb\xbfretry: 1500\n\n"
    b"id: a~1\n\n"
    b": a comment\n"
    b'data: {"n": 1}\nid: a~2\n\n'
    b"event: gap\r\ndata:one\r\ndata: two\r\nid\r\n\r\n"
    b"data\rid: a~3\0\r\r"
    b"event: nothing\n\n"
    b"unknown: field\ndata: \xe2\x80\xa8 \xc2\x85\n\n"
)

EVENTS = [
    Event("", None, "a~1"),
    Event("", b'{"n": 1}', "a~2"),
    Event("gap", b"one\ntwo", ""),
    Event("", b"", None),
    Event("", b"\xe2\x80\xa8 \xc2\x85", None),
]


@given(cuts=st.lists(st.integers(0, len(STREAM))))
def test_events_are_the_same_however_the_stream_arrives(cuts):
    decoder = EventDecoder()
    edges = [0, *sorted(cuts), len(STREAM)]
    events = [event for start, end in itertools.pairwise(edges) for event in decoder.feed(STREAM[start:end])]
    assert events == EVENTS
    assert decoder.retry_ms == 1500


@pytest.mark.parametrize("field", [b"retry: soon", b"retry: -1", b"retry:", b"retry: 99999999999"])
def test_a_retry_that_is_not_a_number_is_ignored(field):
    decoder = EventDecoder()
    decoder.feed(b"retry: 7\n\n" + field + b"\n\n")
    assert decoder.retry_ms == 7


@pytest.mark.parametrize("line", [b"data: " + b"x" * 30, b"data: xxx\n" * 4, b":" + b"x" * 40])
def test_an_event_over_the_limit_is_rejected(line):
    decoder = EventDecoder(max_bytes=32)
    with pytest.raises(EventTooLong):
        _ = [decoder.feed(bytes([byte])) for byte in line]


def test_the_limit_is_for_each_event():
    decoder = EventDecoder(max_bytes=16)
    assert len(decoder.feed(b"data: 0123456\n\n" * 10)) == 10
