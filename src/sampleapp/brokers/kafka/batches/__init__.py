"""
Encoding and decoding of record batches, as they are in requests and on the brokers' disks.

Layout: https://kafka.apache.org/documentation/#recordbatch.
"""

from sampleapp.brokers.kafka.batches.compression import Codec
from sampleapp.brokers.kafka.batches.encoding import BATCH_OVERHEAD, encode_batch, record_size, record_sizes
from sampleapp.brokers.kafka.batches.fetched_batches import (
    DEFAULT_MAX_BATCH_BYTES,
    FetchedPage,
    TooLargeBatch,
    UnreadableBatch,
    read_batches,
    read_gradually,
    split_batches,
)

__all__ = [
    "BATCH_OVERHEAD",
    "DEFAULT_MAX_BATCH_BYTES",
    "Codec",
    "FetchedPage",
    "TooLargeBatch",
    "UnreadableBatch",
    "encode_batch",
    "read_batches",
    "read_gradually",
    "record_size",
    "record_sizes",
    "split_batches",
]
