"""The query of a request that reads a topic."""

from __future__ import annotations

from urllib.parse import quote, quote_from_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.errors import InvalidParameters
from sampleapp.model import EARLIEST, FromEnd, FromOffset, FromTime
from sampleapp.records.positions import Position
from sampleapp.records.read_parameters import (
    PageParameters,
    StreamParameters,
    read_page_parameters,
    read_stream_parameters,
)

NOON_MS = 1_772_362_800_000


def pointers(read, *arguments):
    with pytest.raises(InvalidParameters) as caught:
        read(*arguments)
    return [fault.pointer for fault in caught.value.faults]


def details(read, *arguments):
    with pytest.raises(InvalidParameters) as caught:
        read(*arguments)
    return " ".join(fault.detail for fault in caught.value.faults)


def test_without_a_query_a_page_begins_at_the_first_record_and_a_stream_at_the_end():
    assert read_page_parameters(b"") == PageParameters(
        start=EARLIEST, partitions=None, key=None, limit=500, wait_s=0
    )
    assert read_stream_parameters(b"") == StreamParameters(
        start=FromEnd(0), partitions=None, key=None, source="from"
    )


@pytest.mark.parametrize(
    ("text", "start"),
    [
        (b"earliest", EARLIEST),
        (b"latest", FromEnd(0)),
        (b"-5", FromEnd(5)),
        (b"offset:0", FromOffset(0)),
        (b"offset:42", FromOffset(42)),
        (b"100000000000", FromTime(10**11)),
        (b"9223372036854775807", FromTime(2**63 - 1)),
        (b"1970-01-01T00:00:05Z", FromTime(5000)),
        (b"1772362800000", FromTime(NOON_MS)),
        (b"2026-03-01T12:00:00%2B01:00", FromTime(NOON_MS)),
        (b"2026-03-01T12:00:00+01:00", FromTime(NOON_MS)),
        (b"2026-03-01T12:00:00%2001:00", FromTime(NOON_MS)),
        (b"2026-03-01T11:00:00Z", FromTime(NOON_MS)),
        (b"x~1.-.3", Position("x", {0: 1, 2: 3}, frozenset({1}))),
        (b"_%7E", Position("_", {})),
    ],
)
def test_a_start_is_a_word_a_time_or_a_position(text, start):
    assert read_page_parameters(b"from=" + text).start == start
    assert read_stream_parameters(b"from=" + text).start == start


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Earliest",
        "now",
        "42",
        "1795363727",
        "--1",
        "-",
        "offset:",
        "offset:-1",
        "offset:9223372036854775808",
        "1.5",
        "9223372036854775808",
        "99999999999999999999",
        "2026-03-01",
        "2026-03-01T12:00:00",
        "2026-03-01 12:00:00",
        "2026-02-30T12:00:00Z",
        "~",
        "x~y",
        "\N{ARABIC-INDIC DIGIT ONE}",
        "x~" + "1." * 2048,
        "\udcff",
    ],
)
def test_any_other_start_is_rejected_and_the_answer_names_what_is_right(text):
    query = f"from={quote(text, errors='surrogateescape')}".encode()
    assert pointers(read_page_parameters, query) == ["/from"]
    assert pointers(read_stream_parameters, query) == ["/from"]


@pytest.mark.parametrize("number", ["0", "42", "1795363727", "000000000042", "99999999999"])
def test_a_short_number_is_rejected_with_the_words_for_an_offset_and_for_a_time(number):
    detail = details(read_page_parameters, f"from={number}".encode())
    assert f'"offset:{int(number)}" for an offset' in detail
    assert "milliseconds since the epoch in at least 12 digits" in detail


@pytest.mark.parametrize(
    ("text", "partitions"),
    [
        (b"3", (3,)),
        (b"0,4-7", (0, 4, 5, 6, 7)),
        (b"7,3,3-4", (3, 4, 7)),
        (b"2147483647", (2147483647,)),
        (b"0-4095", tuple(range(4096))),
    ],
)
def test_partitions_are_numbers_and_ranges(text, partitions):
    assert read_page_parameters(b"partition=" + text).partitions == partitions
    assert read_stream_parameters(b"partition=" + text).partitions == partitions


@pytest.mark.parametrize(
    "text",
    ["", ",", "1,", "a", "-1", "1-", "7-4", " 1", "1.0", "2147483648", "0-4096", "0-2147483647", "1-2-3"],
)
def test_other_partitions_are_rejected(text):
    assert pointers(read_page_parameters, f"partition={quote(text)}".encode()) == ["/partition"]


@given(st.binary(max_size=20))
def test_a_key_is_bytes_in_either_form(key):
    escaped = quote_from_bytes(key, safe="").encode()
    assert read_page_parameters(b"key=" + escaped).key == key
    assert read_stream_parameters(b"key_hex=" + key.hex().encode()).key == key
    assert read_page_parameters(b"key_hex=" + key.hex().upper().encode()).key == key


headers = st.tuples(st.text(st.characters(exclude_categories=["Cs"], exclude_characters=":")), st.binary())


@given(st.lists(headers, max_size=8, unique=True))
def test_headers_are_names_and_any_bytes(wanted):
    query = b"&".join(
        b"header=" + quote_from_bytes(name.encode() + b":" + content, safe="").encode()
        for name, content in wanted
    )
    for read in (read_page_parameters, read_stream_parameters):
        assert read(query).headers == tuple(sorted(wanted))


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        (b"header=source", '"source" is not'),
        (b"header=a:1&header=", '"" is not'),
        (b"header=%FF:1", "not UTF-8"),
        (b"&".join(b"header=a:%d" % number for number in range(9)), "up to 8 times"),
    ],
)
def test_headers_that_cannot_be_looked_for_are_rejected(query, detail):
    assert pointers(read_page_parameters, query) == ["/header"]
    assert detail in details(read_stream_parameters, query)


