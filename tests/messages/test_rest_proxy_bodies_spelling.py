"""The JSON that produce requests accept, and the JSON text that keys and values become."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sampleapp.errors import InvalidMessage, MalformedMessage
from sampleapp.messages.rest_proxy_bodies import EmbeddedFormat
from tests.messages.reading import contents_of, records_of

LONG = b" " * 70_000
"""Makes a body one that is read in several steps."""

blanks = st.text(" \t\n\r", max_size=2)
numbers = st.sampled_from(
    ["0", "-0", "1.0", "-0.0", "1e400", "1E+5", "0.10", "123456789012345678901234567890", "7" * 5000]
) | st.from_regex(
    r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", fullmatch=True, alphabet="-+.eE0123456789"
)
_CHARACTERS = [
    *" :,{}[]/0a\x7fé\N{GRINNING FACE}",
    r"\"",
    r"\\",
    r"\/",
    r"\u00e9",
    r"\n",
    r"\ud83d\uDE00",
    r"\\ud800",
]
strings = st.lists(st.sampled_from(_CHARACTERS), max_size=6).map(lambda parts: f'"{"".join(parts)}"')


def _joined(opening, closing, each):
    return st.builds(
        lambda items, after: opening + after + ",".join(items) + closing, st.lists(each, max_size=3), blanks
    )


def _with_blanks(*parts):
    return st.tuples(*[each for part in parts for each in (blanks, part)], blanks).map("".join)


texts = st.recursive(
    st.sampled_from(["null", "true", "false"]) | numbers | strings,
    lambda children: (
        _joined("[", "]", _with_blanks(children))
        | _joined("{", "}", _with_blanks(strings, st.just(":"), children))
    ),
    max_leaves=8,
)
"""JSON in all its spellings, with white space wherever it may be, and members that come again."""


def compact(text):
    """Leave out white space, token by token."""
    return "".join(re.findall(r'"(?:[^"\\]|\\.)*"|[^\s"]', text)).encode()


@given(key=texts, value=texts, around=blanks, long=st.booleans())
@example(key='" "', value='{"a" : 1.0, "a":[ ]}', around="", long=False)
def test_keys_and_values_keep_their_spelling_and_lose_white_space(key, value, around, long):
    body = f'{{"records":[{{"key":{key},{around}"value":{value}}}{around}]}}'.encode() + LONG * long
    expected = [None if text == "null" else compact(text) for text in (key, value)]
    assert contents_of(body) == [(*expected, None)]


SPELLINGS = [
    "1.0",
    "1e400",
    "-0",
    "1E+5",
    "123456789012345678901234567890",
    r'"\u00e9\/\u001F"',
    '"\x7f é"',
    '""',
]


@pytest.mark.parametrize("text", [*SPELLINGS, '{"a":1,"a":2}', r'"\ud83d\ude00"', "[]"])
def test_what_has_no_white_space_is_kept_byte_for_byte(text):
    for blank in (b"", b" "):
        assert contents_of(b'{"records":[{"value":%b}%b]}' % (text.encode(), blank)) == [
            (None, text.encode(), None)
        ]


def is_json(body):
    """Python's own decoder, which takes lone surrogates, some numbers that are none, and other encodings."""

    def reject(name):
        raise ValueError(name)

    try:
        json.dumps(
            json.loads(body.decode(), parse_constant=reject, parse_int=str, parse_float=str),
            ensure_ascii=False,
        ).encode()
    except ValueError:
        return False
    return True


NO_JSON = [
    rb'"\q"',
    b'"\xff"',
    b"01",
    b'"\n"',
    b'"\x00"',
    rb'"\ud800"',
    rb'"\udc00\ud800"',
    b'"\xed\xa0\x80"',
]
NO_JSON += [b'"\xc0\x80"', rb'"\u00g0"', b"NaN", b"-Infinity", b"1.", b".5", b"+1", b"'a'", b"[1,]", b"[1 2]"]
NO_JSON += [b'{"a"}', b'{"a":1,}', b"{1:2}", b"tru", b"", b"//", b"\xef\xbb\xbf1", b"[" * 100_000]
ODD_JSON = [b"[1]", b'{"a":[]}', b"1e999", b'"]}"', b"[{},[]]", b"-0.0", rb'"\ud83d\ude00"', b"null", b"0 \r"]


@pytest.mark.parametrize("embedded", EmbeddedFormat)
@pytest.mark.parametrize("after", [b"", b" ", LONG], ids=["compact", "blank", "long"])
def test_schemas_may_be_any_json_but_nothing_else(embedded, after):
    for name in (b"key_schema", b"value_schema_id"):
        for form in (b'{"%b":%b,"records":[{"value":null}]}%b', b'{"records":[{"value":null}],"%b":%b}%b'):
            for value in ODD_JSON:
                assert contents_of(form % (name, value, after), embedded) == [(None, None, None)]
            for value in NO_JSON:
                body = form % (name, value, after)
                with pytest.raises(MalformedMessage, match="The body is not JSON"):
                    records_of(body, embedded)


@pytest.mark.parametrize("value", [each for each in NO_JSON if each])
def test_a_value_that_is_not_json_is_rejected(value):
    for more in (b"", b" ", b',"x":1', LONG):
        with pytest.raises(MalformedMessage, match="The body is not JSON"):
            records_of(b'{"records":[{"value":%b%b}]}' % (value, more))


_PIECES = ['{"records":[', '{"value":', '"key_schema":', "]}", *'{}[],: "\\\n\0-.e01', "null", '"Zg=="']
_PIECES += [r"\ud800", r"\ud83d\ude00", r"\u00e9", "é"]


@given(
    embedded=st.sampled_from(EmbeddedFormat),
    pieces=st.lists(st.sampled_from(_PIECES), max_size=12),
    more=st.sampled_from([b"", b"", b"\xff", LONG]),
)
@example(embedded=EmbeddedFormat.JSON, pieces=['{"records":[{"value":"', r"\ud800", '"}]}'], more=b"")
def test_a_body_is_called_json_when_it_is(embedded, pieces, more):
    body = "".join(pieces).encode() + more
    try:
        records_of(body, embedded)
    except MalformedMessage:
        assert not is_json(body)
    except InvalidMessage:
        assert is_json(body)
    else:
        assert is_json(body)


@pytest.mark.parametrize("value", [rb"\ud800", rb"x\udc00y", rb"\ud83d\ud83d"])
def test_a_lone_surrogate_is_never_called_the_end(value):
    for tail in (b'"}]}', b'"}],"key_schema":null}'):
        with pytest.raises(MalformedMessage, match=r"surrogate|hex escape"):
            records_of(b'{"records":[{"value":"' + value + tail)
