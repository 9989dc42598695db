"""Descriptions of endpoints are understood as Twisted understands them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.internet.endpoints import _parse

from sampleapp.service.endpoint_string import EndpointString, escaped_interface, is_loopback

# What the language gives a meaning, and what it does not.
TEXTS = st.text(alphabet=r":=\ab/. é", max_size=12)


@given(TEXTS)
@example(r"8080:interface=\:\:1")
@example("8443:interface=::1")
@example("=5")
@example(r"a\=b=c=d")
def test_a_description_is_taken_apart_as_twisted_does_it(arguments):
    description = f"TCP:{arguments}"
    try:
        by_place, by_name = _parse(description)
    except (RuntimeError, UnicodeEncodeError):
        # A backslash at the end, or a name that is not ASCII, which Twisted has for none.
        return
    assert EndpointString.parse(description) == EndpointString(
        kind="tcp", by_place=tuple(by_place[1:]), by_name=by_name
    )


@pytest.mark.parametrize(
    ("description", "is_local"),
    [
        ("tcp:8080:interface=127.0.0.1", True),
        ("tcp:8080:127.3.2.1", True),
        ("tcp:interface=localhost:port=8080", True),
        ("TCP:8080:interface=127.0.0.1", True),
        (r"tcp6:8080:interface=\:\:1", True),
        (r"tcp6:8080:50:\:\:1", True),
        (r"tcp6:8080:interface=\:\:ffff\:127.0.0.1", True),
        (r"tcp6:8080:interface=\:\:1%lo", True),
        ("ssl:8443:interface=127.0.0.1:privateKey=k", True),
        ("https:8443:interface=127.0.0.1:privateKey=k", True),
        (r"https:8443:interface=\:\:1:privateKey=k", True),
        ("unix:/run/http.sock", True),
        ("haproxy:tcp:8080:interface=127.0.0.1", True),
        ("tcp:8080", False),
        ("tcp:8080:interface=", False),
        ("tcp:8080:interface=0.0.0.0", False),
        ("tcp:8080:interface=192.0.2.1", False),
        ("tcp:8080:interface=127.0.0.1.example.org", False),
        ("tcp6:8080", False),
        (r"tcp6:8080:interface=\:\:", False),
        (r"tcp6:8080:interface=\:\:ffff\:192.0.2.1", False),
        ("tls:directory:8443", False),
        ("ssl:8443:privateKey=k", False),
        ("https:8443:privateKey=k", False),
        (r"https:8443:privateKey=k:interface=\:\:", False),
        ("https:8443:privateKey=interface=127.0.0.1", False),
        ("haproxy:tcp:8080", False),
        ("systemd:domain=INET:index=0", False),
        ("unknown:127.0.0.1:interface=127.0.0.1", False),
    ],
)
def test_an_endpoint_that_only_this_machine_reaches_is_told_apart(description, is_local):
    assert is_loopback(description) is is_local


@pytest.mark.parametrize(
    ("description", "meant"),
    [
        ("tcp6:8080:interface=::1", r"tcp6:8080:interface=\:\:1"),
        ("tcp6:8080:interface=[::1]", r"tcp6:8080:interface=\:\:1"),
        ("tcp6:8080:interface=::", r"tcp6:8080:interface=\:\:"),
        ("tcp6:interface=fe80::1%eth0:port=8080", r"tcp6:interface=fe80\:\:1%eth0:port=8080"),
        (
            "https:8443:k:interface=2001:db8::7:clientCA=c",
            r"https:8443:k:interface=2001\:db8\:\:7:clientCA=c",
        ),
        ("haproxy:tcp6:8080:interface=::1", r"haproxy:tcp6:8080:interface=\:\:1"),
        (r"tcp6:8080:interface=\:\:1", None),
        ("tcp:8080:interface=127.0.0.1:backlog=5", None),
        ("tcp:8080:interface=:backlog=5", None),
        ("tcp:8080", None),
    ],
)
def test_an_address_whose_colons_end_arguments_is_told_apart(description, meant):
    assert escaped_interface(description) == meant