@pytest.mark.parametrize("text", ["a", "0x", "zz", "61 62", "\N{ARABIC-INDIC DIGIT ONE}1"])
def test_a_key_in_hexadecimal_has_two_digits_for_each_byte(text):
    assert pointers(read_page_parameters, f"key_hex={quote(text)}".encode()) == ["/key_hex"]


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("limit", [1, 500, 10_000], ["0", "10001", "-1", "1.5", "", "x", "00000000001", "9" * 5000]),
        ("wait", [0, 1, 60], ["61", "-1", "0.5", "", "1s"]),
    ],
)
def test_numbers_have_bounds(name, good, bad):
    for number in good:
        parameters = read_page_parameters(f"{name}={number}".encode())
        assert {"limit": parameters.limit, "wait": parameters.wait_s}[name] == number
    for text in bad:
        assert pointers(read_page_parameters, f"{name}={text}".encode()) == [f"/{name}"]


def test_everything_that_is_wrong_is_named_at_once():
    query = b"from=now&partition=a&key=k&key_hex=6&limit=0&wait=61&wait=60&x=1&last_event_id=x~1"
    assert sorted(pointers(read_page_parameters, query)) == sorted(
        ["/wait", "/last_event_id", "/x", "/from", "/partition", "/key_hex", "/limit", "/wait"]
    )


def test_a_parameter_of_the_other_representation_is_rejected_with_the_way_to_get_it():
    assert "Accept: text/event-stream" in details(read_page_parameters, b"last_event_id=x~1")
    assert "It is for pages" in details(read_stream_parameters, b"limit=1")
    assert pointers(read_stream_parameters, b"limit=1&wait=1") == ["/limit", "/wait"]


def test_the_id_of_the_last_event_wins_over_where_to_begin():
    query = b"from=earliest&last_event_id=x~1"
    assert read_stream_parameters(query) == StreamParameters(
        start=Position("x", {0: 1}), source="last_event_id"
    )
    assert read_stream_parameters(query, [b"x~2"]) == StreamParameters(
        start=Position("x", {0: 2}), source="Last-Event-ID"
    )
    assert read_stream_parameters(query).resumes
    assert not read_stream_parameters(b"from=x~1").resumes
    assert read_stream_parameters(b"from=x~3", [b"x~2"]).start == Position("x", {0: 2})


def test_an_empty_id_of_the_last_event_is_none():
    assert read_stream_parameters(b"last_event_id=", [b""]) == read_stream_parameters(b"")


@pytest.mark.parametrize("name", ["last_event_id", "lastEventId", "evs_last_event_id"])
@pytest.mark.parametrize("start", ["earliest", "latest", "-3", "offset:7", "2026-03-01T12:00:00+01:00"])
def test_an_id_of_the_last_event_may_be_a_word_of_from_and_then_resumes_nothing(name, start):
    parameters = read_stream_parameters(f"from=x~1&{name}={start}".encode())
    assert parameters.start == read_stream_parameters(f"from={start}".encode()).start
    assert not parameters.resumes


def test_what_only_libraries_add_means_nothing():
    added = b"&_=1700000000000&_=2&evs_buffer_size_limit=262144&evs_preamble"
    assert read_stream_parameters(b"from=x~1" + added) == read_stream_parameters(b"from=x~1")
    assert read_page_parameters(b"limit=5" + added) == read_page_parameters(b"limit=5")
    resumed = read_stream_parameters(b"from=x~1&last_event_id=x~2&evs_last_event_id=x~3" + added)
    assert (resumed.start, resumed.resumes) == (Position("x", {0: 3}), True)
    assert pointers(read_page_parameters, b"__=1&evs=2&ev_s=3&EVS_x=4") == ["/__", "/evs", "/ev_s", "/EVS_x"]


def test_another_id_of_the_last_event_is_rejected():
    assert pointers(read_stream_parameters, b"last_event_id=now") == ["/last_event_id"]
    assert pointers(read_stream_parameters, b"", [b"17"]) == ["/Last-Event-ID"]
    assert pointers(read_stream_parameters, b"", [b"\xff"]) == ["/Last-Event-ID"]
    assert pointers(read_stream_parameters, b"", [b"x~1", b"x~1"]) == ["/Last-Event-ID"]


def test_a_partition_that_is_asked_for_must_be_read_by_the_position():
    assert pointers(read_page_parameters, b"from=x~-.1&partition=0-1") == ["/from"]
    assert pointers(read_stream_parameters, b"partition=0", [b"x~-"]) == ["/Last-Event-ID"]
    # The others do not matter, and those that it does not name are new.
    assert read_page_parameters(b"from=x~-.1&partition=1,7").partitions == (1, 7)


@given(
    st.binary(max_size=60) | st.text("fromkeyhxlitwap_&=%~.-+,0123456789", max_size=60).map(str.encode),
    st.sampled_from([read_page_parameters, read_stream_parameters]),
)
def test_any_query_is_read_or_rejected_with_sentences(query, read):
    try:
        read(query)
    except InvalidParameters as error:
        assert all(fault.detail.endswith(".") for fault in error.faults)  # noqa: PT017 -- some are valid
