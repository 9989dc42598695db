"""The partitions of the topics that are published to: learnt, and learnt again when they have changed."""

from __future__ import annotations

from typing import Final

from twisted.internet.interfaces import IReactorTime

from sampleapp.brokers.kafka.client import ClusterClient, RequestFailed
from sampleapp.brokers.kafka.connections.failure_reason import FailureReason
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.producer.accumulator import Accumulator
from sampleapp.brokers.kafka.producer.idempotence import ProducerIds
from sampleapp.brokers.kafka.producer.results import refusal, unavailable
from sampleapp.brokers.kafka.producer.topic import Topic
from sampleapp.errors import IllegalTopic, OutcomeUnknown, PublishError, UnknownTopic

__all__ = ["TopicMetadata"]

_MISSING_S: Final = 1.0
"""Brokers learn of a new topic one after another, so one that does not know it is not believed at once."""
_CREATING_S: Final = 5.0
"""And one that is being created takes longer."""
_FORGET_S: Final = 300.0


class TopicMetadata:
    """
    Keeps the accumulator's queues as the cluster's partitions are.

    What is asked of the cluster is asked for all topics at once.
    """

    def __init__(
        self,
        *,
        client: ClusterClient,
        accumulator: Accumulator,
        producer_ids: ProducerIds,
        auto_create: bool,
        clock: IReactorTime,
    ) -> None:
        """:param auto_create: whether brokers may create a topic that is published to."""
        self._client = client
        self._accumulator = accumulator
        self._producer_ids = producer_ids
        self._auto_create = auto_create
        self._clock = clock
        self._stale: set[str] = set()
        self._missing_since_s: dict[str, float] = {}
        """When a broker first said that there is no such topic, by the reactor's clock."""
        self._fewer_since_s: dict[str, float] = {}
        """When a broker first said that it has fewer partitions than are known, by the reactor's clock."""
        self._reason: FailureReason | None = None

    @property
    def reason(self) -> FailureReason | None:
        """Why the partitions of new topics are not known, if that has failed."""
        return self._reason

    def is_needed(self) -> bool:
        """Return whether there is something to learn."""
        return bool(self._stale or self._accumulator.unknown)

    def invalidate(self, topic: str) -> None:
        """Note that what is known of a topic is out of date."""
        self._stale.add(topic)

    def refresh(self) -> None:
        """Have all topics learnt again, and forget those that nobody publishes to any more."""
        now_s = self._clock.seconds()
        for since_s in (self._missing_since_s, self._fewer_since_s):
            for name in since_s.keys() - self._accumulator.topics.keys():
                del since_s[name]
        for topic in list(self._accumulator.topics.values()):
            if now_s - topic.used_s > _FORGET_S and topic.is_empty():
                self._close_queues(topic)
                self._forget(topic.name)
            elif topic.queues:
                self._stale.add(topic.name)
                for queue in topic.queues:
                    queue.reset_batch_bytes()

    async def load(self) -> None:
        """
        Ask the cluster once.

        Records whose topic turns out not to exist, or not to be usable, are answered.
        """
        new = list(self._accumulator.unknown)
        stale = sorted(self._stale.difference(new))
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
                for name in names:
                    # What was said before the outage may not be so any more.
                    self._missing_since_s.pop(name, None)
                    self._fewer_since_s.pop(name, None)
                if error.reason.lasting:
                    self._accumulator.fail_waiting(unavailable(error.reason))
                continue
            self._reason = None
            for name in names:
                self._learn(name)

    def _learn(self, name: str) -> None:
        count = len(self._client.partitions_of(name))
        error = self._client.topic_error(name)
        topic = self._accumulator.topics.get(name)
        if topic is None:
            self._forget(name)
            return
        if not count:
            # It says no more; the client would keep it for ever, also of a name that was made up.
            self._client.forget_topic(name)
        if count:
            self._missing_since_s.pop(name, None)
            self._set_partitions(topic, count)
        elif error in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION):
            self._fail(topic, self._refusal(name, error))
        elif error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._missing(topic)
        elif error is not None and error != ErrorCode.NONE:
            self._reason = FailureReason(
                sentence=f"The topic {name} cannot be used now: {ErrorCode.name_of(error)}.",
                public=f"The topic cannot be used now ({ErrorCode.name_of(error)}).",
                lasting=False,
            )

    def _refusal(self, name: str, error: int) -> PublishError:
        if error == ErrorCode.INVALID_TOPIC_EXCEPTION and self._auto_create and _may_collide(name):
            return IllegalTopic(
                "The broker does not create a topic of this name: it may be that another topic's name "
                "differs from it only by . and _, which Kafka does not allow."
            )
        return refusal(error)

    def _set_partitions(self, topic: Topic, count: int) -> None:
        if count < len(topic.queues):
            now_s = self._clock.seconds()
            if now_s - self._fewer_since_s.setdefault(topic.name, now_s) < _MISSING_S:
                # It may be that a broker has not learnt yet that there are more.
                self._stale.add(topic.name)
                return
            # Partitions are only ever added: this is another topic of the same name.
            self._close_queues(topic, then_partitions=count)
        else:
            self._accumulator.set_partitions(topic, count)
        self._fewer_since_s.pop(topic.name, None)

    def _missing(self, topic: Topic) -> None:
        now_s, name = self._clock.seconds(), topic.name
        missing_s = now_s - self._missing_since_s.setdefault(name, now_s)
        creates = self._auto_create
        if missing_s < (_CREATING_S if creates and not topic.queues else _MISSING_S):
            self._stale.add(name)
        elif creates and topic.queues:
            # It was deleted: what was not sent makes it again.
            self._close_queues(topic)
            self._missing_since_s[name] = now_s
        elif creates:
            hint = ", or check that its name differs from others by more than . and _" * _may_collide(name)
            self._fail(
                topic,
                UnknownTopic(
                    "The topic does not exist, and the broker does not create it. Create it, or check its "
                    f"name{hint}."
                ),
            )
        else:
            self._fail(topic, UnknownTopic("The topic does not exist. Create it first, or check its name."))

    def _fail(self, topic: Topic, error: PublishError) -> None:
        unsent = self._accumulator.take_waiting(topic)
        checks = self._accumulator.take_checks(topic)
        for queue in topic.queues:
            unsent += queue.give_up_unsent()
        # A batch that is under way, or may have been stored, is for its own answer or deadline.
        if topic.is_empty():
            self._close_queues(topic)
            self._forget(topic.name)
        self._accumulator.fail(unsent, error)
        for check in checks:
            check.answered(topic.name, error)

    def _close_queues(self, topic: Topic, *, then_partitions: int = 0) -> None:
        producer_ids, possibly_stored = self._accumulator.close_queues(topic)
        for producer_id in producer_ids:
            # The broker would take the first batches of the new queues for those that it has.
            self._producer_ids.retire(producer_id)
        # First, since who is answered may publish at once, which must go to the new queues.
        self._accumulator.set_partitions(topic, then_partitions)
        self._accumulator.fail(possibly_stored, OutcomeUnknown("The topic was deleted."))

    def _forget(self, name: str) -> None:
        self._missing_since_s.pop(name, None)
        self._fewer_since_s.pop(name, None)
        self._accumulator.forget_unused(name)
        self._client.forget_topic(name)


def _may_collide(name: str) -> bool:
    # Both are the same character in the names of Kafka's metrics.
    return "." in name or "_" in name
