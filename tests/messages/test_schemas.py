"""Schemas of topics: which files are schemas, and which contents match."""

from __future__ import annotations

import gc
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
    return schema_of(schema).faults(text)


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
    assert schema_of(schema).matches(json.dumps(value).encode()) is expected
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
    assert not schema.faults(b'{"to":"x"}')
    (fault,) = schema.faults(b'{"to":1}')
    assert (fault.pointer, fault.detail) == ("/to", '"to" must be a string.')
    assert set(schemas_of(files)) == {"t"}


def test_the_draft_is_the_one_that_the_schema_names():
    tuple_of_draft_7 = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "integer"}]}
    assert [each.pointer for each in faults(tuple_of_draft_7, ["x"])] == ["/0"]


DEEP = {"y": 1}
for _ in range(200):
    DEEP = {"c": DEEP, "x": 1}
BRANCH = {"properties": {"c": {"$ref": "#"}}, "required": ["x"]}
HOSTILE = {
    "look-around": ({"pattern": "^(a|a)*(?!b)c$"}, "a" * 30_000),
    "nested repetition": ({"pattern": "^(a+)+$"}, "a" * 1_000_000 + "b"),
    "recursive alternatives": ({"anyOf": [BRANCH, {**BRANCH, "minProperties": 0}]}, DEEP),
    "recursion in another file": (
        {"anyOf": [{"properties": {"c": {"$ref": "t.json"}}, "required": ["x"]}] * 3},
        DEEP,
    ),
    "many faults": ({"items": {"type": "string"}}, list(range(100_000))),
    "many fractions": ({"items": {"enum": [n + 0.5 for n in range(200)]}}, [199.5] * 100_000),
    "look-around from each character": ({"pattern": "(?=.*[0-9])(?=.*[a-z]).{8,}x"}, "a" * 900_000),
    "many objects": ({"items": {"type": "string"}}, [{}] * 300_000),
    "one wrong item of many": ({"items": {"anyOf": [{"type": "object"}] * 50}}, [{}] * 20_000 + [1]),
    "many missing members": ({"required": [f"m{n}" for n in range(1000)]}, {"a": ["x"] * 20_000}),
    "long names": ({"additionalProperties": False, "properties": {}}, {"n" * 900_000 + "1": 1}),
}


@pytest.mark.parametrize("pattern", ["^(?=.*[0-9])[a-z0-9]+$", r"^([a-z])[a-z]*\d\1*$"])
def test_a_pattern_with_look_around_or_back_references_takes_short_contents_only(pattern):
    schema = {"properties": {"name": {"pattern": pattern}}}
    assert not faults(schema, {"name": "a1"})
    assert [each.pointer for each in faults(schema, {"name": "a"})] == ["/name"]
    assert not faults(schema, {"name": "a1", "text": "a" * 2000})
    (fault,) = faults(schema, {"name": "a1", "text": "a" * 2100})
    assert fault.detail == (
        "The content has more than 2048 bytes, the most for a schema with look-around or back references in "
        "a pattern."
    )
    names = {"patternProperties": {pattern: True}}
    assert faults(names, {"a1": "a" * 2100})[0].detail == fault.detail


def test_a_pattern_that_takes_too_many_steps_is_said():
    (fault,) = faults({"pattern": "^(a|a)*(?!b)c$"}, "a" * 2000)
    assert fault.detail == "The content takes too many steps to be matched with a pattern of the schema."


@pytest.mark.parametrize(
    "schema",
    [
        {"items": {"enum": [n + 0.5 for n in range(20)]}},
        {"items": {"enum": [[n] for n in range(20)]}},
        {"items": {"const": 0.5}},
        {"items": {"maximum": 0.5, "minimum": 0.25}},
        {"items": {"multipleOf": 1}},
        {"items": {"anyOf": [{"minimum": 9}] * 50}},
        {"contains": {"const": 1}},
        {"uniqueItems": True},
        {"$ref": "other.json"},
    ],
)
def test_keywords_that_take_long_are_checked_of_fewer_values(schema):
    other = {"items": {"enum": [n + 0.5 for n in range(20)]}}
    compiled = schemas_of({"t": schema, "other": other, "fast": {"items": {"type": "integer"}}})
    content = json.dumps(list(range(140_000))).encode()
    assert [each.detail for each in compiled["t"].faults(content)] == [
        "The content has too many values to be checked against the topic's schema."
    ]
    assert not compiled["fast"].faults(content)


def test_the_garbage_collector_does_not_run_for_the_values_of_a_content():
    schema, content = schema_of({"items": {"required": ["a"]}}), json.dumps([{"a": 1}] * 5000 + [{}])
    collections = []

    def count(phase, _info):
        collections.append(phase)

    gc.collect()
    gc.callbacks.append(count)
    try:
        assert not schema.matches(content.encode())
        assert len(schema.faults(content.encode())) == 1
    finally:
        gc.callbacks.remove(count)
    assert collections == []
    assert gc.isenabled()


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
    assert [each.detail for each in compiled.faults(b"1")] == ["The content must be a string."]


# Exponential work would take hours.
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_content_has_a_fault_before_long(name):
    schema, content = HOSTILE[name]
    schema, content = schema_of(schema), json.dumps(content).encode()
    found = schema.faults(content)
    assert 1 <= len(found) <= 100
    assert sum(len(each.pointer) + len(each.detail) for each in found) < 100_000


def test_of_a_long_content_with_few_values_the_first_fault_is_named():
    assert len(faults({"items": {"maximum": 3}}, [10**4000] * 20)) == 1
    assert len(faults({"items": {"maximum": 3}}, [10**1000] * 20)) == 20


def test_commas_in_strings_are_not_values():
    assert not faults({"type": "string"}, "," * 900_000)
