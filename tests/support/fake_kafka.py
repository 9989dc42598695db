"""
A Kafka cluster that exists in memory and in the time of a `Clock`, as the producer sees it.

It keeps to what Kafka promises of idempotence (KIP-98): the next sequence number of an epoch is
appended, one of the last five batches is answered as before, everything else is refused. What happens
to each request is decided by the test.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from uuid import UUID

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock

from sampleapp.brokers.kafka.batches import decode_batches
from sampleapp.brokers.kafka.client import RequestFailed
from sampleapp.brokers.kafka.connections.failure_reason import FailureReason
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import (
    InitProducerIdRequest,
    ProduceAnswer,
    Produced,
    ProduceRequest,
    ProducerIdentity,
)

__all__ = ["FakeCluster", "Fate"]


class Fate(Enum):
    """What becomes of a Produce request."""

    ANSWERED = "it is appended, and answered"
    LOST_ON_THE_WAY = "the connection is lost before the broker has it"
    ANSWER_LOST = "it is appended, and the connection is lost"
    LATE = "it arrives when its sender has given up long ago"
    NOT_SENT = "the connection is gone before anything was written"
    NOT_LEADER = "the broker does not lead the partitions any more"
    LEADER_RESIGNED = "the leader has appended it, and loses its place"
    TOO_FEW_REPLICAS = "too few replicas are in sync, so it is not appended"
    TOO_FEW_REPLICAS_AFTER_APPEND = "too few replicas are in sync, which shows when it was appended"
    TIMED_OUT = "it is appended, and the followers do not have it in time"
    FAULT = "the broker has a fault, which it says when it has appended it"
    REFUSED_LATE = "the broker takes its time, and then does not lead the partitions"
    TOO_LARGE = "the batches are larger than the topic takes"


GOOD = (Fate.ANSWERED,)
_ERRORS = {
    Fate.NOT_LEADER: (ErrorCode.NOT_LEADER_OR_FOLLOWER, False),
    Fate.LEADER_RESIGNED: (ErrorCode.NOT_LEADER_OR_FOLLOWER, True),
    Fate.TOO_FEW_REPLICAS: (ErrorCode.NOT_ENOUGH_REPLICAS, False),
    Fate.TOO_FEW_REPLICAS_AFTER_APPEND: (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, True),
    Fate.TIMED_OUT: (ErrorCode.REQUEST_TIMED_OUT, True),
    Fate.FAULT: (ErrorCode.UNKNOWN_SERVER_ERROR, True),
}


def reason(what: str = "lost", *, lasting: bool = False, incompatible: bool = False) -> FailureReason:
    return FailureReason(
        sentence=what, public="Something is wrong.", lasting=lasting, incompatible=incompatible
    )


class _Partition:
    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.epochs: dict[int, int] = {}
        self.batches: dict[int, deque[tuple[int, int, int]]] = {}
        """For each producer id: first sequence number, count and offset of its last batches."""

    def append(self, data: bytes) -> tuple[int, int]:
        """Kafka's error code, and the offset."""
        producer_id, epoch, sequence, count = struct.unpack_from(">qhii", data, 43)
        values = [
            record.value
            for record in decode_batches(data, topic="t", partition=0, position=0, aborted=()).records
        ]
        assert len(values) == count
        if producer_id >= 0:
            known = self.epochs.get(producer_id)
            if known is not None and epoch < known:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if known is None or epoch > known:
                if known is not None and sequence != 0:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
                self.batches[producer_id] = deque(maxlen=5)
            batches = self.batches[producer_id]
            for first, length, offset in batches:
                if (first, length) == (sequence, count):
                    return ErrorCode.NONE, offset
            if batches and sequence != (batches[-1][0] + batches[-1][1]) % 2**31:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            self.epochs[producer_id] = epoch
            batches.append((sequence, count, len(self.values)))
        offset = len(self.values)
        self.values.extend(values)
        return ErrorCode.NONE, offset

    def forget(self) -> None:
        """As when the producer id has expired, or its batches were deleted, in Kafka before 2.5."""
        self.epochs.clear()
        self.batches.clear()


