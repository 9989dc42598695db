"""Reading topics: every partition from its first record on, in order, and then live."""

from sampleapp.brokers.kafka.consumer.following import METADATA_INTERVAL_S, Following

__all__ = ["METADATA_INTERVAL_S", "Following"]
