"""Messages, one on each line, against reading them one by one."""

from __future__ import annotations

import gc
import json
import weakref
from itertools import pairwise, product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sampleapp.errors import InvalidMessage, MalformedMessage, MessageError, TopicNotAuthorized
from sampleapp.messages.lines import MOST_FAULTS, MOST_TOPICS, MessageLines
from sampleapp.messages.parsing import parse_message, record_of
from tests.support import strategies
from tests.support.examples import examples

NOW_MS = 1_700_000_000_000
TRACE = (("traceparent", b"00-1"),)
GOOD = b'{"topic":"t","content":"c"}'


def read(body, *, max_line=10_000, **options):
    lines = MessageLines(body, max_line=max_line, now_ms=NOW_MS, of_request=TRACE, **options)
    while lines.read():
        pass
    return lines


def described(error):
    return (type(error), str(error))


def rejected(lines):
    return [(each.number, *described(each.error)) for each in lines.rejected]


texts = strategies.texts | st.sampled_from(
    ['"', "\\", '\\"', ":", '":"', "\\u003a", "\n", "\r\n", "}\n{", "\N{GRINNING FACE}"]
)
other_members = {
    "headers": st.dictionaries(texts, texts, max_size=3),
    "headers_base64": strategies.header_pairs | st.lists(st.tuples(texts, st.none()), max_size=2),
    "timestamp": strategies.numbers_of_time | st.sampled_from(["2026-03-01T12:00:00Z"]),
}
base64 = st.sampled_from(["", "AP8=", "////"])
messages = st.one_of(
    st.fixed_dictionaries(
        {"topic": strategies.topics, "content": texts}, optional={"key": st.none() | texts, **other_members}
    ),
    st.fixed_dictionaries(
        {"topic": strategies.topics, "content_base64": base64},
        optional={"key": st.none() | texts, **other_members},
    ),
    st.fixed_dictionaries(
        {"topic": strategies.topics, "content": texts},
        optional={"key_base64": st.none() | base64, **other_members},
    ),
)
line_ends = st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\r\n\n\r\n"])
separators = st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " :\r")])
sizes = st.sampled_from([1, 30, 100, 1 << 17])


def expected_record(members):
    return record_of(parse_message(json.dumps(members).encode()), now_ms=NOW_MS, of_request=TRACE)


@given(st.lists(st.tuples(messages, line_ends, st.booleans()), max_size=12), separators, sizes, st.booleans())
def test_any_list_of_messages_makes_exactly_those_records_in_order(listed, style, size, ends):
    body = b"".join(
        json.dumps(members, separators=style, ensure_ascii=is_ascii).encode() + end
        for members, end, is_ascii in listed
    )
    lines = read(body if ends else body.rstrip(b"\r\n"), read_at_once=size)
    assert lines.rejected == []
    assert lines.records == [expected_record(members) for members, _, _ in listed]
    assert lines.count == len(listed)
    assert set(lines.topics) == {members["topic"] for members, _, _ in listed}


# Parts of lines: names and values that a message may have, in any number and order.
names = st.sampled_from(
    [
        *['"topic"', '"content"', '"key"', '"headers"', '"timestamp"', r'"t\u006fpic"', '"Key"'],
        *['"content_base64"', '"key_base64"', '"headers_base64"'],
    ]
)
values = st.sampled_from(
    [
        *[
            '"t"',
            '"u"',
            '""',
            "null",
            "1",
            r'"\""',
            r'"\u003a"',
            r'"\u003A"',
            '":"',
            r'"\\"',
            '"\N{GRINNING FACE}"',
            r'"\ud800"',
        ],
        *["{}", '{"a":"1"}', '{"a":"1","a":"2"}', '{"a":1}', '"2026-03-01T12:00:00Z"'],
        '"\\"topic\\":\\"x\\""',
        *['"AP8="', '[["a",null]]', '[["a","AP8="],["a",":"]]', r'[["\u003a",""]]'],
    ]
)
spaces = st.sampled_from(["", "", "", "", " ", "\n", "\r", "\r\n"])


@st.composite
def objects(draw):
    # Most have both members that a message must have, so that many are right, or nearly.
    members = [('"topic"', '"t"'), ('"content"', draw(values))] if draw(st.integers(0, 5)) else []
    members += draw(st.lists(st.tuples(names, values), max_size=2))
    inside = ",".join(
        f"{draw(spaces)}{name}{draw(spaces)}:{draw(spaces)}{value}"
        for name, value in draw(st.permutations(members))
    )
    return f"{{{inside}{draw(spaces)}}}".encode("utf-8", "surrogatepass")


