"""
What you need to test a broker of your own: the contract that every broker passes, and its helpers.

It needs pytest, pytest-twisted and hypothesis: ``pip install 'sampleapp[testing]'``. The service does not
import it.
"""

from sampleapp.testing.broker_contract import BrokerContract, new_topic
from sampleapp.testing.failures import failures_collected
from sampleapp.testing.publishing import content, everything, record, settled
from sampleapp.testing.recorder import BatchRecorder, Recorder
from sampleapp.testing.waiting import eventually, outcomes, turns, within

__all__ = [
    "BatchRecorder",
    "BrokerContract",
    "Recorder",
    "content",
    "eventually",
    "everything",
    "failures_collected",
    "new_topic",
    "outcomes",
    "record",
    "settled",
    "turns",
    "within",
]
