"""Which record a message asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.messages.parsing import length_of, record_of
from sampleapp.model import Message, Record
from tests.support import strategies

NOW_MS = 1_700_000_000_000
TRACE = (("traceparent", b"of the request"), ("tracestate", b"of it, too"))


@given(strategies.topics, strategies.texts, strategies.keys)
def test_a_message_of_three_members_becomes_a_record_of_now(topic, content, key):
    record = record_of(Message(topic=topic, content=content, key=key), now_ms=NOW_MS)
    assert record == Record(
        topic=topic,
        key=None if key is None else key.encode(),
        value=content.encode(),
        timestamp_ms=NOW_MS,
        headers=(),
        partition=None,
    )
    assert length_of(record) == len((key or "").encode()) + len(content.encode())


# The next test has headers with the same names as the trace.
@given(st.dictionaries(strategies.texts.filter(lambda name: name not in dict(TRACE)), strategies.texts))
def test_headers_keep_their_order_and_come_before_those_of_the_trace(headers):
    record = record_of(Message(topic="t", content="c", headers=headers), now_ms=NOW_MS, of_request=TRACE)
    own = tuple((name, value.encode()) for name, value in headers.items())
    assert record.headers == own + TRACE


@given(
    st.dictionaries(strategies.texts, strategies.texts, max_size=3),
    st.lists(st.tuples(strategies.texts, st.none() | st.binary(max_size=3)), max_size=3),
)
def test_headers_in_base64_follow_those_of_text_and_may_have_their_names(headers, pairs):
    message = Message(topic="t", content="c", headers=headers, headers_base64=pairs)
    record = record_of(message, now_ms=NOW_MS)
    assert record.headers == (*[(name, value.encode()) for name, value in headers.items()], *pairs)


@pytest.mark.parametrize("is_base64", [False, True])
def test_the_message_s_own_trace_wins_over_that_of_its_request(is_base64):
    def headers(**own):
        written = (
            {"headers_base64": [(n, v.encode()) for n, v in own.items()]} if is_base64 else {"headers": own}
        )
        return record_of(Message(topic="t", content="c", **written), now_ms=NOW_MS, of_request=TRACE).headers

    assert headers(tracestate="own") == (("tracestate", b"own"), TRACE[0])
    # The state of another trace says nothing of it.
    assert headers(traceparent="own") == (("traceparent", b"own"),)
    assert headers(Traceparent="other") == (("Traceparent", b"other"), *TRACE)


def test_a_timestamp_of_the_message_is_that_of_the_record():
    for timestamp in (1234, "1970-01-01T00:00:01.234Z"):
        record = record_of(Message(topic="t", content="c", timestamp=timestamp), now_ms=NOW_MS)
        assert record.timestamp_ms == 1234


def test_no_key_and_no_value_have_no_length():
    assert length_of(Record(topic="t", key=None, value=None, timestamp_ms=0)) == 0
    assert length_of(Record(topic="t", key=b"kk", value=None, timestamp_ms=0)) == 2
