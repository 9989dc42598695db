"""Reading a topic on request: some records from given positions, and nothing kept between two requests."""

from sampleapp.brokers.kafka.reader.reader import Reader

__all__ = ["Reader"]
