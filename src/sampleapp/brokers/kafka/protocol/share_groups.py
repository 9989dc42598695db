"""Share groups (KIP-932): the coordinator, the members, the backlog and the settings of a group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import ClassVar, Final
from uuid import UUID

import msgspec

from sampleapp.brokers.kafka.protocol.codec import INT32, Api, Decoder, ProtocolError, Request
from sampleapp.brokers.kafka.protocol.describe import OF_GROUP

JOIN_GROUP: Final = 0
"""The member epoch of the first heartbeat."""
LEAVE_GROUP: Final = -1
"""The member epoch of the last heartbeat."""

_OF_GROUP = b"\0"
_SMALLEST_COORDINATOR = 1 + 4 + 1 + 4 + 2 + 1 + 1

_NULL_STRUCT = -1
_SMALLEST_ASSIGNED = 16 + 1 + 1

_PARTITION = Struct(">iqiqh")
_SMALLEST_GROUP = 1 + 1 + 2 + 1 + 1
_SMALLEST_TOPIC = 1 + 16 + 1 + 1
_SMALLEST_PARTITION = _PARTITION.size + 1 + 1

_TYPE = Struct(">b")
_SET = b"\0"
_NOT_ONLY_VALIDATED = b"\0"
_SMALLEST_RESULT = 2 + 1 + 1 + 1 + 1


class Coordinator(msgspec.Struct, frozen=True, gc=False):
    """The coordinator of a group."""

    error: int
    node_id: int
    """-1 if there was an error."""


class FindCoordinatorRequest(Request[Coordinator], frozen=True, kw_only=True):
    """Ask for the coordinator of one group. Kafka 3.0 and newer support v4."""

    api: ClassVar[Api] = Api(key=10, name="FindCoordinator", lowest=4, highest=4, flexible=3)

    group: str

    def _parts(self, version: int) -> Iterable[bytes]:
        fields = self._fields(version)
        return (_OF_GROUP, fields.count(1), fields.string(self.group), fields.tags)

    def _read(self, version: int, reader: Decoder) -> Coordinator:  # noqa: ARG002 -- there is only one
        reader.int32()  # throttle time
        if reader.count(_SMALLEST_COORDINATOR) != 1:
            raise ProtocolError("It is not about one group.")
        reader.string()  # the group
        node_id = reader.int32()
        reader.string()  # host
        reader.int32()  # port
        error = reader.int16()
        reader.nullable_string()  # the error's message
        reader.tags()
        reader.tags()
        return Coordinator(error, node_id)


class ShareGroupHeartbeat(msgspec.Struct, frozen=True):
    """The coordinator's answer to a member."""

    error: int
    member_epoch: int
    """To send with the next heartbeat."""
    assignment: Mapping[UUID | None, tuple[int, ...]] | None
    """The partitions of each topic; ``None`` if it has not changed. Only these are ready to be fetched."""


class ShareGroupHeartbeatRequest(Request[ShareGroupHeartbeat], frozen=True, kw_only=True):
    """Tell the coordinator of a share group that a member is alive. Kafka 4.1 and newer support v1."""

    api: ClassVar[Api] = Api(key=76, name="ShareGroupHeartbeat", lowest=1, highest=1, flexible=0)

    group: str
    member_id: str
    """Chosen by the member: at most 36 characters."""
    member_epoch: int
    """`JOIN_GROUP`, `LEAVE_GROUP`, or the epoch of the last answer."""
    topic: str | None
    """The topic to subscribe to; ``None`` if it has not changed."""

    def _parts(self, version: int) -> Iterable[bytes]:
        fields = self._fields(version)
        parts = [fields.string(self.group), fields.string(self.member_id), INT32.pack(self.member_epoch)]
        parts.append(fields.count(None))  # no rack
        if self.topic is None:
            parts.append(fields.count(None))
        else:
            parts += (fields.count(1), fields.string(self.topic))
        parts.append(fields.tags)
        return parts

    def _read(self, version: int, reader: Decoder) -> ShareGroupHeartbeat:  # noqa: ARG002 -- there is only one
        reader.int32()  # throttle time
        error = reader.int16()
        reader.nullable_string()  # the error's message
        reader.nullable_string()  # the member id
        member_epoch = reader.int32()
        reader.int32()  # the interval of heartbeats
        assignment = None if reader.int8() == _NULL_STRUCT else _assignment(reader)
        reader.tags()
        return ShareGroupHeartbeat(error, member_epoch, assignment)


