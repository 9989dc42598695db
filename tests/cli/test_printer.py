"""What is printed of a record."""

from __future__ import annotations

import base64
import json

from hypothesis import given
from hypothesis import strategies as st

from sampleapp.cli._printer import printable
from sampleapp.model import ConsumerRecord
from tests.support import strategies


def consumer_record(key, value, headers=()):
    return ConsumerRecord(
        topic="t", partition=1, offset=2, timestamp_ms=3, key=key, value=value, headers=headers
    )


@given(key=st.none() | strategies.texts.map(str.encode), value=st.none() | st.binary())
def test_what_is_printed_of_a_record_is_exact(key, value):
    document = json.loads(json.dumps(printable(consumer_record(key, value))))
    assert (document["topic"], document["partition"], document["offset"], document["timestamp"]) == (
        "t",
        1,
        2,
        3,
    )

    def recovered(name):
        if f"{name}_base64" in document:
            assert name not in document
            return base64.b64decode(document[f"{name}_base64"])
        return None if document[name] is None else document[name].encode()

    assert (recovered("key"), recovered("value")) == (key, value)


def test_bytes_that_are_not_utf8_are_printed_in_base64():
    document = printable(consumer_record(b"\xff", b"text"))
    assert document["key_base64"] == "/w=="
    assert document["value"] == "text"


@given(headers=st.lists(st.tuples(strategies.texts, st.binary(max_size=9)), max_size=3).map(tuple))
def test_headers_are_printed_exactly_and_in_their_order(headers):
    document = json.loads(json.dumps(printable(consumer_record(None, b"v", headers))))
    assert ("headers" in document) == bool(headers)
    printed = [
        (
            each["name"],
            base64.b64decode(each["value_base64"]) if "value_base64" in each else each["value"].encode(),
        )
        for each in document.get("headers", [])
    ]
    assert printed == list(headers)
