"""What was fetched: batches of any format, down to the records that are to be shown."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

import msgspec
from aiokafka.record.util import calc_crc32c  # type: ignore[import-untyped] # it has no py.typed

from sampleapp.brokers.kafka.batches.compression import (
    CompressionError,
    UnsupportedCodec,
    codec_in,
    decompress,
)
from sampleapp.brokers.kafka.batches.old_formats import OLD_FORMATS, read_message
from sampleapp.brokers.kafka.batches.records import HEADER, RecordsError, Where, read_records
from sampleapp.brokers.kafka.protocol import AbortedTransaction
from sampleapp.model import ConsumerRecord

__all__ = ["CorruptBatch", "Page", "Transactions", "UnsupportedCodec", "decode_batches"]

# All formats begin with an offset and a length, and have their number in the same place.
_OFFSET_AND_LENGTH = Struct(">qi")
_OFFSET = Struct(">q")
_FORMAT_AT = 16
_FORMAT = 2
_CRC_COUNTS_FROM = 21

_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_CONTROL_KEY = Struct(">hh")
_ABORT = 0

_LARGEST_OFFSET = 2**63 - 1


class CorruptBatch(Exception):
    """A batch is not what its producer or its broker made: the message says which one and how."""


class Page(msgspec.Struct, frozen=True, gc=False):
    """Some records of a partition, in the order of their offsets."""

    records: list[ConsumerRecord]
    next_offset: int
    """The position to go on from: after all that was looked at, whether there was a record to show or not."""


class _Batch(msgspec.Struct, frozen=True, gc=False):
    header: tuple[int, ...]
    body: bytes
    attributes: int
    producer_id: int
    last_offset: int
    empty: bool
    """Without records, and nothing in their place."""


def decode_batches(
    data: bytes,
    *,
    topic: str,
    partition: int,
    position: int,
    aborted: Sequence[AbortedTransaction] | Transactions,
) -> Page:
    """
    Read what a Fetch request brought of one partition.

    Not shown are records before the position, with which a batch may begin, those of the transactions that
    were aborted (KIP-98), and the markers of transactions. A batch at the end that is cut short is left
    for the next request.

    :param position: the offset that was asked for.
    :param aborted: what the answer says about transactions; nothing, unless committed records were asked for.
    :raise CorruptBatch: if a checksum is wrong or a batch impossible. What stands before it is then not
        returned either: reading from the same position again gives it, and the error, again.
    :raise UnsupportedCodec: if a batch may be right, but is compressed in a way that is not known.
    """
    transactions = aborted if isinstance(aborted, Transactions) else Transactions(aborted)
    records: list[ConsumerRecord] = []
    next_offset = position
    start = 0
    while len(data) - start > _FORMAT_AT:
        offset, length = _OFFSET_AND_LENGTH.unpack_from(data, start)
        end = start + _OFFSET_AND_LENGTH.size + length
        if end > len(data):
            break
        where = Where(topic, partition, next_offset)
        try:
            shown, last_offset = _read(data[start : max(start, end)], where, transactions)
        except (CompressionError, RecordsError) as error:
            raise CorruptBatch(f"{topic}, partition {partition}, offset {offset}: {error}.") from error
        except UnsupportedCodec as error:
            raise UnsupportedCodec(f"{topic}, partition {partition}, offset {offset}: {error}.") from error
        records += shown
        next_offset = max(next_offset, last_offset + 1)
        start = end
    return Page(records, next_offset)


class Transactions:
    """Which producers are in a transaction that was aborted, at the place that has been reached."""

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._to_come = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
        self._aborted: set[int] = set()

    def hide(self, batch: _Batch) -> bool:
        """Whether the records of a batch are not to be shown; batches come in the order of offsets."""
        while self._to_come and self._to_come[-1].first_offset <= batch.last_offset:
            self._aborted.add(self._to_come.pop().producer_id)
        if batch.attributes & _CONTROL:
            if batch.producer_id in self._aborted and _is_abort(batch):
                self._aborted.discard(batch.producer_id)
            return True
        return bool(batch.attributes & _TRANSACTIONAL) and batch.producer_id in self._aborted


def _read(data: bytes, where: Where, transactions: Transactions) -> tuple[list[ConsumerRecord], int]:
    """What is to be shown of one batch, and its last offset."""
    if len(data) <= _FORMAT_AT:
        raise RecordsError("its length is too small for anything")
    magic = data[_FORMAT_AT]
    (first_offset,) = _OFFSET.unpack_from(data)
    if magic in OLD_FORMATS:
        last_offset, shown = first_offset, read_message(data, where)
    elif magic == _FORMAT:
        batch = _parse(data)
        last_offset, shown = batch.last_offset, []
        # The log cleaner leaves empty batches, for the state of their producers.
        if not transactions.hide(batch) and last_offset >= where.position and not batch.empty:
            shown = read_records(batch.header, _uncompressed(batch), where)
    else:
        raise RecordsError(f"format {magic} is not known")
    if not 0 <= first_offset <= last_offset < _LARGEST_OFFSET:
        raise RecordsError(f"it cannot have the offsets {first_offset} to {last_offset}")
    if shown and shown[-1].offset > last_offset:
        raise RecordsError(f"it has records after its last offset, {last_offset}")
    return shown, last_offset


def _parse(data: bytes) -> _Batch:
    if len(data) < HEADER.size:
        raise RecordsError("it is too short for its header")
    header = HEADER.unpack_from(data)
    offset, _, _, _, crc, attributes, last_offset_delta, _, _, producer_id, _, _, count = header
    if calc_crc32c(memoryview(data)[_CRC_COUNTS_FROM:]) != crc:
        raise RecordsError("its checksum is wrong")
    empty = not count and len(data) == HEADER.size
    return _Batch(header, data[HEADER.size :], attributes, producer_id, offset + last_offset_delta, empty)


def _uncompressed(batch: _Batch) -> bytes:
    return decompress(codec_in(batch.attributes), batch.body)


def _is_abort(batch: _Batch) -> bool:
    if batch.empty:
        # As Java's consumer: an empty one has been cleaned, and ends nothing.
        return False
    markers = read_records(batch.header, _uncompressed(batch), Where("", 0, 0))
    key = markers[0].key if markers else None
    if key is None or len(key) < _CONTROL_KEY.size:
        raise RecordsError("the marker of a transaction has no type")
    return bool(_CONTROL_KEY.unpack_from(key)[1] == _ABORT)