bad_lines = st.sampled_from(
    [
        b"x",
        b"[]",
        b"1",
        b"{",
        b"{}{}",
        b"\xff",
        b" ",
        b"\r",
        b"[1,\n2]",
        b"[1\n2]",
        b"1,2,3",
        b"\xef\xbb\xbf{}",
    ]
)
good_lines = st.sampled_from([GOOD, b'{"topic":"t","key":"k","content":"c"}'])
bodies = st.lists(
    st.tuples(
        good_lines | objects() | bad_lines | st.binary(max_size=5),
        st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"", b"\n\n", b" \n", b"\r\r\n"]),
    ),
    max_size=10,
).map(lambda lines: b"".join(line + end for line, end in lines))


def one_by_one(body):
    """Read as the description of the format has it, in the simplest way."""
    records, wrong, count = [], [], 0
    *ended, last = body.split(b"\n")
    for text in filter(None, [*(line.removesuffix(b"\r") for line in ended), last]):
        try:
            records.append(record_of(parse_message(text, source="line"), now_ms=NOW_MS, of_request=TRACE))
        except MessageError as error:
            wrong.append((count, *described(error)))
        count += 1
    return records, wrong, count


@given(bodies, sizes)
@example(b'{"topic":"t","content":"c"}\n{"topic":\n"t","content":"c"}\n', 1 << 17)
@example(GOOD + GOOD, 1 << 17)
@example(GOOD + GOOD + b"\n\n", 1 << 17)
@example(GOOD + b"," + GOOD, 1 << 17)
@example(GOOD + b"," + GOOD + b"\n\n" + GOOD, 1 << 17)
@example(b'{"topic":"t","content":"c","content":"d"}', 1 << 17)
@example(b'{"topic":"t","content":"c","key":null,"key":"k"}', 1 << 17)
# As many colons as two messages have.
@example(b'{"topic":"t"}\n{"topic":"t","content":"c","content_base64":""}', 1 << 17)
def test_lines_that_are_read_together_are_read_as_if_one_by_one(body, size):
    lines = read(body, read_at_once=size)
    assert (lines.records, rejected(lines), lines.count) == one_by_one(body)


@given(st.lists(st.booleans(), min_size=1, max_size=40), sizes)
def test_each_line_that_is_wrong_is_named_and_no_other(are_good, size):
    body = b"\n".join(GOOD if is_good else b'{"topic":"t"}' for is_good in are_good)
    lines = read(body, read_at_once=size)
    assert [each.number for each in lines.rejected] == [
        n for n, is_good in enumerate(are_good) if not is_good
    ]
    assert len(lines.records) == sum(are_good)


@pytest.mark.parametrize(
    ("name", "twice"),
    [
        ("topic", '"topic":"t","topic":"t"'),
        ("content", '"content":"c","content":"c"'),
        ("key", '"key":"k","key":"k"'),
        ("key", '"key":null,"key":"k"'),
        ("key", '"key":"k","key":null'),
        ("timestamp", '"timestamp":100000000000,"timestamp":100000000000'),
        ("headers", '"headers":{},"headers":{}'),
        ("headers/a", '"headers":{"a":"","a":""}'),
    ],
)
@pytest.mark.parametrize("others", [0, 1, 100])
@pytest.mark.parametrize("spare", [b"", b" "])
def test_a_member_that_is_there_twice_is_found_among_others(name, twice, others, spare):
    once = {"topic": '"topic":"t",', "content": '"content":"c",'}
    line = f"{{{''.join(part for member, part in once.items() if member != name)}{twice}}}".encode()
    lines = read((GOOD + spare + b"\n") * others + line)
    ((number, kind, _),) = rejected(lines)
    assert (number, kind) == (others, InvalidMessage)
    assert lines.rejected[0].error.faults[0].pointer == f"/{name}"


def test_a_message_on_two_lines_is_two_lines_that_are_wrong():
    lines = read(GOOD + b'\n{"topic":"t",\n"content":"c"}\n')
    assert [(number, kind) for number, kind, _ in rejected(lines)] == [
        (1, MalformedMessage),
        (2, MalformedMessage),
    ]
    assert "The line is not JSON" in str(lines.rejected[0].error)


