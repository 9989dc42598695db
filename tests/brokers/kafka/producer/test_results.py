"""The meaning of each answer of a leader."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.producer.results import (
    Action,
    decide,
    not_recognised,
    rejection,
    unavailable,
    wrong_clock,
)
from sampleapp.brokers.kafka.protocol import Produced
from sampleapp.errors import (
    BrokerIncompatible,
    BrokerUnavailable,
    IdempotencyNotSupported,
    IllegalTopic,
    RecordRefused,
    RecordTooLarge,
    TopicNotAuthorized,
)
from tests.support.kafka_simulator import reason

# As in Java's client (ProducerBatch, Sender.canRetry, TransactionManager), with two exceptions: if the
# batch may have been appended, the same bytes are sent again; if a sequence number cannot tell, the batch is
# given up at once.
OF_GROUPS = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.INVALID_RECORD_STATE,
    ErrorCode.SHARE_SESSION_NOT_FOUND,
    ErrorCode.INVALID_SHARE_SESSION_EPOCH,
    ErrorCode.SHARE_SESSION_LIMIT_REACHED,
}
"""Codes of requests about groups, which mean nothing in a response to Produce."""

FIRST_ATTEMPT = {
    ErrorCode.UNKNOWN_SERVER_ERROR: Action.GIVE_UP,
    # With an offset it is not an error; without one the answer makes no sense.
    ErrorCode.NONE: Action.GIVE_UP,
    ErrorCode.OFFSET_OUT_OF_RANGE: Action.GIVE_UP,
    ErrorCode.CORRUPT_MESSAGE: Action.SPLIT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Action.TRY_AGAIN,
    ErrorCode.LEADER_NOT_AVAILABLE: Action.TRY_AGAIN,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: Action.TRY_AGAIN,
    ErrorCode.REQUEST_TIMED_OUT: Action.RESEND,
    ErrorCode.BROKER_NOT_AVAILABLE: Action.TRY_AGAIN,
    ErrorCode.REPLICA_NOT_AVAILABLE: Action.TRY_AGAIN,
    ErrorCode.MESSAGE_TOO_LARGE: Action.SPLIT,
    ErrorCode.NETWORK_EXCEPTION: Action.RESEND,
    ErrorCode.INVALID_TOPIC_EXCEPTION: Action.REJECT,
    ErrorCode.RECORD_LIST_TOO_LARGE: Action.SPLIT,
    ErrorCode.NOT_ENOUGH_REPLICAS: Action.TRY_AGAIN,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Action.RESEND,
    ErrorCode.INVALID_REQUIRED_ACKS: Action.REJECT,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: Action.REJECT,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: Action.REJECT,
    ErrorCode.INVALID_TIMESTAMP: Action.SPLIT,
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: Action.GIVE_UP,
    ErrorCode.ILLEGAL_SASL_STATE: Action.GIVE_UP,
    ErrorCode.UNSUPPORTED_VERSION: Action.REJECT,
    ErrorCode.INVALID_REQUEST: Action.REJECT,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: Action.STOP_IDEMPOTENCE,
    ErrorCode.POLICY_VIOLATION: Action.REJECT,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: Action.NEW_PRODUCER_ID,
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: Action.GIVE_UP,
    ErrorCode.INVALID_PRODUCER_EPOCH: Action.NEW_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: Action.NEW_PRODUCER_ID,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Action.GIVE_UP,
    ErrorCode.KAFKA_STORAGE_ERROR: Action.RESEND,
    ErrorCode.SASL_AUTHENTICATION_FAILED: Action.GIVE_UP,
    ErrorCode.UNKNOWN_PRODUCER_ID: Action.NEW_PRODUCER_ID,
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND: Action.GIVE_UP,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH: Action.GIVE_UP,
    ErrorCode.LISTENER_NOT_FOUND: Action.TRY_AGAIN,
    ErrorCode.FENCED_LEADER_EPOCH: Action.TRY_AGAIN,
    ErrorCode.UNKNOWN_LEADER_EPOCH: Action.TRY_AGAIN,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: Action.REJECT,
    ErrorCode.OFFSET_NOT_AVAILABLE: Action.GIVE_UP,
    ErrorCode.INVALID_RECORD: Action.SPLIT,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: Action.TRY_AGAIN,
    ErrorCode.PRODUCER_FENCED: Action.NEW_PRODUCER_ID,
    ErrorCode.UNKNOWN_TOPIC_ID: Action.GIVE_UP,
    ErrorCode.INCONSISTENT_TOPIC_ID: Action.GIVE_UP,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR: Action.GIVE_UP,
    **dict.fromkeys(OF_GROUPS, Action.GIVE_UP),
}
KEPT_WHEN_RESENT = {Action.TRY_AGAIN, Action.RESEND, Action.GIVE_UP}


def said(error, *, offset=-1):
    return Produced(topic="t", partition=0, error=error, offset=offset)


def action(answer, *, records=2, has_producer_id=True, is_resent=False):
    return decide(answer, records=records, has_producer_id=has_producer_id, is_resent=is_resent).action


def test_each_error_code_has_a_row():
    assert set(FIRST_ATTEMPT) == set(ErrorCode)


@pytest.mark.parametrize("code", list(ErrorCode), ids=lambda code: code.name)
def test_an_answer_to_a_first_attempt(code):
    assert action(said(code)) is FIRST_ATTEMPT[code]


@pytest.mark.parametrize("code", list(ErrorCode), ids=lambda code: code.name)
def test_a_rejection_of_another_attempt_does_not_say_that_the_first_was_not_stored(code):
    expected = FIRST_ATTEMPT[code] if FIRST_ATTEMPT[code] in KEPT_WHEN_RESENT else Action.GIVE_UP
    assert action(said(code), is_resent=True) is expected


@pytest.mark.parametrize("code", list(ErrorCode), ids=lambda code: code.name)
def test_without_a_number_nothing_is_sent_again_that_may_be_stored(code):
    expected = {
        Action.RESEND: Action.GIVE_UP,
        Action.STOP_IDEMPOTENCE: Action.REJECT,
    }.get(FIRST_ATTEMPT[code], FIRST_ATTEMPT[code])
    assert action(said(code), has_producer_id=False) is expected


@pytest.mark.parametrize("code", list(ErrorCode), ids=lambda code: code.name)
def test_a_record_alone_is_not_split(code):
    expected = Action.REJECT if FIRST_ATTEMPT[code] is Action.SPLIT else FIRST_ATTEMPT[code]
    assert action(said(code), records=1) is expected


@pytest.mark.parametrize(
    "code", [code for code, each in FIRST_ATTEMPT.items() if each is Action.TRY_AGAIN], ids=lambda c: c.name
)
def test_a_leader_that_has_given_the_batch_an_offset_may_have_stored_it(code):
    assert action(said(code, offset=7)) is Action.RESEND
    # Not an offset that Kafka assigns; the batch may be there all the same.
    assert action(said(code, offset=-5)) is Action.RESEND


def test_an_answer_that_does_not_mention_the_partition_tells_nothing():
    assert action(None) is Action.GIVE_UP


@given(st.integers(-(2**15), 2**15 - 1).filter(lambda code: code not in set(ErrorCode)))
def test_a_code_that_is_not_known_here_tells_nothing(code):
    assert action(said(code)) is Action.GIVE_UP
    assert str(code) in decide(said(code), records=1, has_producer_id=True, is_resent=False).reason.sentence


@pytest.mark.parametrize("is_resent", [False, True])
@pytest.mark.parametrize("code", list(ErrorCode), ids=lambda code: code.name)
def test_another_producer_id_is_needed_after_an_error_about_this_one(code, is_resent):
    decision = decide(said(code), records=1, has_producer_id=True, is_resent=is_resent)
    assert decision.needs_new_id is (FIRST_ATTEMPT[code] is Action.NEW_PRODUCER_ID)
    assert decision.has_stale_metadata is code.has_stale_metadata


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.INVALID_TOPIC_EXCEPTION, IllegalTopic),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, TopicNotAuthorized),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, TopicNotAuthorized),
        (ErrorCode.MESSAGE_TOO_LARGE, RecordTooLarge),
        (ErrorCode.RECORD_LIST_TOO_LARGE, RecordTooLarge),
        (ErrorCode.INVALID_TIMESTAMP, RecordRefused),
        (ErrorCode.INVALID_RECORD, RecordRefused),
        (ErrorCode.CORRUPT_MESSAGE, RecordRefused),
        (ErrorCode.POLICY_VIOLATION, RecordRefused),
        (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, BrokerIncompatible),
        (ErrorCode.UNSUPPORTED_VERSION, BrokerIncompatible),
        (ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, BrokerIncompatible),
        (ErrorCode.INVALID_REQUIRED_ACKS, BrokerIncompatible),
        (ErrorCode.INVALID_REQUEST, BrokerIncompatible),
    ],
    ids=lambda each: each.name if isinstance(each, ErrorCode) else None,
)
def test_a_rejection_has_its_error_which_repeats_what_the_broker_says(code, error):
    assert type(rejection(code)) is error
    assert not rejection(code).possibly_published
    assert str(rejection(code, "because")).endswith("It says: because")


@pytest.mark.parametrize(
    ("said", "repeated"),
    [
        # As in org.apache.kafka.storage.internals.log.LogValidator.
        (
            "Timestamp 7 of message with offset 0 is out of range. The timestamp should be within [1, 2]",
            "Timestamp 7 of message is out of range. The timestamp should be within [1, 2]",
        ),
        ("Record batch at offset 12 is invalid", "Record batch is invalid"),
        ("Its offset is 3", "Its offset is 3"),
    ],
)
def test_the_place_in_the_batch_which_means_nothing_to_a_caller_is_not_repeated(said, repeated):
    assert str(rejection(ErrorCode.INVALID_TIMESTAMP, said)).endswith(f"It says: {repeated}")


@pytest.mark.parametrize("code", [ErrorCode.INVALID_TIMESTAMP, ErrorCode.INVALID_RECORD])
@pytest.mark.parametrize(
    ("said", "is_of_time"),
    [
        (None, True),
        ("Timestamp 7 of message with offset 0 is out of range.", True),
        ("Compacted topic cannot accept message without key in topic partition t-0.", False),
    ],
)
def test_a_time_that_the_service_gave_is_no_fault_of_the_record(code, said, is_of_time):
    error = wrong_clock(code, said)
    assert (error is not None) is (is_of_time and code is ErrorCode.INVALID_TIMESTAMP)
    assert error is None or not error.possibly_published


@pytest.mark.parametrize("code", list(ErrorCode), ids=lambda code: code.name)
def test_a_broker_that_finds_fault_with_the_producer_id_of_an_identity_does_not_support_it(code):
    first, again = (
        decide(said(code), records=1, has_producer_id=True, is_resent=is_resent, is_identified=True)
        for is_resent in (False, True)
    )
    faulted = FIRST_ATTEMPT[code] in {Action.NEW_PRODUCER_ID, Action.STOP_IDEMPOTENCE}
    if faulted or code is ErrorCode.UNSUPPORTED_VERSION:
        assert (first.action, again.action) == (Action.REJECT_IDENTITY, Action.GIVE_UP)
        assert type(not_recognised(code)) is IdempotencyNotSupported
        assert code.name in str(not_recognised(code))
    else:
        assert first.action is action(said(code), records=1)
        assert again.action is action(said(code), records=1, is_resent=True)
    # The queue's own producer id has nothing to do with it.
    assert not first.needs_new_id
    assert not again.needs_new_id


def test_what_was_not_published_says_why():
    assert type(unavailable(None)) is BrokerUnavailable
    assert type(unavailable(reason())) is BrokerUnavailable
    assert type(unavailable(reason(incompatible=True))) is BrokerIncompatible
    assert "Something is wrong." in str(unavailable(reason()))
