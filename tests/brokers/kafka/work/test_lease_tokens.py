"""Tokens of leases in Kafka."""

from __future__ import annotations

import contextlib
import json

from hypothesis import given
from hypothesis import strategies as st

from sampleapp.brokers.kafka.protocol import Acknowledgement, AcknowledgeType
from sampleapp.brokers.kafka.work.lease_tokens import LeaseToken, acknowledgements, runs_of
from sampleapp.errors import LeaseLost
from sampleapp.messages.work_bodies import AckRequest, new_lease, read_work_request
from sampleapp.model import ConsumerRecord, LeasedRecord

ids = st.tuples(st.integers(0, 5), st.integers(0, 2**40) | st.integers(0, 30))
messages = st.dictionaries(ids, st.integers(1, 5), min_size=1, max_size=60)


def token_of(attempts, most_attempts=5):
    leased = [
        LeasedRecord(
            ConsumerRecord(
                topic="t", partition=partition, offset=offset, timestamp_ms=0, key=None, value=b""
            ),
            count,
        )
        for (partition, offset), count in sorted(attempts.items())
    ]
    return LeaseToken(
        node_id=3, member=b"m" * 16, topic=b"t" * 16, epoch=4, ends_ms=5, runs=runs_of(leased, most_attempts)
    )


@given(messages, st.none() | st.integers(1, 5))
def test_a_token_has_the_messages_and_which_of_them_are_in_their_last_attempt(attempts, most_attempts):
    token = LeaseToken.read(token_of(attempts, most_attempts).encoded)
    assert token == token_of(attempts, most_attempts)
    assert token.messages() == {
        each: most_attempts is not None and count >= most_attempts for each, count in attempts.items()
    }


def test_the_largest_lease_fits_in_four_kibibytes():
    largest = {(0, 2**40 + 2 * number): 1 for number in range(500)}
    assert len(token_of(largest).encoded) <= 4096


@given(st.binary(max_size=200) | st.builds(lambda tail: b"\1" + tail, st.binary(max_size=200)))
def test_other_bytes_are_a_lost_lease(token):
    with contextlib.suppress(LeaseLost):
        assert LeaseToken.read(token).encoded == token


@given(messages, st.data())
def test_bytes_that_were_changed_are_another_token_or_none(attempts, data):
    token = bytearray(token_of(attempts).encoded)
    token[data.draw(st.integers(0, len(token) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(LeaseLost):
        found = LeaseToken.read(bytes(token))
        assert 0 < len(found.messages()) <= 1000


@given(st.dictionaries(ids, st.sampled_from(AcknowledgeType), max_size=40))
def test_acknowledgements_are_ordered_and_have_each_offset_once(types):
    found = {}
    for partition, some in acknowledgements(types).items():
        assert some
        end = -1
        for each in some:
            assert end < each.first_offset <= each.last_offset
            end = each.last_offset
            found |= {(partition, offset): each.type for offset in range(each.first_offset, end + 1)}
    assert found == types


def test_consecutive_offsets_of_one_type_are_one_acknowledgement():
    types = dict.fromkeys([(0, 1), (0, 2), (0, 3), (1, 4)], AcknowledgeType.ACCEPT)
    types[0, 4] = AcknowledgeType.RELEASE
    assert acknowledgements(types) == {
        0: [Acknowledgement(1, 3, AcknowledgeType.ACCEPT), Acknowledgement(4, 4, AcknowledgeType.RELEASE)],
        1: [Acknowledgement(4, 4, AcknowledgeType.ACCEPT)],
    }


def test_the_longest_lease_that_a_pull_can_give_can_be_acknowledged():
    token = token_of(dict.fromkeys(((2**31 - 1 - number, 2**63 - 2) for number in range(500)), 1))
    lease = new_lease(token.encoded, 1).lease
    body = json.dumps({"lease": lease, "accept": "all"}).encode()
    assert read_work_request(body, AckRequest).lease == lease
