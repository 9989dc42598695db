"""The members of a JSON object, found without decoding what is in them."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sampleapp.json_members import emptied, first_members, is_intricate, require_json_text, written_object
from tests.support import strategies

# With what a decoder might take for an end, or for a half of something.
texts = strategies.texts | st.sampled_from(
    ['"', "\\", '\\"', "},{", '":', "\ud800", "\udfff", "a\ud83d", "\N{GRINNING FACE}", "\\ud800", '\\"' * 30]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | strategies.finite_numbers | texts,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(texts, children, max_size=3),
    max_leaves=6,
)
members = st.lists(st.tuples(texts, values), max_size=6)
blanks = st.sampled_from(["", "", " ", "\n\t", "\r\n"])


@st.composite
def objects(draw):
    """An object, as it is written and as a list of pairs, which may have names that come again."""
    pairs = draw(members)
    # What is beyond ASCII may be an escape or not; a surrogate can only be one.
    written = [
        f"{draw(blanks)}{json.dumps(name)}{draw(blanks)}:{draw(blanks)}{json.dumps(value)}{draw(blanks)}"
        for name, value in pairs
    ]
    text = f"{draw(blanks)}{{{','.join(written) or draw(blanks)}}}{draw(blanks)}"
    return text.encode(), pairs


def decoded(found):
    return [(json.loads(name), json.loads(value)) for name, value in found]


@given(objects(), st.integers(1, 7))
def test_as_many_members_as_are_wanted_are_found_in_order(described, most):
    text, pairs = described
    require_json_text(text)
    assert decoded(first_members(text, most=most)) == pairs[:most]


@given(objects())
def test_an_object_is_written_of_its_members(described):
    text, _ = described
    assert json.loads(written_object(first_members(text, most=10))) == json.loads(text)


@given(values)
def test_only_what_is_in_arrays_and_objects_is_left_out(value):
    kept = json.loads(emptied(json.dumps(value).encode()))
    assert kept == (type(value)() if isinstance(value, list | dict) else value)


@given(values, st.integers(0, 100), st.binary(max_size=2))
@example(10**30, 0, b"")
@example(1e300, 0, b"")
@example("\ud800", 1, b"")
def test_what_is_json_is_what_python_takes_for_json(value, position, put_in):
    text = json.dumps(value).encode()
    text = text[:position] + put_in + text[position:]
    try:
        json.loads(text.decode(), parse_constant=int)
    except ValueError:
        with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
            require_json_text(text)
    else:
        require_json_text(text)


def test_what_is_nested_too_deeply_is_told_apart():
    with pytest.raises(RecursionError):
        require_json_text(b"[" * 200_000)


@pytest.mark.parametrize("piece", [b'"",', b"[],", b"{},", b"1,"])
def test_what_takes_long_to_decode_is_intricate_and_what_is_long_is_not(piece):
    assert is_intricate(piece * 30_000)
    assert not is_intricate(piece * 1000)
    assert not is_intricate(piece + b"x" * 2**20)
