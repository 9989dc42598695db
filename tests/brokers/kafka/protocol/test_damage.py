"""Answers that are not as they should be: nothing but `ProtocolError` comes of them."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.brokers.kafka.protocol import ProtocolError
from tests.brokers.kafka.protocol.requests import REQUESTS, versions
from tests.brokers.kafka.protocol.responses import RESPONSES, encoded
from tests.support.examples import examples
from tests.support.kafka_simulator.wire import encode_response

each_answer = pytest.mark.parametrize(
    ("request_", "version"),
    [
        pytest.param(request, version, id=f"{request.api.name}-v{version}")
        for request in REQUESTS
        for version in versions(request.api)
    ],
)


@each_answer
class TestAnyAnswer:
    def test_undamaged_is_read(self, request_, version):
        body = encoded(request_, version)
        decoded = request_.decode(version, body)
        assert request_.decode(version, memoryview(body)) == decoded
        again = encode_response(request_, version, decoded, text="?")
        assert (request_.decode(version, again), len(again)) == (decoded, len(body))
        if version == request_.api.highest:
            assert decoded == RESPONSES[request_.api]

    def test_cut_short_anywhere_is_rejected(self, request_, version):
        body = encoded(request_, version)
        for end in range(len(body)):
            with pytest.raises(ProtocolError):
                request_.decode(version, body[:end])

    def test_going_on_after_its_end_is_rejected(self, request_, version):
        body = encoded(request_, version)
        # librdkafka's mock cluster ends flexible answers with two empty lists of tagged fields.
        one_more = [] if request_.api.is_flexible(version) else [b"\0"]
        for more in (*one_more, b"\0\0\0\0", b"\xff", body):
            with pytest.raises(ProtocolError, match=rf"{request_.api.name} v{version} .* left over"):
                request_.decode(version, body + more)

    def test_with_any_number_made_absurd_is_rejected_or_read_and_takes_no_memory(self, request_, version):
        body = encoded(request_, version)
        tracemalloc.start()
        try:
            for at in range(len(body)):
                for bad in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xfe", b"\x80\0\0\0", b"\xff", b"\x7f", b"\0"):
                    damaged = body[:at] + bad[: len(body) - at] + body[at + len(bad) :]
                    outcome_of(request_, version, damaged)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1_000_000

    def test_of_random_bytes_is_rejected_or_read(self, request_, version):
        @examples(50)
        @given(st.binary(max_size=200))
        def rejected_or_read(body):
            outcome_of(request_, version, body)

        rejected_or_read()

    def test_is_not_read_in_a_version_that_is_not_spoken(self, request_, version):
        for other in (request_.api.lowest - 1, request_.api.highest + 1):
            with pytest.raises(ValueError, match="is not supported"):
                request_.decode(other, encoded(request_, version))
            with pytest.raises(ValueError, match="is not supported"):
                request_.encode(other)


def outcome_of(request_, version, body):
    try:
        return request_.decode(version, body)
    except ProtocolError as error:
        return error
