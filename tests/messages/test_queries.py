"""The key of a record, and more of its headers, in the query of its request."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote_from_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.errors import InvalidParameters
from sampleapp.messages.queries import read_headers, read_key, read_record_query


def key_and_faults(query):
    faults = []
    key = read_key(query, faults)
    return key, [fault.pointer for fault in faults]


@pytest.mark.parametrize(
    ("query", "key"),
    [
        (b"", None),
        (b"&", None),
        (b"key=", b""),
        (b"key", b""),
        (b"&key=k&", b"k"),
        (b"key=a+b", b"a b"),
        (b"key=a%2Bb", b"a+b"),
        (b"key=a%20b", b"a b"),
        (b"key=a=b", b"a=b"),
        (b"key=%26%3D%23", b"&=#"),
        (b"key=%ff%00", b"\xff\x00"),
        (b"key=\xc3\xa4", b"\xc3\xa4"),
        (b"k%65y=k", b"k"),
        (b"key=100%", b"100%"),
        (b"key=%zz%4", b"%zz%4"),
        (b"key=a;key=b", b"a;key=b"),
    ],
)
def test_a_query_is_read_as_forms_are(query, key):
    assert key_and_faults(query) == (key, [])


RECORDED = {b"event": "event", b"DevEUI": "deveui"}


@pytest.mark.parametrize(
    ("query", "key", "headers"),
    [
        (b"", None, ()),
        (b"event=up", None, (("event", b"up"),)),
        (b"event=up&key=k&DevEUI=1", b"k", (("event", b"up"), ("deveui", b"1"))),
        (b"DevEUI&event=", None, (("deveui", b""), ("event", b""))),
        (b"e%76ent=a+b%2B%ff%00=%", None, (("event", b"a b+\xff\0=%"),)),
    ],
)
def test_named_parameters_become_headers(query, key, headers):
    faults = []
    assert read_record_query(query, faults, RECORDED) == (key, headers, False)
    if key is None:
        assert read_headers(query, faults, RECORDED) == headers
    assert faults == []


@pytest.mark.parametrize(
    ("query", "pointers"),
    [
        (b"event=1&event=1", ["/event"]),
        (b"Event=up&deveui=1&events=1", ["/Event", "/deveui", "/events"]),
        (b"event=1&key=&key=&x&event=2&DevEUI=", ["/event", "/key", "/x"]),
    ],
)
def test_what_is_not_named_or_repeated_is_a_fault_beside_named_parameters(query, pointers):
    faults = []
    read_record_query(query, faults, RECORDED)
    assert [fault.pointer for fault in faults] == pointers


@given(st.binary())
def test_any_bytes_can_be_a_header(value):
    faults = []
    query = b"event=" + quote_from_bytes(value, safe="").encode()
    assert read_headers(query, faults, RECORDED) == (("event", value),)
    assert faults == []


@given(st.binary(), st.booleans())
def test_any_bytes_can_be_a_key(key, with_plus):
    escaped = quote_from_bytes(key, safe=" " if with_plus else "").replace(" ", "+")
    assert key_and_faults(f"key={escaped}".encode()) == (key, [])


@pytest.mark.parametrize(
    ("query", "pointers"),
    [
        (b"key=a&key=a", ["/key"]),
        (b"key&key", ["/key"]),
        (b"Key=a", ["/Key"]),
        (b"=a", ["/"]),
        (b"partition=1&key=k&key=l&x&x", ["/key", "/partition", "/x"]),
        (b"a/b~=1", ["/a~1b~0"]),
        (b"%ff=1", ["/\N{REPLACEMENT CHARACTER}"]),
        (b"%1b[31m=1", ["/\N{REPLACEMENT CHARACTER}[31m"]),
        (b"x" * 5000, ["/" + "x" * 40 + "…"]),
    ],
)
def test_all_that_is_unknown_or_repeated_is_named(query, pointers):
    assert key_and_faults(query)[1] == pointers


def test_of_many_unknown_parameters_some_are_told():
    assert len(key_and_faults(b"&".join(b"p%d" % n for n in range(200)))[1]) == 20


def test_a_query_of_very_many_parameters_is_rejected_before_any_is_decoded():
    with pytest.raises(InvalidParameters, match="up to 200 parameters"):
        key_and_faults(b"a&" * 200)


@given(st.binary(max_size=40) | st.text("key=&%+a0", max_size=20).map(str.encode))
def test_any_query_is_read_as_another_parser_of_forms_reads_it(query):
    text = query.decode("latin-1")
    expected = parse_qsl(text, keep_blank_values=True, encoding="latin-1")
    key, pointers = key_and_faults(query)
    assert bool(pointers) == (
        [name for name, _ in expected].count("key") > 1 or any(name != "key" for name, _ in expected)
    )
    if not pointers:
        assert key == (expected[0][1].encode("latin-1") if expected else None)
