"""InitProducerId: gets a producer id for idempotent publishing (KIP-98)."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import ClassVar

import msgspec

from sampleapp.brokers.kafka.protocol.decoder import Decoder
from sampleapp.brokers.kafka.protocol.request import Api, Request
from sampleapp.brokers.kafka.protocol.writing import INT32, NULL_STRING

__all__ = ["InitProducerIdRequest", "ProducerIdentity"]

_IDENTITY = Struct(">ihqh")
# As Java's producer does: without transactions, the transaction timeout is ignored.
_NO_TIMEOUT = INT32.pack(0x7FFFFFFF)


class ProducerIdentity(msgspec.Struct, frozen=True, gc=False):
    """The identity of a producer, for every broker of the cluster."""

    error: int
    producer_id: int
    epoch: int


class InitProducerIdRequest(Request[ProducerIdentity], frozen=True, kw_only=True):
    """Ask any broker for a new producer id, for idempotence without transactions."""

    api: ClassVar[Api] = Api(key=22, name="InitProducerId", lowest=0, highest=1)

    def _parts(self, version: int) -> Iterable[bytes]:  # noqa: ARG002 - the same in both
        return (NULL_STRING, _NO_TIMEOUT)  # no transactional id

    def _read(self, version: int, reader: Decoder) -> ProducerIdentity:  # noqa: ARG002 - the same in both
        _, error, producer_id, epoch = reader.fields(_IDENTITY)
        return ProducerIdentity(error, producer_id, epoch)
