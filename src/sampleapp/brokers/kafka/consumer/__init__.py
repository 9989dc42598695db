"""Reading topics: every partition in order, first the stored records, then new ones as they arrive."""

from sampleapp.brokers.kafka.consumer.following import METADATA_INTERVAL_S, Following

__all__ = ["METADATA_INTERVAL_S", "Following"]
