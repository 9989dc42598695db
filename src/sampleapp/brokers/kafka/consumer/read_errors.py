"""The errors of reads."""

from __future__ import annotations

from typing import Final

from sampleapp.brokers.kafka.cluster_client import RequestFailed
from sampleapp.errors import BrokerIncompatible, BrokerUnavailable

__all__ = ["NOT_AUTHORIZED", "unanswered"]

NOT_AUTHORIZED: Final = (
    "The service is not allowed to read the topic. In Kafka, it needs the rights READ and DESCRIBE."
)


def unanswered(error: RequestFailed) -> BrokerUnavailable | BrokerIncompatible:
    """Return the error of a read for a request without a response."""
    kind = BrokerIncompatible if error.reason.incompatible else BrokerUnavailable
    return kind(error.reason.public)
