"""The messages that lines stand for."""

from __future__ import annotations

import json
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from sampleapp.cli._line_readers import MessageReader, Tombstone
from sampleapp.cli._lines import Line
from sampleapp.client import Message
from sampleapp.client._messages import encode_messages
from sampleapp.errors import InvalidMessage
from sampleapp.messages.lines import MessageLines
from sampleapp.messages.parsing import parse_message
from sampleapp.model import ConsumerRecord
from sampleapp.records.record_lines import record_line
from tests.support.strategies import texts, topics

octets = st.binary(max_size=30) | texts.map(str.encode)
records = st.builds(
    ConsumerRecord,
    topic=topics,
    partition=st.integers(0, 2**31 - 1),
    offset=st.integers(0, 2**63 - 1),
    # Up to the year 9999.
    timestamp_ms=st.integers(0, 253_402_300_799_999) | st.integers(0, 10**11),
    key=st.none() | octets,
    value=octets,
    headers=st.lists(st.tuples(texts | st.sampled_from("ab"), st.none() | octets), max_size=4).map(tuple),
)


def read(*texts, **options):
    """Return the requests of lines, and the lines that cannot be published, with their reasons."""
    failed = []
    lines = [Line(number, len(text) + 1, text) for number, text in enumerate(texts, 1)]
    requests = MessageReader(**options).requests(lines, lambda *failure: failed.append(failure))
    return [([line.number for line in some], what) for some, what in requests], failed


@given(st.lists(records, min_size=1, max_size=4))
def test_a_copy_of_records_of_every_shape_has_the_same_lines(originals):
    requests, failed = read(*map(record_line, originals))
    assert failed == []
    copies = []
    for numbers, messages in requests:
        lines = MessageLines(encode_messages(messages), max_line=2**20, now_ms=0)
        while lines.read():
            pass
        assert lines.rejected == []
        copies += zip(numbers, lines.records, strict=True)
    assert [number for number, _ in sorted(copies, key=itemgetter(0))] == [*range(1, len(originals) + 1)]
    for number, copy in copies:
        original = originals[number - 1]
        again = structs.replace(
            original,
            **{name: getattr(copy, name) for name in ("topic", "key", "value", "timestamp_ms", "headers")},
        )
        assert record_line(again) == record_line(original)
        # Only headers of text change places with the others.
        assert sorted(again.headers, key=itemgetter(0)) == sorted(original.headers, key=itemgetter(0))


@pytest.mark.parametrize("key", [b"", b"k", b"\xff"])
def test_a_tombstone_is_a_key_to_delete(key):
    record = ConsumerRecord(topic="t", partition=0, offset=1, timestamp_ms=10**12, key=key, value=None)
    [(numbers, tombstone)], failed = read(record_line(record))
    assert (numbers, failed) == ([1], [])
    assert isinstance(tombstone, Tombstone)
    named = tombstone.key if isinstance(tombstone.key, bytes) else tombstone.key.encode()
    assert (tombstone.topic, named) == ("t", key)


def line(**members):
    return json.dumps({"topic": "t", "content": "c", **members}).encode()


def test_messages_and_tombstones_of_a_topic_keep_their_order_and_other_topics_are_other_requests():
    lines = [line(content="1"), line(topic="u"), line(content="2"), line(content=None, key="k"), line()]
    requests, failed = read(*lines)
    assert failed == []
    assert [numbers for numbers, _ in requests] == [[1, 3], [4], [5], [2]]
    assert [type(what) for _, what in requests] == [list, Tombstone, list, list]
    ((numbers, messages), *rest), _ = read(*lines, topic="copy")
    assert (numbers, {each.topic for each in messages}) == ([1, 2, 3], {"copy"})
    assert [numbers for numbers, _ in rest] == [[4], [5]]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"{", "The line is not JSON: Expecting property name enclosed in double quotes (column 2)."),
        (b"\xef\xbb\xbf" + line(), "The line is not JSON: it begins with a byte order mark."),
        (b"\xff", "The line is not UTF-8: see byte 0xff at offset 0."),
        (b'{"topic":"t","content":"\xff"}', "The line is not UTF-8: see byte 0xff at offset 24."),
        (line() + line(), "The line is not JSON: Extra data (column 31)."),
        (b"[]", "A message is a JSON object, not an array."),
        (line(Key="k"), '"Key" is not a member of a message; did you mean "key"?'),
        (line(partition=0, offset=7, content=1), '"content" must be a string, not a number.'),
        (line(partition=0, offset=7, timestamp=5, Key="k" * 70_000), '"Key" is not a member of a message'),
        (b'{"topic":"t"}', '"content" is missing; a message must have it, or "content_base64".'),
        (line(content_base64="AA=="), '"content" and "content_base64" are both there; a message has one'),
        (line(content=None, content_base64=""), '"content" and "content_base64" are both there'),
        (line(key="", key_base64=""), '"key" and "key_base64" are both there; a message has one of them.'),
        (line(key_base64="!"), '"key_base64" must be base64 with padding'),
        (b'{"content":"c"}', '"topic" is missing; a message must have it.'),
        (line(topic="a b"), '"topic" must be 1 to 249 characters'),
        (line(headers=None), '"headers" must be an object of strings, not null.'),
        (line(timestamp=None), '"timestamp" must be milliseconds since the epoch'),
        (line(timestamp=1.5), '"timestamp" looks like seconds, not milliseconds'),
        (line(timestamp="yesterday"), '"timestamp" is not a date-time of RFC 3339 with an offset'),
        (line(timestamp=10**16), "its timestamp is after the year 9999, or before the year 1."),
        (line(content=None), "its content is null, which the service can publish only with a key"),
        (
            line(headers_base64=[["a"]]),
            'Each header in "headers_base64" must be a list of a name and null or',
        ),
        (
            line(content=None, key="k", headers_base64=[["a", None]]),
            "its content is null, which the service can publish only with a key",
        ),
        (line(content="\ud800"), '"content" holds a lone surrogate'),
        (line(partition="x"), '"partition" is not a member of a message'),
    ],
)
def test_a_line_that_cannot_be_published_has_its_reason_and_the_others_are_published(text, reason):
    [(numbers, _)], [(failed, told)] = read(line(), text, line())
    assert (numbers, failed) == ([1, 3], 2)
    assert told.startswith(reason), told


