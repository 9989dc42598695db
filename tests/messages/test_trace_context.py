"""Which traces go on in the headers of a record, and that whatever else comes is dropped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.messages.headers import trace_headers

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STATE = b"congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"
HEX = b"0123456789abcdef"


def is_hex(text, length):
    return len(text) == length and all(octet in HEX for octet in text)


def may_be_parent(value):
    """Check for a ``traceparent`` part by part, without a regular expression."""
    version, *fields = value.split(b"-")
    if not is_hex(version, 2) or version == b"ff" or len(fields) < 3:
        return False
    if version == b"00" and len(fields) > 3:
        return False
    trace_id, parent_id, flags = fields[:3]
    return (
        is_hex(trace_id, 32)
        and trace_id != b"0" * 32
        and is_hex(parent_id, 16)
        and parent_id != b"0" * 16
        and is_hex(flags, 2)
    )


LOWER = bytes(range(ord("a"), ord("z") + 1))
DIGITS = b"0123456789"
IN_KEYS = LOWER + DIGITS + b"_-*/"


def may_be_key(key):
    tenant, at, system = key.partition(b"@")
    if not at:
        return 1 <= len(key) <= 256 and key[0] in LOWER and all(octet in IN_KEYS for octet in key)
    return (
        1 <= len(tenant) <= 241
        and tenant[0] in LOWER + DIGITS
        and all(octet in IN_KEYS for octet in tenant)
        and 1 <= len(system) <= 14
        and system[0] in LOWER
        and all(octet in IN_KEYS for octet in system)
    )


def may_be_value(value):
    return (
        1 <= len(value) <= 256
        and all(0x20 <= octet <= 0x7E and octet not in b",=" for octet in value)
        and not value.endswith(b" ")
    )


def may_be_state(value):
    members = [member.strip(b" \t") for member in value.split(b",")]
    members = [member for member in members if member]
    keys = [member.partition(b"=")[0] for member in members]
    return (
        1 <= len(members) <= 32
        and len(set(keys)) == len(keys)
        and all(may_be_key(key) for key in keys)
        and all(b"=" in member and may_be_value(member.partition(b"=")[2]) for member in members)
    )


def hex_of(length):
    return st.text("0123456789abcdef", min_size=length, max_size=length)


good_parents = st.tuples(
    st.sampled_from(["00", "00", "01", "cc", "fe", "ff"]),
    hex_of(32) | st.just("0" * 32),
    hex_of(16) | st.just("0" * 16),
    hex_of(2),
    st.lists(st.text("0a-Z", max_size=4), max_size=2),
).map(lambda parts: "-".join([*parts[:4], *parts[4]]).encode())


@st.composite
def damaged(draw, values):
    """Values with one octet replaced, put in or taken out; or as they were."""
    value = draw(values)
    at = draw(st.integers(0, len(value)))
    new = draw(st.sampled_from([b"", b"0", b"g", b"A", b"-", b"=", b",", b" ", b"\t", b"\n", b"\xff", b"\0"]))
    return value[:at] + new + value[at + draw(st.integers(0, 1)) :]


keys = st.from_regex(rb"[a-z][a-z0-9_*/-]{0,8}|[a-z0-9]{1,4}@[a-z][a-z0-9]{0,16}", fullmatch=True)
state_values = st.from_regex(rb"[ -~]{0,8}[!-~]", fullmatch=True)
good_members = st.builds(b"%b=%b".__mod__, st.tuples(keys, state_values))
good_states = st.lists(good_members | st.just(b"") | st.just(b" \t"), max_size=40).map(b",".join)


@given(
    st.binary(max_size=80) | good_parents | damaged(good_parents),
    st.none() | good_states | damaged(good_states),
)
def test_a_trace_is_passed_on_as_it_came_if_it_is_valid_and_dropped_otherwise(parent, state):
    states = () if state is None else (state,)
    expected = ()
    if may_be_parent(parent):
        expected = (("traceparent", parent),)
        if state is not None and may_be_state(state):
            expected += (("tracestate", state),)
    assert trace_headers((parent,), states) == expected


@given(st.lists(st.binary(), max_size=3).map(tuple), st.lists(st.binary(), max_size=3).map(tuple))
def test_no_bytes_make_it_fail(parents, states):
    headers = trace_headers(parents, states)
    assert [name for name, _ in headers] in ([], ["traceparent"], ["traceparent", "tracestate"])


@pytest.mark.parametrize(
    "parent",
    [
        PARENT,
        b"cc" + PARENT[2:],
        b"cc" + PARENT[2:] + b"-what-the-future-brings",
        b"cc" + PARENT[2:] + b"-",
        PARENT[:-2] + b"ff",
    ],
)
def test_these_are_traces(parent):
    assert trace_headers((parent,), ()) == (("traceparent", parent),)


@pytest.mark.parametrize(
    "parent",
    [
        b"",
        b"ff" + PARENT[2:],
        PARENT.upper(),
        PARENT + b"-more",
        PARENT + b"\n",
        PARENT + b" ",
        b"cc" + PARENT[2:] + b".more",
        PARENT[:-1],
        b"00-" + b"0" * 32 + PARENT[35:],
        PARENT[:36] + b"0" * 16 + b"-01",
        PARENT.replace(b"-", b"_"),
    ],
)
def test_these_are_none(parent):
    assert trace_headers((parent,), (STATE,)) == ()


def test_two_traces_are_none():
    assert trace_headers((PARENT, PARENT), ()) == ()


def test_the_state_of_several_fields_is_one_list():
    assert trace_headers((PARENT,), (b"a=1", b"b=2 , c=3")) == (
        ("traceparent", PARENT),
        ("tracestate", b"a=1,b=2 , c=3"),
    )


@pytest.mark.parametrize(
    "state",
    [
        *(b"", b",", b"a", b"a=", b"=1", b"a=1,a=2", b"A=1", b"a=1=2", b"1=1", b"a@1=1", b"a=\xc3\xa9"),
        *(b",".join(b"k%d=1" % number for number in range(33)), b"a=" + b"x" * 257, b"a" * 257 + b"=1"),
    ],
)
def test_a_state_that_is_not_valid_is_dropped_alone(state):
    assert trace_headers((PARENT,), (state,)) == (("traceparent", PARENT),)


@pytest.mark.parametrize(
    "state",
    [
        *(b"a=1", b" a=1 ,\t, b=2", b"1@a=1", b"a=  x"),
        *(b",".join(b"k%d=1" % number for number in range(32)), b"a=" + b"x" * 256, b"a" * 256 + b"=1"),
    ],
)
def test_a_state_that_is_valid_is_passed_on(state):
    assert trace_headers((PARENT,), (state,)) == (("traceparent", PARENT), ("tracestate", state))
