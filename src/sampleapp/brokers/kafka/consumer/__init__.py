"""Reading topics: followings of every partition, from the stored records to new ones, and single pages."""

from sampleapp.brokers.kafka.consumer.consumer import Consumer
from sampleapp.brokers.kafka.consumer.reader import TopicReader
from sampleapp.brokers.kafka.consumer.subscription import METADATA_INTERVAL_S, Subscription

__all__ = ["METADATA_INTERVAL_S", "Consumer", "Subscription", "TopicReader"]