@pytest.mark.parametrize("two_on_a_line", [GOOD + b"," + GOOD, GOOD + b",null," + GOOD, b"null," + GOOD])
@pytest.mark.parametrize("split", [b'{"topic":"t"\n"content":"c"}', b'{"topic":"t",\n"content":"c"}'])
def test_two_messages_on_a_line_do_not_make_up_for_one_on_two_lines(two_on_a_line, split):
    lines = read(two_on_a_line + b"\n" + split + b"\n" + GOOD)
    assert [number for number, _, _ in rejected(lines)] == [0, 1, 2]
    assert len(lines.records) == 1


@pytest.mark.parametrize(
    "line",
    [
        GOOD,
        b'{"topic":"t","content_base64":"AP8="}',
        b'{"topic":"t","content":"c","key_base64":"AP8="}',
        b'{"topic":"t","content_base64":"AP8=","key":"k:","headers":{"h":"v"},"timestamp":100000000000}',
    ],
)
def test_lines_that_are_right_are_not_read_one_by_one(line, monkeypatch):
    monkeypatch.setattr("sampleapp.messages.lines.parse_message", None)
    assert len(read((line + b"\n" + GOOD + b"\n") * 100).records) == 200


def test_a_null_is_no_message():
    assert [number for number, _, _ in rejected(read(GOOD + b"\nnull\n" + GOOD))] == [1]


@pytest.mark.parametrize("body", [b"", b"\n", b"\r\n", b"\n\r\n\n"])
def test_empty_lines_are_nothing(body):
    lines = read(body)
    assert (lines.count, lines.records, lines.rejected) == (0, [], [])


def test_a_line_may_be_as_long_as_a_message_and_no_longer():
    fits = b'{"topic":"t","content":"%b"}' % (b"x" * 74)
    assert len(fits) == 100
    for end, size in product([b"", b"\n", b"\r\n"], [1, 1 << 17]):
        lines = read(GOOD + b"\n" + fits + end, max_line=100, read_at_once=size)
        assert (len(lines.records), lines.rejected) == (2, [])
        lines = read(GOOD + b"\n" + fits + b" " + end, max_line=100, read_at_once=size)
        assert [each.number for each in lines.rejected] == [1]
        assert "more than 100 bytes" in str(lines.rejected[0].error)


@given(st.lists(st.integers(999, 1001), min_size=1, max_size=4), sizes)
@examples(20)
def test_a_message_with_too_many_headers_is_named_among_others(counts, size):
    listed = [
        {"topic": "t", "content": "c", "headers": {f"h{n}": "v" for n in range(count)}} for count in counts
    ]
    body = b"\n".join(json.dumps(each).encode() for each in listed)
    lines = read(body, max_line=1 << 20, read_at_once=size)
    assert [each.number for each in lines.rejected] == [n for n, count in enumerate(counts) if count > 1000]
    assert lines.records == [
        expected_record(each) for each, count in zip(listed, counts, strict=True) if count <= 1000
    ]


@pytest.mark.parametrize("others", [0, 100])
def test_a_line_with_very_many_headers_is_rejected_as_a_message_is(others):
    line = json.dumps({"topic": "t", "content": "c", "headers": {f"h{n}": "v" for n in range(50_000)}})
    lines = read(b'{"topic":"t"}\n' * others + line.encode(), max_line=1 << 20)
    assert len(lines.rejected) == (others or 1)
    assert lines.count == others + 1
    with pytest.raises(InvalidMessage) as caught:
        parse_message(line.encode())
    assert others or described(lines.rejected[0].error) == described(caught.value)


@given(st.sets(st.sampled_from("abc")), st.lists(st.sampled_from("abcd"), max_size=20), sizes)
def test_messages_for_a_topic_that_is_rejected_are_rejected_with_its_reason(forbidden, topics, size):
    def reject(topic):
        return TopicNotAuthorized(topic) if topic in forbidden else None

    body = b"".join(b'{"topic":"%b","content":""}\n' % topic.encode() for topic in topics)
    lines = read(body, reject_topic=reject, read_at_once=size)
    assert rejected(lines) == [
        (number, TopicNotAuthorized, topic) for number, topic in enumerate(topics) if topic in forbidden
    ]
    assert [record.topic for record in lines.records] == [topic for topic in topics if topic not in forbidden]
    assert set(lines.topics) == set(topics) - forbidden


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_a_batch_names_up_to_a_thousand_topics(size):
    names = [b"t%d" % number for number in (*range(MOST_TOPICS), 0, 1)]
    lines = read(b"".join(b'{"topic":"%b","content":""}\n' % name for name in names), read_at_once=size)
    assert (rejected(lines), len(lines.records), len(lines.topics)) == ([], 1002, 1000)

    names[1:1] = [b"more"]
    lines = read(b"".join(b'{"topic":"%b","content":""}\n' % name for name in names), read_at_once=size)
    (one,) = lines.rejected
    assert (one.number, [fault.pointer for fault in one.error.faults]) == (1000, ["/topic"])
    assert "1000 other topics" in str(one.error)
    assert len(lines.topics) == 1000


