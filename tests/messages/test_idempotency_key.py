"""Idempotency keys, and the identities of records that are sent again."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from operator import itemgetter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sampleapp.errors import InvalidMessage, MalformedIdempotencyKey
from sampleapp.messages.idempotency_key import IdempotencyScope, parse_idempotency_key
from sampleapp.messages.lines import MessageLines
from sampleapp.messages.parsing import parse_message, record_of
from sampleapp.model import FINGERPRINT_HEADER
from tests.support import strategies

NOW_MS = 1_700_000_000_000
SCOPE = IdempotencyScope(caller="c", key="k")
TRACE = (("traceparent", b"00-1"),)

# RFC 9651, section 3.3.3: the characters of a string.
strings = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=255)
bare_keys = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=255).filter(
    lambda key: not key.startswith('"')
)
parameters = st.sampled_from(
    ["", ";a", "; a=1", " ;a=?1;b-c=tok/en", ';a="x;y\\""', ";a=:aGk=:", ";a=@1", ';a=%"%c3%bc"', ";*=-1.5"]
)


def quoted(key):
    return '"' + re.sub(r'(["\\])', r"\\\1", key) + '"'


@given(strings, parameters)
def test_a_string_is_the_key_that_it_stands_for_whatever_its_parameters(key, rest):
    assert parse_idempotency_key([f"{quoted(key)}{rest}".encode()]) == key


@given(bare_keys, st.text(" \t", max_size=2))
def test_a_bare_key_is_the_same_as_the_quoted_one(key, blanks):
    assert parse_idempotency_key([f"{blanks}{key}{blanks}".encode()]) == key
    assert parse_idempotency_key([quoted(key).encode()]) == key


def test_without_the_field_there_is_no_key():
    assert parse_idempotency_key([]) is None


@pytest.mark.parametrize(
    "values",
    [
        [b""],
        [b" "],
        [b'""'],
        [b'"'],
        [b'"a'],
        [b'"a" b'],
        [b'"a"b'],
        [b'"a", "b"'],
        [b'"a\\b"'],
        [b'"a\\"'],
        [b'"a";'],
        [b'"a";B'],
        [b'"a";b="'],
        [b'"\xc3\xbc"'],
        [b"\xc3\xbc"],
        [b"a b"],
        [b"a, b"],
        [b"a\x00"],
        [b"\x7f"],
        [b"k" * 256],
        [b'"' + b"k" * 256 + b'"'],
        [b"a", b"a"],
        [b"a", b"b"],
    ],
)
def test_anything_else_is_rejected_with_what_would_be_right(values):
    with pytest.raises(MalformedIdempotencyKey, match="1 to 255 visible ASCII characters") as caught:
        parse_idempotency_key(values)
    assert "Idempotency-Key" in str(caught.value)


@given(strategies.field_bytes)
def test_any_value_is_a_key_of_1_to_255_characters_or_is_rejected(value):
    try:
        key = parse_idempotency_key([value])
    except MalformedIdempotencyKey:
        return
    assert 1 <= len(key) <= 255
    assert all(" " <= character <= "~" for character in key)


@pytest.mark.parametrize(
    "parameter",
    [b' ;a="\\"', b";a=:a:", b";a=?1", b";a=@1.1", b";a=-1", b";a=*:", b';a=%"', b" ; a", b";a=a"],
)
def test_a_key_that_almost_has_parameters_is_rejected_in_linear_time(parameter):
    with pytest.raises(MalformedIdempotencyKey):
        parse_idempotency_key([b'"a"' + parameter * 100_000 + b";"])


messages = st.fixed_dictionaries(
    {"topic": st.sampled_from(["t", "u"]), "content": strategies.texts},
    optional={
        "key": strategies.keys,
        "headers": st.dictionaries(strategies.texts, strategies.texts, max_size=3),
        "headers_base64": strategies.header_pairs,
        "timestamp": strategies.numbers_of_time,
    },
)


def identified(members, *, scope=SCOPE, number=0, now_ms=NOW_MS, trace=(), **style):
    return scope.record_of(
        parse_message(json.dumps(members, **style).encode()), number, now_ms=now_ms, of_request=trace
    )


def meaning(members):
    """The identity that a caller gives a message."""
    headers: dict[str, list[bytes | None]] = {}
    for name, text in members.get("headers", {}).items():
        headers[name] = [text.encode()]
    # Those with one name are in order.
    for name, base64 in members.get("headers_base64", ()):
        headers.setdefault(name, []).append(None if base64 is None else b64decode(base64))
    return (members["content"], members.get("key"), headers, members.get("timestamp"))


@given(messages, messages)
def test_messages_have_the_same_fingerprint_exactly_if_they_say_the_same(one, other):
    ours, theirs = identified(one).identity, identified(other).identity
    assert (ours.fingerprint == theirs.fingerprint) == (meaning(one) == meaning(other))
    assert (ours.id == theirs.id) == (one["topic"] == other["topic"])


def in_another_order(members, random):
    shuffled = list(members.items())
    random.shuffle(shuffled)
    return dict(shuffled)


@given(
    messages,
    st.randoms(use_true_random=False),
    st.booleans(),
    st.sampled_from([(",", ":"), (", ", " : ")]),
    st.integers(0, 2**41),
)
def test_another_writing_another_trace_and_another_time_make_the_same_identity(
    members, random, is_ascii, separators, now_ms
):
    shuffled = in_another_order(members, random)
    if "headers" in members:
        shuffled["headers"] = in_another_order(members["headers"], random)
    again = identified(shuffled, now_ms=now_ms, trace=TRACE, ensure_ascii=is_ascii, separators=separators)
    assert again.identity == identified(members).identity


@given(strategies.texts, strategies.texts)
def test_base64_is_the_same_as_the_text_that_it_stands_for(content, key):
    def base64(text):
        return b64encode(text.encode()).decode()

    assert (
        identified({"topic": "t", "content": content, "key": key}).identity
        == identified({"topic": "t", "content_base64": base64(content), "key_base64": base64(key)}).identity
        == identified({"topic": "t", "content": content, "key_base64": base64(key)}).identity
    )


@given(
    st.datetimes(datetime(1973, 3, 4), datetime(2100, 1, 1)),  # noqa: DTZ001 -- the zone is added below
    st.integers(-23 * 60, 23 * 60),
)
def test_an_instant_is_the_same_in_each_form(instant, offset_minutes):
    instant = instant.replace(microsecond=instant.microsecond // 1000 * 1000, tzinfo=UTC)
    elsewhere = instant.astimezone(timezone(timedelta(minutes=offset_minutes)))
    ms = (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    message = {"topic": "t", "content": "c"}
    identities = {
        identified({**message, "timestamp": timestamp}).identity.fingerprint
        for timestamp in (ms, instant.isoformat(timespec="milliseconds"), elsewhere.isoformat())
    }
    assert len(identities) == 1
    assert identified(message).identity.fingerprint not in identities


parts = st.none() | st.binary(max_size=4)
# The order of headers counts only for those with one name.
header_lists = st.lists(st.tuples(strategies.texts, parts), max_size=2).map(
    lambda headers: sorted(headers, key=itemgetter(0))
)


@given(*[st.tuples(parts, parts, header_lists)] * 2)
def test_bytes_cannot_move_from_one_part_of_a_record_to_the_next(one, other):
    assume(one != other)
    first, second = (
        SCOPE.identity(0, topic="t", key=key, value=value, headers=tuple(headers))
        for key, value, headers in (one, other)
    )
    assert first.fingerprint != second.fingerprint


scopes = st.tuples(st.sampled_from(["", "c", "ck", "1:"]), st.sampled_from(["k", "kc", "c", "1:k"]))
places = st.tuples(scopes, st.integers(0, 12), st.sampled_from(["t", "1t", "2", "12"]))


@given(places, places)
def test_each_caller_key_topic_and_number_has_an_id_of_its_own(one, other):
    first, second = (
        IdempotencyScope(caller=caller, key=key).identity(number, topic=topic, key=None, value=b"")
        for (caller, key), number, topic in (one, other)
    )
    assert (first.id == second.id) == (one == other)
    assert first.fingerprint == second.fingerprint


@given(messages)
def test_only_the_identity_differs_from_the_record_without_a_key(members):
    record = identified(members, trace=TRACE)
    plain = record_of(parse_message(json.dumps(members).encode()), now_ms=NOW_MS, of_request=TRACE)
    assert {name: getattr(record, name) for name in record.__struct_fields__ if name != "identity"} == {
        name: getattr(plain, name) for name in plain.__struct_fields__ if name != "identity"
    }
    assert (len(record.identity.id), len(record.identity.fingerprint)) == (32, 32)


RESERVED = {"topic": "t", "content": "c", "headers": {"a": "b", FINGERPRINT_HEADER: "x"}}
RESERVED["headers_base64"] = [["a", None], [FINGERPRINT_HEADER, "AP8="], [FINGERPRINT_HEADER, None]]
PLACES = [f"/headers/{FINGERPRINT_HEADER}", "/headers_base64/1", "/headers_base64/2"]


def test_a_message_may_not_bring_the_header_of_the_fingerprint():
    message = parse_message(json.dumps(RESERVED).encode())
    for convert in (partial(SCOPE.record_of, number=0), record_of):
        with pytest.raises(InvalidMessage) as caught:
            convert(message, now_ms=NOW_MS)
        assert [fault.pointer for fault in caught.value.faults] == PLACES
        assert "Idempotency-Key" in caught.value.faults[0].detail


def read(body, **options):
    lines = MessageLines(body, max_line=10_000, now_ms=NOW_MS, of_request=TRACE, **options)
    while lines.read():
        pass
    return lines


@given(
    st.lists(st.tuples(messages, st.sampled_from([b"\n", b"\r\n", b"\n\n"])), max_size=12),
    st.sampled_from([1, 30, 1 << 17]),
)
def test_each_line_has_the_identity_of_its_number(listed, size):
    body = b"".join(json.dumps(members).encode() + end for members, end in listed)
    lines = read(body, scope=SCOPE, read_at_once=size)
    assert lines.rejected == []
    assert lines.records == [
        identified(members, number=number, trace=TRACE) for number, (members, _) in enumerate(listed)
    ]
    assert [record.identity for record in read(body).records] == [None] * len(listed)


def test_the_numbers_go_on_over_the_pieces_that_a_long_body_is_read_in():
    line = b'{"topic":"t","content":"c"}\n'
    lines = read(line * 2000, scope=SCOPE)
    expected = [SCOPE.identity(number, topic="t", key=None, value=b"c") for number in range(2000)]
    assert [record.identity for record in lines.records] == expected


def test_the_line_that_brings_the_header_of_the_fingerprint_is_named():
    good = b'{"topic":"t","content":"c"}\n'
    body = good + json.dumps(RESERVED).encode() + b"\n" + good
    for scope in (SCOPE, None):
        (rejected,) = read(body, scope=scope).rejected
        assert (rejected.number, rejected.line) == (1, 2)
        assert [fault.pointer for fault in rejected.error.faults] == PLACES
