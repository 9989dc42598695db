"""The log of one partition, as Kafka keeps it."""

from __future__ import annotations

from collections import defaultdict, deque
from struct import pack, pack_into, unpack_from

from aiokafka.record.util import calc_crc32c

from sampleapp.brokers.kafka.batches import Codec, encode_batch, read_batches
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import EARLIEST, LATEST, AbortedTransaction, Fetched
from sampleapp.model import OffsetAndEpoch, epoch_of
from tests.support.brokers import record

__all__ = ["TOPIC", "Log", "batch", "values", "values_of"]

TOPIC = "t"
TIMESTAMP_MS = 1_700_000_000_000
"""Of a record for which a test says nothing else."""

_REMEMBERED_BATCHES = 5
_SEQUENCE_NUMBERS = 2**31


def values(count, start=0):
    return [b"%d" % number for number in range(start, start + count)]


def values_of(data):
    """The values in batches, as the consumer reads them."""
    pages = read_batches(data, topic=TOPIC, partition=0, position=0, aborted=())
    return [each.value for page in pages for each in page.records]


def batch(
    offset,
    values,
    *,
    codec=Codec.NONE,
    last_offset=None,
    attributes=0,
    producer_id=-1,
    keys=None,
    timestamp_ms=TIMESTAMP_MS,
):
    """A record batch as a broker has it; with a ``last_offset`` if the last records were compacted away."""
    keys = keys or [None] * len(values)
    data = bytearray(
        encode_batch(
            [
                record(TOPIC, value, key=key, timestamp_ms=timestamp_ms)
                for key, value in zip(keys, values, strict=True)
            ],
            codec=codec,
            producer_id=producer_id,
            epoch=0,
            base_sequence=0,
        )
    )
    pack_into(">q", data, 0, offset)
    pack_into(">h", data, 21, data[22] | attributes)
    if last_offset is not None:
        pack_into(">i", data, 23, last_offset - offset)
    pack_into(">I", data, 17, calc_crc32c(bytes(data[21:])))
    return bytes(data)


