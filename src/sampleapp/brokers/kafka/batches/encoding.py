"""
Encoding of batches in format 2 (KIP-98), and the layout of all formats.

The layout is that of https://kafka.apache.org/documentation/#messageformat.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from struct import Struct
from typing import Final

from aiokafka.record.default_records import (  # type: ignore[import-untyped] # it has no py.typed
    DefaultRecordBatchBuilder,
)
from aiokafka.record.util import calc_crc32c  # type: ignore[import-untyped] # as above

from sampleapp.brokers.kafka.batches.compression import Codec, compress
from sampleapp.model import Record

# In every format: the offset, the length of the rest, and the position of the format's number.
OFFSET: Final = Struct(">q")
LENGTH: Final = Struct(">i")
LENGTH_AT: Final = OFFSET.size
LENGTH_COUNTS_FROM: Final = LENGTH_AT + LENGTH.size
FORMAT_AT: Final = 16

FORMAT: Final = 2
"""The format that this service writes (KIP-98); the constants below are of this format."""
LEADER_EPOCH: Final = Struct(">i")
LEADER_EPOCH_AT: Final = LENGTH_COUNTS_FROM
CRC_AT: Final = 17
CRC: Final = Struct(">I")
ATTRIBUTES_AT: Final = 21
"""Also the begin of the bytes that the checksum covers."""
ATTRIBUTES: Final = Struct(">h")
HEADER: Final = Struct(">qiibIhiqqqhii")
"""
Base offset, length, leader epoch, format, CRC, attributes, last offset delta, base and maximum timestamp,
producer id, its epoch, base sequence, number of records.
"""
BATCH_OVERHEAD: Final = HEADER.size
"""The bytes of a batch's header."""

# The longest encodings of: the record's length, attributes, timestamp delta, offset delta, the lengths of key
# and value, the number of headers.
_RECORD_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5 + 5
_HEADER_OVERHEAD = 5 + 5

# Looking up a member of an Enum is slow before Python 3.12, and its value always.
_NONE: Final = Codec.NONE
_NONE_VALUE: Final[int] = Codec.NONE.value
_NO_HEADERS: list[tuple[str, bytes | None]] = []


def record_size(record: Record) -> int:
    """
    Return the most bytes that a record adds to a batch.

    A batch never takes more than `BATCH_OVERHEAD` and the sizes of its records, with any codec.
    """
    key, value = record.key, record.value
    size = _RECORD_OVERHEAD
    if key is not None:
        size += len(key)
    if value is not None:
        size += len(value)
    for name, content in record.headers:
        size += _HEADER_OVERHEAD + len(name.encode()) + len(content or b"")
    return size


def record_sizes(records: Sequence[Record]) -> list[int]:
    """
    Return `record_size` of each of many records, in less time.

    :raise UnicodeEncodeError: the name of a header has no UTF-8 form.
    """
    return [
        _RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"")
        if not record.headers
        else record_size(record)
        for record in records
    ]


def encode_batch(
    records: Sequence[Record],
    *,
    codec: Codec,
    producer_id: int = -1,
    epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """
    Encode records as one batch, in their order: the broker gives them consecutive offsets.

    :param records: at least one; their topics are ignored. Timestamps are not negative.
    :param codec: not used if it would make the batch larger.
    :param producer_id: with the epoch and the sequence, lets the broker reject duplicates (KIP-98); -1 for no
        idempotence.
    :param epoch: the epoch of the producer id.
    :param base_sequence: the sequence number of the first record, counted for each partition.
    :raise ValueError: ``records`` is empty, or a header's name has no UTF-8 form.
    """
    if not records:
        raise ValueError("A batch has at least one record.")
    # The builder rejects records above its batch_size; here the caller decides the size.
    builder = DefaultRecordBatchBuilder(
        magic=FORMAT,
        compression_type=_NONE_VALUE,
        is_transactional=0,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=base_sequence,
        batch_size=sys.maxsize,
    )
    append = builder.append
    for index, record in enumerate(records):
        headers = record.headers
        append(
            index, record.timestamp_ms, record.key, record.value, list(headers) if headers else _NO_HEADERS
        )
    batch = bytes(builder.build())
    return batch if codec is _NONE else _compressed(batch, codec)


def _compressed(batch: bytes, codec: Codec) -> bytes:
    # The builder can compress, too, but at levels of gzip and lz4 that cost 4 and 16 times as much.
    records = compress(codec, batch[BATCH_OVERHEAD:])
    if len(records) >= len(batch) - BATCH_OVERHEAD:
        return batch
    smaller = bytearray(batch[:BATCH_OVERHEAD])
    smaller += records
    LENGTH.pack_into(smaller, LENGTH_AT, len(smaller) - LENGTH_COUNTS_FROM)
    ATTRIBUTES.pack_into(smaller, ATTRIBUTES_AT, codec.value)
    CRC.pack_into(smaller, CRC_AT, calc_crc32c(memoryview(smaller)[ATTRIBUTES_AT:]))
    return bytes(smaller)
