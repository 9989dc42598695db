"""Produce requests of REST Proxy's clients: which records they make, and how they are rejected."""

from __future__ import annotations

import json
from base64 import b64encode, encodebytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.errors import InvalidMessage, MalformedMessage
from sampleapp.messages.rest_proxy_bodies import (
    MOST_COMMAS,
    MOST_ESCAPES,
    MOST_RECORDS,
    EmbeddedFormat,
    Unserializable,
)
from sampleapp.model import Record
from tests.messages.reading import body_of, contents_of, records_of, slices_of

BINARY = EmbeddedFormat.BINARY


def test_a_record_has_what_the_request_says_and_what_all_of_them_have():
    body = body_of([{"key": "k", "value": {"a": 1}, "partition": 3}, {"value": "v"}])
    common = {"topic": "t", "timestamp_ms": 1, "headers": (("h", b"x"),)}
    assert records_of(body, partition=5) == [
        Record(key=b'"k"', value=b'{"a":1}', partition=3, **common),
        Record(key=None, value=b'"v"', partition=5, **common),
    ]


@pytest.mark.parametrize("embedded", EmbeddedFormat)
def test_null_and_absent_are_the_same(embedded):
    body = body_of([{}, {"key": None, "value": None, "partition": None}])
    assert contents_of(body, embedded) == [(None, None, None)] * 2


def test_schemas_are_not_looked_at():
    for members in (
        {"key_schema": '"string"', "value_schema_id": 7},
        {"key_schema_id": None, "value_schema": '{"type":"array","items":[1]}]}'},
        {"key_schema": ["odd"], "value_schema": {}},
    ):
        assert contents_of(body_of([{"value": 1}], **members)) == [(None, b"1", None)]
        reordered = json.dumps({**members, "records": [{"value": 1}]}, indent=2).encode()
        assert contents_of(reordered) == [(None, b"1", None)]


def test_names_may_be_escaped():
    assert contents_of(rb'{"\u0072ecords":[{"v\u0061lue":1}]}') == [(None, b"1", None)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Zm9v", b"foo"),
        ("Zm8=", b"fo"),
        ("Zg==", b"f"),
        ("Zh==", b"f"),
        ("+/8=", b"\xfb\xff"),
        ("", b""),
        ("true", b"\xb6\xbb\x9e"),
        ("////", b"\xff\xff\xff"),
        ("Zm9v\nZm8=\r\n", b"foofo"),
        ("Zm9vZm9v\r\n\r\nZm8=\n", b"foofoofo"),
        ("\nZm9v", b"foo"),
        ("\r\n", b""),
    ],
)
def test_base64_may_have_line_breaks(text, expected):
    body = body_of([{"key": text, "value": text}])
    assert contents_of(body, BINARY) == [(expected, expected, None)]
    # As PHP writes it.
    assert contents_of(body.replace(b"/", rb"\/"), BINARY) == [(expected, expected, None)]


@pytest.mark.parametrize(
    "value",
    [
        "Z",
        "Zg",
        "Zg=",
        "Zg===",
        "Zg====",
        "Zm8",
        "Zm8==",
        "Zm9v=",
        "Zm9v====",
        "=",
        "====",
        "Zg=\n=",
        "Zg==\nZg==",
        "Zm 9v",
        "Zm9v Zm9v",
        "Zm9v\tZm9v",
        "Zm9v\vZm9v",
        "Zm9v\u2028Zm9v",
        " Zm9v",
        "\\u005am9v",
        "Zm\n9v",
        "Zm9\nvZm9v",
        "Zm9v\nZ",
        "Zm9v\\nZm9v",
        "-_8=",
        "Zg==Zg==",
        "é",
        "Zm8\\/",
        1,
        True,
        {"a": 1},
        [],
    ],
)
def test_what_is_not_base64_is_rejected(value):
    with pytest.raises(Unserializable) as rejected:
        records_of(body_of([{"value": "Zg=="}, {"value": value, "key": value}]), BINARY)
    assert [fault.pointer for fault in rejected.value.faults] == ["/records/1/key", "/records/1/value"]
    assert "base64" in str(rejected.value)


