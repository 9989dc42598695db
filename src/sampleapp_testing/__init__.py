"""
Test support for brokers: the contract that every broker must pass, and helpers.

A distribution of its own, ``sampleapp-http-gateway-testing``, which brings pytest, pytest-twisted and
hypothesis. The service does not import it.
"""

from sampleapp_testing.broker_contract import BrokerContract
from sampleapp_testing.failures import failures_collected
from sampleapp_testing.publishing import (
    content,
    everything,
    identity,
    new_topic,
    pages,
    record,
    settled,
    size,
)
from sampleapp_testing.recorder import BatchRecorder, PositionRecorder, Recorder
from sampleapp_testing.waiting import eventually, outcomes, turns, within
from sampleapp_testing.work_contract import WorkContract

__all__ = [
    "BatchRecorder",
    "BrokerContract",
    "PositionRecorder",
    "Recorder",
    "WorkContract",
    "content",
    "eventually",
    "everything",
    "failures_collected",
    "identity",
    "new_topic",
    "outcomes",
    "pages",
    "record",
    "settled",
    "size",
    "turns",
    "within",
]
