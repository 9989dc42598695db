"""Reading topics: every partition from its first record on, in order, and then live."""

from sampleapp.brokers.kafka.consumer.following import Following

__all__ = ["Following"]