@pytest.mark.parametrize("written", [b"1.7e12", b"1700000000000.0", b"1700000000000"])
@pytest.mark.parametrize("place", [b"", b'"partition":0, "offset":1, '])
def test_a_time_may_be_written_as_the_service_takes_it(written, place):
    [(_, [message])], failed = read(b'{%b"topic":"t","content":"c","timestamp":%b}' % (place, written))
    assert (message.timestamp, failed) == (1_700_000_000_000, [])


def test_a_line_needs_no_topic_if_the_command_line_has_one():
    for text in (b'{"content":"c"}', b' { "content" : "c" }', b'{"offset":1,"content":"c"}'):
        [(_, [message])], failed = read(text, topic="copy")
        assert (message, failed) == (Message(topic="copy", content="c"), [])
    assert read(b"{}", topic="copy")[1][0][1].endswith(
        '"content" is missing; a message must have it, or "content_base64".'
    )


def test_a_time_that_no_record_had_is_the_time_of_the_copy():
    [(_, [message])], _ = read(line(timestamp=-1))
    assert message.timestamp is None


def test_the_fingerprint_of_another_key_is_left_out_since_no_message_may_bring_it():
    text = line(
        headers={"a": "1", "idempotency-fingerprint": "00"},
        headers_base64=[["b", None], ["idempotency-fingerprint", "AP8="]],
    )
    tombstone = line(content=None, key="k", headers={"idempotency-fingerprint": "00"})
    [(_, [message]), (_, deleted)], _ = read(text, tombstone)
    assert list(message.headers) == [("a", b"1"), ("b", None)]
    assert deleted == Tombstone(topic="t", key="k")


names = st.sampled_from(["topic", "key", "key_base64", "content", "content_base64", "headers", "Key"])
values = st.sampled_from(
    ['"t"', '":"', "null", "1", '{"a":"1"}', r'{"a":"1","\u0061":"2"}', '{"a":"1","b":":"}']
)
spaces = st.sampled_from(["", " "])


@given(st.lists(st.tuples(names, spaces, values), max_size=4), st.sampled_from(["content", r"cont\u0065nt"]))
def test_a_line_is_a_message_exactly_if_the_service_takes_it(members, name):
    members = [("topic", "", '"t"'), (name, "", '"c"'), *members]
    text = ",".join(f'"{name}":{space}{value}' for name, space, value in members)
    requests, failed = read(f"{{{text}}}".encode())
    error = None
    try:
        parse_message(f"{{{text}}}".encode())
    except InvalidMessage as invalid:
        error = str(invalid)
    if error is None:
        assert (len(requests), failed) == (1, [])
    else:
        # A null content is one of its faults only for the service.
        ((_, told),) = failed
        assert (requests, error.replace(' "content" must be a string, not null.', "")) == ([], told)


@pytest.mark.parametrize(
    ("text", "repeated"),
    [
        (b'{"topic":"t","content":"c","content":"d"}', "content"),
        (b'{"topic":"t","topic":"t","content":"c"}', "topic"),
        (b'{"topic":"t","content":"c","headers":{"a":"1","a":"2"}}', "a"),
        (b'{"topic":"t", "content":"c", "headers":{"a":"1", "\\u0061":"2"}}\r', "a"),
        (b'{"topic":"t","content":"c","key":null,"key":null}', "key"),
    ],
)
def test_a_repeated_member_is_named(text, repeated):
    what = f'The header "{repeated}"' if repeated == "a" else f'"{repeated}"'
    assert read(line(), text)[1] == [(2, f"{what} is there 2 times; a message has it once.")]


def test_empty_lines_are_nothing_and_a_carriage_return_may_end_a_line():
    [(numbers, _)], failed = read(b"", line(), b"\r", line() + b"\r", b"")
    assert (numbers, failed) == ([2, 4], [])


def test_a_message_as_http_takes_it_is_one():
    [(_, messages)], failed = read(
        b'{"topic":"t","key":null,"content_base64":"AP8=","timestamp":100000000000}',
        b'{"topic":"t","key":null,"key_base64":"","content":""}',
    )
    assert (messages, failed) == (
        [
            Message(topic="t", content=b"\0\xff", timestamp=10**11),
            Message(topic="t", content="", key=b""),
        ],
        [],
    )