@given(
    st.lists(
        st.tuples(st.none() | st.binary(), st.none() | st.binary(), st.none() | st.integers(0, 9)), min_size=1
    )
)
def test_any_bytes_come_back_as_they_were(contents):
    def as_text(data, number):
        if data is None:
            return None
        # Every other one with line breaks.
        return (encodebytes if number % 2 else b64encode)(data).decode()

    records = [
        {"key": as_text(key, n), "value": as_text(value, n + 1), "partition": partition}
        for n, (key, value, partition) in enumerate(contents)
    ]
    assert contents_of(body_of(records), BINARY) == contents


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        (b'{"records":[]}', '"records" is empty'),
        (b'{ "records" : [ ] , "key_schema" : null }', '"records" is empty'),
        (b"{}", '"records" is missing'),
        (b'{"foo":"bar"}', '"foo" is not a member of a request'),
        (b'{"records":[{"value":1}],"topic":"t"}', '"topic" is not a member of a request'),
        (b'{"records":{"value":1}}', '"records" must be an array'),
        (b'{"records":"x"}', '"records" must be an array'),
        (b'{"records":null}', '"records" must be an array'),
        (b'[{"value":1}]', "A request is a JSON object"),
        (b"1", "A request is a JSON object"),
        (b'{"records":["x"]}', "records[0] is not an object"),
        (b'{"records":[{"value":1},null]}', "records[1] is not an object"),
        (b'{"records":[{"valur":1}]}', 'records[0] has a member "valur"'),
        (b'{"records":[{"value":1,"headers":[]}]}', 'records[0] has a member "headers"'),
        *[
            (
                b'{"records":[{"value":1,"partition":%b}]}' % each,
                'records[0] has a "partition" that is not an integer',
            )
            for each in (b"-1", b"2147483648", b"1.5", b'"1"', b"true", b"[]", b"1e99")
        ],
    ],
)
@pytest.mark.parametrize("embedded", EmbeddedFormat)
def test_what_is_no_request_is_rejected_by_name(body, wrong, embedded):
    with pytest.raises(InvalidMessage) as rejected:
        records_of(body, embedded)
    assert not isinstance(rejected.value, MalformedMessage)
    assert wrong in str(rejected.value)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"\xef\xbb\xbf{}",
        b'{"records":',
        b'{"records":[{"value":1}]',
        b'{"records":[{"value":1}]}x',
        b'{"records":[{"value":1},]}',
        b'{"records":[,{"value":1}]}',
        b'{"records":[{"value":1}{"value":2}]}',
        b'{"records":[{"value":1}}]}',
        b'{"records":[{"value":"\xff"}]}',
        b'{"records":[{"value":"]}',
        b'{"records":[{"value":1}],"key_schema":[]x}',
        b'{"records":[{"value":' + b"[" * 50_000 + b"]" * 50_000 + b"}]}",
    ],
)
@pytest.mark.parametrize("embedded", EmbeddedFormat)
def test_what_is_no_json_is_rejected(body, embedded):
    with pytest.raises(MalformedMessage, match="The body is not JSON"):
        records_of(body, embedded)


def test_all_that_is_wrong_is_named_up_to_a_hundred_times():
    records = [{"value": 1} if n % 2 else {"value": 1, "x": 2} for n in range(20)]
    with pytest.raises(InvalidMessage) as rejected:
        records_of(body_of(records))
    assert [fault.pointer for fault in rejected.value.faults] == [f"/records/{n}/x" for n in range(0, 20, 2)]
    with pytest.raises(InvalidMessage) as rejected:
        records_of(body_of([{"x": 1}] * 1000))
    assert len(rejected.value.faults) == 100
    with pytest.raises(InvalidMessage) as rejected:
        records_of(body_of([{"value": 1}], **{f"x{n}": 1 for n in range(999)}))
    assert len(rejected.value.faults) == 100


def test_a_long_name_is_not_repeated_as_a_whole():
    for body in (body_of([{"x" * 10_000: 1}]), body_of([{}], **{"x" * 10_000: 1})):
        with pytest.raises(InvalidMessage) as rejected:
            records_of(body)
        assert len(str(rejected.value)) < 300


