"""Decoding of fetched batches of every format, down to the records that consumers see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, overload

import msgspec
from aiokafka.record.util import calc_crc32c  # type: ignore[import-untyped] # it has no py.typed

from sampleapp.brokers.kafka.batches.compression import (
    BatchTooLarge,
    CompressionError,
    UnsupportedCodec,
    codec_in,
    decompress,
)
from sampleapp.brokers.kafka.batches.encoding import (
    ATTRIBUTES_AT,
    FORMAT,
    FORMAT_AT,
    HEADER,
    LEADER_EPOCH,
    LEADER_EPOCH_AT,
    LENGTH,
    LENGTH_AT,
    LENGTH_COUNTS_FROM,
    OFFSET,
)
from sampleapp.brokers.kafka.batches.record_decoding import (
    OLD_FORMATS,
    RecordsError,
    Where,
    read_message,
    read_records,
    read_records_gradually,
)
from sampleapp.brokers.kafka.protocol import AbortedTransaction
from sampleapp.model import ConsumerRecord, with_epoch

DEFAULT_MAX_BATCH_BYTES: Final = 64 * 1024 * 1024

_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_CONTROL_KEY = Struct(">hh")
_ABORT = 0

_LARGEST_OFFSET = 2**63 - 1


class UnreadableBatch(Exception):
    """A batch is damaged, or compressed with an unknown codec; the message names the batch and the fault."""

    def __init__(self, fault: str, *, topic: str, partition: int, offset: int) -> None:
        """
        :param fault: the fault as a clause without a full stop.
        :param offset: the offset of the batch.
        """
        super().__init__(f"{topic}, partition {partition}, offset {offset}: {fault}.")
        self.fault = fault
        self.partition = partition


class FetchedPage(msgspec.Struct, frozen=True, gc=False):
    """Some records of a partition, in the order of their offsets."""

    records: Iterable[ConsumerRecord]
    """
    Decoded one by one during iteration, since records in memory take many times their size in a batch.
    Iteration raises `UnreadableBatch` at a damaged record.
    """
    next_offset: int
    """The position to continue from: after everything that was decoded, including hidden records."""
    too_large: bool = False
    """True if the batch was left out because its records exceed the limit."""


class _Batch(msgspec.Struct, frozen=True, gc=False):
    header: tuple[int, ...]
    body: bytes
    attributes: int
    producer_id: int
    last_offset: int
    empty: bool
    """True for a batch without records and without other data."""


def read_batches(
    data: bytes,
    *,
    topic: str,
    partition: int,
    position: int,
    aborted: Sequence[AbortedTransaction],
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
) -> Iterator[FetchedPage]:
    """
    Decode the fetched data of one partition, a page for each batch.

    Hidden are records before the position, with which a batch may begin, records of aborted transactions
    (KIP-98), and the markers of transactions. A batch at the end that is cut short is left for the next
    request.

    :param position: the offset of the Fetch request.
    :param aborted: the aborted transactions in the response; only if committed records were requested.
    :param max_batch_bytes: the limit of the records of a compressed batch after decompression.
    :raise UnreadableBatch: a checksum is wrong, a batch is invalid, or its codec is unknown. The batches
        before it were returned: fetching from the position after them gives this batch, and the error, again.
    """
    transactions = _Transactions(aborted)
    next_offset = position
    for batch in split_batches(data):
        page = _read(batch, Where(topic, partition, next_offset), transactions, max_batch_bytes)
        next_offset = page.next_offset
        yield page


class TooLargeBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch that is left out, because its records take too much memory after decompression."""

    next_offset: int
    """The position after the batch."""


def read_gradually(
    data: bytes,
    *,
    topic: str,
    partition: int,
    position: int,
    aborted: Sequence[AbortedTransaction],
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
) -> Iterator[ConsumerRecord | TooLargeBatch | int | None]:
    """
    Decode fetched data as `read_batches` does, in small steps, as far as the caller iterates.

    :return: an iterator over records; the position after each batch, as an ``int``; batches that are too
        large; and ``None`` for a pause, after about a millisecond of work.
    :raise UnreadableBatch: during iteration; as of `read_batches`.
    """
    transactions = _Transactions(aborted)
    for batch in split_batches(data):
        where = Where(topic, partition, position)
        offset = OFFSET.unpack_from(batch)[0] if len(batch) >= OFFSET.size else position
        try:
            last_offset, records = _open(batch, where, transactions, max_batch_bytes, gradually=True)
            position = _position_after(batch, last_offset, position)
            for record in records or ():
                if record is not None and record.offset > last_offset:
                    raise RecordsError(f"it has records after its last offset, {last_offset}")  # noqa: TRY301 -- as in `_located`
                yield record
        except BatchTooLarge:
            yield TooLargeBatch(position)
        except (CompressionError, RecordsError, UnsupportedCodec) as error:
            raise _unreadable(error, where, offset) from error
        else:
            yield TooLargeBatch(position) if records is None else position


