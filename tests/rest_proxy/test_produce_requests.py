"""Produce requests of REST Proxy's clients: which records they make, and how they are refused."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sampleapp.errors import InvalidMessage, MalformedMessage
from sampleapp.model import Record
from sampleapp.rest_proxy import EmbeddedFormat, Unserializable, read_records
from tests.rest_proxy.reading import body_of, contents_of, records_of

BINARY, JSON = EmbeddedFormat.BINARY, EmbeddedFormat.JSON


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
        ("Zm8", b"fo"),
        ("Zg", b"f"),
        ("Zg=", b"f"),
        ("Zg====", b"f"),
        ("Zh==", b"f"),
        ("+/8=", b"\xfb\xff"),
        ("", b""),
        ("====", b""),
        ("true", b"\xb6\xbb\x9e"),
    ],
)
def test_base64_may_lack_its_padding(text, expected):
    assert contents_of(body_of([{"key": text, "value": text}]), BINARY) == [(expected, expected, None)]


@pytest.mark.parametrize(
    "value", ["Z", "Zm9v Zm9v", " Zm9v", "Zm9v\n", "-_8=", "Zg==Zg==", "é", 1, True, {"a": 1}, []]
)
def test_what_is_not_base64_is_refused(value):
    with pytest.raises(Unserializable) as refused:
        records_of(body_of([{"value": "Zg=="}, {"value": value, "key": value}]), BINARY)
    assert [fault.pointer for fault in refused.value.faults] == ["/records/1/key", "/records/1/value"]
    assert "base64" in str(refused.value)


@given(
    st.lists(
        st.tuples(st.none() | st.binary(), st.none() | st.binary(), st.none() | st.integers(0, 9)), min_size=1
    )
)
def test_any_bytes_come_back_as_they_were(contents):
    def as_text(data, number):
        if data is None:
            return None
        # Every other one without its padding.
        return b64encode(data).decode().rstrip("=" if number % 2 else "")

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
        (b'{"records":{"value":1}}', '"records" has to be an array'),
        (b'{"records":"x"}', '"records" has to be an array'),
        (b'{"records":null}', '"records" has to be an array'),
        (b'[{"value":1}]', "A request is a JSON object"),
        (b"1", "A request is a JSON object"),
        (b'{"records":["x"]}', "records[0] is not an object"),
        (b'{"records":[{"value":1},null]}', "records[1] is not an object"),
        (b'{"records":[{"valur":1}]}', 'records[0] has a member "valur"'),
        (b'{"records":[{"value":1,"headers":[]}]}', 'records[0] has a member "headers"'),
        *[
            (b'{"records":[{"value":1,"partition":%b}]}' % each, 'records[0] has a "partition" that is none')
            for each in (b"-1", b"2147483648", b"1.5", b'"1"', b"true", b"[]", b"1e99")
        ],
    ],
)
@pytest.mark.parametrize("embedded", EmbeddedFormat)
def test_what_is_no_request_is_refused_by_name(body, wrong, embedded):
    with pytest.raises(InvalidMessage) as refused:
        records_of(body, embedded)
    assert not isinstance(refused.value, MalformedMessage)
    assert wrong in str(refused.value)


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
def test_what_is_no_json_is_refused(body, embedded):
    with pytest.raises(MalformedMessage, match="The body is not JSON"):
        records_of(body, embedded)


def test_all_that_is_wrong_is_named_up_to_a_hundred_times():
    records = [{"value": 1} if n % 2 else {"value": 1, "x": 2} for n in range(20)]
    with pytest.raises(InvalidMessage) as refused:
        records_of(body_of(records), slice_bytes=50)
    assert [fault.pointer for fault in refused.value.faults] == [f"/records/{n}/x" for n in range(0, 20, 2)]
    with pytest.raises(InvalidMessage) as refused:
        records_of(body_of([{"x": 1}] * 1000), slice_bytes=50)
    assert len(refused.value.faults) == 100
    with pytest.raises(InvalidMessage) as refused:
        records_of(body_of([{"value": 1}], **{f"x{n}": 1 for n in range(999)}))
    assert len(refused.value.faults) == 100


def test_a_long_name_is_not_repeated_as_a_whole():
    for body in (body_of([{"x" * 10_000: 1}]), body_of([{}], **{"x" * 10_000: 1})):
        with pytest.raises(InvalidMessage) as refused:
            records_of(body)
        assert len(str(refused.value)) < 300


# What looks like the end of a record, in strings and further inside.
TRICKY = st.sampled_from(
    [
        '},{"value":1}',
        '"},{"key":',
        [{"value": 1}, {"value": 2}],
        {"key": [{"key": 1}, {"key": 2}], "value": {"partition": 1}},
        "]}",
        '\\"',
        "\ud800",
        1.5,
        1e-9,
        "\U0001f600",
    ]
)
tricky_values = TRICKY | st.recursive(
    TRICKY | st.none() | st.integers(0, 9), lambda children: st.lists(children, max_size=3), max_leaves=4
)


@given(
    st.lists(st.fixed_dictionaries({}, optional={"key": tricky_values, "value": tricky_values}), min_size=1),
    st.integers(1, 200),
    st.sampled_from([(",", ":"), (", ", ": "), ("\n , ", " : ")]),
)
@example([{"value": "x" * 100}, {"value": [{"value": 1}, {"value": 2}]}, {"value": 3}], 1, (",", ":"))
def test_slices_make_no_difference(records, slice_bytes, separators):
    body = json.dumps({"records": records}, separators=separators).encode()
    expected = contents_of(body)
    assert len(expected) == len(records)
    assert contents_of(body, slice_bytes=slice_bytes) == expected


@given(st.lists(st.sampled_from(["good", "bad", "lone"]), min_size=1, max_size=30), st.integers(1, 100))
def test_each_bad_record_is_named_wherever_a_slice_begins(kinds, slice_bytes):
    made = {"good": {"value": 1}, "bad": {"value": 1, "partition": -1}, "lone": {"value": "\ud800"}}
    body = body_of([made[kind] for kind in kinds])
    bad = [f"/records/{n}/partition" for n, kind in enumerate(kinds) if kind == "bad"]
    if bad:
        with pytest.raises(InvalidMessage) as refused:
            records_of(body, slice_bytes=slice_bytes)
        assert [fault.pointer for fault in refused.value.faults] == bad
    else:
        assert len(records_of(body, slice_bytes=slice_bytes)) == len(kinds)


@given(st.sampled_from(EmbeddedFormat), st.binary(max_size=40), st.integers(0, 60), st.integers(1, 40))
def test_a_damaged_body_is_refused_or_read_but_never_a_fault(embedded, damage, position, slice_bytes):
    body = body_of([{"value": [{"value": 1}]}, {"key": "k", "value": None}])
    damaged = body[:position] + damage + body[position + len(damage) :]
    try:
        contents = contents_of(damaged, embedded, slice_bytes=slice_bytes)
    except (InvalidMessage, MalformedMessage):
        return
    # What was read is JSON, for others, too.
    assert len(contents) == len(json.loads(damaged)["records"])


def test_a_long_body_is_read_in_slices_that_are_not_much_longer_than_asked_for():
    body = body_of([{"key": f"k{n}", "value": {"n": n, "text": "x" * 70}} for n in range(10_000)])
    slices = read_records(body, JSON, topic="t", partition=None, timestamp_ms=1)
    lengths = [sum(len(each.key) + len(each.value) for each in records) for records in slices]
    assert len(lengths) > 10
    assert max(lengths) < 70_000


@given(st.lists(st.integers(0, 300), min_size=1, max_size=10), st.integers(12, 250), st.integers(1, 400))
@example([300, 1], 250, 400)
@example([1, 300], 250, 1)
def test_a_record_that_is_too_long_is_named_wherever_it_is(lengths, max_record, slice_bytes):
    records = [{"value": "x" * length} for length in lengths]
    body = body_of(records)
    too_long = [n for n, each in enumerate(records) if len(json.dumps(each)) > max_record]
    if too_long:
        with pytest.raises(InvalidMessage, match=f"has more than {max_record} bytes") as refused:
            records_of(body, max_record=max_record, slice_bytes=slice_bytes)
        assert [fault.pointer for fault in refused.value.faults] == [f"/records/{too_long[0]}"]
    else:
        assert len(records_of(body, max_record=max_record, slice_bytes=slice_bytes)) == len(lengths)


def test_a_record_may_be_many_times_as_long_as_a_slice():
    value = [{"value": n} for n in range(20_000)]
    body = body_of([{"value": 1}, {"value": value}, {"value": 2}])
    assert [len(each.value) for each in records_of(body, max_record=len(body))] == [
        1,
        len(json.dumps(value, separators=(",", ":"))),
        1,
    ]
    with pytest.raises(InvalidMessage, match=r"records\[1\] has more than 100000 bytes"):
        records_of(body, max_record=100_000)
