"""
The collection of readings, and its two representations.

The collection has the latest value of each key of a topic. `collection` parses records and merges them,
`blocks` keeps the readings in order and encoded, `changes` observes them, and `follower` keeps the collection
in step with its topic and encodes it once for all requests that wait.
"""

from sampleapp.readings.blocks import LONG_ID, Representation, Snapshot, encode_gradually
from sampleapp.readings.collection import NotAReading, Readings

__all__ = ["LONG_ID", "NotAReading", "Readings", "Representation", "Snapshot", "encode_gradually"]
