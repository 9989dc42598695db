"""
Batches of records, as they are in requests and on the brokers' disks.

Layout: https://kafka.apache.org/documentation/#recordbatch.
"""

from sampleapp.brokers.kafka.batches.compression import Codec
from sampleapp.brokers.kafka.batches.encoding import BATCH_OVERHEAD, encode_batch, record_size
from sampleapp.brokers.kafka.batches.fetched import (
    CorruptBatch,
    Page,
    Transactions,
    UnsupportedCodec,
    decode_batches,
)

__all__ = [
    "BATCH_OVERHEAD",
    "Codec",
    "CorruptBatch",
    "Page",
    "Transactions",
    "UnsupportedCodec",
    "decode_batches",
    "encode_batch",
    "record_size",
]
