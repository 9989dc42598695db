"""
DescribeConfigs and DescribeQuorum: configurations, and the replicas of the metadata.

The first is KIP-133, the second KIP-595, with the time of the leader since KIP-836.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import ClassVar, Final

import msgspec

from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol.codec import Api, Decoder, Request

OF_TOPIC = 2
"""The type of a resource: a topic."""
OF_BROKER = 4
"""The type of a resource: a broker, whose name is its node id. Only this broker may be asked."""
OF_GROUP = 32
"""The type of a resource: a group (KIP-848)."""

_TYPE = Struct(">b")
_FACTS = Struct(">?b?")
_OWN = (1, 8)
"""The sources of values that were set for a topic, and for a group."""
# The smallest size of an element: its numbers, and the lengths of its strings and arrays.
_SMALLEST_RESULT = 2 + 2 + _TYPE.size + 2 + 4
_SMALLEST_CONFIG = 2 + 2 + _FACTS.size + 4
_SMALLEST_SYNONYM = 2 + 2 + 1


class DescribedConfig(msgspec.Struct, frozen=True, gc=False):
    """The configuration of one resource."""

    error: int
    resource_type: int
    """`OF_TOPIC`, `OF_BROKER` or `OF_GROUP`."""
    name: str
    values: Mapping[str, str | None]
    """
    By the name of the setting, with the defaults of the brokers.

    A name that the broker does not know is missing.
    """
    own: frozenset[str] = frozenset()
    """The names of the settings of a topic or a group that are not the broker's."""


class DescribeConfigsRequest(Request[list[DescribedConfig]], frozen=True, kw_only=True):
    """Ask for settings of topics, and of the broker that is asked. Kafka 1.1 and newer support v1."""

    api: ClassVar[Api] = Api(key=32, name="DescribeConfigs", lowest=1, highest=1)

    resources: Sequence[tuple[int, str, Sequence[str]]]
    """The type of each resource, its name, and the names of the settings."""

    def _parts(self, version: int) -> Iterable[bytes]:
        fields = self._fields(version)
        parts = [fields.count(len(self.resources))]
        for resource_type, name, keys in self.resources:
            parts += (_TYPE.pack(resource_type), fields.string(name), fields.count(len(keys)))
            parts += map(fields.string, keys)
        parts.append(b"\0")  # without synonyms
        return parts

    def _read(self, version: int, reader: Decoder) -> list[DescribedConfig]:  # noqa: ARG002 -- there is one
        reader.int32()  # throttle time
        return [_result(reader) for _ in range(reader.count(_SMALLEST_RESULT))]


def _result(reader: Decoder) -> DescribedConfig:
    error = reader.int16()
    reader.nullable_string()  # the error's message
    resource_type, name = reader.int8(), reader.string()
    settings = [_setting(reader) for _ in range(reader.count(_SMALLEST_CONFIG))]
    values = {key: value for key, value, _ in settings}
    own = frozenset(key for key, _, source in settings if source in _OWN)
    return DescribedConfig(error, resource_type, name, values, own)


def _setting(reader: Decoder) -> tuple[str, str | None, int]:
    name, value = reader.string(), reader.nullable_string()
    _, source, _ = reader.fields(_FACTS)
    for _ in range(reader.count(_SMALLEST_SYNONYM)):
        reader.string()
        reader.nullable_string()
        reader.int8()
    return name, value, source


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
