"""The shared following of topics: one for each topic that has readers who wait for new records."""

from sampleapp.feeds.feed import Feed, Joining
from sampleapp.feeds.feeds import Feeds
from sampleapp.feeds.views import Group, Selection, View

__all__ = ["Feed", "Feeds", "Group", "Joining", "Selection", "View"]
