"""Which version of the readings a caller gets."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sampleapp.web.negotiation import asks_for_stream, choose_version
from tests.support import strategies
from tests.support.examples import examples

V2 = b"application/vnd.sampleApp.v2+json"


@pytest.mark.parametrize(
    ("accept", "version"),
    [
        (None, 1),
        (b"", 1),
        (b"*/*", 1),
        (b"application/*", 1),
        (b"application/json", 1),
        (b"text/html", 1),
        (V2, 2),
        (V2.upper(), 2),
        (V2 + b";q=0.001", 2),
        (V2 + b";q=0", 1),
        (V2 + b"; charset=utf-8", 2),
        (V2 + b', application/json;q=0.9, */*;q="', 1),
        (V2 + b", application/json", 2),
        (b"application/json, " + V2, 2),
        (b"*/*, " + V2, 2),
        (V2 + b";q=0.5, application/json", 1),
        (V2 + b";q=0.5, application/*", 1),
        (V2 + b";q=0.5, */*", 1),
        (V2 + b";q=0.5, */*;q=0.4", 2),
        # The most specific range says how welcome version 1 is (RFC 9110, section 12.5.1).
        (V2 + b";q=0.5, application/json;q=0.1, */*;q=1", 2),
        (V2 + b";q=0.5, text/html", 2),
        (b"application/vnd.sampleApp.v3+json", 1),
        (V2 + b"x", 1),
        (b"," + V2 + b", ,", 2),
        (V2 + b";", 2),
        # A malformed header is not guessed at.
        (V2 + b";q=banana", 1),
        (V2 + b";q=2", 1),
        (V2 + b";q=0.1234", 1),
        (V2 + b";q", 1),
        (V2 + b";q=0.5;q=1", 1),
        (V2 + b" application/json", 1),
        (V2 + b"; a = b", 1),
        (V2 + b', "', 1),
        (V2 + b", */json", 1),
        (V2 + b", text", 1),
        (b"\xff" + V2, 1),
    ],
)
def test_the_header_chooses_the_version(accept, version):
    assert choose_version(accept) == version


def version_by_meaning(elements):
    """Return the choice as the specification words it, from elements that need no parsing."""
    named = [thousandths for name, thousandths, _ in elements if name == V2.decode().lower()]
    if not named or max(named) == 0:
        return 1
    for rival in ("application/json", "application/*", "*/*"):
        weights = [thousandths for name, thousandths, _ in elements if name == rival]
        if weights:
            return 1 if max(weights) > max(named) else 2
    return 2


@examples(200)
@given(strategies.accept_elements)
def test_any_header_by_the_grammar_is_read_by_its_meaning(elements):
    accept = ",".join(element.text for element in elements).encode("ascii")
    assert choose_version(accept) == version_by_meaning(elements)


# The grammar of RFC 9110 as one expression, and so quite another way to read a header. It is slow on
# purpose-made input, which is why the product does not work so.
TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
QUOTED = r'"(?:[\t !\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t\x20-\x7e\x80-\xff])*"'
PARAMETERS = rf"(?:[ \t]*;[ \t]*(?:{TOKEN}(?:=(?:{TOKEN}|{QUOTED}))?)?)*"
ELEMENT = rf"(?:\*/\*|(?!\*/){TOKEN}/{TOKEN}){PARAMETERS}"
HEADER = re.compile(rf"[ \t,]*(?:{ELEMENT}(?:[ \t]*,[ \t,]*{ELEMENT})*)?[ \t,]*")
WEIGHT = re.compile(r"(?:^|;)[ \t]*q(?:=([^;\t ]*))?[ \t]*(?=;|$)", re.IGNORECASE)


def version_by_expressions(accept):
    text = accept.decode("latin-1")
    if not HEADER.fullmatch(text):
        return 1
    elements = []
    for match in re.finditer(rf"(?P<name>{TOKEN}/{TOKEN})(?P<parameters>{PARAMETERS})", text):
        parameters = re.sub(QUOTED, '""', match["parameters"])
        weights = WEIGHT.findall(parameters)
        if len(weights) > 1 or any(not re.fullmatch(r"0(\.\d{0,3})?|1(\.0{0,3})?", w) for w in weights):
            return 1
        thousandths = round(1000 * float(weights[0])) if weights else 1000
        elements.append((match["name"].lower(), thousandths, None))
    return version_by_meaning(elements)


@examples(300)
@given(strategies.accept_like | strategies.field_bytes)
@example(V2 + b';a="\\""')
@example(V2 + b";q=1;;")
def test_any_bytes_at_all_are_read_as_the_grammar_reads_them(accept):
    assert choose_version(accept) == version_by_expressions(accept)


@given(st.binary(max_size=40).filter(lambda value: b"v2" not in value.lower()))
def test_nobody_gets_version_2_without_naming_it(accept):
    assert choose_version(accept) == 1


@pytest.mark.parametrize(
    "piece", [b" ;", b"; ", b",", b" ", b'"', b'a="\\', b"\\", b"a/b;q=1,", b";a=b", b"*/"]
)
def test_an_odd_header_costs_no_more_than_its_length(piece):
    # With a cost that is quadratic in the length, or worse, this would not end within a day.
    assert choose_version(b"a/b" + piece * 1_000_000 + b"\x00") == 1


STREAM = b"text/event-stream"


@pytest.mark.parametrize(
    ("accept", "is_stream"),
    [
        (None, False),
        (b"", False),
        (b"*/*", False),
        (b"text/*", False),
        (b"application/x-ndjson", False),
        (STREAM, True),
        (STREAM.upper(), True),
        (STREAM + b"; charset=utf-8", True),
        (STREAM + b";q=0.001", True),
        (STREAM + b";q=0", False),
        (STREAM + b", */*", True),
        (STREAM + b", application/x-ndjson", True),
        (STREAM + b";q=0.9, application/x-ndjson", False),
        (STREAM + b";q=0.9, application/json", False),
        (STREAM + b";q=0.9, application/jsonl", False),
        (STREAM + b";q=0.9, */*", False),
        (STREAM + b";q=0.9, application/*", False),
        (STREAM + b";q=0.9, text/*", False),
        # The greatest weight counts, also beside a more specific range.
        (STREAM + b";q=0.5, application/json;q=0.1, */*;q=0.8", False),
        (STREAM + b";q=0.9, text/html, image/*", True),
        (STREAM + b";q=0.5, " + STREAM + b", */*;q=0.8", True),
        (STREAM + b", */json", False),
        (STREAM + b";q=2", False),
    ],
)
def test_the_header_chooses_between_a_stream_and_a_page(accept, is_stream):
    assert asks_for_stream(accept) == is_stream
