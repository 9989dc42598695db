"""JSON texts, checked without decoding their values."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sampleapp.errors import MalformedMessage
from sampleapp.messages.json_text import LARGE, JSONObject, decode_json, require_json
from tests.support import strategies

texts = strategies.texts | st.sampled_from(
    ['"', "\\", '\\"', "},{", '":', "\ud800", "\udfff", "a\ud83d", "\N{GRINNING FACE}", "\\ud800", '\\"' * 30]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | strategies.finite_numbers | texts,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(texts, children, max_size=3),
    max_leaves=6,
)


@given(values, st.integers(0, 100), st.binary(max_size=2), st.sampled_from(["", " " * LARGE]))
@example(10**30, 0, b"", "")
@example(1e300, 0, b"", "")
@example("\ud800", 1, b"", "")
def test_a_text_is_json_exactly_if_python_decodes_it(value, position, inserted, spaces):
    text = json.dumps(value).encode()
    text = text[:position] + inserted + text[position:] + spaces.encode()
    try:
        json.loads(text.decode(), parse_constant=int)
    except ValueError:
        with pytest.raises(MalformedMessage, match=r"^The line is "):
            require_json(text, source="line")
    else:
        require_json(text, source="line")


@pytest.mark.parametrize("length", [LARGE, 200_000])
def test_a_text_that_is_nested_too_deeply_is_rejected(length):
    with pytest.raises(MalformedMessage, match="The body is nested too deeply"):
        require_json(b"[" * length)


def test_a_repeated_member_is_decoded_each_time():
    decoded = decode_json(b'{"a":{"b":1,"b":2},"a":[]}')
    assert decoded == JSONObject([("a", JSONObject([("b", 1), ("b", 2)])), ("a", [])])
