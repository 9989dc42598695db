"""
Responses of the service as the client decodes them, apart from the service's own types.

The client may be newer than the service, or older: a member that the service's types get later is not in the
responses of every service.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from sampleapp.model import GoneRecords, Reading, RecordMetadata, ReplayedRecord

__all__ = ["Entry", "Gone", "Number", "PublishedRecord"]

Number: TypeAlias = Annotated[int, Meta(ge=0)]
"""The number of a partition, or an offset."""


class PublishedRecord(Struct, frozen=True):
    """The position of an acknowledged record."""

    topic: str
    partition: Number
    offset: Number

    def metadata(self, *, is_replayed: bool = False) -> RecordMetadata:
        """:param is_replayed: True if an earlier request had published the record."""
        kind = ReplayedRecord if is_replayed else RecordMetadata
        return kind(topic=self.topic, partition=self.partition, offset=self.offset)


class Gone(Struct, frozen=True):
    """Records of a partition that are no longer in its topic."""

    partition: int
    asked: int
    earliest: int

    def records(self) -> GoneRecords:
        """Return the client's value."""
        return GoneRecords(partition=self.partition, asked=self.asked, earliest=self.earliest)


class Entry(Struct, frozen=True):
    """One reading."""

    id: str
    value: float

    def reading(self) -> Reading:
        """Return the client's value."""
        return Reading(id=self.id, value=self.value)
