"""Reading a topic on request: some records from given positions, and nothing kept between two requests."""

from sampleapp.brokers.kafka.reader.reader import TopicReader

__all__ = ["TopicReader"]
