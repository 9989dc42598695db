"""What is in the topics of a Kafka cluster, as librdkafka reads it: an implementation that is not ours."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from twisted.internet.threads import deferToThread

from sampleapp.model import ConsumerRecord
from tests.support.brokers import within

DEADLINE_S = 20.0

_CLIENT = {
    # Not even an error: a test that fails says why, and one that does not may have broken connections.
    "log_level": 0,
    "error_cb": lambda _: None,
    "socket.timeout.ms": 5000,
    "reconnect.backoff.max.ms": 200,
}


@contextmanager
def _consumer(bootstrap: str):
    consumer = Consumer(
        _CLIENT
        | {
            "bootstrap.servers": bootstrap,
            "group.id": "tests",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "fetch.wait.max.ms": 50,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def topics(bootstrap: str) -> dict[str, int]:
    """The topics that there are, and how many partitions each has."""
    with _consumer(bootstrap) as consumer:
        found = consumer.list_topics(timeout=DEADLINE_S).topics
    return {name: len(topic.partitions) for name, topic in found.items()}


def read_log(bootstrap: str, topic: str) -> list[ConsumerRecord]:
    """
    All records between the low and the high watermark of every partition, by partition and offset.

    Blocks; `log_of` does not.

    :raise AssertionError: there is no such topic, or it could not be read in time.
    """
    give_up_at_s = time.monotonic() + DEADLINE_S
    with _consumer(bootstrap) as consumer:
        known = consumer.list_topics(timeout=DEADLINE_S).topics.get(topic)
        assert known is not None, f"there is no topic {topic}"
        assert known.error is None, known.error
        left, beginnings = 0, []
        for partition in known.partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), DEADLINE_S)
            if low < high:
                left += high - low
                beginnings.append(TopicPartition(topic, partition, low))
        consumer.assign(beginnings)
        records = []
        while left > 0:
            assert time.monotonic() < give_up_at_s, f"{topic} could not be read in time"
            # It waits until it has so many, so it must not ask for more than there are.
            for message in consumer.consume(min(left, 1000), timeout=0.1):
                error = message.error()
                assert error is None or error.code() == KafkaError._TRANSPORT, error
                if error is None:
                    records.append(_record(message))
                    left -= 1
    return sorted(records, key=attrgetter("partition", "offset"))


def _record(message: Any) -> ConsumerRecord:
    return ConsumerRecord(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        timestamp_ms=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
    )


async def log_of(bootstrap: str, topic: str) -> list[ConsumerRecord]:
    """The same as `read_log`, while the reactor goes on."""
    return await within(deferToThread(read_log, bootstrap, topic))


async def topics_of(bootstrap: str) -> dict[str, int]:
    """The same as `topics`, while the reactor goes on."""
    return await within(deferToThread(topics, bootstrap))


def produce(
    bootstrap: str,
    topic: str,
    contents: Iterable[tuple[bytes | None, bytes | None]],
    *,
    compression: str = "none",
) -> list[int]:
    """
    Publish keys and values with librdkafka, which is told to choose partitions as the Java client does.

    :return: the partition of each. Blocks; `produced` does not.
    """
    producer = Producer(
        _CLIENT
        | {
            "bootstrap.servers": bootstrap,
            "partitioner": "murmur2_random",
            "compression.type": compression,
        }
    )
    partitions: dict[int, int] = {}

    def delivered(index, error, message):
        assert error is None, error
        partitions[index] = message.partition()

    for index, (key, value) in enumerate(contents):
        producer.produce(topic, key=key, value=value, on_delivery=partial(delivered, index))
    assert producer.flush(DEADLINE_S) == 0, "librdkafka could not publish in time"
    return [partitions[index] for index in sorted(partitions)]


async def produced(
    bootstrap: str,
    topic: str,
    contents: Iterable[tuple[bytes | None, bytes | None]],
    *,
    compression: str = "none",
) -> list[int]:
    """The same as `produce`, while the reactor goes on."""
    return await within(deferToThread(produce, bootstrap, topic, contents, compression=compression))
