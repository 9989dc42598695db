"""The records of the topics of a run, as librdkafka reads them again and again."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.chaos.history import Topic
from tests.real_kafka.reading import read_all
from tests.support.waiting import wait_until

__all__ = ["Logs"]

_DEADLINE_S = 30


class Logs:
    """Keeps every record that it has ever seen, by topic and generation."""

    def __init__(self, bootstrap: str) -> None:
        self.topics: dict[str, Topic] = {}
        self.broken: list[str] = []
        """Records that became others, which only a cut log may have."""
        self._bootstrap = bootstrap

    def add(self, topic: str, *, is_cut: bool = False) -> None:
        """Begin with a topic. :param is_cut: whether records may be lost by unclean elections."""
        self.topics[topic] = Topic(generations=[{}], is_cut=is_cut)

    def renew(self, topic: str) -> None:
        """Begin with the next generation of a topic, which does not exist now."""
        self.topics[topic].generations.append({})

    def look(self, topic: str) -> None:
        """Read all that a topic has now, whatever is committed."""
        found = self.topics[topic]
        found.latest = read_all(self._bootstrap, topic)
        log = found.generations[-1]
        for each in found.latest:
            place = each.partition, each.offset
            if log.get(place, each) != each and not found.is_cut:
                self.broken.append(f"{topic}: {log[place]} has become {each}")
            log[place] = each
        found.starts = wait_until(lambda: self._starts(topic), f"the leaders of {topic} know its starts")

    def _starts(self, topic: str) -> Mapping[int, int] | None:
        """The first offset of each partition; nothing while a leader is too new to know it."""
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "starts", "log_level": 0})
        try:
            partitions = consumer.list_topics(topic, timeout=_DEADLINE_S).topics[topic].partitions
            return {
                each: consumer.get_watermark_offsets(TopicPartition(topic, each), timeout=_DEADLINE_S)[0]
                for each in partitions
            }
        except KafkaException as error:
            if error.args[0].code() != KafkaError.OFFSET_NOT_AVAILABLE:
                raise
            return None
        finally:
            consumer.close()
