"""The choice of header fields of a request that become headers of its record."""

from __future__ import annotations

import pytest

from sampleapp.access.signatures import FIXED_SCHEMES
from sampleapp.messages.headers import (
    NotRecordable,
    RecordedFields,
    check_recorded_name,
    check_recorded_parameter,
)
from sampleapp.web.server import Fields

SECRETS = [
    *["Authorization", "Cookie", "Proxy-Authorization", "Connection", "Transfer-Encoding", "TE", "Upgrade"],
    *[name for scheme in FIXED_SCHEMES.values() for name in scheme.signature_fields],
    # GitHub's older one, with SHA-1.
    "X-Hub-Signature",
    *["Idempotency-Fingerprint", "traceparent", "tracestate", "Keep-Alive", "Trailer", "Content-Length"],
]


def recorded(*names, **options):
    return RecordedFields(map(check_recorded_name, names), **options)


def test_by_default_only_the_content_type_is_kept():
    fields = Fields([(b"Content-Type", b"text/plain; charset=x"), (b"X-GitHub-Event", b"push")])
    assert RecordedFields().of(fields) == (("content-type", b"text/plain; charset=x"),)
    assert RecordedFields().of(Fields()) == ()


def test_nothing_is_kept_if_nothing_is_chosen():
    fields = Fields([(b"Content-Type", b"text/plain"), (b"X-A", b"1")])
    assert recorded(has_content_type=False).of(fields) == ()
    assert recorded("X-*", has_content_type=False).of(fields) == (("x-a", b"1"),)
    assert recorded("Content-*", has_content_type=False).of(fields) == ()


def test_names_and_prefixes_have_no_case_and_values_stay_as_they_are():
    fields = Fields(
        [
            (b"X-GITHUB-EVENT", b"push"),
            (b"content-type", b"application/json"),
            (b"X-Github", b"no"),
            (b"x-github-delivery", b"\xff"),
            (b"User-Agent", b"GitHub-Hookshot/1"),
            (b"X-GitHub-Event", b""),
        ]
    )
    assert recorded("x-gitHub-*", "user-agent").of(fields) == (
        ("x-github-event", b"push"),
        ("x-github-event", b""),
        ("content-type", b"application/json"),
        ("x-github-delivery", b"\xff"),
        ("user-agent", b"GitHub-Hookshot/1"),
    )


def test_no_prefix_covers_what_may_not_be_named():
    fields = Fields([*((name.encode(), b"secret") for name in SECRETS), (b"X-A", b"1")])
    for prefix in ("*", "A*", "C*", "P*", "T*", "U*", "X-*", "S*", "W*", "I*", "K*"):
        assert {value for _, value in recorded(prefix).of(fields)} <= {b"1"}


def test_a_field_that_is_for_one_connection_only_is_left_out():
    fields = Fields(
        [
            (b"X-A", b"1"),
            (b"X-B", b"2"),
            (b"X-C", b"3"),
            (b"Content-Type", b"text/plain"),
            (b"Connection", b"close, X-a,\tcontent-type"),
            (b"Connection", b"x-C"),
        ]
    )
    assert recorded("X-*", "x-a").of(fields) == (("x-b", b"2"), ("content-type", b"text/plain"))


def test_more_names_can_be_left_out():
    fields = Fields([(b"Content-Type", b"a/b"), (b"X-Sig", b"0")])
    assert recorded("X-*").of(fields, without=frozenset({b"x-sig"})) == (("content-type", b"a/b"),)
    assert RecordedFields().of(fields, without=frozenset({b"content-type"})) == ()


@pytest.mark.parametrize("name", [*SECRETS, "proxy-", "Proxy-Anything", "PROXY-*"])
def test_credentials_signatures_and_what_is_for_a_connection_cannot_be_named(name):
    for spelt in (name, name.upper(), name.lower()):
        with pytest.raises(NotRecordable, match="cannot take"):
            check_recorded_name(spelt)


@pytest.mark.parametrize("name", ["", "X A", "X:", "*X", "X*Y", "X-**", "X\n", "X-\xe4", "x" * 257, "X,Y"])
def test_what_is_no_name_of_a_header_is_rejected(name):
    with pytest.raises(NotRecordable) as caught:
        check_recorded_name(name)
    assert str(caught.value) == (
        "takes the name of a header, such as X-GitHub-Event, or the beginning of names, such as X-GitHub-*"
    )


@pytest.mark.parametrize("name", ["event", "DevEUI", "data.id", "x-y_z", "topic", "e" * 256])
def test_a_parameter_keeps_its_case(name):
    assert check_recorded_parameter(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *["key", "Key", "envelope", "Content-Type", "ce_id", "CE_type", "__dlq.errors.topic", "__DLQ"],
        *["sampleapp-caller", *SECRETS],
    ],
)
def test_a_parameter_cannot_become_what_the_service_or_an_event_says(name):
    with pytest.raises(NotRecordable, match=f"^cannot take {name}: "):
        check_recorded_parameter(name)


@pytest.mark.parametrize(
    "name",
    ["", "a b", "a=b", "a[]", "\xe4", "x" * 257, "x*", "*", "a&b", "a%20", "a+", "event\n", "a,b", "a/b"],
)
def test_a_parameter_whose_name_is_no_name_of_a_header_is_rejected(name):
    with pytest.raises(NotRecordable) as caught:
        check_recorded_parameter(name)
    assert str(caught.value).startswith("takes the name of a parameter, such as event, ")