class Log:
    """
    One partition, and what a subscription has to show of it.

    It keeps to what Kafka promises of idempotence (KIP-98): the next sequence number of a producer id's
    newest epoch is appended, one of the last five batches is answered as before, everything else is rejected.
    """

    def __init__(self, leader=1):
        self.leader = leader
        self.epoch = 0
        """Of its leader: each election has the next one."""
        self.start = self.end = 0
        self.batches = []
        """First offset, last offset, bytes."""
        self.timestamps = []
        """First offset and timestamp of each append."""
        self.shown = {}
        """The values to be shown, by offset."""
        self.stable = None
        """The last stable offset, if a transaction is open."""
        self.aborted = []
        """Transactions, and the offset of their end."""
        self.errors = []
        """What the next answers about it say."""
        self.unlisted = defaultdict(list)
        """What the next answers say of the offset of a time."""
        self.has_old_format = False
        """Whether it is kept in a format that has no room for producer ids."""
        self.rejects_unknown_ids = False
        """As before Kafka 2.5: the first batch of a producer id must have the sequence number 0 (KIP-360)."""
        self.has_epochs = True
        """False for a log that keeps no epochs, as with ``message.format.version`` 0.10."""
        self._leader_epochs = {}
        """The first offset of each leader epoch that has records."""
        self._epochs = {}
        """The newest epoch of each producer id."""
        self._remembered = {}
        """For each producer id: first sequence number, count and offset of its last batches."""

    @property
    def values(self):
        """In the order of offsets, without those of transactions that were aborted."""
        return list(self.shown.values())

    def append_batch(self, data):
        """Append what a producer sends; return Kafka's error code, and the offset."""
        producer_id, epoch, sequence, count = unpack_from(">qhii", data, 43)
        values = values_of(data)
        assert len(values) == count
        if self.errors:
            return self.errors.pop(0), -1
        if producer_id >= 0:
            if self.has_old_format:
                return ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, -1
            error, offset = self._check(producer_id, epoch, sequence, count)
            if error != ErrorCode.NONE or offset >= 0:
                return error, offset
            self._remembered[producer_id].append((sequence, count, self.end))
        (timestamp_ms,) = unpack_from(">q", data, 27)
        self.timestamps.append((self.end, timestamp_ms))
        stored = bytearray(data)
        pack_into(">q", stored, 0, self.end)
        self.shown |= {self.end + index: value for index, value in enumerate(values)}
        self._add(bytes(stored), count)
        return ErrorCode.NONE, self.end - count

    def _check(self, producer_id, epoch, sequence, count):
        """Kafka's error code, and the offset if it has the batch already."""
        known = self._epochs.get(producer_id)
        if known is None or epoch > known:
            if sequence != 0 and known is not None:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            if sequence != 0 and self.rejects_unknown_ids:
                return ErrorCode.UNKNOWN_PRODUCER_ID, -1
            self._epochs[producer_id] = epoch
            self._remembered[producer_id] = deque(maxlen=_REMEMBERED_BATCHES)
        elif epoch < known:
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1
        remembered = self._remembered[producer_id]
        for first, length, offset in remembered:
            if (first, length) == (sequence, count):
                return ErrorCode.NONE, offset
        if remembered:
            first, length, _ = remembered[-1]
            if sequence != (first + length) % _SEQUENCE_NUMBERS:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        return ErrorCode.NONE, -1

    @property
    def knows_producers(self):
        return bool(self._epochs)

    def forget_producers(self):
        """As when producer ids have expired, or their records were deleted, in Kafka before 2.5."""
        self._epochs.clear()
        self._remembered.clear()

    def expect_another_number(self):
        """As if what was told last were lost: the next number of each producer id is not what it expects."""
        for remembered in self._remembered.values():
            _, _, offset = remembered.pop()
            remembered.append((1000, 1, offset))

    def append(self, *values, timestamp_ms=TIMESTAMP_MS, **options):
        data = batch(self.end, values, timestamp_ms=timestamp_ms, **options)
        self.timestamps.append((self.end, timestamp_ms))
        self._add(data, len(values))
        self.shown |= {self.end - len(values) + index: value for index, value in enumerate(values)}

    def append_aborted(self, *values, producer_id=7):
        first = self.end
        self._add(batch(first, values, attributes=0x10, producer_id=producer_id), len(values))
        self.append_marker(commit=False, producer_id=producer_id)
        self.aborted.append((AbortedTransaction(producer_id, first), self.end - 1))

    def append_marker(self, *, commit, producer_id=7):
        key = bytes([0, 0, 0, commit])
        data = batch(self.end, [b"\0\0\0\0\0\0"], keys=[key], attributes=0x30, producer_id=producer_id)
        self._add(data, 1)

    def append_damaged(self, *values):
        """Append records whose batch has a wrong checksum."""
        self.append(*values)
        first, last, data = self.batches[-1]
        self.batches[-1] = (first, last, data[:-1] + bytes([data[-1] ^ 1]))

    def lose_the_last_of(self, *values, lost):
        """Append records of which compaction has removed the last ones, though their batch covers them."""
        last = self.end + len(values) + lost - 1
        self.shown |= {self.end + index: value for index, value in enumerate(values)}
        self._add(batch(self.end, values, last_offset=last), len(values) + lost)

    def skip(self, count):
        """Have offsets that no batch has: what compaction leaves at the end of a segment."""
        self.end += count

    def delete_before(self, offset):
        self.start = offset
        self.batches = [each for each in self.batches if each[1] >= offset]
        self.shown = {o: value for o, value in self.shown.items() if o >= offset}

    def listed(self, which, *, read_committed=False):
        """The offset that a leader lists for a time, or for one of the two that stand for an end."""
        end = self.readable_to() if read_committed else self.end
        if which == EARLIEST:
            return self.start
        if which == LATEST:
            return end
        found = [offset for offset, timestamp_ms in self.timestamps if timestamp_ms >= which]
        found = [max(offset, self.start) for offset in found if offset < end]
        return found[0] if found else -1

    def readable_to(self):
        return self.end if self.stable is None else self.stable

    def cut(self, offset):
        """Have a replica elected that has no records from an offset on: an unclean election."""
        self.end, self.epoch = offset, self.epoch + 1
        self.batches = [each for each in self.batches if each[1] < offset]
        self.shown = {o: value for o, value in self.shown.items() if o < offset}
        self._leader_epochs = {epoch: first for epoch, first in self._leader_epochs.items() if first < offset}

    def lose_epoch(self, epoch):
        """Have no record of a leader epoch any more, as in a new replica of a compacted log."""
        del self._leader_epochs[epoch]

    def diverging(self, offset):
        """The end of the leader epoch of a position, if the log has not the record before it; or ``None``."""
        wanted, firsts = epoch_of(offset), {self.epoch: self.end, **self._leader_epochs}
        epoch = max((each for each in firsts if each <= wanted), default=wanted)
        end = min((first for each, first in firsts.items() if each > wanted), default=self.end)
        return OffsetAndEpoch(end, epoch) if wanted >= 0 and (end < offset or epoch < wanted) else None

    def _add(self, data, count):
        data = data[:12] + pack(">i", self.epoch) + data[16:]
        self._leader_epochs.setdefault(self.epoch, self.end)
        self.batches.append((self.end, self.end + count - 1, data))
        self.end += count

    def fetched(self, number, offset, room, *, at_least_one, read_committed=True):
        """What a Fetch from an offset brings, within so many bytes."""
        if self.errors:
            return Fetched(TOPIC, number, self.errors.pop(0))
        if offset < self.start or epoch_of(offset) > (self.epoch if self.has_epochs else -1):
            return Fetched(TOPIC, number, ErrorCode.OFFSET_OUT_OF_RANGE)
        diverging = self.diverging(offset)
        if diverging is None and offset > self.end:
            return Fetched(TOPIC, number, ErrorCode.OFFSET_OUT_OF_RANGE)
        if diverging is not None:
            ends = self.end, self.readable_to(), self.start
            return Fetched(TOPIC, number, 0, *ends, diverging=diverging)
        data = b""
        for _, last, each in self.batches:
            if offset <= last < (self.readable_to() if read_committed else self.end):
                if len(data) + len(each) > room and (data or not at_least_one):
                    break
                data += each
        aborted = tuple(each for each, last in self.aborted if last >= offset)
        return Fetched(TOPIC, number, 0, self.end, self.readable_to(), self.start, aborted, data)