def rejecting(topic):
    return TopicNotAuthorized(topic) if topic == "secret" else None


NOT_ALLOWED = b'{"topic":"secret","content":""}\n'
INVALID = b"{}\n"
MALFORMED = b"{\n"


@pytest.mark.parametrize(
    ("first", "then", "found"),
    [
        (NOT_ALLOWED * 150, b"", 100),
        (NOT_ALLOWED * 150, GOOD, 100),
        (NOT_ALLOWED * 150, INVALID, 101),
        (NOT_ALLOWED * 150, INVALID + MALFORMED, 102),
        (NOT_ALLOWED * 150, MALFORMED + INVALID, 101),
        # Each lacks two members.
        (INVALID * 60, NOT_ALLOWED, 50),
        (INVALID * 60, MALFORMED * 9, 51),
        (INVALID * 6000, MALFORMED * 9, 51),
        (b"[1]\n" * 6000, b"[1\n1]\n", 101),
        (MALFORMED * 150, INVALID + NOT_ALLOWED, 100),
    ],
)
def test_beyond_100_faults_only_worse_ones_are_sought(first, then, found):
    lines = read(first + then, reject_topic=rejecting)
    assert lines.is_full
    assert len(lines.rejected) == found
    assert MOST_FAULTS == 100


@given(bodies, sizes)
@example(b"[1\n2]\n3,4,5\n", 30)
def test_a_line_that_is_no_json_is_found_behind_100_faults(body, size):
    malformed = [kind for _, kind, _ in one_by_one(body)[1] if kind is MalformedMessage]
    lines = read(INVALID * 50 + body, read_at_once=size)
    assert [kind for _, kind, _ in rejected(lines)[50:]] == malformed[:1]


@pytest.mark.parametrize("line", [b"1", GOOD, b'{"topic":"t","content":"","key":null}'])
def test_a_step_reads_a_bounded_part_of_a_large_body(line):
    body = (line + b"\n") * (3_000_000 // (len(line) + 1))
    lines = MessageLines(body, max_line=10_000, now_ms=NOW_MS)
    counts = [0]
    while lines.read():
        counts.append(lines.count)
    assert max(after - before for before, after in pairwise(counts)) <= 128 * 1024 // len(line)
    assert len(counts) > 20


@pytest.mark.parametrize(
    "line",
    [rb'{"topic":"t","content":"\u003a:"}', rb'{"topic":"t","content":"\u003A:","headers":{}}'],
)
def test_a_step_reads_few_lines_that_are_read_one_by_one(line):
    lines = MessageLines((line + b"\n") * 1000, max_line=10_000, now_ms=NOW_MS)
    counts = [0]
    while lines.read():
        counts.append(lines.count)
    assert max(after - before for before, after in pairwise(counts)) <= 100
    assert len(lines.records) == 1000


def test_a_step_rejects_one_long_line():
    # Naming the faults of such a line takes milliseconds.
    line = b'{"topic":[%b[]]}\n' % (b"[]," * 9_000)
    lines = MessageLines(line * 12, max_line=1 << 20, now_ms=NOW_MS)
    counts = [0]
    while lines.read():
        counts.append(lines.count)
    assert max(after - before for before, after in pairwise(counts)) == 1


@pytest.mark.parametrize(
    "wrong", [b"1", b"{", b'{"topic":"t","content":"\xff"}', b'{"topic":"other","content":"c"}']
)
def test_the_errors_keep_nothing_of_the_body_in_memory(wrong):
    lines = read(
        b"\n".join([GOOD, wrong]),
        reject_topic=lambda topic: TopicNotAuthorized(topic) if topic == "other" else None,
    )
    (rejection,) = lines.rejected
    reader = weakref.ref(lines)
    gc.disable()
    try:
        del lines
        assert reader() is None
    finally:
        gc.enable()
    assert rejection.number == 1
