"""Warnings of certificates that must be renewed."""

from __future__ import annotations

import datetime as dt

import pytest
from cryptography import x509
from twisted.logger import capturedLogs

from tests.support.tls_in_memory import Server

DAY_S = 24 * 60 * 60.0
NOW = dt.datetime.now(dt.UTC)


def told(events):
    return [event["sentence"] for event in events if "sentence" in event]


def endpoint(files, *more):
    return ":".join(["https:8443", f"privateKey={files.key}", f"certKey={files.certificate}", *more])


@pytest.fixture
def lasting(authority):
    """Makes a server's certificate that expires a number of days from now."""
    return lambda days: authority.server(start=-dt.timedelta(days=1), end=dt.timedelta(days=days, minutes=5))


def test_a_certificate_that_ends_within_two_weeks_is_warned_of_each_day_until_it_is_renewed(lasting):
    files = lasting(15)
    certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    ends = f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC."
    with capturedLogs() as events:
        server = Server(endpoint(files), now_s=NOW.timestamp())
        assert told(events) == []
        server.reactor.advance(DAY_S)
        assert told(events) == []
        for day in range(1, 15):
            server.reactor.advance(DAY_S)
            assert len(told(events)) == day
            assert told(events)[-1].startswith(
                f"The certificate of CN=server in {files.certificate} expires at {ends}"
            )
        server.reactor.advance(DAY_S)
        assert told(events)[-1].startswith(
            f"The certificate of CN=server in {files.certificate} expired at {ends}"
        )
        lasting(60)
        count = len(told(events))
        assert server.reloads.reload().result
        server.reactor.advance(DAY_S)
        assert len(told(events)) == count


def test_what_is_put_in_the_place_of_a_certificate_is_looked_at_at_once(lasting):
    with capturedLogs() as events:
        server = Server(endpoint(lasting(60)), now_s=NOW.timestamp())
        lasting(3)
        assert server.reloads.reload().result
    assert len(told(events)) == 1


def test_a_certificate_from_the_future_is_told(authority):
    files = authority.server(start=dt.timedelta(days=1), end=dt.timedelta(days=60))
    with capturedLogs() as events:
        Server(endpoint(files), now_s=NOW.timestamp())
    (sentence,) = told(events)
    assert " is not valid before " in sentence
    assert sentence.endswith("Check this machine's clock.")


def test_authorities_of_clients_end_too(authority, lasting):
    with capturedLogs() as events:
        Server(endpoint(lasting(60), f"clientCA={authority.certificate}"), now_s=NOW.timestamp())
    (sentence,) = told(events)
    assert sentence.startswith(f"The certificate of CN=ca in {authority.certificate} expires at ")


def test_a_server_that_stops_looks_no_longer(lasting):
    server = Server(endpoint(lasting(3)), now_s=NOW.timestamp())
    server.listener.stop()
    assert server.reactor.getDelayedCalls() == []
