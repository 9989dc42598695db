"""
The collection of readings, and its two representations.

The collection is what remains of a topic when, for each key, only the latest value counts. `records` reads a
record, `collection` merges it, and `blocks` keeps what is shown in order, and encoded.
"""

from sampleapp.readings.blocks import Representation, Snapshot
from sampleapp.readings.collection import Readings
from sampleapp.readings.records import NotAReading

__all__ = ["NotAReading", "Readings", "Representation", "Snapshot"]
