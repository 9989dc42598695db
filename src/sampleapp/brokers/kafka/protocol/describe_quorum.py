"""DescribeQuorum: the replicas of the cluster's metadata (KIP-595), with the time of its leader (KIP-836)."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import ClassVar, Final

import msgspec

from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol.decoder import Decoder
from sampleapp.brokers.kafka.protocol.request import Api, Request

__all__ = ["DescribeQuorumRequest", "Quorum"]

_TOPIC: Final = "__cluster_metadata"
_PARTITION = Struct(">ihiiq")
_REPLICA = Struct(">iqqq")
_SMALLEST_TOPIC = 3


class Quorum(msgspec.Struct, frozen=True, gc=False):
    """The answer of the active controller."""

    error: int
    time_ms: int | None
    """The controller's clock: milliseconds since the epoch. ``None`` if it is not known."""


class DescribeQuorumRequest(Request[Quorum], frozen=True, kw_only=True):
    """Ask for the state of the quorum. A broker forwards it to the controller. Kafka 3.3 supports v1."""

    api: ClassVar[Api] = Api(key=55, name="DescribeQuorum", lowest=1, highest=1, flexible=0)

    def _parts(self, version: int) -> Iterable[bytes]:
        fields = self._fields(version)
        partition = bytes(4) + fields.tags
        topic = fields.string(_TOPIC) + fields.count(1) + partition + fields.tags
        return (fields.count(1), topic, fields.tags)

    def _read(self, version: int, reader: Decoder) -> Quorum:  # noqa: ARG002 -- there is only one
        error, time_ms = reader.int16(), None
        for _ in range(reader.count(_SMALLEST_TOPIC)):
            reader.string()
            for _ in range(reader.count(_PARTITION.size)):
                _, partition_error, leader, _, _ = reader.fields(_PARTITION)
                error = error or partition_error
                for _ in ("voters", "observers"):
                    for _ in range(reader.count(_REPLICA.size)):
                        replica, _, fetched_ms, _ = reader.fields(_REPLICA)
                        reader.tags()
                        # The leader does not fetch: for itself, it gives the time at which it answers.
                        if replica == leader and fetched_ms >= 0:
                            time_ms = fetched_ms
                reader.tags()
            reader.tags()
        reader.tags()
        return Quorum(error, time_ms if error == ErrorCode.NONE else None)
