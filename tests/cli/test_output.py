"""Making visible what a terminal would obey."""

from __future__ import annotations

import json
import unicodedata

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.cli._output import escaped_json
from sampleapp.errors import visible

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
texts = st.text(st.characters() | st.sampled_from(["\x1b", "\x07", "\x7f", "\x9b", "\\", "é", *BIDI]))


def is_obeyed(character):
    return unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} or character in BIDI


@given(text=texts)
def test_nothing_is_left_that_a_terminal_obeys(text):
    assert not any(is_obeyed(character) for character in visible(text) if character not in "\n\t")


@given(text=texts)
def test_everything_else_stays_as_it_is(text):
    kept = "".join(c for c in text if not is_obeyed(c) or c in "\n\t")
    assert visible(kept) == kept


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b]0;x\x07", r"\x1b]0;x\x07"),
        ("a\x9bb\x7f", r"a\x9bb\x7f"),
        ("\u202etxt", r"\u202etxt"),
        ("\ud800", r"\ud800"),
        ("a\r\n", "a\\r\n"),
    ],
)
def test_what_is_escaped_can_be_recognised(text, expected):
    assert visible(text) == expected


@given(text=st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(["\x9b", "\x7f", *BIDI])))
def test_escaped_json_has_the_same_value_and_nothing_that_a_terminal_obeys(text):
    escaped = escaped_json(msgspec.json.encode({"value": text}) + b"\n")
    assert json.loads(escaped) == {"value": text}
    assert not any(is_obeyed(character) for character in escaped.decode().removesuffix("\n"))