class FakeCluster:
    """One topic, ``t``, led by one broker; and the client through which it is reached."""

    def __init__(self, *, clock: Clock, partitions: int = 2, round_trip_s: float = 0.01) -> None:
        self.clock = clock
        self.partitions = [_Partition() for _ in range(partitions)]
        self.round_trip_s = round_trip_s
        self.next_fate: Callable[[], Fate] = lambda: Fate.ANSWERED
        self.batch_limit = 2**31
        self.identity_error = ErrorCode.NONE
        self.throttle_ms = 0
        self.next_id = 1000
        self.ids_given = 0
        self.requests: list[ProduceRequest] = []
        self.topics = {"t"}
        self.leader: int | None = 1
        self.connected = True
        self.metadata_failure: FailureReason | None = None
        self.connect_failure: FailureReason | None = None
        self.asked: list[tuple[str, ...]] = []

    def create_anew(self, *, partitions: int) -> None:
        """Delete the topic, and make another one of its name."""
        self.partitions = [_Partition() for _ in range(partitions)]

    def values(self) -> list[list[bytes]]:
        return [partition.values for partition in self.partitions]

    # As a client

    def partitions_of(self, topic: str) -> Sequence[int]:
        return range(len(self.partitions)) if self.asked and topic in self.topics else ()

    def topic_error(self, topic: str) -> int | None:
        if not any(topic in names for names in self.asked):
            return None
        return ErrorCode.NONE if topic in self.topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def topic_id(self, topic: str) -> UUID | None:
        """As of a broker that is older than the ids of topics."""
        return None

    def forget_topic(self, topic: str) -> None:
        self.asked = [tuple(name for name in names if name != topic) for names in self.asked]

    def leader_of(self, topic: str, partition: int) -> int | None:
        return self.leader if topic in self.topics and partition < len(self.partitions) else None

    def node_ids(self) -> Sequence[int]:
        return [1]

    def is_connected(self, node_id: int) -> bool:
        return self.connected

    def when_connected(self, node_id: int) -> Deferred[None]:
        if self.connect_failure is not None:
            return self._later(RequestFailed(self.connect_failure, sent=False))
        self.connected = True
        return succeed(None)

    def load_metadata(self, topics: Iterable[str], *, auto_create: bool = False) -> Deferred[None]:
        self.asked.append(tuple(topics))
        if self.metadata_failure is not None:
            return self._later(RequestFailed(self.metadata_failure, sent=False))
        if auto_create:
            self.topics.update(topics)
        return self._later(None)

    def request(self, node_id: int, request: object, *, timeout_s: float) -> Deferred:  # noqa: PLR0911 -- one each
        if isinstance(request, InitProducerIdRequest):
            self.next_id += 1
            self.ids_given += 1
            return self._later(ProducerIdentity(error=self.identity_error, producer_id=self.next_id, epoch=0))
        assert isinstance(request, ProduceRequest)
        self.requests.append(request)
        fate = self.next_fate()
        if fate is Fate.NOT_SENT:
            return fail(RequestFailed(reason(), sent=False))
        if fate is Fate.LOST_ON_THE_WAY:
            return self._later(RequestFailed(reason(), sent=True))
        if fate is Fate.ANSWER_LOST:
            self._append(request)
            return self._later(RequestFailed(reason(), sent=True))
        if fate is Fate.LATE:
            self.clock.callLater(3 * timeout_s, self._append, request)
            return self._later(RequestFailed(reason("silent"), sent=True), delay_s=timeout_s)
        if fate is Fate.REFUSED_LATE:
            return self._later(
                self._refused(request, ErrorCode.NOT_LEADER_OR_FOLLOWER), delay_s=0.9 * timeout_s
            )
        if fate is Fate.TOO_LARGE:
            return self._later(self._refused(request, ErrorCode.MESSAGE_TOO_LARGE))
        if fate in _ERRORS:
            code, appended = _ERRORS[fate]
            if not appended:
                return self._later(self._refused(request, code))
            return self._later(
                [
                    _produced(
                        a.topic, a.partition, a.error or code, a.offset if a.error == ErrorCode.NONE else -1
                    )
                    for a in self._append(request)
                ]
            )
        return self._later(self._append(request))

    def _append(self, request: ProduceRequest) -> list[Produced]:
        answers = []
        for topic, batches in request.topics:
            for partition, data in batches:
                if partition >= len(self.partitions):
                    answers.append(_produced(topic, partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1))
                elif len(data) > self.batch_limit:
                    answers.append(_produced(topic, partition, ErrorCode.MESSAGE_TOO_LARGE, -1))
                else:
                    answers.append(_produced(topic, partition, *self.partitions[partition].append(data)))
        return answers

    def _refused(self, request: ProduceRequest, code: int) -> list[Produced]:
        return [
            _produced(topic, partition, code, -1)
            for topic, batches in request.topics
            for partition, _ in batches
        ]

    def _later(self, result: object, *, delay_s: float | None = None) -> Deferred:
        if isinstance(result, list):
            result = ProduceAnswer(result, self.throttle_ms)
        deferred: Deferred = Deferred()
        self.clock.callLater(
            self.round_trip_s if delay_s is None else delay_s,
            deferred.errback if isinstance(result, Exception) else deferred.callback,
            result,
        )
        return deferred


def _produced(topic: str, partition: int, error: int, offset: int) -> Produced:
    return Produced(
        topic=topic,
        partition=partition,
        error=error,
        offset=offset,
        timestamp_ms=-1,
        log_start_offset=0,
        record_errors=(),
        message=None,
    )
