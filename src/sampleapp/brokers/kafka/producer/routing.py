"""From topics to queues: what is known of the topics that are published to, and learning the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka import codes
from sampleapp.brokers.kafka.client import Client
from sampleapp.brokers.kafka.client.failures import RequestFailed
from sampleapp.brokers.kafka.codes import name_of
from sampleapp.brokers.kafka.connections.trouble import Trouble
from sampleapp.brokers.kafka.producer.answers import Answers
from sampleapp.brokers.kafka.producer.leaving import Leaving, unavailable
from sampleapp.brokers.kafka.producer.pending import Pending
from sampleapp.brokers.kafka.producer.queue import PartitionQueue, State
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

    _log = Logger()

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
        self._learning: Deferred[None] | None = None
        self._pause: Deferred[None] | None = None
        self._timer: IDelayedCall | None = None
        self._trouble: Trouble | None = None
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
                del self.topics[topic.name]
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
            self._fail_waiting(topic, late, unavailable(self._trouble))

    def fail_all(self, error: PublishError) -> None:
        """Answer everybody who waits for a topic's partitions."""
        for topic in list(self._unrouted.values()):
            waiting = list(topic.waiting)
            topic.waiting.clear()
            self._fail_waiting(topic, waiting, error)

    def stop(self) -> None:
        """Learn no more."""
        self._stopped = True
        self._wake()

    def _fail_waiting(self, topic: Topic, records: list[Pending], error: PublishError) -> None:
        topic.held -= sum(pending.size for pending in records)
        if not topic.waiting:
            self._unrouted.pop(topic.name, None)
            if not topic.queues:
                # So that names that were made up do not stay.
                self.topics.pop(topic.name, None)
        if records:
            self._answers.fail(records, error)

    def _learn_soon(self) -> None:
        if self._learning is None and not self._stopped:
            self._learning = Deferred.fromCoroutine(self._learn())
            self._learning.addErrback(
                lambda failure: self._log.failure("Learning of topics failed", failure=failure)
            )
        elif self._unrouted:
            self._wake()

    async def _learn(self) -> None:
        try:
            while self._has_to_learn():
                await self._load()
                if self._has_to_learn():
                    self._pause = Deferred()
                    self._timer = self._clock.callLater(_ASK_AGAIN_S, self._wake)
                    await self._pause
        finally:
            self._learning = None

    def _has_to_learn(self) -> bool:
        return not self._stopped and bool(self._unrouted or self._stale)

    def _wake(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None
        pause, self._pause = self._pause, None
        if pause is not None:
            pause.callback(None)

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
                self._trouble = error.trouble
                if error.trouble.lasting:
                    self.fail_all(unavailable(error.trouble))
                continue
            self._trouble = None
            for name in names:
                topic = self.topics.get(name)
                if topic is not None:
                    self._learned(topic)

    def _learned(self, topic: Topic) -> None:
        error = self._client.topic_error(topic.name)
        if self._adopt(topic):
            return
        if error == codes.TOPIC_AUTHORIZATION_FAILED:
            self._fail(
                topic, TopicNotAuthorized("The broker does not let this service publish to the topic.")
            )
        elif error == codes.INVALID_TOPIC_EXCEPTION:
            self._fail(topic, IllegalTopic("The broker does not allow a topic of this name."))
        elif error == codes.UNKNOWN_TOPIC_OR_PARTITION:
            self._missing(topic)
        elif error is not None and error != codes.NONE:
            self._trouble = Trouble(
                sentence=f"The topic {topic.name} cannot be used now: {name_of(error)}.",
                public=f"The topic cannot be used now ({name_of(error)}).",
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
        for queue in topic.queues:
            topic.waiting.extend(queue.waiting)
            topic.held += sum(pending.size for pending in queue.waiting)
            queue.held -= sum(pending.size for pending in queue.waiting)
            queue.waiting.clear()
            if queue.batch is not None:
                self._leaving.fail_sent(queue, OutcomeUnknown("The topic was deleted."))
            self._leaving.forget(queue)
        topic.queues = []
        topic.sticky = None

    def _adopt(self, topic: Topic) -> bool:
        """Take over what the client knows; whether that is anything."""
        count = len(self._client.partitions_of(topic.name))
        if not count:
            return False
        topic.missing_since_s = None
        if count < len(topic.queues):
            # Partitions are only ever added: this is another topic of the same name.
            self._forget_queues(topic)
        for partition in range(len(topic.queues), count):
            topic.queues.append(
                PartitionQueue(topic=topic.name, partition=partition, batch_bytes=self._batch_bytes)
            )
        now_s = self._clock.seconds()
        for queue in topic.queues:
            if queue.state is State.PARKED and queue and queue.not_before_s <= now_s:
                self._ready(queue)
        waiting, topic.waiting = topic.waiting, type(topic.waiting)()
        topic.held = 0
        self._unrouted.pop(topic.name, None)
        for pending in waiting:
            self.enqueue(topic, pending)
        return True

    def enqueue(self, topic: Topic, pending: Pending) -> None:
        """Put a record where it belongs, behind all that came before it."""
        queue = topic.queue_for(pending.record.key, turn=self.turn, now_s=self._clock.seconds())
        queue.waiting.append(pending)
        queue.held += pending.size
        if queue.state is State.IDLE:
            self._ready(queue)
