"""What others write into topics, with librdkafka."""

from __future__ import annotations

from confluent_kafka import Producer

__all__ = ["open_transaction", "produce"]

_DEADLINE_S = 30


def produce(cluster, topic, values, *, partition=-1, key=None, transaction=None, commit=True, **config):
    """
    Have librdkafka write to a topic, and wait until it is there.

    :param key: makes the key of each value.
    :param transaction: the id of one that all of it is written in.
    """
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "log_level": 0, "linger.ms": 5, **config}
        | ({"transactional.id": transaction} if transaction else {})
    )
    if transaction:
        producer.init_transactions(_DEADLINE_S)
        producer.begin_transaction()
    for value in values:
        place = {} if partition < 0 else {"partition": partition}
        producer.produce(topic, value, key=key and key(value), **place)
    assert producer.flush(_DEADLINE_S) == 0
    if transaction:
        (producer.commit_transaction if commit else producer.abort_transaction)(_DEADLINE_S)


def open_transaction(cluster, topic, value, *, key=None):
    """Write one record within a transaction, and return the producer, which may end it."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(_DEADLINE_S)
    producer.begin_transaction()
    producer.produce(topic, value, key=key)
    assert producer.flush(_DEADLINE_S) == 0
    return producer