class ShareGroupOffsets(msgspec.Struct, frozen=True):
    """The state of a group in its topics."""

    error: int
    lags: dict[str, dict[int, int]]
    """
    The number of records that are neither accepted, rejected nor given up, by topic and partition.

    It is -1 if it is not known. Partitions of which the group has no state are missing.
    """


class DescribeShareGroupOffsetsRequest(Request[ShareGroupOffsets], frozen=True, kw_only=True):
    """
    Ask the coordinator for the state of one group. Kafka 4.2 and newer support v1.

    If topics were named, the answer would not tell those of which the group has no state from new ones.
    """

    api: ClassVar[Api] = Api(key=90, name="DescribeShareGroupOffsets", lowest=1, highest=1, flexible=0)

    group: str

    def _parts(self, version: int) -> Iterable[bytes]:
        fields = self._fields(version)
        all_topics = fields.count(None)
        return (fields.count(1), fields.string(self.group), all_topics, fields.tags, fields.tags)

    def _read(self, version: int, reader: Decoder) -> ShareGroupOffsets:  # noqa: ARG002 -- there is only one
        reader.int32()  # throttle time
        if reader.count(_SMALLEST_GROUP) != 1:
            raise ProtocolError("It is not about one group.")
        reader.string()  # the group
        lags: dict[str, dict[int, int]] = {}
        for _ in range(reader.count(_SMALLEST_TOPIC)):
            of_topic = lags.setdefault(reader.string(), {})
            reader.uuid()
            for _ in range(reader.count(_SMALLEST_PARTITION)):
                partition, _, _, lag, error = reader.fields(_PARTITION)
                reader.nullable_string()
                reader.tags()
                of_topic[partition] = -1 if error else lag
            reader.tags()
        error = reader.int16()
        reader.nullable_string()
        reader.tags()
        reader.tags()
        return ShareGroupOffsets(error, lags)


class SetGroupConfigsRequest(Request[int], frozen=True, kw_only=True):
    """Set some settings of one group; the response is an error code. Kafka 2.4 and newer support v1."""

    api: ClassVar[Api] = Api(key=44, name="IncrementalAlterConfigs", lowest=1, highest=1, flexible=1)

    group: str
    values: Mapping[str, str]

    def _parts(self, version: int) -> Iterable[bytes]:
        fields = self._fields(version)
        parts = [fields.count(1), _TYPE.pack(OF_GROUP), fields.string(self.group)]
        parts.append(fields.count(len(self.values)))
        for name, value in self.values.items():
            parts += (fields.string(name), _SET, fields.string(value), fields.tags)
        return (*parts, fields.tags, _NOT_ONLY_VALIDATED, fields.tags)

    def _read(self, version: int, reader: Decoder) -> int:  # noqa: ARG002 -- there is only one
        reader.int32()  # throttle time
        if reader.count(_SMALLEST_RESULT) != 1:
            raise ProtocolError("It is not about one group.")
        error = reader.int16()
        reader.nullable_string()  # the error's message
        reader.int8()
        reader.string()  # the group
        reader.tags()
        reader.tags()
        return error


def _assignment(reader: Decoder) -> Mapping[UUID | None, tuple[int, ...]]:
    topics: dict[UUID | None, tuple[int, ...]] = {}
    for _ in range(reader.count(_SMALLEST_ASSIGNED)):
        topic_id = reader.uuid()
        topics[topic_id] = reader.int32s()
        reader.tags()
    reader.tags()
    return topics
