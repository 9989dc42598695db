"""This service, h11 and Twisted's own server see the same requests in a stream of bytes."""

from __future__ import annotations

from random import Random

import pytest

from tests.support.http_differences import differences
from tests.support.http_parsers import Rejected, Seen, Waiting, seen_by_h11, seen_by_service, seen_by_twisted
from tests.support.requests import DAMAGES, damaged_request, right_request, stream

# `make fuzz` takes more, and others each time.
STREAMS = 1_500


def test_requests_are_seen_as_others_see_them_but_for_differences_that_have_a_reason():
    chance = Random(9112)
    for _ in range(STREAMS):
        data = stream(chance)
        for difference in differences(data):
            assert difference.kind is not None, (data, difference)


def test_every_right_request_is_seen_by_all_three():
    chance = Random(9110)
    for _ in range(1_000):
        data = right_request(chance).data
        ours = seen_by_service(data)
        assert isinstance(ours[0], Seen), (data, ours)
        for theirs in (seen_by_h11(data.lstrip(b"\r\n")), seen_by_twisted(data.lstrip(b"\r\n"))):
            assert theirs[0] == ours[0] or isinstance(theirs[0], Rejected), (data, ours, theirs)


@pytest.mark.parametrize(
    "damage",
    [each for each in DAMAGES if each not in ("another protocol", "truncated", "bad trailer", "bad target")],
)
def test_every_damage_is_rejected_by_this_service_however_lenient_the_others_are(damage):
    chance = Random(damage)
    for _ in range(50):
        data = damaged_request(chance, damage=damage).data
        events = seen_by_service(data)
        # A damage that chance has put where it does no harm is seen as the others see it.
        if not isinstance(events[0], Rejected):
            assert events == seen_by_h11(data) or not _matters(damage), (data, events)


def _matters(damage):
    return damage not in ("control character", "bad chunk size")


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x00\x00\x00\x23\x00\x12\x00\x03",
        b"*1\r\n$4\r\nPING\r\n",
        b"GET /\r\n",
    ],
)
def test_data_that_is_not_http_is_rejected_as_soon_as_that_is_known(data):
    assert seen_by_service(data) == [Rejected("400")]


@pytest.mark.parametrize("size", [b"ffffffff", b"ffffffffffffffff", b"fffffffffffffffffffff", b"100001"])
def test_a_chunk_that_is_too_large_is_rejected_before_it_comes(size):
    data = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%b\r\n" % size
    assert seen_by_service(data) == [Rejected("413")]


def test_a_request_that_is_not_whole_is_waited_for():
    assert seen_by_service(b"GET / HTTP/1.1\r\nHost: a\r\n\r") == [Waiting()]
