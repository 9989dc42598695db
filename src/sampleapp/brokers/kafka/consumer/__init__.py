"""Reading topics: every partition from its first record on, in order, and then live."""

from sampleapp.brokers.kafka.consumer.followings import Followings

__all__ = ["Followings"]
