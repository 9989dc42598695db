"""What may become of a request."""

from __future__ import annotations

from enum import Enum

from sampleapp.brokers.kafka.error_code import ErrorCode

__all__ = ["ERRORS", "Fate"]


class Fate(Enum):
    """What becomes of a request; what is said of appending is of Produce."""

    ANSWERED = "it is handled, and answered"
    LOST_ON_THE_WAY = "the connection is lost before the broker has it"
    ANSWER_LOST = "it is handled, and the connection is lost"
    LATE = "it arrives when its sender has given up long ago"
    NOT_SENT = "the connection is gone before anything was written"
    NOT_LEADER = "the broker does not lead the partitions any more"
    LEADER_RESIGNED = "the leader has appended it, and loses its place"
    TOO_FEW_REPLICAS = "too few replicas are in sync, so it is not appended"
    TOO_FEW_REPLICAS_AFTER_APPEND = "too few replicas are in sync, which shows when it was appended"
    TIMED_OUT = "it is appended, and the followers do not have it in time"
    FAULT = "the broker has a fault, which it says when it has appended it"
    REJECTED_LATE = "the broker takes its time, and then does not lead the partitions"
    TOO_LARGE = "the batches are larger than the topic takes"


ERRORS = {
    Fate.NOT_LEADER: (ErrorCode.NOT_LEADER_OR_FOLLOWER, False),
    Fate.REJECTED_LATE: (ErrorCode.NOT_LEADER_OR_FOLLOWER, False),
    Fate.LEADER_RESIGNED: (ErrorCode.NOT_LEADER_OR_FOLLOWER, True),
    Fate.TOO_FEW_REPLICAS: (ErrorCode.NOT_ENOUGH_REPLICAS, False),
    Fate.TOO_FEW_REPLICAS_AFTER_APPEND: (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, True),
    Fate.TIMED_OUT: (ErrorCode.REQUEST_TIMED_OUT, True),
    Fate.FAULT: (ErrorCode.UNKNOWN_SERVER_ERROR, True),
    Fate.TOO_LARGE: (ErrorCode.MESSAGE_TOO_LARGE, False),
}
"""Kafka's error code, and whether the batches were appended."""
