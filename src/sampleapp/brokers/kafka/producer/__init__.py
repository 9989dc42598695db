"""
Publishing to Kafka: each record in its own time, each partition in its own order.

One queue for each partition, one request in flight for each partition, and no timer that lets records
wait for company: a batch grows only while the one before it is on its way. From top to bottom:

``producer``         the face of it all
``sender``           from queues to requests, and from answers back to queues
``topic_metadata``   which partitions the topics have
``intake``           many records on their way into the queues
``accumulator``      where records wait
``idempotence``      producer ids
``topic``            which partition a record belongs to
``partition_queue``  the records of one partition, and what may happen to them
``results``          what an answer means
``outcomes``         what became of many records
``topic_check``      whether topics can be published to

No row calls one above it: methods return what has changed.
"""

from sampleapp.brokers.kafka.producer.producer import Producer, ProducerSettings

__all__ = ["Producer", "ProducerSettings"]
