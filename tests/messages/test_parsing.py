"""Messages that are accepted, and the faults of those that are not."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from sampleapp.errors import InvalidMessage, MalformedMessage
from sampleapp.messages.parsing import parse_message, record_of
from sampleapp.model import MOST_HEADERS, Message, Record
from tests.support import strategies
from tests.support.examples import examples

ABSENT = object()
MEMBERS = (
    *("topic", "key", "content", "headers", "timestamp", "content_base64", "key_base64", "headers_base64"),
)


def encoded(members, *, ensure_ascii=True):
    return json.dumps(members, ensure_ascii=ensure_ascii).encode()


def header_pointer(name):
    cut = name if len(name) <= 200 else f"{name[:200]}…"
    return "/headers/" + cut.replace("~", "~0").replace("/", "~1")


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
    assert message.key == (UNSET if key is ABSENT else key)


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


@pytest.mark.parametrize("beginning", [b'{"topic":"t","content":[', b"[", b'{"headers":{"a":['])
@pytest.mark.parametrize(
    ("end", "why"),
    [
        (b"x", "not JSON"),
        (b"1", "not JSON"),
        (b"NaN", "not JSON"),
        (b'"a\nb"', "not JSON"),
        (b'"\xff"', "not UTF-8: see byte 0xff at offset "),
        (b"[" * 500_000, "nested too deeply"),
    ],
)
def test_a_large_body_that_is_not_json_is_malformed(beginning, end, why):
    with pytest.raises(MalformedMessage, match=why):
        parse_message(beginning + b'"",' * 30_000 + end)


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
        (b'{"topic":"t","content":"c","headers":null}', ["/headers"]),
        (b'{"topic":"t","content":"c","headers":[["a","b"]]}', ["/headers"]),
        (b'{"topic":"t","content":"c","headers":"a"}', ["/headers"]),
        (
            b'{"topic":"t","content":"c","headers":{"a":1,"b":"","c":null,"":{"d":[]}}}',
            ["/headers/a", "/headers/c", "/headers/"],
        ),
        (
            b'{"topic":"t","content":"c","headers":{"a/~":1,"b":"\\ud800","\\udfff":"c"}}',
            ["/headers/a~1~0", "/headers/b", "/headers/\N{REPLACEMENT CHARACTER}"],
        ),
        (b'{"topic":"t","content":"c","headers":{"a":"b","a":"b"}}', ["/headers/a"]),
        (b'{"topic":"t","content":"c","headers":{},"headers":{}}', ["/headers"]),
        (b'{"topic":"t","content":"c","headers_base64":null}', ["/headers_base64"]),
        (b'{"topic":"t","content":"c","headers_base64":{"a":"AP8="}}', ["/headers_base64"]),
        (b'{"topic":"t","content":"c","headers_base64":[],"headers_base64":[]}', ["/headers_base64"]),
        (
            b'{"topic":"t","content":"c","headers_base64":[["a",null],["a"],{"a":null},"a",["a",null,1],[]]}',
            [f"/headers_base64/{index}" for index in range(1, 6)],
        ),
        (
            b'{"topic":"t","content":"c","headers_base64":[[1,null],["\\ud800","AA"],["",1],["","\\ud800"]]}',
            [f"/headers_base64/{place}" for place in range(4)],
        ),
        (b'{"topic":"t","content":"c","timestamp":null}', ["/timestamp"]),
        (b'{"topic":"t","content":"c","timestamp":true}', ["/timestamp"]),
        (b'{"topic":"t","content":"c","timestamp":-1}', ["/timestamp"]),
        (b'{"topic":"t","content":"c","timestamp":0.5}', ["/timestamp"]),
        (b'{"topic":"t","content":"c","timestamp":1e999}', ["/timestamp"]),
        (b'{"topic":"t","content":"c","timestamp":9223372036854775808}', ["/timestamp"]),
        (b'{"topic":"t","content":"c","timestamp":%b}' % (b"9" * 5000), ["/timestamp"]),
        (b'{"topic":"t","content":"c","timestamp":"1700000000000"}', ["/timestamp"]),
        (b'{"topic":"t","content":"c","timestamp":"2026-03-01T12:00:00"}', ["/timestamp"]),
        (
            b'{"topic":"t","content":"c","timestamp":100000000000,"timestamp":100000000001}',
            ["/timestamp"],
        ),
        (b'{"topic":"t","content":"c","timestamp":"\\ud800"}', ["/timestamp"]),
        (b'{"topic":"t","timestamp":-1,"headers":{"a":1}}', ["/content", "/timestamp", "/headers/a"]),
        (
            b'{"topic":1,"key":2,"content":3,"a~/b":4,"\\ud800":5}',
            ["/topic", "/key", "/content", "/a~0~1b", "/\N{REPLACEMENT CHARACTER}"],
        ),
    ],
)
def test_what_is_json_but_no_message_has_every_fault_named(body, pointers):
    assert sorted(pointers) == sorted(faults_of(body))


@pytest.mark.parametrize("unknown", [98, 99, 998])
def test_of_many_faults_100_are_told(unknown):
    with pytest.raises(InvalidMessage) as caught:
        parse_message(encoded({"key": 1, **{f"m{n}": n for n in range(unknown)}, "content": "c"}))
    faults = caught.value.faults
    assert len(faults) == 100
    assert [fault.pointer for fault in faults[2:99]] == [f"/m{n}" for n in range(97)]
    if unknown == 98:
        assert faults[-1].pointer == "/m97"
    else:
        assert faults[-1].detail == f"{unknown - 97} further members are wrong, too."
    assert str(caught.value).endswith("90 more faults are listed.")


@pytest.mark.parametrize("wrong", [0, 1, 60, 97, 98, 99, 100, 999])
@pytest.mark.parametrize("unknown", [0, 1, 2, 3, 50])
def test_of_many_headers_and_members_100_faults_are_told_in_order(wrong, unknown):
    headers = {"right": "", **{f"h{n}": n for n in range(wrong)}}
    members = {"key": 1, "headers": headers, "content": "c", **{f"m{n}": n for n in range(unknown)}}
    every = ["/topic", "/key"] + [f"/headers/h{n}" for n in range(wrong)] + [f"/m{n}" for n in range(unknown)]
    with pytest.raises(InvalidMessage) as caught:
        parse_message(encoded(members))
    faults = caught.value.faults
    if len(every) <= 100:
        assert [fault.pointer for fault in faults] == every
    else:
        assert [fault.pointer for fault in faults] == [*every[:99], ""]
        assert faults[-1].detail == f"{len(every) - 99} further members are wrong, too."


def test_of_many_pairs_of_headers_100_faults_are_told_in_order():
    members = {"headers": {"h": 1}, "content": "c", "headers_base64": [["a", "!"]] * 999, "Key": 1}
    with pytest.raises(InvalidMessage) as caught:
        parse_message(encoded(members))
    pointers = [fault.pointer for fault in caught.value.faults]
    assert pointers == ["/topic", "/headers/h", *[f"/headers_base64/{n}" for n in range(97)], ""]
    assert caught.value.faults[-1].detail == "903 further members are wrong, too."


LARGE = 70_000
"""Of a larger body than 64 KiB, perhaps only the first fault is named."""


def told_of(body):
    with pytest.raises(InvalidMessage) as caught:
        parse_message(body)
    return [(fault.pointer, fault.detail) for fault in caught.value.faults]


@given(
    is_large=st.booleans(),
    count=st.integers(MOST_HEADERS - 3, MOST_HEADERS + 3),
    is_repeated=st.booleans(),
    value=st.sampled_from(['""', '"\\""', "1", "[[]]", r'"\ud800"']),
)
@examples(50)
def test_a_message_has_1000_headers_at_most(is_large, count, is_repeated, value):
    names = ["h"] * count if is_repeated else [f"h{n}" for n in range(count)]
    headers = ",".join(f'"{name}":{value}' for name in names)
    content = "," * LARGE * is_large
    body = f'{{"topic":"t","content":"{content}","headers":{{{headers}}}}}'.encode()
    too_many = ("/headers", "There are more than 1000 headers, which is the most for a message.")
    is_valid = value in ('""', '"\\""')
    if is_large and not is_valid:
        # The first fault.
        assert len(faults_of(body)) == 1
    elif count > MOST_HEADERS:
        assert told_of(body) == [too_many]
    elif is_repeated:
        repeated = f'The header "h" is there {count} times; a message has it once.'
        assert told_of(body) == [("/headers/h", repeated)]
    elif is_valid:
        assert list(parse_message(body).headers.items()) == [(name, json.loads(value)) for name in names]
    else:
        assert faults_of(body)[:99] == [f"/headers/{name}" for name in names[:99]]


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize(
    ("plain", "pairs"), [(1000, 0), (0, 1000), (500, 500), (0, 1001), (1, 1000), (501, 500)]
)
def test_headers_and_those_in_base64_are_1000_together_at_most(plain, pairs, is_large):
    headers = {f"h{n}": "" for n in range(plain)}
    members = {"topic": "t", "content": "c", "headers": headers, "headers_base64": [["h0", None]] * pairs}
    body = encoded(members) + b" " * LARGE * is_large
    if plain + pairs > MOST_HEADERS:
        detail = "There are more than 1000 headers, which is the most for a message."
        assert told_of(body) == [("/headers_base64", detail)]
    else:
        record = record_of(parse_message(body), now_ms=0)
        assert record.headers == (*[(name, b"") for name in headers], *[("h0", None)] * pairs)


def test_beside_too_many_headers_whatever_else_is_wrong_is_told():
    headers = {f"h{n}": "" for n in range(1001)}
    assert faults_of(encoded({"headers": headers, "key": 1, "topik": ""})) == [
        *["/topic", "/content", "/key", "/headers", "/topik"]
    ]


@pytest.mark.parametrize("name", ["m", "topic", "headers"])
def test_of_more_than_1000_members_it_is_told_that_they_are_too_many(name):
    body = encoded({"topic": "t", "content": "c"})[:-1]
    assert told_of(body + b',"%b":{}' % name.encode() * 998 + b"}") != [
        ("", "There are more than 1000 members; a message has 6 at most.")
    ]
    assert told_of(body + b',"%b":{}' % name.encode() * 999 + b"}") == [
        ("", "There are more than 1000 members; a message has 6 at most.")
    ]


VALUES = ["1", "1.5", "true", "null", '"a"', "[]", "{}", '[[[]],{"topic":1}]']


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    "form",
    [
        "%s",
        '{"content":"c","topic":%s}',
        '{"topic":"t","content":%s}',
        '{"topic":"t","content":"c","key":%s}',
        '{"topic":"t","content":"c","headers":%s}',
        '{"topic":"t","content":"c","headers_base64":%s}',
        '{"topic":"t","content":"c","timestamp":%s}',
        '{"topic":"t","content":"c","Key":%s}',
        '{"topic":"t","content":"c","~/`\\n":%s}',
        '{"topic":%s}',
        '{"content":%s}',
    ],
)
def test_the_fault_of_a_large_body_is_one_of_those_that_a_small_one_has(form, value):
    def outcome(body):
        try:
            return parse_message(body)
        except InvalidMessage as error:
            return error.faults

    body = (form % value).encode()
    small, large = outcome(body), outcome(body + b" " * LARGE)
    if isinstance(small, Message):
        assert large == small
    else:
        assert large
        assert set(large) <= set(small)


@pytest.mark.parametrize("value", ["1", "null", "[]", "[{},{}]"])
def test_the_first_header_that_is_not_a_string_is_the_fault_of_a_large_body(value):
    body = f'{{"topic":"t","content":"c","headers":{{"a":"","b":{value}}}}}'
    ((pointer, detail),) = told_of(body.encode() + b" " * LARGE)
    assert pointer == "/headers"
    assert detail.startswith("The value of each header must be a string, not ")


@pytest.mark.parametrize(
    "pair", ["1", "[]", '["a"]', '["a",null,1]', "[1,null]", '["a",1]', '["a","AA"]', '{"a":1,"b":1}']
)
def test_the_first_wrong_pair_is_the_fault_of_a_large_body(pair):
    body = f'{{"topic":"t","content":"c","headers_base64":[["a",null],{pair},1]}}'
    ((pointer, detail),) = told_of(body.encode() + b" " * LARGE)
    assert pointer == "/headers_base64/1"
    assert detail == (
        'Each header in "headers_base64" must be a list of a name and null or base64 with padding (RFC 4648, '
        'section 4), such as "AP8=".'
    )


@pytest.mark.parametrize(
    ("written", "unit"),
    [
        ("1795363727", "seconds"),
        ("1795363727.918", "seconds"),
        ("1.795363727e9", "seconds"),
        ("0", "seconds"),
        ("1795363727918123", "microseconds"),
        ("1795363727918123456", "nanoseconds"),
        ("1.795363727918e18", "nanoseconds"),
    ],
)
@pytest.mark.parametrize("white_space", [0, LARGE])
def test_a_timestamp_in_another_unit_is_rejected_with_its_name_and_the_way_out(written, unit, white_space):
    body = f'{{"topic":"t","content":"c","timestamp":{written}}}'
    ((pointer, detail),) = told_of(body.encode() + b" " * white_space)
    assert pointer == "/timestamp"
    assert detail == (
        f'"timestamp" looks like {unit}, not milliseconds: those have 12 to 14 digits; it must be '
        "milliseconds since the epoch (an integer of 12 to 14 digits, 1973 to 5138) or, also for older "
        'times, a date-time of RFC 3339 with an offset, such as "2026-03-01T12:00:00Z".'
    )


@pytest.mark.parametrize("written", ["9" * LARGE, "1e999", "100000000000." + "5" * LARGE])
def test_a_timestamp_that_no_number_can_hold_is_the_fault_of_a_large_body(written):
    body = f'{{"topic":"t","content":"c","timestamp":{written}}}'
    ((pointer, detail),) = told_of(body.encode() + b" " * LARGE)
    assert pointer == "/timestamp"
    assert detail.startswith('"timestamp" must be milliseconds since the epoch')


@pytest.mark.parametrize(
    "written",
    [
        rb'{"topic":"\ud800","content":"c"}',
        rb'{"topic":"t","content":"\ud800"}',
        rb'{"topic":"t","content":"c","key":"\uDFFF"}',
        rb'{"topic":"t","content":"c","headers":{"a":"\ud800"}}',
        rb'{"topic":"t","content":"c","headers":{"\ud800":""}}',
        rb'{"topic":"t","content":"c","headers_base64":[["\ud800",null]]}',
        rb'{"topic":"t","content":"c","x":"\ud800"}',
        rb'{"topic":"t","content":"c","\ud800":""}',
    ],
)
def test_a_large_body_with_a_lone_surrogate_is_not_called_malformed(written):
    assert len(faults_of(written + b" " * LARGE)) == 1


@pytest.mark.parametrize(
    "inside", ['"headers":{%s}', '"headers":{"a":[{%s}]}', '"topic":"t",%s', '"x":{%s}', '"headers":{},%s']
)
def test_very_many_strings_are_one_fault(inside):
    many = ",".join(f'"{n}":""' for n in range(20_000))
    ((_, detail),) = told_of(b'{"topic":"t","content":"c",%b}' % (inside % many).encode())
    assert "There are more than 10000 strings" in detail or "is not a member of a message" in detail


def test_very_many_pairs_of_headers_are_one_fault():
    pairs = b",".join([b'["",null]'] * 40_000)
    ((_, detail),) = told_of(b'{"topic":"t","content":"c","headers_base64":[%b]}' % pairs)
    assert detail.startswith("There are more than 10000 strings")


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
    [
        *[("Key", "key"), ("kye", "key"), ("TOPIC", "topic"), (" content", "content"), ("value", "content")],
        *[("contentBase64", "content_base64"), ("data_base64", "content_base64"), ("key_64", "key_base64")],
        *[("header", "headers"), ("Headers", "headers"), ("timeStamp", "timestamp"), ("time", "timestamp")],
    ],
)
def test_a_member_that_is_misspelt_is_named_with_the_one_that_was_meant(name, meant):
    others = [m for m in ("topic", "key", "content") if m != meant.removesuffix("_base64")]
    body = encoded({**dict.fromkeys(others, "x"), name: "x"})
    with pytest.raises(InvalidMessage) as caught:
        parse_message(body)
    assert f'"{name}" is not a member of a message; did you mean "{meant}"?' in str(caught.value)


@pytest.mark.parametrize("name", ["Key", "colour", ""])
def test_no_member_is_proposed_that_is_there_or_that_is_not_alike(name):
    with pytest.raises(InvalidMessage) as caught:
        parse_message(encoded({"topic": "t", "key": "k", "content": "c", name: "x"}))
    assert str(caught.value) == (
        f'"{name}" is not a member of a message; it has "topic", "content" or "content_base64" and, if '
        'wanted, "key" or "key_base64", "headers", "headers_base64" and "timestamp".'
    )


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize(
    ("value", "what"), [("21.5", "a number"), ("{}", "an object"), ("[1]", "an array"), ("true", "a boolean")]
)
def test_json_as_content_is_rejected_with_both_ways_to_send_it(value, what, is_large):
    with pytest.raises(InvalidMessage) as caught:
        parse_message(b'{"topic":"t","content":%b}' % value.encode() + b" " * LARGE * is_large)
    assert str(caught.value) == (
        f'"content" must be a string, not {what}. Send its JSON as a string, or as the body of a POST to '
        "/topics/{topic}."
    )


def test_null_as_content_is_rejected_without_a_way_to_send_it():
    with pytest.raises(InvalidMessage) as caught:
        parse_message(b'{"topic":"t","content":null}')
    assert str(caught.value) == '"content" must be a string, not null.'


@given(
    st.binary(),
    st.binary() | st.none() | st.just(ABSENT),
    st.sampled_from([{}, {"key": None}, {"headers": {"a:": ":"}, "timestamp": 10**11}]),
    st.sampled_from(["/", r"\/", r"\u002f"]),
    st.booleans(),
)
@examples(50)
def test_bytes_are_read_from_base64(content, key, others, slash, is_large):
    members = {"topic": "t", "content_base64": b64encode(content).decode(), **others}
    if key is not ABSENT:
        members["key_base64"] = None if key is None else b64encode(key).decode()
    body = json.dumps(members).replace("/", slash).encode() + b" " * LARGE * is_large
    record = record_of(parse_message(body), now_ms=2)
    assert record == Record(
        topic="t",
        key=None if key is ABSENT else key,
        value=content,
        timestamp_ms=others.get("timestamp", 2),
        has_own_time="timestamp" in others,
        headers=(("a:", b":"),) if "headers" in others else (),
    )


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("name", ["content_base64", "key_base64"])
@pytest.mark.parametrize(
    "text",
    ["AA", "AA=", "A", "AA===", "AA==AA==", "_-8=", "A A=", "AA==\\n", "AAA", "=", "ä", "AA:=", "\\ud800"],
)
def test_text_that_is_not_base64_with_padding_is_rejected(text, name, is_large):
    rest = '"content":"c"' if name == "key_base64" else '"key":"k"'
    body = f'{{"topic":"t",{rest},"{name}":"{text}"}}'.encode() + b" " * LARGE * is_large
    with pytest.raises(InvalidMessage) as caught:
        parse_message(body)
    (fault,) = caught.value.faults
    if text != "\\ud800":
        assert fault.pointer == f"/{name}"
        assert fault.detail == f'"{name}" must be base64 with padding (RFC 4648, section 4), such as "AP8=".'


def test_both_of_a_pair_are_rejected_and_so_is_no_content():
    assert told_of(b'{"topic":"t","content":"","content_base64":"","key":"","key_base64":""}') == [
        ("/key_base64", '"key" and "key_base64" are both there; a message has one of them.'),
        ("/content_base64", '"content" and "content_base64" are both there; a message has one of them.'),
    ]
    assert told_of(b'{"topic":"t","key_base64":""}') == [
        ("/content", '"content" is missing; a message must have it, or "content_base64".')
    ]
    # A key of null is no key; a content of null is one that is wrong.
    assert parse_message(b'{"topic":"t","content":"","key":"k","key_base64":null}').key == "k"
    assert faults_of(b'{"topic":"t","content":null,"content_base64":""}') == ["/content", "/content_base64"]
    assert faults_of(b'{"topic":"t","content_base64":null}') == ["/content_base64"]


def is_timestamp(value):
    # No text of these strategies is a date-time.
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        return False
    return 10**11 <= value < 10**14


def is_base64(value):
    try:
        return isinstance(value, str) and len(value) % 4 == 0 and b64decode(value, validate=True) is not None
    except ValueError:
        return False


base64_texts = st.sampled_from(["", "AP8=", "AA", "_-8="])
members = st.fixed_dictionaries(
    {},
    optional={
        "topic": strategies.topics | strategies.json_values,
        "key": strategies.json_values,
        "content": strategies.json_values,
        "content_base64": strategies.json_values | base64_texts,
        "key_base64": strategies.json_values | base64_texts,
        "headers": strategies.json_values | st.dictionaries(strategies.texts, strategies.json_values),
        "headers_base64": strategies.json_values
        | st.lists(st.lists(strategies.json_values | base64_texts, max_size=3), max_size=3)
        | strategies.header_pairs,
        "timestamp": strategies.json_values | st.integers(-1, 2**63) | strategies.numbers_of_time,
        "Key": strategies.json_values,
        "": strategies.json_values,
    },
)


def wrong_texts(document):
    wrong = {f"/{name}" for name in ("topic", "content") if not isinstance(document.get(name, ""), str)}
    wrong |= {f"/{name}" for name in ("key",) if not isinstance(document.get(name, ""), str | None)}
    wrong |= {f"/{n}_base64" for n in ("key", "content") if not is_base64(document.get(f"{n}_base64", ""))}
    if document.get("key_base64", "") is None:
        wrong.remove("/key_base64")
    if "topic" not in document:
        wrong.add("/topic")
    if document.keys().isdisjoint({"content", "content_base64"}):
        wrong.add("/content")
    if document.get("key") is not None and document.get("key_base64") is not None:
        wrong.add("/key_base64")
    if {"content", "content_base64"} <= document.keys():
        wrong.add("/content_base64")
    return wrong


def wrong_pairs(pairs):
    if not isinstance(pairs, list):
        return {"/headers_base64"}
    right = [
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and isinstance(pair[0], str)
        and (pair[1] is None or is_base64(pair[1]))
        for pair in pairs
    ]
    return {f"/headers_base64/{index}" for index, is_right in enumerate(right) if not is_right}


@examples(300)
@given(members)
def test_the_faults_are_exactly_those_that_the_rules_name(document):
    wrong = {f"/{name}" for name in document if name not in MEMBERS} | wrong_texts(document)
    headers = document.get("headers", {})
    if not isinstance(headers, dict):
        wrong.add("/headers")
    else:
        wrong |= {header_pointer(name) for name, value in headers.items() if not isinstance(value, str)}
    wrong |= wrong_pairs(document.get("headers_base64", []))
    if not is_timestamp(document.get("timestamp", 10**12)):
        wrong.add("/timestamp")
    topic = document.get("topic")
    if isinstance(topic, str):
        legal = 0 < len(topic) < 250 and topic not in (".", "..")
        legal = legal and all(c.isascii() and (c.isalnum() or c in "._-") for c in topic)
        wrong |= set() if legal else {"/topic"}

    body = encoded(document)
    if wrong:
        assert wrong == set(faults_of(body))
    else:
        message = parse_message(body)
        assert message.content == document.get("content", UNSET)
        assert message.headers == document.get("headers", UNSET)
        assert message.timestamp == document.get("timestamp", UNSET)


@examples(50)
@given(members, strategies.texts)
def test_a_large_message_is_accepted_exactly_if_a_small_one_is(document, text):
    def outcome(content):
        try:
            return parse_message(encoded({**document, "content": content}))
        except InvalidMessage as error:
            return error.faults

    short, long = outcome(text), outcome(":" * LARGE + text)
    if isinstance(short, Message):
        assert replace(long, content=text) == short
    else:
        assert long
        assert {fault.pointer for fault in long} <= {"/headers", ""} | {fault.pointer for fault in short}


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


@given(
    st.lists(st.tuples(strategies.texts, strategies.texts), unique_by=lambda header: header[0]),
    st.booleans(),
)
def test_headers_are_read_as_they_were_written_in_their_order(headers, ensure_ascii):
    body = encoded({"headers": dict(headers), "topic": "t", "content": "c"}, ensure_ascii=ensure_ascii)
    assert list(parse_message(body).headers.items()) == headers


# Few of each, so that each is often repeated, with quotation marks and colons in all the ways to write them.
json_strings = st.sampled_from(
    ['"a"', '""', r'"\""', '":"', r'"\u003a"', r'"\u003A:"', r'"\\u003a"', r'"\\"', r'"a\",\"key\":\""']
)
written_headers = st.lists(st.tuples(json_strings, json_strings), max_size=3).map(
    lambda headers: "{" + ",".join(f"{name}:{value}" for name, value in headers) + "}"
)
written_members = st.one_of(
    st.just(("topic", '"t"')),
    st.tuples(st.just("content"), json_strings),
    st.tuples(st.just("key"), json_strings | st.just("null")),
    st.tuples(st.just("headers"), written_headers),
    st.tuples(
        st.just("headers_base64"),
        st.lists(json_strings, max_size=3).map(lambda names: f"[{','.join(f'[{n},null]' for n in names)}]"),
    ),
    st.tuples(
        st.just("timestamp"),
        st.sampled_from(["100000000000", "700000000000.0", "1e12", '"1970-01-01T00:00:01Z"']),
    ),
    st.tuples(st.just("key_base64"), st.sampled_from(['""', '"AP8="', "null"])),
)


@examples(200)
@given(st.lists(written_members, max_size=4))
@example([("timestamp", "1e12"), ("timestamp", "2e12")])
@example([("headers", "{}"), ("headers", "{}")])
@example([("key", "null"), ("timestamp", "1e12"), ("headers", "{}")])
def test_whatever_is_repeated_is_noticed_and_nothing_else(members):
    members = [
        *members,
        *(each for each in [("topic", '"t"'), ("content", '"c"')] if each[0] not in dict(members)),
    ]
    body = "{" + ",".join(f'"{name}":{value}' for name, value in members) + "}"
    repeated = {f"/{name}" for name, _ in members if [other for other, _ in members].count(name) > 1}
    if all(dict(members).get(name, "null") != "null" for name in ("key", "key_base64")):
        repeated.add("/key_base64")
    names = [name for name, _ in json.loads(dict(members).get("headers", "{}"), object_pairs_hook=list)]
    repeated |= {header_pointer(name) for name in names if names.count(name) > 1}
    if repeated:
        assert repeated == set(faults_of(body.encode()))
    else:
        message = parse_message(body.encode())
        assert message.key == json.loads(body).get("key", UNSET)
        assert message.headers == json.loads(body).get("headers", UNSET)


@pytest.mark.parametrize(
    ("written", "timestamp_ms"),
    [
        ("100000000000", 10**11),
        ("1700000000123", 1_700_000_000_123),
        ("1.700000000123e12", 1_700_000_000_123),
        ("99999999999999", 10**14 - 1),
        ('"1970-01-01T00:00:00Z"', 0),
        ('"2023-11-14T22:13:20.1239Z"', 1_700_000_000_123),
        (r'"2023-11-14\u005423:13:20+01:00"', 1_700_000_000_000),
    ],
)
def test_a_timestamp_becomes_milliseconds(written, timestamp_ms):
    body = b'{"topic":"t","content":"c","timestamp":%b}' % written.encode()
    timestamp = parse_message(body).timestamp
    assert (type(timestamp), timestamp) == (int, timestamp_ms)


@given(st.binary(max_size=60) | strategies.texts.map(str.encode))
def test_any_bytes_are_a_message_or_rejected(body):
    try:
        message = parse_message(body)
    except (MalformedMessage, InvalidMessage):
        return
    assert json.loads(body) == {"topic": message.topic, "content": message.content} | (
        {} if "key" not in json.loads(body) else {"key": message.key}
    )
