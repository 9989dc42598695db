"""Schemas of topics: which files are schemas, and which contents match."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sampleapp.errors import StartUpError
from sampleapp.messages.schemas import compile_schemas
from tests.support.in_memory import schemas_of


def schema_of(schema):
    return schemas_of({"t": schema})["t"]


def faults(schema, content):
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return all_faults(schema_of(schema), text)


def all_faults(compiled, content):
    return [[], *compiled.faults(content)][-1]


def mistake_in(files):
    encoded = {
        name: each if isinstance(each, bytes) else json.dumps(each).encode() for name, each in files.items()
    }
    with pytest.raises(StartUpError) as caught:
        compile_schemas(encoded, directory="/etc/schemas")
    return str(caught.value)


names = st.sampled_from(["a", "b", "c/d", "e~f", "g:"])
numbers = st.integers(-5, 5) | st.floats(-5, 5, width=16)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text('ab:\\"é', max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)
simple_schemas = st.one_of(
    st.booleans(),
    st.builds(
        lambda kinds: {"type": kinds},
        st.lists(
            st.sampled_from(["array", "boolean", "integer", "null", "number", "object", "string"]),
            min_size=1,
            max_size=3,
            unique=True,
        ),
    ),
    st.builds(lambda value: {"const": value}, values),
    st.builds(lambda some: {"enum": some}, st.lists(values, min_size=1, max_size=3)),
    st.builds(
        lambda low, high: {"minimum": low, "exclusiveMaximum": high}, st.integers(-5, 5), st.integers(-5, 5)
    ),
    st.builds(lambda low, high: {"minLength": low, "maxLength": high}, st.integers(0, 2), st.integers(0, 2)),
    st.builds(lambda pattern: {"pattern": pattern}, st.sampled_from(["^a", "b$", "^[ab]*$", ":"])),
    st.builds(
        lambda low, high: {"minItems": low, "maxProperties": high}, st.integers(0, 2), st.integers(0, 2)
    ),
    st.just({"uniqueItems": True}),
)
schemas = st.recursive(
    simple_schemas,
    lambda inner: st.one_of(
        st.builds(
            lambda properties, required, others: {
                "properties": properties,
                "required": required,
                "additionalProperties": others,
            },
            st.dictionaries(names, inner, max_size=3),
            st.lists(names, max_size=2, unique=True),
            inner,
        ),
        st.builds(lambda first, items: {"prefixItems": [first], "items": items}, inner, inner),
        st.builds(
            lambda of, some: {of: some},
            st.sampled_from(["anyOf", "oneOf", "allOf"]),
            st.lists(inner, min_size=1, max_size=3),
        ),
        st.builds(lambda each: {"not": each}, inner),
        st.builds(lambda each: {"contains": each}, inner),
    ),
    max_leaves=8,
)


@given(schemas, values)
def test_contents_match_exactly_when_another_implementation_says_so(schema, value):
    expected = Draft202012Validator(schema).is_valid(value)
    found = faults(schema, value)
    assert (not found) is expected
    text = json.dumps(value).encode()
    compiled = schema_of(schema)
    assert compiled.matches_at_once(text) is (expected and len(text) <= compiled.longest_at_once)
    assert all(each.detail.endswith(".") and (not each.pointer or each.pointer[0] == "/") for each in found)


@given(st.dictionaries(names, st.integers() | st.none(), max_size=5), st.lists(names, unique=True))
def test_pointers_name_every_wrong_and_every_missing_member(content, required):
    found = faults({"required": required, "additionalProperties": {"type": "integer"}}, content)
    wrong = {name for name, value in content.items() if value is None} | set(required) - set(content)
    assert {each.pointer for each in found} == {
        "/" + name.replace("~", "~0").replace("/", "~1") for name in wrong
    }


@pytest.mark.parametrize(
    ("schema", "content", "detail"),
    [
        ({"type": ["string", "null"]}, 1, "The content must be null or a string."),
        ({"enum": ["a", 1]}, 2, 'The content must be one of "a", 1.'),
        ({"items": {"multipleOf": 0.5}}, [0.7], "Item 0 must be a multiple of 0.5."),
        (
            {"properties": {"a": False}},
            {"a": 1},
            '"a" has a value, or a member, that the schema does not allow.',
        ),
        (
            {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 7}]},
            1,
            (
                "The content must match one of the schemas under anyOf: The content must be a string; or: "
                "The content must be at least 7."
            ),
        ),
        ({"oneOf": [True, True]}, 1, "The content must match only one of the schemas under oneOf."),
        ({"unevaluatedProperties": False}, {"x": 1}, '"x" is not allowed by the schema; omit it.'),
    ],
)
def test_each_fault_says_what_would_be_right(schema, content, detail):
    assert [each.detail for each in faults(schema, content)] == [detail]


def test_numbers_are_those_of_json():
    assert not faults({"type": "integer"}, b"1.0")
    assert not faults({"type": "integer"}, b"123456789012345678901234567890")
    assert faults({"type": "integer"}, b"0.5")


@pytest.mark.parametrize(
    ("files", "mistake"),
    [
        ({"t.json": b'{"type":'}, "--schemas: /etc/schemas/t.json: The file is not JSON: "),
        ({"t.json": b""}, "--schemas: /etc/schemas/t.json: it is empty; "),
        ({"t.json": [1]}, "/etc/schemas/t.json: it is not a schema, which is an object, true or false."),
        ({"t.json": "a"}, "/etc/schemas/t.json: it is not a schema, which is an object, true or false."),
        ({"t.json": b'{"type":"string","type":"number"}'}, "t.json: a member is there more than once; "),
        ({"t.json": b'{"const":"\\ud800"}'}, "t.json: a string has a lone surrogate, which has no form in"),
        ({"t.json": {"$id": "http://[::1"}}, "/etc/schemas/t.json: Invalid URI reference 'http://[::1'"),
        (
            {"t.json": {"$ref": "http://[::1"}},
            "at /$ref: refers to http://[::1, which is not in the directory",
        ),
        (
            {"t.json": {"properties": {"a/b": {"minimum": "x"}}}},
            "--schemas: /etc/schemas/t.json, at /properties/a~1b/minimum: ",
        ),
        (
            {"t.json": {"pattern": "("}},
            '--schemas: /etc/schemas/t.json, at /pattern: "pattern" must have the format "regex".',
        ),
        ({"t.json": {"$schema": "https://example.org/other"}}, "https://example.org/other"),
        (
            {"t.json": {"items": {"$ref": "https://example.org/other"}}},
            (
                "--schemas: /etc/schemas/t.json, at /items/$ref: refers to https://example.org/other, which "
                "is not in the directory; references must be to a place in its files, and nothing is fetched."
            ),
        ),
        ({"t.json": {"$ref": "../../etc/passwd"}}, "at /$ref: refers to ../../etc/passwd, which is not in"),
        ({"t.json": {"$ref": "#/$defs/none"}}, "at /$ref: refers to #/$defs/none, which is not in"),
        ({"t.json": True, "common/a.json": {"type": "strin"}}, "/etc/schemas/common/a.json, at /type: "),
        ({"t.json": {"$id": "urn:a"}, "u.json": {"$id": "urn:a"}}, "u.json, at /$id: is that of t.json, too"),
        ({"a b.json": True}, "/etc/schemas/a b.json: its name is not that of a topic with .json"),
        ({}, "--schemas: /etc/schemas has no schema; the file TOPIC.json in it is the schema of that topic."),
        ({"common/a.json": True}, "--schemas: /etc/schemas has no schema"),
    ],
)
def test_a_file_that_is_no_schema_is_named_with_its_place(files, mistake):
    assert mistake in mistake_in(files)


@pytest.mark.parametrize(
    "reference", ["common/address.json", "https://example.org/address", "common/address.json#/$defs/a"]
)
def test_references_lead_to_the_other_files(reference):
    address = {"$id": "https://example.org/address", "type": "string", "$defs": {"a": {"type": "string"}}}
    files = {"t": {"properties": {"to": {"$ref": reference}}}, "common/address": address}
    schema = schemas_of(files)["t"]
    assert not all_faults(schema, b'{"to":"x"}')
    (fault,) = all_faults(schema, b'{"to":1}')
    assert (fault.pointer, fault.detail) == ("/to", '"to" must be a string.')
    assert set(schemas_of(files)) == {"t"}


def test_the_draft_is_the_one_that_the_schema_names():
    tuple_of_draft_7 = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "integer"}]}
    assert [each.pointer for each in faults(tuple_of_draft_7, ["x"])] == ["/0"]


def test_a_pattern_that_takes_too_many_steps_is_said():
    (fault,) = faults({"pattern": "^(a|a)*(?!b)c$"}, "a" * 2000)
    assert fault.detail == "The content takes too many steps to be matched with a pattern of the schema."


LINEAR = {"properties": {"a": {"type": "string", "pattern": "^[a-z]+$"}, "b": {"$ref": "#/$defs/b"}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"uniqueItems": True},
        {"properties": {"a": {"items": {"multipleOf": 0.01}}}},
        {"enum": ["a", 1]},
        {"const": [{"a": 0.5}]},
        {"pattern": "^(?=a)b"},
        {"pattern": "a.{1,999}c"},
        {"patternProperties": {"^a": True}},
        {"unevaluatedProperties": False},
        {"items": {"$ref": "#"}},
        {"$dynamicRef": "#a", "$defs": {"a": {"$dynamicAnchor": "a"}}},
        {"$ref": "#a", "$defs": {"a": {"$anchor": "a"}}},
        {"anyOf": [{"minimum": n} for n in range(2000)]},
        {
            "$ref": "#/$defs/d0",
            "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
            | {"d40": True},
        },
        {"$schema": "http://json-schema.org/draft-07/schema#", "format": "regex"},
    ],
)
def test_nothing_is_checked_at_once_by_a_schema_that_may_take_long(schema):
    assert schema_of(schema).longest_at_once == 0
    assert not schema_of(schema).matches_at_once(b"0")


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"$defs": {"b": {"minimum": 0.5, "x-unit": "m"}}, **LINEAR},
        {
            "$id": "https://example.org/t",
            "anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}],
        },
        {
            "type": "object",
            "required": ["a"],
            "additionalProperties": False,
            "properties": {"a": {"enum": ["b", None, True]}},
        },
    ],
)
def test_short_contents_are_checked_at_once_by_ordinary_schemas(schema):
    assert schema_of(schema).longest_at_once >= 512


def test_a_larger_schema_checks_only_shorter_contents_at_once():
    large = schema_of({"properties": {f"p{n}": {"minimum": n} for n in range(300)}})
    assert 0 < large.longest_at_once < 512
    assert large.matches_at_once(b"{}")
    assert not large.matches_at_once(b"{}" + b" " * 512)


@pytest.mark.parametrize("number", [b"1e308", b"1E-308", b"[5e5]"])
def test_numbers_with_an_exponent_are_not_checked_at_once(number):
    schema = schema_of({})
    assert not schema.matches_at_once(number)
    assert not all_faults(schema, number)
    assert schema.matches_at_once(b'["1e308",0.5]')


# Each took a second or more when all faults were collected.
HOSTILE = {
    "nested repetition": ({"pattern": "^(a+)+$"}, "a" * 1_000_000 + "b"),
    "many faults": ({"items": {"type": "string"}}, list(range(100_000))),
    "many objects": ({"items": {"type": "string"}}, [{}] * 300_000),
    "many missing members": ({"required": [f"m{n}" for n in range(1000)]}, {"a": ["x"] * 20_000}),
    "long names": ({"additionalProperties": False, "properties": {}}, {"n" * 900_000 + "1": 1}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_faults_of_a_large_content_are_bounded(name):
    schema, content = HOSTILE[name]
    found = faults(schema, content)
    assert 1 <= len(found) <= 100
    assert sum(len(each.pointer) + len(each.detail) for each in found) < 100_000


def test_the_first_fault_is_known_before_all():
    assert [len(each) for each in schema_of({"items": {"maximum": 3}}).faults(b"[1,5,6,7]")] == [1, 3]


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    assert mistake_in({"t.json": True}) == (
        "--schemas needs the package jsonschema-rs, which is not installed: install "
        "sampleapp-http-gateway[schemas]."
    )


def test_files_of_any_name_and_long_chains_of_references_are_compiled():
    chain = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(3000)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**chain, "d3000": {"type": "string"}}}
    compiled = schemas_of({"t": schema, "sub/\udcff": True})["t"]
    assert [each.detail for each in all_faults(compiled, b"1")] == ["The content must be a string."]
