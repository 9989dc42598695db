"""Finding where in a partition to read: at its beginning, or where the log still has something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from twisted.logger import Logger

from sampleapp.brokers.kafka.client import Client
from sampleapp.brokers.kafka.consumer.positions import Partition
from sampleapp.brokers.kafka.protocol import EARLIEST, LATEST, ListOffsetsRequest
from sampleapp.model import EARLIEST as EARLIEST_RECORD
from sampleapp.model import FromEnd, FromOffset, FromTime, Start

__all__ = ["Extent", "list_extents", "locate"]

_TIMEOUT_S: Final = 5.0
_REPLACED_AFTER_S: Final = 1.0
"""A broker that has not noticed yet that it is no longer the leader may have a shorter log."""

_log = Logger()


class Extent(Struct, frozen=True, gc=False):
    """Where a partition begins and ends."""

    error: int
    """Kafka's error code; the offsets mean something only if it is 0."""
    earliest: int = -1
    latest: int = -1
    """The high watermark."""
    since: int = -1
    """The first record that is late enough, when a time was asked for; -1 if there is none."""


async def list_extents(
    client: Client,
    node_id: int,
    *,
    topic: str,
    partitions: Sequence[Partition],
    start: Start = EARLIEST_RECORD,
) -> dict[int, Extent]:
    """
    Ask a leader where its partitions begin and end.

    :param start: if it is a time, the first record since is asked for as well.
    :return: by the partition's number.
    :raise RequestFailed: there was no answer.
    """
    found: list[dict[int, tuple[int, int]]] = []
    times = [start.timestamp_ms] if isinstance(start, FromTime) else []
    for which in (EARLIEST, LATEST, *times):
        request = ListOffsetsRequest(
            topics=[(topic, [(partition.number, which) for partition in partitions])],
            # The high watermark, rather than the end of the last finished transaction.
            read_committed=False,
        )
        answer = await client.request(node_id, request, timeout_s=_TIMEOUT_S)
        found.append({each.partition: (each.error, each.offset) for each in answer if each.topic == topic})
    earliest, latest, *since = found
    return {
        number: Extent(
            error=next((each[number][0] for each in found if each[number][0]), 0),
            earliest=earliest[number][1],
            latest=latest[number][1],
            since=since[0][number][1] if since else -1,
        )
        for number in earliest
        if all(number in each for each in found)
    }


def locate(
    partition: Partition, extent: Extent, *, topic: str, now_s: float, start: Start = EARLIEST_RECORD
) -> bool:
    """
    Give a partition its first position, or one that is in the log if that has changed under it.

    Records that were deleted before they were read cannot be delivered, and those of a log that was
    replaced (after an unclean election, or because the topic was deleted and made again) are delivered from
    the first one on, though some of them may have been before: both are logged.

    :param start: where to begin in a partition that existed when following began.
    :return: whether it can be read from now, rather than after another look at who leads it.
    """
    certain = True
    position = partition.position
    if position is None:
        partition.position = _first_offset(extent, start) if partition.existed else extent.earliest
        partition.goal = extent.latest
    elif position < extent.earliest:
        _log.warn(
            "{skipped} offsets of partition {partition} of {topic} were deleted before they were read; "
            "reading goes on at offset {earliest}",
            skipped=extent.earliest - position,
            partition=partition.number,
            topic=topic,
            earliest=extent.earliest,
        )
        partition.position = extent.earliest
    elif position > extent.latest:
        if partition.beyond_since_s is None:
            partition.beyond_since_s = now_s
        if now_s - partition.beyond_since_s < _REPLACED_AFTER_S:
            return False
        _log.warn(
            "Partition {partition} of {topic} ends at offset {latest}, before the position {position}: its "
            "log was replaced. It is read again from offset {earliest}; records that it had before may "
            "arrive a second time",
            partition=partition.number,
            topic=topic,
            latest=extent.latest,
            position=position,
            earliest=extent.earliest,
        )
        partition.position = extent.earliest
        if partition.goal is not None:
            # Otherwise catching up would wait for what has been lost.
            partition.goal = min(partition.goal, extent.latest)
    else:
        # Somebody else than the leader of now has said that it is not.
        certain = not partition.suspect
    partition.suspect = False
    partition.beyond_since_s = None
    return certain


def _first_offset(extent: Extent, start: Start) -> int:
    if isinstance(start, FromOffset):
        return min(max(start.offset, extent.earliest), extent.latest)
    if isinstance(start, FromEnd):
        return max(extent.latest - start.count, extent.earliest)
    return extent.latest if extent.since < 0 else extent.since
