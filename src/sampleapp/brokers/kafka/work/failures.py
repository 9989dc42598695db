"""The errors of groups of workers, for answers of brokers and for requests without an answer."""

from __future__ import annotations

from typing import Final

from sampleapp.brokers.kafka.cluster_client import RequestFailed
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.shared.work import NOT_KNOWN
from sampleapp.errors import (
    BrokerUnavailable,
    OutcomeUnknown,
    PublishError,
    TopicNotAuthorized,
    WorkError,
    WorkNotSupported,
)

NOT_SUPPORTED: Final = (
    "This Kafka cluster has no share groups: they need Kafka 4.2 or newer, and the feature share.version."
)
LIMIT_REACHED: Final = (
    "Kafka has no room for another share session. An operator can raise group.share.max.share.sessions."
)
_NOT_ALLOWED: Final = (
    "The service is not allowed to share the messages of this topic in this group. In Kafka, it needs the "
    "right READ on the topic and on the group."
)
_DENIED: Final = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED)


def unanswered(error: RequestFailed, *, may_be_done: bool = False) -> PublishError | WorkError:
    """
    Return the error for a request without a response.

    :param may_be_done: true if it matters that a broker may have done it.
    """
    if error.reason.incompatible:
        return WorkNotSupported(NOT_SUPPORTED)
    return OutcomeUnknown(NOT_KNOWN) if may_be_done else BrokerUnavailable(error.reason.public)


def rejected(code: int) -> PublishError | WorkError:
    """Return the error for a code with which a broker has answered."""
    if code in _DENIED:
        return TopicNotAuthorized(_NOT_ALLOWED)
    if code == ErrorCode.UNSUPPORTED_VERSION:
        return WorkNotSupported(NOT_SUPPORTED)
    if code == ErrorCode.SHARE_SESSION_LIMIT_REACHED:
        return BrokerUnavailable(LIMIT_REACHED)
    return BrokerUnavailable(f"Kafka cannot share the messages now: it answers {ErrorCode.name_of(code)}.")
