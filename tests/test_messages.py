"""What is a message, and what is wrong with what is not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampleapp.errors import InvalidMessage, MalformedMessage
from sampleapp.messages import parse_message
from tests.support import strategies

ABSENT = object()


def encoded(members, *, ensure_ascii=True):
    return json.dumps(members, ensure_ascii=ensure_ascii).encode()


def faults_of(body):
    with pytest.raises(InvalidMessage) as caught:
        parse_message(body)
    return [fault.pointer for fault in caught.value.faults]


@given(strategies.topics, strategies.texts, strategies.texts | st.none() | st.just(ABSENT), st.booleans())
def test_a_message_is_read_as_it_was_written(topic, content, key, ensure_ascii):
    members = {"topic": topic, "content": content}
    if key is not ABSENT:
        members["key"] = key
    message = parse_message(encoded(members, ensure_ascii=ensure_ascii))
    assert message.topic == topic
    assert message.content == content
    assert message.key == (None if key is ABSENT else key)


@pytest.mark.parametrize(
    ("body", "content"),
    [
        (rb'{"topic":"t","content":"\u0022"}', '"'),
        (rb'{"topic":"t","content":"\\"}', "\\"),
        (rb'{"topic":"t","content":"{\"a\":\"b\"}"}', '{"a":"b"}'),
        (rb'{"t\u006fpic":"t","content":"\u0000\ud83d\ude00"}', "\0\N{GRINNING FACE}"),
        (b' \r\n\t{"content" : "c", "topic" : "t"} ', "c"),
    ],
)
def test_every_way_to_write_a_string_is_read(body, content):
    assert parse_message(body).content == content


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"hello", "not JSON"),
        (b'{"topic":"t","content":"c"', "not JSON"),
        (b'{"topic":"t","content":"c"}}', "not JSON"),
        (b'{"topic":"t","content":NaN}', "NaN"),
        (b'{"topic":"t","content":-Infinity}', "Infinity"),
        (b'{"topic":"t","content":"a\nb"}', "not JSON"),
        (b"{'topic':'t','content':'c'}", "not JSON"),
        (b'\xef\xbb\xbf{"topic":"t","content":"c"}', "byte order mark"),
        (b'{"topic":"t","content":"\xff"}', "not UTF-8: see byte 0xff at offset 24"),
        (b'{"topic":"t","content":"\xed\xa0\x80"}', "not UTF-8"),
        ('{"topic":"t","content":"c"}'.encode("utf-16"), "not UTF-8"),
        (b"[" * 500_000, "nested too deeply"),
    ],
)
def test_what_is_not_json_in_utf_8_is_malformed(body, why):
    with pytest.raises(MalformedMessage, match=why):
        parse_message(body)


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        (b"[]", [""]),
        (b"null", [""]),
        (b'"topic"', [""]),
        (b"12", [""]),
        (b"{}", ["/topic", "/content"]),
        (b'{"topic":"t"}', ["/content"]),
        (b'{"topic":"","content":"c"}', ["/topic"]),
        (b'{"topic":"..","content":"c"}', ["/topic"]),
        (b'{"topic":"a/b","content":"c"}', ["/topic"]),
        (b'{"topic":"t\xc3\xbc","content":"c"}', ["/topic"]),
        (b'{"topic":"%b","content":"c"}' % (b"t" * 250), ["/topic"]),
        (b'{"topic":"t\\n","content":"c"}', ["/topic"]),
        (b'{"topic":"t","content":5}', ["/content"]),
        (b'{"topic":"t","content":null}', ["/content"]),
        (b'{"topic":"t","content":%b}' % (b"9" * 5000), ["/content"]),
        (b'{"topic":"t","content":{"a":[]}}', ["/content"]),
        (b'{"topic":"t","content":"c","key":1}', ["/key"]),
        (b'{"topic":"t","content":"c","Key":"k"}', ["/Key"]),
        (b'{"topic":"t","content":"\\ud800"}', ["/content"]),
        (b'{"topic":"t","content":"c","key":"\\udfff"}', ["/key"]),
        (b'{"topic":"t","content":"c","content":"d"}', ["/content"]),
        (b'{"topic":"t","content":"c","key":"k","key":null}', ["/key"]),
        (
            b'{"topic":1,"key":2,"content":3,"a~/b":4,"\\ud800":5}',
            ["/topic", "/key", "/content", "/a~0~1b", "/\N{REPLACEMENT CHARACTER}"],
        ),
    ],
)
def test_what_is_json_but_no_message_has_every_fault_named(body, pointers):
    assert sorted(pointers) == sorted(faults_of(body))


@pytest.mark.parametrize("unknown", [98, 99, 1000])
def test_of_many_faults_100_are_told(unknown):
    with pytest.raises(InvalidMessage) as caught:
        parse_message(encoded({"key": 1, **{f"m{n}": n for n in range(unknown)}, "content": "c"}))
    faults = caught.value.faults
    assert len(faults) == 100
    assert [fault.pointer for fault in faults[2:99]] == [f"/m{n}" for n in range(97)]
    if unknown == 98:
        assert faults[-1].pointer == "/m97"
    else:
        assert faults[-1].detail == f"{unknown - 97} further members are not of a message either."
    assert str(caught.value).endswith("90 more faults are listed.")


@pytest.mark.parametrize("character", ["/", "~", "\x1b", "\ud800", "\N{GRINNING FACE}", '"'])
def test_names_of_any_length_are_told_briefly(character):
    body = encoded({f"{n}{character * 20_000}": n for n in range(50)})
    with pytest.raises(InvalidMessage) as caught:
        parse_message(body)
    said = "".join(fault.pointer + fault.detail for fault in caught.value.faults)
    assert len(json.dumps(said)) < 200_000
    for fault in caught.value.faults:
        assert fault.detail.isprintable()


@pytest.mark.parametrize(
    ("name", "meant"),
    [("Key", "key"), ("kye", "key"), ("TOPIC", "topic"), (" content", "content"), ("value", "content")],
)
def test_a_member_that_is_misspelt_is_named_with_the_one_that_was_meant(name, meant):
    body = encoded({**{m: "x" for m in ("topic", "key", "content") if m != meant}, name: "x"})
    with pytest.raises(InvalidMessage) as caught:
        parse_message(body)
    assert f'"{name}" is not a member of a message; did you mean "{meant}"?' in str(caught.value)


@pytest.mark.parametrize("name", ["Key", "colour", ""])
def test_no_member_is_proposed_that_is_there_or_that_is_not_alike(name):
    with pytest.raises(InvalidMessage) as caught:
        parse_message(encoded({"topic": "t", "key": "k", "content": "c", name: "x"}))
    assert str(caught.value) == (
        f'"{name}" is not a member of a message; it has "topic", "content" and, if wanted, "key".'
    )


def test_a_fault_says_what_would_be_right():
    with pytest.raises(InvalidMessage, match='"content" has to be a string, not a number'):
        parse_message(b'{"topic":"t","content":21.5}')


members = st.fixed_dictionaries(
    {},
    optional={
        "topic": strategies.topics | strategies.json_values,
        "key": strategies.json_values,
        "content": strategies.json_values,
        "Key": strategies.json_values,
        "": strategies.json_values,
    },
)


@settings(max_examples=300)
@given(members)
def test_the_faults_are_exactly_those_that_the_rules_name(document):
    wrong = {f"/{name}" for name in ("topic", "content") if name not in document}
    wrong |= {f"/{name}" for name in document if name not in ("topic", "key", "content")}
    wrong |= {f"/{name}" for name in ("topic", "content") if not isinstance(document.get(name), str)}
    if not isinstance(document.get("key"), str | None):
        wrong.add("/key")
    topic = document.get("topic")
    if isinstance(topic, str):
        legal = 0 < len(topic) < 250 and topic not in (".", "..")
        legal = legal and all(c.isascii() and (c.isalnum() or c in "._-") for c in topic)
        wrong |= set() if legal else {"/topic"}

    body = encoded(document)
    if wrong:
        assert wrong == set(faults_of(body))
    else:
        assert parse_message(body).content == document["content"]


@given(strategies.texts, st.sampled_from(["topic", "key", "content"]), st.booleans())
def test_a_member_that_is_there_twice_is_always_noticed(text, name, ensure_ascii):
    body = encoded({"topic": "t", "key": text, "content": text}, ensure_ascii=ensure_ascii)
    again = encoded({name: "t"})
    assert faults_of(body[:-1] + b"," + again[1:]) == [f"/{name}"]
    assert faults_of(again[:-1] + b"," + body[1:]) == [f"/{name}"]


@given(st.none() | strategies.texts, st.none() | strategies.texts, strategies.texts, st.booleans())
def test_a_key_that_is_there_twice_is_noticed_also_when_it_is_null(first, second, content, ensure_ascii):
    body = encoded({"key": first, "topic": "t", "content": content}, ensure_ascii=ensure_ascii)
    again = encoded({"key": second}, ensure_ascii=ensure_ascii)
    assert faults_of(body[:-1] + b"," + again[1:]) == ["/key"]
    assert parse_message(body).key == first


@given(st.binary(max_size=60) | strategies.texts.map(str.encode))
def test_any_bytes_are_a_message_or_refused(body):
    try:
        message = parse_message(body)
    except (MalformedMessage, InvalidMessage):
        return
    assert json.loads(body) == {"topic": message.topic, "content": message.content} | (
        {} if "key" not in json.loads(body) else {"key": message.key}
    )
