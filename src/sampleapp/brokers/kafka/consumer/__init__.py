"""Reading topics: every partition in order, first the stored records, then new ones as they arrive."""

from sampleapp.brokers.kafka.consumer.consumer import Consumer
from sampleapp.brokers.kafka.consumer.subscription import METADATA_INTERVAL_S, Subscription

__all__ = ["METADATA_INTERVAL_S", "Consumer", "Subscription"]
