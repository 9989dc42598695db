"""Requests for the first and the last offsets of partitions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from sampleapp.brokers.kafka.cluster_client import ClusterClient
from sampleapp.brokers.kafka.consumer.partition import Extent, FollowedPartition
from sampleapp.brokers.kafka.protocol import EARLIEST, LATEST, ListedOffset, ListOffsetsRequest
from sampleapp.model import FromEnd, FromTime

__all__ = ["list_extents"]

_TIMEOUT_S = 5.0
_Name: TypeAlias = "tuple[str, int]"


async def list_extents(
    client: ClusterClient, node_id: int, partitions: Sequence[FollowedPartition]
) -> dict[_Name, Extent]:
    """
    Request the first and last offsets of partitions, and those that their starts are relative to, if any.

    :param partitions: each topic and number only once.
    :return: by topic and number; without those that the leader has left out.
    :raise RequestFailed: the leader did not respond.
    """

    async def list_offsets(
        wanted: Mapping[_Name, int], *, read_committed: bool = False
    ) -> Mapping[_Name, ListedOffset]:
        if not wanted:
            return {}
        topics: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for (topic, number), which in wanted.items():
            topics[topic].append((number, which))
        request = ListOffsetsRequest(topics=list(topics.items()), read_committed=read_committed)
        response = await client.request(node_id, request, timeout_s=_TIMEOUT_S)
        return {(each.topic, each.partition): each for each in response}

    starts = {(each.follower.topic, each.number): each.follower.start_in(each.number) for each in partitions}
    times = {name: start.timestamp_ms for name, start in starts.items() if isinstance(start, FromTime)}
    ends = {name: LATEST for name, start in starts.items() if isinstance(start, FromEnd)}
    # The high watermark is the end of the log; reading ends at the first open transaction.
    earliest = await list_offsets(dict.fromkeys(starts, EARLIEST))
    latest = await list_offsets(dict.fromkeys(starts, LATEST))
    since = await list_offsets(times)
    stable = await list_offsets(ends, read_committed=True)
    extents: dict[_Name, Extent] = {}
    for name in starts:
        wanted = [earliest, latest, *([since] if name in times else []), *([stable] if name in ends else [])]
        found = [each[name] for each in wanted if name in each]
        if len(found) == len(wanted):
            extents[name] = Extent(
                error=next((each.error for each in found if each.error), 0),
                earliest=earliest[name].offset,
                latest=latest[name].offset,
                since=since[name].offset if name in since else -1,
                stable=stable[name].offset if name in stable else -1,
            )
    return extents
