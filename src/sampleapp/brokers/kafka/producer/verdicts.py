"""What a broker's answer to a batch means: for the batch, and for the callers of its records."""

from __future__ import annotations

from enum import Enum
from typing import Final

from sampleapp.brokers.kafka.connections.failure_reason import FailureReason
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import Produced
from sampleapp.errors import (
    BrokerIncompatible,
    IllegalTopic,
    PublishError,
    RecordRefused,
    RecordTooLarge,
    TopicNotAuthorized,
)

__all__ = ["Verdict", "refusal", "refusal_reason", "verdict_on"]


class Verdict(Enum):
    """What is to be done with a batch that was not acknowledged."""

    TRY_AGAIN = "it was not stored, and may be another time"
    UNRESOLVED = "it may have been stored; the same batch again will tell"
    SEARCH = "it was not stored because of some of its records"
    REFUSE = "it was not stored, and will not be"
    RENUMBER = "it was not stored, because of its producer id, epoch or sequence"
    UNKNOWN = "it may have been stored, and that cannot be found out"


_TRY_AGAIN: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.LISTENER_NOT_FOUND,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
}
_UNRESOLVED: Final = {
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    # The write itself has failed, perhaps in the middle.
    ErrorCode.KAFKA_STORAGE_ERROR,
}
_SEARCH: Final = {
    # Before Kafka 2.4 also for a record without a key in a compacted topic, which no second attempt changes.
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_RECORD,
}
_RENUMBER: Final = {
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.PRODUCER_FENCED,
}
_REFUSALS: Final[dict[int, tuple[type[PublishError], str]]] = {
    ErrorCode.INVALID_TOPIC_EXCEPTION: (IllegalTopic, "The broker does not allow a topic of this name."),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        TopicNotAuthorized,
        "The broker does not let this service publish to the topic.",
    ),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (
        TopicNotAuthorized,
        "The broker does not let this service publish.",
    ),
    ErrorCode.MESSAGE_TOO_LARGE: (RecordTooLarge, "The record is larger than the topic takes."),
    ErrorCode.RECORD_LIST_TOO_LARGE: (RecordTooLarge, "The record is larger than the broker takes."),
    ErrorCode.INVALID_TIMESTAMP: (
        RecordRefused,
        "The broker does not take the record's time, which is too far from its own.",
    ),
    ErrorCode.INVALID_RECORD: (RecordRefused, "The broker does not take this record."),
    ErrorCode.CORRUPT_MESSAGE: (
        RecordRefused,
        "The broker does not take this record; it may be that the topic takes only records with a key.",
    ),
    ErrorCode.POLICY_VIOLATION: (RecordRefused, "A policy of the broker forbids the record."),
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: (
        BrokerIncompatible,
        "The broker does not take the compression that this service uses.",
    ),
    ErrorCode.UNSUPPORTED_VERSION: (
        BrokerIncompatible,
        "The broker does not take requests in the version that it offers.",
    ),
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: (
        BrokerIncompatible,
        "The topic is kept in a format of messages that is too old for this service.",
    ),
    ErrorCode.INVALID_REQUIRED_ACKS: (BrokerIncompatible, "The broker does not take acks=all."),
    ErrorCode.INVALID_REQUEST: (
        BrokerIncompatible,
        "The broker takes this service's request for a wrong one.",
    ),
}


def verdict_on(answer: Produced) -> Verdict:
    """What an answer with an error means for the batch."""
    error = answer.error
    if error in _TRY_AGAIN:
        # A leader that loses its place while it waits for its followers says so as well, but has given the
        # batch an offset by then (kafka.server.DelayedProduce).
        return Verdict.UNRESOLVED if answer.offset >= 0 else Verdict.TRY_AGAIN
    if error in _UNRESOLVED:
        return Verdict.UNRESOLVED
    if error in _SEARCH:
        return Verdict.SEARCH
    if error in _RENUMBER:
        return Verdict.RENUMBER
    if error in _REFUSALS:
        return Verdict.REFUSE
    return Verdict.UNKNOWN


def refusal(code: int, message: str | None = None) -> PublishError:
    """
    The error for the caller of a record that the broker refuses.

    :param code: Kafka's error code.
    :param message: what the broker says of this record, if it does.
    """
    kind, sentence = _REFUSALS.get(
        code, (RecordRefused, f"The broker does not take this record ({ErrorCode.name_of(code)}).")
    )
    return kind(f"{sentence} It says: {message}" if message else sentence)


def refusal_reason(answer: Produced) -> FailureReason:
    """Why a batch was not stored, or is not known to be, for those whose time is over."""
    name = ErrorCode.name_of(answer.error)
    return FailureReason(
        sentence=f"Partition {answer.partition} of {answer.topic} does not take records: {name}.",
        public=_PUBLIC.get(answer.error, f"The broker did not take the record ({name})."),
        lasting=False,
    )


_PUBLIC: Final[dict[int, str]] = {
    ErrorCode.NOT_ENOUGH_REPLICAS: "Too few replicas of the topic's partition are in sync.",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "Too few replicas of the topic's partition are in sync.",
    ErrorCode.REQUEST_TIMED_OUT: "The replicas of the topic's partition did not get the record in time.",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "The topic's partition has no leader at the moment.",
    ErrorCode.LEADER_NOT_AVAILABLE: "The topic's partition has no leader at the moment.",
    ErrorCode.KAFKA_STORAGE_ERROR: "The broker cannot write to its disk.",
}
