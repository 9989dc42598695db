"""
The error codes of Kafka's protocol that this service handles.

The codes and their properties are those of ``org.apache.kafka.common.protocol.Errors``; see
https://kafka.apache.org/protocol.html#protocol_error_codes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Self

_RETRIABLE: Final = 1
_STALE_METADATA: Final = 2


class ErrorCode(IntEnum):
    """An error code of a response, with its properties."""

    is_retriable: bool
    """
    ``True`` if the same request may succeed later.

    That does not mean that the same records may be sent again: after some errors they may be in the log.
    """
    has_stale_metadata: bool
    """
    ``True`` if another broker leads the partition, or will soon: load metadata before the next attempt.

    In Java's client, these codes are an ``InvalidMetadataException``.
    """

    def __new__(cls, code: int, facts: int = 0) -> Self:
        """
        :param code: Kafka's number.
        :param facts: `_RETRIABLE`, `_STALE_METADATA`, or both.
        """
        member = int.__new__(cls, code)
        member._value_ = code
        member.is_retriable = bool(facts & _RETRIABLE)
        member.has_stale_metadata = bool(facts & _STALE_METADATA)
        return member

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2, _RETRIABLE
    UNKNOWN_TOPIC_OR_PARTITION = 3, _RETRIABLE | _STALE_METADATA
    LEADER_NOT_AVAILABLE = 5, _RETRIABLE | _STALE_METADATA
    NOT_LEADER_OR_FOLLOWER = 6, _RETRIABLE | _STALE_METADATA
    REQUEST_TIMED_OUT = 7, _RETRIABLE
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9, _RETRIABLE | _STALE_METADATA
    MESSAGE_TOO_LARGE = 10
    NETWORK_EXCEPTION = 13, _RETRIABLE
    COORDINATOR_LOAD_IN_PROGRESS = 14, _RETRIABLE
    COORDINATOR_NOT_AVAILABLE = 15, _RETRIABLE
    NOT_COORDINATOR = 16, _RETRIABLE
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19, _RETRIABLE
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, _RETRIABLE
    INVALID_REQUIRED_ACKS = 21
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_PRODUCER_ID_MAPPING = 49
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    KAFKA_STORAGE_ERROR = 56, _RETRIABLE | _STALE_METADATA
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    FETCH_SESSION_ID_NOT_FOUND = 70, _RETRIABLE
    INVALID_FETCH_SESSION_EPOCH = 71, _RETRIABLE
    LISTENER_NOT_FOUND = 72, _RETRIABLE | _STALE_METADATA
    FENCED_LEADER_EPOCH = 74, _RETRIABLE | _STALE_METADATA
    UNKNOWN_LEADER_EPOCH = 75, _RETRIABLE | _STALE_METADATA
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78, _RETRIABLE
    GROUP_MAX_SIZE_REACHED = 81
    INVALID_RECORD = 87
    THROTTLING_QUOTA_EXCEEDED = 89, _RETRIABLE
    PRODUCER_FENCED = 90
    UNKNOWN_TOPIC_ID = 100, _RETRIABLE | _STALE_METADATA
    INCONSISTENT_TOPIC_ID = 103, _RETRIABLE | _STALE_METADATA
    FETCH_SESSION_TOPIC_ID_ERROR = 106, _RETRIABLE
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122, _RETRIABLE
    INVALID_SHARE_SESSION_EPOCH = 123, _RETRIABLE
    SHARE_SESSION_LIMIT_REACHED = 133, _RETRIABLE

    @classmethod
    def is_transient(cls, code: int | None) -> bool:
        """Return ``True`` for the code of a retriable error; an unknown code is not retriable."""
        known = _BY_NUMBER.get(code)
        return known is not None and known.is_retriable

    @classmethod
    def says_stale_metadata(cls, code: int) -> bool:
        """Return ``True`` for a code which means that the partition's metadata is out of date."""
        known = _BY_NUMBER.get(code)
        return known is not None and known.has_stale_metadata

    @classmethod
    def name_of(cls, code: int) -> str:
        """
        Return Kafka's name of a code, for messages.

        Unknown codes get a name, too, since a broker may be newer than this list.
        """
        known = _BY_NUMBER.get(code)
        return f"Kafka's error {code}" if known is None else known.name


_BY_NUMBER: Final[dict[int | None, ErrorCode]] = {int(code): code for code in ErrorCode}
