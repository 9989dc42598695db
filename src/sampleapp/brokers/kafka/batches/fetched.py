"""What was fetched: batches of any format, down to the records that are to be shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Final

import msgspec
from aiokafka.record.util import calc_crc32c  # type: ignore[import-untyped] # it has no py.typed

from sampleapp.brokers.kafka.batches.compression import (
    BatchTooLarge,
    CompressionError,
    UnsupportedCodec,
    codec_in,
    decompress,
)
from sampleapp.brokers.kafka.batches.layout import ATTRIBUTES_AT, FORMAT, FORMAT_AT, HEADER, OFFSET, split
from sampleapp.brokers.kafka.batches.old_formats import OLD_FORMATS, read_message
from sampleapp.brokers.kafka.batches.records import RecordsError, Where, read_records
from sampleapp.brokers.kafka.protocol import AbortedTransaction
from sampleapp.model import ConsumerRecord

__all__ = ["DEFAULT_MAX_BATCH_BYTES", "Page", "UnreadableBatch", "read_batches"]

DEFAULT_MAX_BATCH_BYTES: Final = 64 * 1024 * 1024

_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_CONTROL_KEY = Struct(">hh")
_ABORT = 0

_LARGEST_OFFSET = 2**63 - 1


class UnreadableBatch(Exception):
    """A batch is damaged, or compressed in a way that is not known; the message says which one and how."""

    def __init__(self, fault: str, *, topic: str, partition: int, offset: int) -> None:
        """
        :param fault: what is wrong, as a clause without a full stop.
        :param offset: of the batch.
        """
        super().__init__(f"{topic}, partition {partition}, offset {offset}: {fault}.")
        self.fault = fault


class Page(msgspec.Struct, frozen=True, gc=False):
    """Some records of a partition, in the order of their offsets."""

    records: Iterable[ConsumerRecord]
    """
    Are read one by one as they are asked for, since in memory they take many times what they take in a
    batch. `UnreadableBatch` is raised where they are found to be damaged.
    """
    next_offset: int
    """The position to go on from: after all that was looked at, whether there was a record to show or not."""
    too_large: bool = False
    """Whether the batch was left out, because its records take more than the limit."""


class _Batch(msgspec.Struct, frozen=True, gc=False):
    header: tuple[int, ...]
    body: bytes
    attributes: int
    producer_id: int
    last_offset: int
    empty: bool
    """Without records, and nothing in their place."""


def read_batches(
    data: bytes,
    *,
    topic: str,
    partition: int,
    position: int,
    aborted: Sequence[AbortedTransaction],
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
) -> Iterator[Page]:
    """
    Read what a Fetch request brought of one partition, a page for each batch.

    Not shown are records before the position, with which a batch may begin, those of the transactions that
    were aborted (KIP-98), and the markers of transactions. A batch at the end that is cut short is left
    for the next request.

    :param position: the offset that was asked for.
    :param aborted: what the answer says about transactions; nothing, unless committed records were asked for.
    :param max_batch_bytes: how much the records of a compressed batch may take after decompression.
    :raise UnreadableBatch: a checksum is wrong, a batch impossible, or its codec not known. Those before it
        were returned: reading on from the position behind them gives it, and the error, again.
    """
    transactions = _Transactions(aborted)
    next_offset = position
    for batch in split(data):
        page = _read(batch, Where(topic, partition, next_offset), transactions, max_batch_bytes)
        next_offset = page.next_offset
        yield page


class _Transactions:
    """Which producers are in a transaction that was aborted, at the place that has been reached."""

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._to_come = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
        self._aborted: set[int] = set()

    def hide(self, batch: _Batch, max_bytes: int) -> bool:
        """Whether the records of a batch are not to be shown; batches come in the order of offsets."""
        while self._to_come and self._to_come[-1].first_offset <= batch.last_offset:
            self._aborted.add(self._to_come.pop().producer_id)
        if batch.attributes & _CONTROL:
            if batch.producer_id in self._aborted and _is_abort(batch, max_bytes):
                self._aborted.discard(batch.producer_id)
            return True
        return bool(batch.attributes & _TRANSACTIONAL) and batch.producer_id in self._aborted


def _read(data: bytes, where: Where, transactions: _Transactions, max_bytes: int) -> Page:
    offset = OFFSET.unpack_from(data)[0] if len(data) >= OFFSET.size else where.position
    try:
        last_offset, records = _open(data, where, transactions, max_bytes)
    except (CompressionError, RecordsError, UnsupportedCodec) as error:
        raise _unreadable(error, where, offset) from error
    next_offset = max(where.position, last_offset + 1)
    if records is None:
        return Page((), next_offset, too_large=True)
    return Page(_located(records, where, offset, last_offset), next_offset)


def _open(
    data: bytes, where: Where, transactions: _Transactions, max_bytes: int
) -> tuple[int, Iterable[ConsumerRecord] | None]:
    """:return: the last offset of a batch, and what is to be shown of it: ``None`` if it is too large."""
    if len(data) <= FORMAT_AT:
        raise RecordsError("its length is too small for anything")
    magic = data[FORMAT_AT]
    (first_offset,) = OFFSET.unpack_from(data)
    last_offset = first_offset
    records: Iterable[ConsumerRecord] | None = ()
    try:
        if magic in OLD_FORMATS:
            records = read_message(data, where, max_bytes)
        elif magic == FORMAT:
            batch = _parse(data)
            last_offset = batch.last_offset
            # The log cleaner leaves empty batches, for the state of their producers.
            if not transactions.hide(batch, max_bytes) and last_offset >= where.position and not batch.empty:
                records = read_records(batch.header, _uncompressed(batch, max_bytes), where)
        else:
            raise RecordsError(f"format {magic} is not known")
    except BatchTooLarge:
        records = None
    if not 0 <= first_offset <= last_offset < _LARGEST_OFFSET:
        raise RecordsError(f"it cannot have the offsets {first_offset} to {last_offset}")
    return last_offset, records


def _located(
    records: Iterable[ConsumerRecord], where: Where, offset: int, last_offset: int
) -> Iterator[ConsumerRecord]:
    try:
        for record in records:
            if record.offset > last_offset:
                # One function more would be called for each record.
                raise RecordsError(f"it has records after its last offset, {last_offset}")  # noqa: TRY301
            yield record
    except (RecordsError, UnsupportedCodec) as error:
        raise _unreadable(error, where, offset) from error


def _unreadable(error: Exception, where: Where, offset: int) -> UnreadableBatch:
    return UnreadableBatch(str(error), topic=where.topic, partition=where.partition, offset=offset)


def _parse(data: bytes) -> _Batch:
    if len(data) < HEADER.size:
        raise RecordsError("it is too short for its header")
    header = HEADER.unpack_from(data)
    offset, _, _, _, crc, attributes, last_offset_delta, _, _, producer_id, _, _, count = header
    if calc_crc32c(memoryview(data)[ATTRIBUTES_AT:]) != crc:
        raise RecordsError("its checksum is wrong")
    empty = not count and len(data) == HEADER.size
    return _Batch(header, data[HEADER.size :], attributes, producer_id, offset + last_offset_delta, empty)


def _uncompressed(batch: _Batch, max_bytes: int) -> bytes:
    return decompress(codec_in(batch.attributes), batch.body, limit_bytes=max_bytes)


def _is_abort(batch: _Batch, max_bytes: int) -> bool:
    if batch.empty:
        # As Java's consumer: an empty one has been cleaned, and ends nothing.
        return False
    marker = next(iter(read_records(batch.header, _uncompressed(batch, max_bytes), Where("", 0, 0))), None)
    key = marker.key if marker is not None else None
    if key is None or len(key) < _CONTROL_KEY.size:
        raise RecordsError("the marker of a transaction has no type")
    return bool(_CONTROL_KEY.unpack_from(key)[1] == _ABORT)
