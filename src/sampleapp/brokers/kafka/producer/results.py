"""The meaning of a leader's answer to a batch: one decision for each, and the errors for callers."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from msgspec import Struct

from sampleapp.brokers.kafka.connections.diagnostics import FailureReason
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import Produced
from sampleapp.errors import (
    BrokerIncompatible,
    BrokerUnavailable,
    IdempotencyNotSupported,
    IllegalTopic,
    PublishError,
    RecordRefused,
    RecordTooLarge,
    TopicNotAuthorized,
    UnknownPartition,
)


class Action(Enum):
    """The next step for a batch that was not acknowledged."""

    TRY_AGAIN = "not stored; another attempt may succeed"
    RESEND = "may be stored; sending the same bytes again will tell"
    SPLIT = "not stored because of some of its records"
    REJECT = "not stored, and never will be"
    NEW_PRODUCER_ID = "not stored because of its producer id, epoch or sequence number"
    STOP_IDEMPOTENCE = "not stored because it has a producer id"
    REJECT_IDENTITY = "not stored because of the producer id that was made from its record's identity"
    GIVE_UP = "may be stored, and there is no way to find out"


class Decision(Struct, frozen=True):
    """The meaning of a response."""

    action: Action
    reason: FailureReason
    """For records whose deadlines pass before another attempt succeeds."""
    has_stale_metadata: bool = False
    """``True`` if the topic's metadata must be loaded again."""
    needs_new_id: bool = False
    """``True`` if the next batch needs another producer id."""


