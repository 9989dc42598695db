"""The tokens of leases: all that another instance needs to acknowledge or extend a lease."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Final
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from sampleapp.brokers.kafka.protocol import Acknowledgement, AcknowledgeType
from sampleapp.brokers.shared.deliveries import LEASE_LOST
from sampleapp.errors import LeaseLost
from sampleapp.model import LeasedRecord

MOST_MESSAGES: Final = 1000
"""The most messages of a lease: twice as many as a pull over HTTP may ask for."""

_VERSION: Final = b"\1"
_LARGEST: Final = 2**62
_Id = Annotated[bytes, Meta(min_length=16, max_length=16)]
_Int32 = Annotated[int, Meta(ge=0, lt=2**31 - 1)]
_Offset = Annotated[int, Meta(ge=0, lt=2**62)]


class LeaseToken(Struct, frozen=True, kw_only=True, array_like=True):
    """
    The share session of a lease, and its messages.

    The member id is a secret, without which no broker takes an acknowledgement. The rest is not secret: a
    worker that changes it can only lose its own lease.
    """

    node_id: _Int32
    member: _Id
    """The member id as bytes."""
    topic: _Id
    """The id of the topic."""
    epoch: Annotated[int, Meta(ge=1, lt=2**31 - 1)]
    """The number of the next request in the session."""
    ends_ms: _Offset
    """Milliseconds since the epoch."""
    runs: dict[_Int32, list[_Offset]]
    """
    The offsets of each partition, as runs of consecutive ones, each of two numbers.

    The first is the distance from the end of the run before. The second is twice the length, plus 1 if it is
    the last attempt for these messages.
    """

    @classmethod
    def read(cls, token: bytes) -> LeaseToken:
        """
        Decode a token.

        :raise LeaseLost: it is not one.
        """
        try:
            found = msgspec.msgpack.decode(memoryview(token)[1:], type=cls)
        except msgspec.DecodeError as error:
            raise LeaseLost(LEASE_LOST) from error
        each_runs = found.runs.values()
        lengths = [each // 2 for runs in each_runs for each in runs[1::2]]
        is_valid = (
            token[:1] == _VERSION
            and all(lengths)
            and 0 < sum(lengths) <= MOST_MESSAGES
            and not any(len(runs) % 2 or sum(runs) >= _LARGEST for runs in each_runs)
        )
        if not is_valid:
            raise LeaseLost(LEASE_LOST)
        return found

    @property
    def encoded(self) -> bytes:
        """The token."""
        return _VERSION + msgspec.msgpack.encode(self)

    @property
    def topic_id(self) -> UUID:
        """The id of the topic."""
        return UUID(bytes=self.topic)

    def messages(self) -> dict[tuple[int, int], bool]:
        """Return the partitions and offsets of the messages, and ``True`` for those in their last attempt."""
        found: dict[tuple[int, int], bool] = {}
        for partition, runs in self.runs.items():
            at = 0
            for distance, length in zip(runs[::2], runs[1::2], strict=True):
                at += distance
                found |= {(partition, at + each): bool(length % 2) for each in range(length // 2)}
                at += length // 2
        return found


def runs_of(messages: Iterable[LeasedRecord], most_attempts: int | None) -> dict[int, list[int]]:
    """
    Return the runs of a token.

    :param messages: those of each partition are together, in the order of their offsets.
    :param most_attempts: the attempts after which the group gives a message up; ``None`` if not known.
    """
    found: dict[int, list[int]] = {}
    ends: dict[int, int] = {}
    for message in messages:
        partition, offset = message.record.partition, message.record.offset
        is_last = most_attempts is not None and message.attempts >= most_attempts
        runs, end = found.setdefault(partition, []), ends.get(partition, 0)
        if runs and offset == end and runs[-1] % 2 == is_last:
            runs[-1] += 2
        else:
            runs += (offset - end, 2 + is_last)
        ends[partition] = offset + 1
    return found


def acknowledgements(
    types: Mapping[tuple[int, int], AcknowledgeType],
) -> Mapping[int, Sequence[Acknowledgement]]:
    """Return the acknowledgements of offsets, by partition, with those of consecutive offsets as one."""
    found: dict[int, list[Acknowledgement]] = {}
    numbered = enumerate(sorted(types.items()))
    for (partition, _, kind), run in groupby(
        numbered, key=lambda each: (each[1][0][0], each[1][0][1] - each[0], each[1][1])
    ):
        offsets = [offset for _, ((_, offset), _) in run]
        found.setdefault(partition, []).append(Acknowledgement(offsets[0], offsets[-1], kind))
    return found
