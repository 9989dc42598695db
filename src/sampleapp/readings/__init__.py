"""
The collection of readings, and its two representations.

The collection has the latest value of each key of a topic. `record_parsing` parses a record, `collection`
merges it, `blocks` keeps the readings in order and encoded, `shared_encoding` encodes them once for all
requests that wait, `changes` observes them, and `follower` keeps the collection in step with its topic.
"""

from sampleapp.readings.blocks import Representation, Snapshot
from sampleapp.readings.collection import Readings
from sampleapp.readings.record_parsing import NotAReading

__all__ = ["NotAReading", "Readings", "Representation", "Snapshot"]
