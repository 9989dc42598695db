"""What is in a topic, read by librdkafka, which is not ours."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

__all__ = ["Stored", "end_of", "read_all"]

_DEADLINE_S = 30


class Stored(NamedTuple):
    """One record of a topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...]


def read_all(bootstrap: str, topic: str, *, isolation: str = "read_committed") -> list[Stored]:
    """
    All records that are in a topic now, in the order of each partition.

    :param isolation: by default, to see also what is not meant to be seen would make a test say more than it
        knows.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reads-everything",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            # It says that a partition is at its end after a fetch that brought nothing.
            "fetch.wait.max.ms": 10,
            "allow.auto.create.topics": False,
            "log_level": 0,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=_DEADLINE_S).topics[topic].partitions
        assert partitions, f"there is no topic {topic}"
        consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])
        found, at_end = [], set()
        while len(at_end) < len(partitions):
            message = consumer.poll(_DEADLINE_S)
            assert message is not None, f"nothing more came out of {topic}, though it has not come to its end"
            error = message.error()
            if error is None:
                found.append(_stored(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
            else:
                raise AssertionError(str(error))
        return found
    finally:
        consumer.close()


def end_of(bootstrap: str, topic: str, partition: int) -> int:
    """The offset after the last record, or marker, of a partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reads-nothing", "log_level": 0})
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_DEADLINE_S)[1]
    finally:
        consumer.close()


def _stored(message) -> Stored:
    return Stored(
        partition=message.partition(),
        offset=message.offset(),
        key=message.key(),
        value=message.value(),
        timestamp_ms=message.timestamp()[1],
        headers=tuple(message.headers() or ()),
    )