_TRY_AGAIN: Final = (
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
)
_RESEND: Final = (
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    # The write itself has failed, perhaps half-way.
    ErrorCode.KAFKA_STORAGE_ERROR,
)
_SPLIT: Final = (
    # Before Kafka 2.4 also for a record without a key in a compacted topic: another attempt does not help.
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_RECORD,
)
_NEW_PRODUCER_ID: Final = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.PRODUCER_FENCED,
)
_REJECTIONS: Final[dict[int, tuple[type[PublishError], str]]] = {
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
# For a code in several of these, the last one counts.
_ACTIONS: Final[dict[int, Action]] = {
    **dict.fromkeys(_REJECTIONS, Action.REJECT),
    **dict.fromkeys(_NEW_PRODUCER_ID, Action.NEW_PRODUCER_ID),
    **dict.fromkeys(_SPLIT, Action.SPLIT),
    **dict.fromkeys(_RESEND, Action.RESEND),
    **dict.fromkeys(_TRY_AGAIN, Action.TRY_AGAIN),
}
_FINAL_IF_FIRST: Final = frozenset(
    {
        Action.SPLIT,
        Action.REJECT,
        Action.NEW_PRODUCER_ID,
        Action.STOP_IDEMPOTENCE,
        Action.REJECT_IDENTITY,
    },
)
# A batch with the sequence number 0 is the first of a producer id, or a repetition: a broker that finds
# another fault with either does not accept producer ids that it has not assigned.
_REJECT_IDENTITY: Final = frozenset(
    {*_NEW_PRODUCER_ID, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION}
)


def decide(
    response: Produced | None,
    *,
    records: int,
    has_producer_id: bool,
    is_resent: bool,
    is_identified: bool = False,
) -> Decision:
    """
    Decide the next step for a batch that was not acknowledged.

    :param response: ``None`` if the leader's answer does not mention the partition.
    :param records: the number of records in the batch.
    :param has_producer_id: ``True`` if the batch has a producer id, so that it may be sent again.
    :param is_resent: ``True`` if an earlier attempt may have stored it.
    :param is_identified: ``True`` if the producer id is that of its record's identity.
    """
    if response is None:
        return Decision(Action.GIVE_UP, _NOT_MENTIONED)
    code = response.error
    action = _ACTIONS.get(code, Action.GIVE_UP)
    if is_identified and code in _REJECT_IDENTITY:
        action = Action.REJECT_IDENTITY
    elif action is Action.TRY_AGAIN and response.offset != _NO_OFFSET:
        # A leader that loses the leadership while it waits for its followers gives the same code, but has
        # assigned an offset to the batch by then (kafka.server.DelayedProduce). Another negative offset makes
        # no sense, so the batch may have been appended.
        action = Action.RESEND
    elif action is Action.SPLIT and records == 1:
        action = Action.REJECT
    elif code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT and has_producer_id:
        action = Action.STOP_IDEMPOTENCE
    # A batch that is rejected now may have been stored by an earlier attempt.
    if (is_resent and action in _FINAL_IF_FIRST) or (action is Action.RESEND and not has_producer_id):
        action = Action.GIVE_UP
    return Decision(
        action,
        _reason(code),
        has_stale_metadata=ErrorCode.says_stale_metadata(code),
        needs_new_id=code in _NEW_PRODUCER_ID and not is_identified,
    )


def rejection(code: int, message: str | None = None) -> PublishError:
    """
    Return the error for the caller of a record that the broker rejects.

    :param code: Kafka's error code.
    :param message: the broker's message about this record, if there is one.
    """
    if message is not None:
        message = _PLACE_IN_BATCH.sub("", message)
    kind, sentence = _REJECTIONS.get(
        code, (RecordRefused, f"The broker does not take this record ({ErrorCode.name_of(code)}).")
    )
    return kind(f"{sentence} It says: {message}" if message else sentence)


def wrong_clock(code: int, message: str | None = None) -> BrokerUnavailable | None:
    """
    Return the error for the caller of a record whose time, given by this service, the broker rejects.

    With the same code, a broker may reject the other records of a batch for something else (KIP-467).

    :param code: Kafka's error code.
    :param message: the broker's message about this record, if there is one.
    :return: ``None`` if the broker rejects the record for something else.
    """
    if code != ErrorCode.INVALID_TIMESTAMP or (message is not None and "timestamp" not in message.lower()):
        return None
    return BrokerUnavailable(
        "The broker does not take the time that this service gave the record: their clocks differ, or the "
        "record waited too long. It was not published. Try again when an operator has set the clocks."
    )


def not_recognised(code: int) -> IdempotencyNotSupported:
    """Return the error for the caller of a record whose identity the broker rejects."""
    return IdempotencyNotSupported(
        "The broker does not recognise a record that is sent again, so it takes no idempotency keys "
        f"({ErrorCode.name_of(code)}). The record was not published."
    )


def unavailable(reason: FailureReason | None) -> PublishError:
    """Return the error for the caller of a record that was certainly not stored."""
    if reason is None:
        return BrokerUnavailable("The record could not be sent in time; it was not published.")
    kind = BrokerIncompatible if reason.incompatible else BrokerUnavailable
    return kind(f"{reason.public} The record was not published.")


# As "Timestamp 7 of message with offset 0 is out of range". The batch's offsets are given by the broker.
_PLACE_IN_BATCH: Final = re.compile(r" (?:with|at) offset -?\d+")


def illegal_topic() -> IllegalTopic:
    """Return the error for a topic whose name Kafka does not allow."""
    return IllegalTopic("Kafka does not allow a topic of this name.")


def illegal_header() -> RecordRefused:
    """Return the error for a record with a header whose name is not Unicode text."""
    return RecordRefused("The name of a header has no UTF-8 form.")


def unknown_partition(partition: int | None, count: int) -> UnknownPartition:
    """Return the error for a record that names a partition which the topic does not have."""
    return UnknownPartition(f"The topic has no partition {partition}: it has {count}, counted from 0.")


def _reason(code: int) -> FailureReason:
    name = ErrorCode.name_of(code)
    return FailureReason(
        # Without the partition, so that one log line can name many partitions.
        sentence=f"The leader answers {name}.",
        public=_PUBLIC.get(code, f"The broker did not take the record ({name})."),
        lasting=False,
    )


_NO_OFFSET: Final = -1
"""The base offset in a response for a batch that was not appended."""
_NOT_MENTIONED: Final = FailureReason(
    sentence="The leader's answer does not mention the partition.",
    public="The broker's answer does not mention the record.",
    lasting=False,
)
_PUBLIC: Final[dict[int, str]] = {
    ErrorCode.NOT_ENOUGH_REPLICAS: "Too few replicas of the topic's partition are in sync.",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "Too few replicas of the topic's partition are in sync.",
    ErrorCode.REQUEST_TIMED_OUT: "The replicas of the topic's partition did not get the record in time.",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "The topic's partition has no leader at the moment.",
    ErrorCode.LEADER_NOT_AVAILABLE: "The topic's partition has no leader at the moment.",
    ErrorCode.KAFKA_STORAGE_ERROR: "The broker cannot write to its disk.",
    # From Kafka before 1.0, instead of the offset: it keeps those of the newest batch only.
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: "The broker has the record, and does not say where.",
}
