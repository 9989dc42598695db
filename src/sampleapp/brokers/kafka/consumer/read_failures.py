"""The errors that stop reading."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from sampleapp.brokers.kafka.cluster_client import RequestFailed
from sampleapp.brokers.kafka.connections.diagnostics import FailureReason
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.errors import BrokerIncompatible, BrokerUnavailable

NOT_AUTHORIZED: Final = (
    "The service is not allowed to read the topic. In Kafka, it needs the rights READ and DESCRIBE."
)
NO_WHOLE_BATCH: Final = "Kafka has not sent a whole batch"


class ReadFailure(Struct, frozen=True):
    """An error that stops reading for a while."""

    sentence: str
    """For the operator."""
    public: str
    """For any caller: without addresses and paths."""
    cause: str
    """Equal for all topics that one cause keeps from being read, such as a broker that does not answer."""


def unanswered(topic: str, reason: FailureReason, *, node_id: int | None = None) -> ReadFailure:
    """Return the failure for a request without a response, to this broker or to any."""
    broker = "" if node_id is None else f" from broker {node_id}"
    return ReadFailure(
        f"The topic {topic} cannot be read{broker}: {reason.sentence}",
        f"The topic cannot be read: {reason.public}",
        reason.sentence,
    )


def topic_rejected(topic: str, code: int | None) -> ReadFailure:
    """Return the failure for an error code for a topic; ``None`` if the response did not name it."""
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return _denied(topic, "DESCRIBE")
    if code == ErrorCode.INVALID_TOPIC_EXCEPTION:
        sentence = f"Kafka does not allow a topic of the name {topic}."
        return ReadFailure(sentence, "Kafka does not allow a topic of this name.", sentence)
    response = "nothing about it" if code is None else ErrorCode.name_of(code)
    return ReadFailure(
        f"The topic {topic} cannot be read: Kafka answers {response}.",
        f"The topic cannot be read: Kafka answers {response}.",
        response,
    )


def rejected(topic: str, partition: int, code: int, *, node_id: int | None = None) -> ReadFailure:
    """Return the failure for an error code that a broker has sent for a partition."""
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return _denied(topic, "READ")
    name, broker = ErrorCode.name_of(code), "Kafka" if node_id is None else f"broker {node_id}"
    return ReadFailure(
        f"Partition {partition} of the topic {topic} cannot be read: {broker} answers {name}.",
        f"Partition {partition} cannot be read: Kafka answers {name}.",
        f"{broker} {name}",
    )


def no_leader(topic: str, partition: int) -> ReadFailure:
    """Return the failure for a partition without a leader."""
    rest = "has no leader, so nothing can be read from it."
    return _of_partition(topic, partition, rest, cause=rest)


def unreadable(topic: str, partition: int, position: int | None, fault: str) -> ReadFailure:
    """Return the failure for records that cannot be decoded."""
    return _of_partition(topic, partition, f"cannot be read on at offset {position}: {fault}.")


def _denied(topic: str, right: str) -> ReadFailure:
    return ReadFailure(
        f"The service is not allowed to read the topic {topic}; it needs the right {right}.",
        "The service is not allowed to read the topic.",
        right,
    )


def _of_partition(topic: str, partition: int, rest: str, *, cause: str | None = None) -> ReadFailure:
    sentence = f"Partition {partition} of the topic {topic} {rest}"
    return ReadFailure(sentence, f"Partition {partition} {rest}", cause or sentence)


def read_failed(error: RequestFailed) -> BrokerUnavailable | BrokerIncompatible:
    """Return the error of a read for a request without a response."""
    kind = BrokerIncompatible if error.reason.incompatible else BrokerUnavailable
    return kind(error.reason.public)
