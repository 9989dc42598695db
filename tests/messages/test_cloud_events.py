"""CloudEvents' binding for HTTP, and what becomes of it by the binding for Kafka."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.messages.cloud_events import read_event_headers
from tests.support import strategies

EVENT = (
    (b"ce-specversion", b"1.0"),
    (b"ce-type", b"com.example.someevent"),
    (b"ce-source", b"/mycontext"),
    (b"ce-id", b"1234"),
)
OTHERS = ((b"host", b"localhost"), (b"cea", b"1"), (b"x-ce-id", b"2"))


def headers_and_faults(fields, content_type=None):
    faults = []
    headers = read_event_headers(fields, content_type, faults)
    return headers, [fault.pointer for fault in faults]


def test_an_event_in_binary_mode_has_each_attribute_as_a_header():
    fields = (*OTHERS, *EVENT, (b"ce-time", b"2018-04-05T03:56:24Z"), (b"ce-myextension", b"1.5"))
    assert headers_and_faults(fields, b"application/json; charset=utf-8") == (
        (
            ("content-type", b"application/json; charset=utf-8"),
            ("ce_specversion", b"1.0"),
            ("ce_type", b"com.example.someevent"),
            ("ce_source", b"/mycontext"),
            ("ce_id", b"1234"),
            ("ce_time", b"2018-04-05T03:56:24Z"),
            ("ce_myextension", b"1.5"),
        ),
        [],
    )
    assert headers_and_faults(EVENT) == (tuple((f"ce_{n[3:].decode()}", value) for n, value in EVENT), [])


@pytest.mark.parametrize(
    "content_type", [None, b"", b"application/json", b"application/cloudevents-batch+json"]
)
def test_what_has_no_specversion_is_no_event_whatever_else_it_has(content_type):
    assert headers_and_faults((*OTHERS, *EVENT[1:], (b"ce-id", b"\xff")), content_type) == ((), [])


@pytest.mark.parametrize(
    "content_type",
    [
        b"application/cloudevents+json",
        b"application/cloudevents+json; charset=UTF-8",
        b"Application/CloudEvents+Avro",
        b"application/cloudevents",
    ],
)
@pytest.mark.parametrize("fields", [OTHERS, EVENT, EVENT[:1]])
def test_in_structured_mode_only_the_content_type_is_a_header(content_type, fields):
    assert headers_and_faults(fields, content_type) == ((("content-type", content_type),), [])


@pytest.mark.parametrize(
    "content_type", [b"application/cloudevents-batch+json", b"application/cloudevents-batch"]
)
def test_a_batch_has_no_headers_since_kafka_has_no_form_for_it(content_type):
    assert headers_and_faults(EVENT, content_type) == ((), [])


@pytest.mark.parametrize(
    ("value", "decoded"),
    [
        (b"Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro € 😀"),
        (b"%e2%82%ac", "€"),
        (b"%41%62", "Ab"),
        (b"%2541", "%41"),
        (b"a+b", "a+b"),
        (b"100%", "100%"),
        (b"%zz", "%zz"),
        (b'"with spaces"', "with spaces"),
        (rb'"a \"quoted\" \\ %41"', 'a "quoted" \\ A'),
        (b'""', ""),
        (b'a"b"', 'a"b"'),
        (b'"open', '"open'),
        ("ä".encode(), "ä"),
    ],
)
def test_a_value_is_unquoted_and_its_percent_encoding_undone_once(value, decoded):
    headers, faults = headers_and_faults((*EVENT, (b"ce-subject", value)))
    assert (headers[-1], faults) == (("ce_subject", decoded.encode()), [])


@given(strategies.texts)
def test_any_text_that_is_encoded_as_the_binding_says_comes_back(text):
    encoded = b"".join(
        bytes([octet]) if 0x21 <= octet <= 0x7E and octet not in b'"%' else b"%%%02X" % octet
        for octet in text.encode()
    )
    headers, faults = headers_and_faults((*EVENT, (b"ce-subject", encoded)))
    assert (headers[-1], faults) == (("ce_subject", text.encode()), [])


@pytest.mark.parametrize(
    ("fields", "pointers"),
    [
        (EVENT[:1], ["/ce-id", "/ce-source", "/ce-type"]),
        (((b"ce-specversion", b""), *EVENT[1:]), ["/ce-specversion"]),
        ((*EVENT[:3], (b"ce-id", b'""')), ["/ce-id"]),
        (
            (
                *EVENT,
                (b"ce-subject", b""),
            ),
            [],
        ),
        ((*EVENT, EVENT[3]), ["/ce-id"]),
        ((*EVENT, (b"ce-subject", b"%C0%A0")), ["/ce-subject"]),
        ((*EVENT, (b"ce-subject", b"\xff")), ["/ce-subject"]),
        ((*EVENT, (b"ce-datacontenttype", b"text/plain")), ["/ce-datacontenttype"]),
        (
            (*EVENT, (b"ce-my-extension", b"1"), (b"ce-", b"1"), (b"ce-a~", b"1")),
            ["/ce-my-extension", "/ce-", "/ce-a~0"],
        ),
        ((EVENT[0], (b"ce-x_y", b"\xff")), ["/ce-id", "/ce-source", "/ce-type", "/ce-x_y", "/ce-x_y"]),
    ],
)
def test_all_that_is_wrong_with_an_event_is_named(fields, pointers):
    assert headers_and_faults(fields)[1] == pointers


names = st.sampled_from([name for name, _ in (*EVENT, *OTHERS)]) | st.from_regex(
    rb"ce-[a-z0-9]{1,3}", fullmatch=True
)


@given(st.lists(st.tuples(names, strategies.field_bytes)), st.none() | strategies.field_bytes)
def test_any_header_is_an_event_or_none_or_refused(fields, content_type):
    headers, faults = headers_and_faults(fields, content_type)
    if not faults:
        for _, value in headers[1:]:
            value.decode("utf-8")
