"""From topics to queues: what is known of the topics that are published to, and learning the rest."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from twisted.internet.interfaces import IReactorTime

from sampleapp.brokers.kafka.client import Client, RequestFailed
from sampleapp.brokers.kafka.connections.failure_reason import FailureReason
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.producer.answers import Answers
from sampleapp.brokers.kafka.producer.leaving import Leaving, unavailable
from sampleapp.brokers.kafka.producer.pending import Pending
from sampleapp.brokers.kafka.producer.queue import PartitionQueue, State
from sampleapp.brokers.kafka.producer.repeating import Repeating
from sampleapp.brokers.kafka.producer.topics import Topic
from sampleapp.errors import IllegalTopic, OutcomeUnknown, PublishError, TopicNotAuthorized, UnknownTopic

__all__ = ["Routing"]

_ASK_AGAIN_S: Final = 0.15
_MISSING_S: Final = 1.0
"""Brokers learn of a new topic one after another, so one that does not know it is not believed at once."""
_CREATING_S: Final = 5.0
"""And one that is being created takes longer."""
_FORGET_S: Final = 300.0


class Routing:
    """
    The topics that are published to, and the queues of their partitions.

    What is asked of the cluster is asked for all topics at once, and again until it is known or nobody
    waits for it any more.
    """

    def __init__(
        self,
        *,
        client: Client,
        answers: Answers,
        leaving: Leaving,
        ready: Callable[[PartitionQueue], None],
        auto_create: bool,
        batch_bytes: int,
        clock: IReactorTime,
    ) -> None:
        """
        :param leaving: takes records out of queues.
        :param ready: takes a queue that has something to send.
        :param auto_create: whether brokers may create a topic that is published to.
        """
        self._client = client
        self._answers = answers
        self._leaving = leaving
        self._ready = ready
        self._auto_create = auto_create
        self._batch_bytes = batch_bytes
        self._clock = clock
        self.topics: dict[str, Topic] = {}
        self.turn = 0
        """Counts the times that requests were made."""
        self._unrouted: dict[str, Topic] = {}
        """Those with records and without partitions."""
        self._stale: set[str] = set()
        self._learning = Repeating(
            step=self._load, is_needed=self._has_to_learn, interval_s=_ASK_AGAIN_S, clock=clock
        )
        self._reason: FailureReason | None = None
        self._stopped = False

    def topic(self, name: str) -> Topic:
        """What is known of a topic, perhaps nothing yet."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = Topic(name)
            # The client may know it: from an earlier time, or from somebody else who asked.
            self._adopt(topic)
        return topic

    def wait_for(self, topic: Topic, pending: Pending) -> None:
        """Keep a record until the partitions of its topic are known."""
        topic.waiting.append(pending)
        topic.held += pending.size
        if topic.name not in self._unrouted:
            self._unrouted[topic.name] = topic
            self._learn_soon()

    def forget_unused(self, topic: Topic) -> None:
        """Keep nothing of a topic that has no partitions and no records: its name may have been made up."""
        if not topic.queues and not topic.waiting:
            self.topics.pop(topic.name, None)
            self._client.forget_topic(topic.name)

    def stale(self, name: str) -> None:
        """What is known of a topic is out of date."""
        self._stale.add(name)
        self._learn_soon()

    def refresh(self) -> None:
        """Learn what has changed in all topics, and forget those that nobody publishes to any more."""
        now_s = self._clock.seconds()
        for topic in list(self.topics.values()):
            if now_s - topic.used_s > _FORGET_S and not topic.waiting and not any(topic.queues):
                self._forget_queues(topic)
                self.forget_unused(topic)
            elif topic.queues:
                self._stale.add(topic.name)
                for queue in topic.queues:
                    queue.batch_bytes = self._batch_bytes
        if self._stale:
            self._learn_soon()

    def expire(self, now_s: float) -> None:
        """Answer those who have waited too long for their topic's partitions."""
        for topic in list(self._unrouted.values()):
            late = []
            while topic.waiting and topic.waiting[0].deadline_s <= now_s:
                late.append(topic.waiting.popleft())
            self._fail_waiting(topic, late, unavailable(self._reason))

    def fail_all(self, error: PublishError) -> None:
        """Answer everybody who waits for a topic's partitions."""
        for topic in list(self._unrouted.values()):
            waiting = list(topic.waiting)
            topic.waiting.clear()
            self._fail_waiting(topic, waiting, error)

    def stop(self) -> None:
        """Learn no more."""
        self._stopped = True
        self._learning.wake()

    def _fail_waiting(self, topic: Topic, records: list[Pending], error: PublishError) -> None:
        topic.held -= sum(pending.size for pending in records)
        if not topic.waiting:
            self._unrouted.pop(topic.name, None)
            self.forget_unused(topic)
        if records:
            self._answers.fail(records, error)

    def _learn_soon(self) -> None:
        if not self._stopped:
            self._learning.begin()
            if self._unrouted:
                self._learning.wake()

    def _has_to_learn(self) -> bool:
        return not self._stopped and bool(self._unrouted or self._stale)

    async def _load(self) -> None:
        new, stale = list(self._unrouted), [name for name in self._stale if name not in self._unrouted]
        self._stale.clear()
        loads = []
        if new:
            loads.append((new, self._client.load_metadata(new, auto_create=self._auto_create)))
        if stale:
            loads.append((stale, self._client.load_metadata(stale)))
        for names, load in loads:
            try:
                await load
            except RequestFailed as error:
                self._reason = error.reason
                if error.reason.lasting:
                    self.fail_all(unavailable(error.reason))
                continue
            self._reason = None
            for name in names:
                topic = self.topics.get(name)
                if topic is None:
                    self._client.forget_topic(name)
                else:
                    self._learned(topic)

    def _learned(self, topic: Topic) -> None:
        error = self._client.topic_error(topic.name)
        if self._adopt(topic):
            return
        if error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            self._fail(
                topic, TopicNotAuthorized("The broker does not let this service publish to the topic.")
            )
        elif error == ErrorCode.INVALID_TOPIC_EXCEPTION:
            self._fail(topic, IllegalTopic("The broker does not allow a topic of this name."))
        elif error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._missing(topic)
        elif error is not None and error != ErrorCode.NONE:
            self._reason = FailureReason(
                sentence=f"The topic {topic.name} cannot be used now: {ErrorCode.name_of(error)}.",
                public=f"The topic cannot be used now ({ErrorCode.name_of(error)}).",
                lasting=False,
            )

    def _missing(self, topic: Topic) -> None:
        now_s = self._clock.seconds()
        if topic.missing_since_s is None:
            topic.missing_since_s = now_s
        creates = self._auto_create
        if now_s - topic.missing_since_s < (_CREATING_S if creates and not topic.queues else _MISSING_S):
            self._stale.add(topic.name)
            return
        if creates and topic.queues:
            # It was deleted: what was not sent makes it again.
            self._forget_queues(topic)
            if topic.waiting:
                self._unrouted[topic.name] = topic
            topic.missing_since_s = now_s
            return
        self._fail(
            topic,
            UnknownTopic(
                "The topic does not exist, and the broker does not create it. Create it, or check its name."
                if creates
                else "The topic does not exist. Create it first, or check its name."
            ),
        )

    def _fail(self, topic: Topic, error: PublishError) -> None:
        for queue in topic.queues:
            self._leaving.fail_unsent(queue, error)
        # A batch that is under way, or may have been stored, is for its own answer or deadline.
        if not any(topic.queues):
            self._forget_queues(topic)
        waiting = list(topic.waiting)
        topic.waiting.clear()
        self._fail_waiting(topic, waiting, error)

    def _forget_queues(self, topic: Topic) -> None:
        """Let the records that were not sent wait for the topic's new partitions."""
        # First, since who is answered may publish at once, which must not go to a queue that is no more.
        queues, topic.queues, topic.sticky = topic.queues, [], None
        waiting = list(topic.waiting)
        for queue in queues:
            waiting += queue.waiting
            held = sum(pending.size for pending in queue.waiting)
            topic.held += held
            queue.held -= held
            queue.waiting.clear()
        # By the time of publishing, in which deadlines are looked at; records of one key stay in order.
        topic.waiting = deque(sorted(waiting, key=lambda pending: pending.deadline_s))
        for queue in queues:
            self._leaving.fail_sent(queue, OutcomeUnknown("The topic was deleted."))
            self._leaving.forget(queue)

    def _adopt(self, topic: Topic) -> bool:
        """Take over what the client knows; whether that is anything."""
        count = len(self._client.partitions_of(topic.name))
        if not count:
            return False
        topic.missing_since_s = None
        now_s = self._clock.seconds()
        if count >= len(topic.queues):
            topic.fewer_since_s = None
        elif topic.fewer_since_s is None or now_s - topic.fewer_since_s < _MISSING_S:
            # It may be that a broker has not learnt yet that there are more.
            topic.fewer_since_s = topic.fewer_since_s or now_s
            self._stale.add(topic.name)
            return True
        else:
            # Partitions are only ever added: this is another topic of the same name.
            topic.fewer_since_s = None
            self._forget_queues(topic)
        for partition in range(len(topic.queues), count):
            topic.queues.append(
                PartitionQueue(topic=topic.name, partition=partition, batch_bytes=self._batch_bytes)
            )
        for queue in topic.queues:
            if queue.state is State.PARKED and queue and (queue.not_before_s <= now_s or self._moved(queue)):
                self._ready(queue)
        waiting, topic.waiting = topic.waiting, type(topic.waiting)()
        topic.held = 0
        self._unrouted.pop(topic.name, None)
        for pending in waiting:
            self.enqueue(topic, pending)
        return True

    def _moved(self, queue: PartitionQueue) -> bool:
        """Whether another node leads than the one that the last attempt was for: then why wait."""
        return self._client.leader_of(queue.topic, queue.partition) not in (None, queue.tried)

    def enqueue(self, topic: Topic, pending: Pending) -> None:
        """Put a record where it belongs, behind all that came before it."""
        queue = topic.queue_for(pending.record.key, turn=self.turn, now_s=self._clock.seconds())
        queue.waiting.append(pending)
        queue.held += pending.size
        if queue.state is State.IDLE:
            self._ready(queue)