@given(
    st.lists(st.sampled_from(["good", "bad", "lone"]), min_size=1, max_size=30), st.sampled_from(["", " "])
)
def test_each_bad_record_is_named_among_good_ones(kinds, blank):
    made = {"good": {"value": 1}, "bad": {"value": 1, "partition": -1}, "lone": {"valeu": 2}}
    bad = [
        f"/records/{n}/{'partition' if kind == 'bad' else 'valeu'}"
        for n, kind in enumerate(kinds)
        if kind != "good"
    ]
    body = body_of([made[kind] for kind in kinds]) + blank.encode()
    if bad:
        with pytest.raises(InvalidMessage) as rejected:
            records_of(body)
        assert [fault.pointer for fault in rejected.value.faults] == bad
    else:
        assert len(records_of(body)) == len(kinds)


@given(st.sampled_from(EmbeddedFormat), st.binary(max_size=40), st.integers(0, 60))
def test_a_damaged_body_is_rejected_or_read_but_never_a_fault(embedded, damage, position):
    body = body_of([{"value": [{"value": 1}]}, {"key": "k", "value": None}])
    damaged = body[:position] + damage + body[position + len(damage) :]
    try:
        contents = contents_of(damaged, embedded)
    except (InvalidMessage, MalformedMessage):
        return
    # Python's decoder agrees.
    assert len(contents) == len(json.loads(damaged)["records"])


LONG_TEXT = "x" * 70_000


@pytest.mark.parametrize(
    ("records", "pointer", "wrong"),
    [
        (
            [{"value": LONG_TEXT}, {"valeu": 1}, {"x": 1}],
            "/records/1",
            "records[1]: Object contains unknown field `valeu`.",
        ),
        ([{"value": LONG_TEXT, "partition": "1"}], "/records/0/partition", "records[0].partition: Expected"),
        ([{"value": LONG_TEXT}, 1], "/records/1", "records[1]: Expected `object`, got `int`."),
        ([{LONG_TEXT: 1}], "/records/0", "records[0]: Object contains unknown field `xxx"),
        ({"value": LONG_TEXT}, "/records", "records: Expected `array`, got `object`."),
        ([], "/records", '"records" is empty'),
    ],
)
@pytest.mark.parametrize("embedded", EmbeddedFormat)
def test_of_a_long_body_the_first_fault_is_named(records, pointer, wrong, embedded):
    with pytest.raises(InvalidMessage) as rejected:
        records_of(body_of(records) + b" " * 70_000, embedded)
    (fault,) = rejected.value.faults
    assert fault.pointer == pointer
    assert fault.detail.startswith(wrong)
    assert len(fault.detail) < 300


def test_a_long_body_that_is_no_request_is_rejected_by_the_first_fault():
    for body in (b"[]", b"1", b'{"foo":1}', b"{}", b'{"records":[{}],"a - at `$.records[3]":1}'):
        with pytest.raises(InvalidMessage) as rejected:
            records_of(body + b" " * 70_000, BINARY)
        assert len(rejected.value.faults) == 1


@pytest.mark.parametrize("embedded", EmbeddedFormat)
def test_a_request_has_a_bounded_number_of_records(embedded):
    # The values of base64 have a line break, which is another way to read them.
    record = b'{"key":null,"value":"Zg==\\n"}'
    most = b'{"records":[%b]}' % b",".join([record] * MOST_RECORDS)
    assert len(records_of(most, embedded)) == MOST_RECORDS
    for value in (record, b"{}", b'{"value":[{},{},{}]}'):
        body = b'{"records":[%b' % b",".join([value] * (MOST_RECORDS + 1))
        with pytest.raises(InvalidMessage, match=f"more than {MOST_RECORDS} records"):
            records_of(body + b"]}", embedded)
        with pytest.raises(MalformedMessage):
            records_of(body + b"]", embedded)
    # Objects inside of values do not count.
    many = b",".join([b"{}"] * (MOST_RECORDS + 1))
    assert contents_of(b'{"records":[{"value":[%b]}]}' % many) == [(None, b"[%b]" % many, None)]


