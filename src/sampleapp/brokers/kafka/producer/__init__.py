"""
Publishing to Kafka: one queue for each partition, and one batch of each partition in flight.

No timer makes records wait for others: a batch grows only while the one before it is in flight.

The way of a record: `Producer.publish` puts it into the queue of its partition (`Accumulator.append`). In the
next slice the `Sender` drains the queues that are ready (`Accumulator.drain`), assigns each to the leader's
`Node`, takes a batch from it (`PartitionQueue.begin_attempt`) and sends one request with all batches of that
leader. The `ResponseHandler` interprets the response for each batch (`results.decide`), changes the state of
the queue, and answers the callers (`Accumulator.succeed` or `Accumulator.fail`).

From top to bottom:

``producer``          wires the components
``sender``            sends batches from ready queues; looks for deadlines and retries
``response_handler``  applies answers and failures to the queues, and logs partitions that fail or work again
``produce_requests``  one broker's ready queues and requests in flight; builds, sends and measures requests
``topic_metadata``    loads the partitions of topics
``pending_batch``     the records of one call, reserved at once and enqueued gradually
``accumulator``       the bounded buffer of accepted records
``topic``             the queues of a topic, the choice of a partition, and checks of topics
``idempotence``       producer ids
``partition_queue``   the records of one partition, as a state machine, and the outcomes of their callers
``partitioner``       hashing of keys
``replays``           tells a new record with an identity from one that is sent again
``results``           the meaning of a response

No row calls one above it: methods return the changes that they make.
"""

from sampleapp.brokers.kafka.producer.producer import Producer, ProducerSettings
from sampleapp.brokers.kafka.producer.replays import ReplayDetection

__all__ = ["Producer", "ProducerSettings", "ReplayDetection"]
