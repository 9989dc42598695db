"""The first and the last offsets of partitions, which their leader is asked for with ListOffsets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from sampleapp.brokers.kafka.protocol import EARLIEST, LATEST, ListedOffset, ListOffsetsRequest
from sampleapp.model import FromEnd, FromTime, Start, epoch_of, with_epoch

Name: TypeAlias = "tuple[str, int]"
"""Topic and number of a partition."""


class Extent(Struct, frozen=True, gc=False):
    """The first and the last offsets of a partition, from its leader."""

    error: int
    """Kafka's error code. The offsets are valid only if it is 0."""
    leader_epoch: int
    """The epoch of the leader; -1 if it is not known."""
    earliest: int
    latest: int
    """The high watermark: the offset after the last record that all in-sync replicas have."""
    stable: int
    """The last stable offset. Records of transactions that are open now are read when they are committed."""
    since: int = -1
    """The first offset at or after the start time, if one was given; -1 if there is none."""

    @property
    def readable_end(self) -> int:
        """The offset up to which records can be read now."""
        return min(self.stable, self.latest)


def extent_requests(
    partitions: Iterable[Name], *, times: Mapping[Name, int], leader_epochs: Mapping[Name, int]
) -> list[ListOffsetsRequest]:
    """
    Return the requests for the extents of partitions that one broker leads.

    :param times: the start times, in milliseconds, of those partitions that have one.
    :param leader_epochs: see `ListOffsetsRequest.leader_epochs`.
    """

    def request(wanted: Mapping[Name, int], *, read_committed: bool) -> ListOffsetsRequest:
        topics: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for (topic, number), which in wanted.items():
            topics[topic].append((number, which))
        return ListOffsetsRequest(
            topics=list(topics.items()), read_committed=read_committed, leader_epochs=leader_epochs
        )

    names = list(partitions)
    requests = [
        request(dict.fromkeys(names, which), read_committed=read_committed)
        # The ends before the times: records that are added in between are not passed over.
        for which, read_committed in ((EARLIEST, False), (LATEST, False), (LATEST, True))
    ]
    return [*requests, request(times, read_committed=False)] if times else requests


def extents_in(responses: Sequence[Sequence[ListedOffset]], *, times: Iterable[Name]) -> dict[Name, Extent]:
    """
    Return the extents in the responses to `extent_requests`.

    :param times: the partitions with start times.
    :return: without the partitions that a response has left out.
    """
    earliest, latest, stable, *others = (
        {(each.topic, each.partition): each for each in response} for response in responses
    )
    since = others[0] if others else {}
    missing = set(times) - since.keys()
    extents: dict[Name, Extent] = {}
    for name in (earliest.keys() & latest.keys() & stable.keys()) - missing:
        listed = [each[name] for each in (earliest, latest, stable, since) if name in each]
        error = next((each.error for each in listed if each.error), 0)
        extents[name] = Extent(error, stable[name].leader_epoch, *(each.offset for each in listed))
    return extents


def first_offset(start: Start, extent: Extent) -> int:
    """
    Return the offset of a start: the nearest one that the partition has.

    Without an epoch of its own, it gets that of the leader: the record before it has this one, or an earlier.
    """
    first = _first_offset(start, extent)
    return first if epoch_of(first) >= 0 else with_epoch(first, extent.leader_epoch)


def _first_offset(start: Start, extent: Extent) -> int:
    if isinstance(start, FromTime):
        return extent.latest if extent.since < 0 else max(extent.since, extent.earliest)
    if isinstance(start, FromEnd):
        return max(extent.readable_end - start.count, extent.earliest)
    return max(min(start.offset, extent.latest), extent.earliest)