class _Transactions:
    """The producers with an aborted transaction at the current offset."""

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._to_come = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
        self._aborted: set[int] = set()

    def hides(self, batch: _Batch, max_bytes: int) -> bool:
        """Return whether the records of a batch are hidden; batches must come in the order of offsets."""
        while self._to_come and self._to_come[-1].first_offset <= batch.last_offset:
            self._aborted.add(self._to_come.pop().producer_id)
        if batch.attributes & _CONTROL:
            if batch.producer_id in self._aborted and _is_abort(batch, max_bytes):
                self._aborted.discard(batch.producer_id)
            return True
        return bool(batch.attributes & _TRANSACTIONAL) and batch.producer_id in self._aborted


def _read(data: bytes, where: Where, transactions: _Transactions, max_bytes: int) -> FetchedPage:
    offset = OFFSET.unpack_from(data)[0] if len(data) >= OFFSET.size else where.position
    try:
        last_offset, records = _open(data, where, transactions, max_bytes)
    except (CompressionError, RecordsError, UnsupportedCodec) as error:
        raise _unreadable(error, where, offset) from error
    next_offset = _position_after(data, last_offset, where.position)
    if records is None:
        return FetchedPage((), next_offset, too_large=True)
    return FetchedPage(_located(records, where, offset, last_offset), next_offset)


def _position_after(data: bytes, last_offset: int, position: int) -> int:
    """Return the position after a batch, with its leader epoch, unless the batch is before the position."""
    if last_offset < position:
        return position
    epoch = LEADER_EPOCH.unpack_from(data, LEADER_EPOCH_AT)[0] if data[FORMAT_AT] == FORMAT else -1
    return with_epoch(last_offset + 1, epoch)


@overload
def _open(
    data: bytes, where: Where, transactions: _Transactions, max_bytes: int
) -> tuple[int, Iterable[ConsumerRecord] | None]: ...


@overload
def _open(
    data: bytes, where: Where, transactions: _Transactions, max_bytes: int, *, gradually: bool
) -> tuple[int, Iterable[ConsumerRecord | None] | None]: ...


def _open(
    data: bytes, where: Where, transactions: _Transactions, max_bytes: int, *, gradually: bool = False
) -> tuple[int, Iterable[ConsumerRecord | None] | None]:
    """
    Open a batch.

    :param gradually: decompress it during iteration, as in `read_records_gradually`.
    :return: the last offset of the batch, and its visible records: ``None`` if it is too large.
    """
    if len(data) <= FORMAT_AT:
        raise RecordsError("its length is too small for any format")
    magic = data[FORMAT_AT]
    (first_offset,) = OFFSET.unpack_from(data)
    last_offset = first_offset
    records: Iterable[ConsumerRecord | None] | None = ()
    try:
        if magic in OLD_FORMATS:
            records = read_message(data, where, max_bytes)
        elif magic == FORMAT:
            batch = _parse(data)
            last_offset = batch.last_offset
            # The log cleaner keeps empty batches for the state of their producers.
            if not transactions.hides(batch, max_bytes) and last_offset >= where.position and not batch.empty:
                if gradually:
                    codec = codec_in(batch.attributes)
                    records = read_records_gradually(
                        batch.header, codec, batch.body, where, max_bytes=max_bytes
                    )
                else:
                    records = read_records(batch.header, _uncompressed(batch, max_bytes), where)
        else:
            raise RecordsError(f"its format {magic} is unknown")
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
                # Raised here, since another function would be called for each record.
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
        # As in Java's consumer: an empty marker has been cleaned, and ends no transaction.
        return False
    marker = next(iter(read_records(batch.header, _uncompressed(batch, max_bytes), Where("", 0, 0))), None)
    key = marker.key if marker is not None else None
    if key is None or len(key) < _CONTROL_KEY.size:
        raise RecordsError("the marker of a transaction has no type")
    return bool(_CONTROL_KEY.unpack_from(key)[1] == _ABORT)


def split_batches(data: bytes) -> Iterator[bytes]:
    """
    Split fetched data into batches.

    A batch at the end that is cut short is left out. A batch with an invalid length is the last one, and the
    decoder rejects it.
    """
    start = 0
    while len(data) - start > FORMAT_AT:
        (length,) = LENGTH.unpack_from(data, start + LENGTH_AT)
        end = start + LENGTH_COUNTS_FROM + length
        if end > len(data):
            return
        yield data[start : max(start, end)]
        if length < 0:
            return
        start = end
