"""
The collection of readings, and its two representations.

The collection has the latest value of each key of a topic. `collection` parses records and merges them,
`blocks` keeps the readings in order and encoded, `changes` observes them, and `follower` keeps the collection
in step with its topic and encodes it once for all requests that wait.
"""

from sampleapp.readings.blocks import Representation, Snapshot
from sampleapp.readings.collection import NotAReading, Readings

__all__ = ["NotAReading", "Readings", "Representation", "Snapshot"]
