"""The shared subscription of topics: one for each topic that has readers who wait for new records."""

from sampleapp.feeds.broadcast import Broadcast, Selection, SubscriberGroup
from sampleapp.feeds.feed import Feed, Feeds, Joining

__all__ = ["Broadcast", "Feed", "Feeds", "Joining", "Selection", "SubscriberGroup"]
