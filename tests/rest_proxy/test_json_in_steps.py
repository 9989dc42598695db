"""The JSON text of long keys and values, which others have their turn while it is written."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sampleapp.errors import InvalidMessage, MalformedMessage
from sampleapp.rest_proxy import EmbeddedFormat, Unserializable, read_records
from sampleapp.rest_proxy.json_in_steps import write_in_steps
from sampleapp.rest_proxy.json_text import Members, Number, NumberTooLarge, write
from tests.rest_proxy.reading import body_of, contents_of, records_of, text_of
from tests.support import strategies

texts = strategies.texts | st.sampled_from(
    ["", '"', "\\", "\\u001f", "\x1f", "\ud83d", "a\udfff", "\N{GRINNING FACE}", "\N{GRINNING FACE}\0" * 700]
)
numbers = st.sampled_from(["0", "-0", "-0.0", "1e7", "1E+3", "2.5e-300", "5e-324", "7" * 40, "-12", "0.001"])
# As they are written: no Python value tells 1e7 from 10000000.0, or has a member twice.
blanks = st.sampled_from(["", "", " ", "\n\t"])
written_texts = texts.map(json.dumps) | strategies.texts.map(json.JSONEncoder(ensure_ascii=False).encode)
names = st.sampled_from(['"a"', '"b"', '"\\u0061"', '""']) | written_texts
written = st.recursive(
    st.sampled_from(["null", "true", "false"]) | numbers | st.integers().map(str) | written_texts,
    lambda children: st.one_of(
        st.builds("{1}[{0}{1}]".format, st.lists(children, max_size=5).map(",".join), blanks),
        st.builds(
            "{{{1}{0}}}{1}".format,
            st.lists(st.builds("{}{}:{}".format, names, blanks, children), max_size=5).map(" , ".join),
            blanks,
        ),
    ),
    max_leaves=12,
)


def in_steps(text):
    found = []

    def keep():
        found.append((yield from write_in_steps(text)))

    for _ in keep():
        pass
    return found[0]


def at_once(text):
    return write(json.loads(text, object_pairs_hook=Members, parse_int=Number, parse_float=Number))


@given(written)
@example('{"a":1,"b":[2,{"a":3,"a":4}],"a":{"b":5}}')
@example("[1,2,true,null,-0,0,1.0,{}]")
def test_the_text_is_the_same_as_at_once(value):
    text = value.encode()
    assert in_steps(text) == at_once(text)


@given(
    written.filter(lambda value: len(value) < 200),
    st.sampled_from(["[%s]", '{"a":[%s]}', '[[[],{"":0,"b":[%s]}]]']),
)
@settings(max_examples=20)
def test_the_text_of_many_values_is_that_of_each(value, around):
    text = (around % ",".join([value] * 1100)).encode()
    each = at_once(value.encode()).decode()
    expected = (around % ",".join([each] * 1100)).encode()
    assert in_steps(text) == expected


@given(st.integers(1, 6000))
@settings(max_examples=5)
def test_members_that_come_again_among_thousands_take_the_place_of_the_first(names):
    text = "{" + ",".join(f'"{7 * n % names}":{n}' for n in range(5000)) + "}"
    assert in_steps(text.encode()) == at_once(text.encode())


@pytest.mark.parametrize("number", ["1e400", "-1e400"])
def test_a_number_that_is_too_large_is_found(number):
    with pytest.raises(NumberTooLarge):
        in_steps(f"[1,2,{number}]".encode())


LONG = [
    *["[" + "1," * 100_000 + "0]", "[" + "1e9," * 50_000 + "0]", "[" + "{}," * 50_000 + "0]"],
    '"' + "\\u001f" * 20_000 + '"',
    '"' + "\\ud83d" * 20_000 + '"',
    '"' + "\N{GRINNING FACE}" * 20_000 + '"',
    "[" + ("9" * 4000 + ",") * 50 + "0]",
    "{" + ",".join(f'"{n}":{n}' for n in range(20_000)) + "}",
    "[" * 400 + ",".join(["[[]]"] * 30_000) + "]" * 400,
]


@pytest.mark.parametrize("value", LONG, ids=range(len(LONG)))
def test_a_long_record_among_short_ones_has_the_text_that_it_has_alone(value):
    assert text_of(value) == at_once(value.encode())
    short = b'{"value":1.5}'
    body = b'{"records":[%b, {"key":%b,"partition":7} ,%b]}' % (short, value.encode(), short)
    assert contents_of(body) == [
        (None, b"1.5", None),
        (at_once(value.encode()), None, 7),
        (None, b"1.5", None),
    ]


@pytest.mark.parametrize("value", LONG, ids=range(len(LONG)))
def test_others_have_their_turn_while_a_long_record_is_read(value):
    body = b'{"records":[{"value":%b}]}' % value.encode()
    slices = read_records(body, EmbeddedFormat.JSON, topic="t", partition=None, timestamp_ms=1)
    lengths = [len(records) for records in slices]
    assert sum(lengths) == 1
    assert lengths[0] == 0
    assert len(lengths) > 2


@pytest.mark.parametrize("embedded", EmbeddedFormat)
def test_what_is_wrong_with_a_long_record_is_told_as_of_a_short_one(embedded):
    def told(inside):
        with pytest.raises(InvalidMessage) as refused:
            records_of(b'{"records":[{"value":null},%b]}' % inside.encode(), embedded)
        return type(refused.value), [(fault.pointer, fault.detail) for fault in refused.value.faults]

    for record in (
        "[%s]",
        '{"value":null,"valur":[%s]}',
        '{"value":null,"partition":[%s]}',
        '{"value":null,"partition":-1,"x":[%s]}',
        '{"key":[%s],"value":1e999,"partition":2147483648}',
    ):
        assert told(record % ("1.5," * 30_000 + "1e999")) == told(record % "1e999")


def test_a_long_value_that_is_not_base64_is_refused():
    for value in (["A"] * 30_000, "A" * 30_001, "é" * 30_000, {"a": ["="] * 30_000}):
        with pytest.raises(Unserializable, match="base64"):
            records_of(body_of([{"value": value}]), EmbeddedFormat.BINARY)


@pytest.mark.parametrize("member", ["x", "value", "\\u0078"])
def test_of_more_than_1000_members_of_a_record_or_a_request_only_that_is_told(member):
    many = b",".join([b'"%b":1' % member.encode()] * 40_000)
    with pytest.raises(InvalidMessage, match="has more than 1000 members") as refused:
        records_of(b'{"records":[{%b}]}' % many)
    assert [fault.pointer for fault in refused.value.faults] == ["/records/0"]
    with pytest.raises(InvalidMessage, match="There are more than 1000 members") as refused:
        records_of(b'{"records":[{}],%b}' % many)
    assert [fault.pointer for fault in refused.value.faults] == [""]


@pytest.mark.parametrize(
    "end", ["x", "]", "]}", "]}}", "]},", "]}]", "]}]x", '"\n"', "NaN", "]},]}", "]}{}]}", "[" * 100_000]
)
def test_a_long_record_that_is_not_json_is_refused(end):
    for value in ("1.5,", "{},", '"",'):
        with pytest.raises(MalformedMessage, match="The body is not JSON"):
            records_of(b'{"records":[{"value":[%b' % (value * 30_000 + end).encode())


def test_a_long_record_that_is_not_utf_8_is_refused():
    with pytest.raises(MalformedMessage, match="UTF-8"):
        records_of(b'{"records":[{"value":["\xff",%b0]}]}' % (b"1.5," * 30_000))
