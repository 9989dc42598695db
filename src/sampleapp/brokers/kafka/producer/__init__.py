"""
Publishing to Kafka: each record in its own time, each partition in its own order.

One queue for each partition, one request in flight for each partition, and no timer that lets records
wait for company: a batch grows only while the one before it is on its way.
"""

from sampleapp.brokers.kafka.producer.producer import Producer, ProducerSettings

__all__ = ["Producer", "ProducerSettings"]