@pytest.mark.parametrize("unit", [b"1, ", b'"",', b"[],"])
def test_a_request_has_a_bounded_number_of_commas(unit):
    most = b'{"records":[{"value":[%b1]}]}' % (unit * MOST_COMMAS)
    assert len(records_of(most, EmbeddedFormat.JSON)) == 1
    many = b'{"records":[{"value":[%b1]}]}' % (unit * (MOST_COMMAS + 1))
    with pytest.raises(InvalidMessage, match=f"more than {MOST_COMMAS} commas"):
        records_of(many, EmbeddedFormat.JSON)


@pytest.mark.parametrize("unit", [b"AAAA\\n", b"AAAA\\r\\n", b"\\/\\/\\/\\/"])
def test_a_request_with_base64_has_a_bounded_number_of_escapes(unit):
    most = MOST_ESCAPES // unit.count(b"\\")
    body = b'{"records":[{"value":"%b"}]}'
    assert len(records_of(body % (unit * most), EmbeddedFormat.BINARY)) == 1
    with pytest.raises(InvalidMessage, match=f"more than {MOST_ESCAPES} backslashes"):
        records_of(body % (unit * (most + 1)), EmbeddedFormat.BINARY)
    # In the other format they are not decoded.
    assert len(records_of(body % (unit * (most + 1)), EmbeddedFormat.JSON)) == 1


@pytest.mark.parametrize("embedded", EmbeddedFormat)
@pytest.mark.parametrize("value", [b'"Zg=="', b'"Zg==\\n"'])
def test_a_long_body_is_read_in_slices(embedded, value):
    body = b'{"records":[%b]}' % b", ".join([b'{"value":%b}' % value] * 9000)
    lengths = [len(records) for records in slices_of(body, embedded)]
    assert sum(lengths) == 9000
    assert max(lengths) <= 2000
    # Before the first records: each pass over the whole body is a step of its own.
    assert lengths[0] == 0


def test_faults_of_base64_are_named_in_a_long_body_too():
    body = body_of([{"value": LONG_TEXT}, {"value": "Z"}, {"key": 1, "value": "Zg=="}])
    with pytest.raises(Unserializable) as rejected:
        records_of(body, BINARY)
    assert [fault.pointer for fault in rejected.value.faults] == ["/records/1/value", "/records/2/key"]
    with pytest.raises(Unserializable) as rejected:
        records_of(body_of([{"key": "Z", "value": "Z"}] * 9000), BINARY)
    assert len(rejected.value.faults) == 100


@pytest.mark.parametrize("embedded", EmbeddedFormat)
@pytest.mark.parametrize(
    "body",
    [
        b'{"records":[{"value":null}],"records":[{"value":null}]}',
        b'{"records":[{"value":"Zg==","value":"Zg=="}]}',
        b'{"records":[{"key":null,"key":"Zg=="}]}',
        b'{"records":[{"partition":null,"partition":1}]}',
        b'{"records":[{"partition":1.0, "partition" : null}]}',
        rb'{"records":[{"value":"Zg==","v\u0061lue":null}]}',
        b'{"key_schema":{"a":1},"key_schema":null,"records":[{"value":null}]}',
    ],
)
def test_a_repeated_member_is_rejected_since_one_of_the_two_would_be_lost(body, embedded):
    for text in (body, body.replace(b"null}", b"null}" + b',{"key":null,"value":"Zg=="}' * 5000)):
        with pytest.raises(InvalidMessage, match="more than once"):
            records_of(text, embedded)


def test_colons_in_keys_values_and_schemas_are_no_repeated_members():
    record = {"key": {":": "::"}, "value": ["a:b", {"c": {"d:": None}}], "partition": 0}
    assert records_of(body_of([record, {}, {"key": None}], key_schema='{"a":1}', value_schema_id={":": 1}))
    # A repeated name inside a value is the caller's own.
    assert contents_of(b'{"records":[{"value":{"a":1,"a":2}}]}') == [(None, b'{"a":1,"a":2}', None)]


def test_a_wrong_member_that_a_valid_one_follows_is_a_fault():
    with pytest.raises(InvalidMessage, match="records: Expected `array`, got `int`"):
        records_of(b'{"records":1,"records":[{"value":2}]}')
