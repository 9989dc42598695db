"""CloudEvents' binding for HTTP, and what becomes of it by the binding for Kafka."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.errors import InvalidMessage, MalformedMessage
from sampleapp.messages.cloud_events import (
    EventFormat,
    event_format,
    key_of_headers,
    may_be_event,
    read_event_headers,
    read_event_key,
)
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


@pytest.mark.parametrize("content_type", [None, b"", b"application/json"])
def test_what_has_no_attribute_is_no_event(content_type):
    assert headers_and_faults(OTHERS, content_type) == ((), [])
    assert not may_be_event([name for name, _ in OTHERS])
    assert may_be_event([name for name, _ in (*OTHERS, *EVENT[1:2])])


def test_attributes_without_a_specversion_are_a_fault():
    assert headers_and_faults((*OTHERS, *EVENT[1:]))[1] == ["/ce-specversion"]
    assert headers_and_faults((*OTHERS, (b"ce-x", b"1")))[1] == [
        "/ce-id",
        "/ce-source",
        "/ce-specversion",
        "/ce-type",
    ]


@pytest.mark.parametrize("version", [b"0.3", b"1.0.2", b"1", b"2.0"])
def test_another_version_is_a_fault(version):
    assert headers_and_faults((*EVENT[1:], (b"ce-specversion", version)))[1] == ["/ce-specversion"]
    body = b'{"specversion":"%b","id":"1","source":"s","type":"t"}' % version
    with pytest.raises(InvalidMessage, match=r'"specversion" must be 1.0, the only version'):
        read_event_key(body)


@pytest.mark.parametrize("value", [b"caf\xe9", b"caf%E9"])
def test_a_value_in_another_encoding_is_rejected_with_the_right_one(value):
    faults = []
    read_event_headers((*EVENT, (b"ce-subject", value)), None, faults)
    (fault,) = faults
    assert fault.pointer == "/ce-subject"
    assert "perhaps it is ISO-8859-1" in fault.detail
    assert "%E2%82%AC" in fault.detail


def test_the_partitionkey_is_the_key_and_stays_an_attribute():
    headers, faults = headers_and_faults((*EVENT, (b"ce-partitionkey", b"%c3%a4")))
    assert (key_of_headers(headers), headers[-1], faults) == (
        "ä".encode(),
        ("ce_partitionkey", "ä".encode()),
        [],
    )
    assert key_of_headers(headers[:-1]) is None
    assert headers_and_faults((*EVENT, (b"ce-partitionkey", b"")))[1] == ["/ce-partitionkey"]


REQUIRED = b'"specversion":"1.0","id":"1","source":"s","type":"t"'


@pytest.mark.parametrize(
    ("rest", "key"),
    [
        (b"", None),
        (b',"partitionkey":null', None),
        (rb',"partitionkey":"\u00e4"', "ä".encode()),
        (b',"data":{"partitionkey":"no","id":""},"partitionkey":"k"', b"k"),
        (b',"data_base64":"////","datacontenttype":"a/b","extension":1', None),
        (b',"data_base64":"////","data":null', None),
    ],
)
def test_an_event_in_structured_mode_gives_its_key(rest, key):
    assert read_event_key(b" {" + REQUIRED + rest + b"}\n") == key


@pytest.mark.parametrize("body", [b"", b" ", b"not json", b"{" + REQUIRED, b'{"id":"\xff"}', b"[" * 100_000])
def test_a_structured_event_that_is_not_json_is_malformed(body):
    with pytest.raises(MalformedMessage):
        read_event_key(body)


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        (b"[]", [""]),
        (b"null", [""]),
        (b"{}", ["/specversion", "/id", "/source", "/type"]),
        (b'{"specversion":"1.0","id":1,"source":"","type":null}', ["/id", "/source", "/type"]),
        (b"{" + REQUIRED + b',"partitionkey":""}', ["/partitionkey"]),
        (b"{" + REQUIRED + b',"partitionkey":7}', ["/partitionkey"]),
        (b'{"id":1,' + REQUIRED + b"}", [""]),
        (b"{" + REQUIRED + rb',"partitionkey":"\ud800"}', [""]),
        (b"{" + REQUIRED + b',"data":1,"data_base64":"////"}', ["/data_base64"]),
        (b'{"data":{},"data_base64":1}', ["/data_base64", "/specversion", "/id", "/source", "/type"]),
    ],
)
def test_all_that_is_wrong_with_a_structured_event_is_named(body, pointers):
    with pytest.raises(InvalidMessage) as caught:
        read_event_key(body)
    assert [fault.pointer for fault in caught.value.faults] == pointers


@pytest.mark.parametrize(
    ("content_type", "found"),
    [
        (b"application/cloudevents+json", EventFormat.STRUCTURED),
        (b"Application/CloudEvents+JSON ; charset=utf-8", EventFormat.STRUCTURED),
        (b"application/cloudevents-batch+json", EventFormat.BATCHED),
        (b"application/cloudevents+avro", EventFormat.UNSUPPORTED),
        (b"application/cloudevents+jsonx", EventFormat.UNSUPPORTED),
        (b"application/cloudevents", EventFormat.UNSUPPORTED),
        (b"application/cloudevents-batch", EventFormat.UNSUPPORTED),
        (b"application/json", None),
        (b"", None),
    ],
)
def test_the_beginning_of_the_content_type_is_the_format(content_type, found):
    assert event_format(content_type) is found


@pytest.mark.parametrize(
    "content_type",
    [
        b"application/cloudevents+json",
        b"application/cloudevents+json; charset=UTF-8",
    ],
)
@pytest.mark.parametrize("fields", [OTHERS, EVENT, EVENT[:1]])
def test_in_structured_mode_only_the_content_type_is_a_header(content_type, fields):
    assert headers_and_faults(fields, content_type) == ((("content-type", content_type),), [])


def test_a_batch_has_no_headers_of_its_own():
    assert headers_and_faults(EVENT, b"application/cloudevents-batch+json") == ((), [])


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
def test_any_header_is_an_event_or_none_or_rejected(fields, content_type):
    headers, faults = headers_and_faults(fields, content_type)
    if not faults:
        for _, value in headers[1:]:
            value.decode("utf-8")
