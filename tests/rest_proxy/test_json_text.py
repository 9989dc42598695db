"""The JSON text of keys and values. What is expected here was written by Jackson 2.15, on Java 17."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sampleapp.errors import MalformedMessage
from sampleapp.rest_proxy import Unserializable
from tests.rest_proxy.reading import contents_of, text_of
from tests.support import strategies


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("1", "1"),
        ("-0", "0"),
        ("-7", "-7"),
        ("9223372036854775808", "9223372036854775808"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("7" * 900, "7" * 900),
        ("1.0", "1.0"),
        ("1.50", "1.5"),
        ("-0.0", "-0.0"),
        ("0e5", "0.0"),
        ("1E+3", "1000.0"),
        ("9999999.5", "9999999.5"),
        ("1e7", "1.0E7"),
        ("12345678.5", "1.23456785E7"),
        ("-12345678.5", "-1.23456785E7"),
        ("0.001", "0.001"),
        ("0.00099", "9.9E-4"),
        ("1e-5", "1.0E-5"),
        ("2e-3", "0.002"),
        ("1.0e16", "1.0E16"),
        ("123456789012345678901234567890.5", "1.2345678901234568E29"),
        ("3.141592653589793238", "3.141592653589793"),
        ("2.2250738585072014E-308", "2.2250738585072014E-308"),
        ("1.7976931348623157e308", "1.7976931348623157E308"),
        ("5e-324", "4.9E-324"),
        ("1e-400", "0.0"),
    ],
)
def test_a_number_has_the_text_that_jackson_gives_it(written, text):
    assert text_of(written) == text.encode()
    # A lone surrogate beside it makes no difference.
    assert text_of(rf'["\ud800",{written}]') == rf'["\uD800",{text}]'.encode()


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (r'"a\/b"', '"a/b"'),
        (r'"\u00e9\u00E9é"', '"ééé"'),
        (r'"\u0000\u0001\u001f\u007f\b\t\n\f\r"', '"\\u0000\\u0001\\u001F\x7f\\b\\t\\n\\f\\r"'),
        (r'"\\u001f"', r'"\\u001f"'),
        (r'"\\\u001f"', r'"\\\u001F"'),
        (r'"\u2028<>&\u0022"', '"\u2028<>&\\""'),
        ('"\\ud83d\\ude00 \N{GRINNING FACE}"', r'"\uD83D\uDE00 \uD83D\uDE00"'),
        (r'"\ud800"', r'"\uD800"'),
        (r'"\udc00x"', r'"\uDC00x"'),
        ('{"\\ud83d\\ude00":1}', r'{"\uD83D\uDE00":1}'),
        ('""', '""'),
    ],
)
def test_a_string_keeps_its_quotes_and_is_escaped_as_by_jackson(written, text):
    assert text_of(written) == text.encode()
    assert text_of(rf'["\ud800",{written}]') == rf'["\uD800",{text}]'.encode()


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ('{"b": 1 , "a" : [ 1, 2 , {} , [] ] }', '{"b":1,"a":[1,2,{},[]]}'),
        ('{"b":1,"a":2,"b":3}', '{"b":3,"a":2}'),
        ('{"":null,"x":true,"y":false}', '{"":null,"x":true,"y":false}'),
        ("false", "false"),
        ("0", "0"),
        ("[]", "[]"),
        ("{}", "{}"),
    ],
)
def test_members_stay_in_order_without_white_space(written, text):
    assert text_of(written) == text.encode()
    assert text_of(rf'["\ud800",{written}]') == rf'["\uD800",{text}]'.encode()


@pytest.mark.parametrize("written", ["1e400", "-1e400", '{"a":[1e309]}'])
def test_a_number_that_no_double_can_hold_is_refused(written):
    with pytest.raises(Unserializable, match='records\\[0\\] has a number in its "value" that is too large'):
        text_of(written)


@pytest.mark.parametrize("written", ["NaN", "01", "[1,]", '"\t"', "'a'", '"\\x"', "tru", "[" * 100_000])
def test_what_is_no_json_is_refused(written):
    with pytest.raises(MalformedMessage):
        text_of(written)


def as_jackson(value):
    """Python's own JSON, for values without floats, with those escapes that differ."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    text = re.sub(
        "[\U00010000-\U0010ffff]",
        lambda match: json.dumps(match[0]).strip('"').replace("\\u", "\0").upper().replace("\0", "\\u"),
        text,
    )
    return re.sub(r"(\\u00)([0-9a-f]{2})|(\\.)", lambda m: m[3] or m[1] + m[2].upper(), text).encode("utf-8")


json_without_floats = st.recursive(
    st.none() | st.booleans() | st.integers() | strategies.texts,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(strategies.texts, children, max_size=3),
    max_leaves=8,
)
separators = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t: ")])


@given(key=json_without_floats, value=json_without_floats, separators=separators, ensure_ascii=st.booleans())
@example(key={"\x1f\\u001f": "\U0001f600"}, value=None, separators=(",", ":"), ensure_ascii=True)
def test_keys_and_values_are_compact_json_however_they_were_written(key, value, separators, ensure_ascii):
    body = json.dumps(
        {"records": [{"key": key, "value": value}]}, separators=separators, ensure_ascii=ensure_ascii
    )
    expected = [None if each is None else as_jackson(each) for each in (key, value)]
    assert contents_of(body.encode("utf-8")) == [(*expected, None)]


@given(strategies.finite_numbers)
@example(5e-324)
@example(1e23)
@example(-2e-323)
def test_the_text_of_a_double_reads_back_as_the_same_double_and_is_in_javas_form(number):
    text = text_of(json.dumps(number)).decode("ascii")
    assert float(text) == number
    assert re.fullmatch(r"-?(?:0|[1-9][0-9]{0,6})\.[0-9]+|-?[1-9]\.[0-9]+E-?[1-9][0-9]*", text)
    if number:
        assert ("E" in text) == (not 1e-3 <= abs(number) < 1e7)
