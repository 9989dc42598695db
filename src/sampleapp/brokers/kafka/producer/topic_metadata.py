"""Loads the partitions of the topics that are published to, and keeps them up to date."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.cluster_client import ClusterClient, request_failed
from sampleapp.brokers.kafka.connections.diagnostics import FailureReason
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.producer.accumulator import Accumulator
from sampleapp.brokers.kafka.producer.idempotence import ProducerIds
from sampleapp.brokers.kafka.producer.results import rejection, unavailable
from sampleapp.brokers.kafka.producer.topic import Topic
from sampleapp.concurrency.waiting import Pause
from sampleapp.errors import IllegalTopic, OutcomeUnknown, PublishError, UnknownTopic

_MISSING_S: Final = 1.0
"""A topic counts as missing after this time: brokers learn of a new topic one after another."""
_CREATING_S: Final = 5.0
"""A topic that is being created counts as missing after this time, which is longer."""
_FORGET_S: Final = 300.0
"""A topic that nothing was published to for this time is forgotten."""
_LOAD_AGAIN_S: Final = 0.15
"""The time between two loads while something is stale or unknown."""
_LOADED_AT_ONCE: Final = 200
"""The number of topics and partitions in one request, whose response takes up to 4 ms."""


class TopicMetadata:
    """
    Keeps one queue in the accumulator for each partition in the cluster.

    While a topic is unknown or stale, metadata is loaded again and again, for all such topics at once.
    """

    _log = Logger()

    def __init__(
        self,
        *,
        client: ClusterClient,
        accumulator: Accumulator,
        producer_ids: ProducerIds,
        auto_create: bool,
        loaded: Callable[[], None],
        clock: IReactorTime,
    ) -> None:
        """
        :param auto_create: let brokers create a topic that is published to.
        :param loaded: called after each response: there may be new leaders.
        """
        self._client = client
        self._accumulator = accumulator
        self._producer_ids = producer_ids
        self._auto_create = auto_create
        self._loaded = loaded
        self._clock = clock
        self._is_loading = False
        self._pause = Pause(clock)
        self._stopped = False
        self._stale: set[str] = set()
        self._missing_since_s: dict[str, float] = {}
        """When a broker first did not know a topic, in seconds of the reactor's clock."""
        self._fewer_since_s: dict[str, float] = {}
        """When a broker first reported fewer partitions than are known, in seconds of the reactor's clock."""
        self._reason: FailureReason | None = None

    @property
    def reason(self) -> FailureReason | None:
        """The reason for which the last load failed; ``None`` if it succeeded."""
        return self._reason

    def invalidate(self, topic: str) -> None:
        """Load a topic again: its partitions or leaders may have changed."""
        self._stale.add(topic)
        self._begin_loading()

    def load_now(self) -> None:
        """Load new topics without the pause after an earlier load."""
        self._begin_loading()
        self._pause.wake()

    def refresh(self) -> None:
        """Load all topics again, and forget those that nothing was published to for `_FORGET_S`."""
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
        self._begin_loading()

    def stop(self) -> None:
        """Load nothing more."""
        self._stopped = True
        self._pause.end()

    def _is_needed(self) -> bool:
        return bool(self._stale or self._accumulator.unknown)

    def _begin_loading(self) -> None:
        if not self._is_loading and not self._stopped and self._is_needed():
            self._is_loading = True
            Deferred.fromCoroutine(self._load_all()).addErrback(
                lambda failure: self._log.failure("Loading the metadata of topics failed", failure=failure)
            )

    async def _load_all(self) -> None:
        try:
            while self._is_needed() and not self._stopped:
                await self._load()
                if self._is_needed():
                    await self._pause.sleep(_LOAD_AGAIN_S)
        finally:
            self._is_loading = False

    async def _load(self) -> None:
        """Load new and stale topics once. Fails records for a topic that does not exist or is not usable."""
        new = list(self._accumulator.unknown)
        stale = sorted(self._stale.difference(new))
        self._stale.clear()
        # One after the other, so that no turn of the reactor has to do with thousands of topics.
        for some in self._portions(new):
            if not await self._load_some(some, auto_create=self._auto_create):
                break
        for some in self._portions(stale):
            if not await self._load_some(some):
                break

    def _portions(self, names: Sequence[str]) -> Iterator[Sequence[str]]:
        some: list[str] = []
        room = _LOADED_AT_ONCE
        for name in names:
            some.append(name)
            topic = self._accumulator.topics.get(name)
            room -= 1 if topic is None else 1 + len(topic.queues)
            if room <= 0:
                yield some
                some, room = [], _LOADED_AT_ONCE
        if some:
            yield some

    async def _load_some(self, names: Sequence[str], *, auto_create: bool = False) -> bool:
        """:return: ``False`` if no broker has answered."""
        asked_s = self._clock.seconds()
        try:
            await self._request(names, auto_create=auto_create)
        except Exception as error:  # noqa: BLE001 -- any fault: records wait for this metadata
            self._reason = reason = request_failed(Failure(error)).reason
            for since_s in (self._missing_since_s, self._fewer_since_s):
                # A response from before the outage may be out of date.
                since_s.clear()
            if reason.lasting:
                self._accumulator.fail_waiting(unavailable(reason))
            return False
        self._reason = None
        for name in names:
            try:
                self._apply(name, asked_s=asked_s)
            except Exception:  # noqa: BLE001 -- any fault; the other topics are not affected
                self._log.failure("Updating the partitions of {topic} failed", topic=name)
        self._loaded()
        return True

    def _request(self, names: Sequence[str], *, auto_create: bool = False) -> Deferred[None]:
        return maybeDeferred(self._client.load_metadata, names, auto_create=auto_create)

    def _apply(self, name: str, *, asked_s: float) -> None:
        count = len(self._client.partitions_of(name))
        error = self._client.topic_error(name)
        topic = self._accumulator.topics.get(name)
        if topic is None:
            self._forget(name)
            return
        if not count:
            # The client would keep it for ever, and callers may invent names.
            self._client.forget_topic(name)
        if count:
            self._missing_since_s.pop(name, None)
            topic.loaded_s = asked_s
            self._set_partitions(topic, count)
        elif error in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION):
            self._fail(topic, self._rejection(name, error))
        elif error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._note_missing(topic)
        elif error is not None and error != ErrorCode.NONE:
            self._reason = FailureReason(
                sentence=f"The topic {name} cannot be used now: {ErrorCode.name_of(error)}.",
                public=f"The topic cannot be used now ({ErrorCode.name_of(error)}).",
                lasting=False,
            )

    def _rejection(self, name: str, error: int) -> PublishError:
        if error == ErrorCode.INVALID_TOPIC_EXCEPTION and self._auto_create and _may_collide(name):
            return IllegalTopic(
                "The broker does not create a topic with this name. Another topic's name may differ from it "
                "only by . and _, which Kafka does not allow."
            )
        return rejection(error)

    def _set_partitions(self, topic: Topic, count: int) -> None:
        if count < len(topic.queues):
            now_s = self._clock.seconds()
            if now_s - self._fewer_since_s.setdefault(topic.name, now_s) < _MISSING_S:
                # This broker may not have learnt of the others yet.
                self._stale.add(topic.name)
                return
            # Partitions are only ever added: this is another topic of the same name.
            self._close_queues(topic, then_partitions=count)
        else:
            self._accumulator.set_partitions(topic, count)
        self._fewer_since_s.pop(topic.name, None)

    def _note_missing(self, topic: Topic) -> None:
        now_s, name = self._clock.seconds(), topic.name
        missing_s = now_s - self._missing_since_s.setdefault(name, now_s)
        creates = self._auto_create
        if missing_s < (_CREATING_S if creates and not topic.queues else _MISSING_S):
            self._stale.add(name)
        elif creates and topic.queues:
            # The topic was deleted: create it again for the records that were not sent.
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
        try:
            # A batch that is in flight, or may be stored, is settled by its response or its deadline.
            if topic.is_empty():
                self._close_queues(topic)
                self._forget(topic.name)
        finally:
            # Afterwards, since the callers may publish at once; and also after a fault of the client.
            self._accumulator.fail(unsent, error)
            for check in checks:
                check.set_result(topic.name, error)

    def _close_queues(self, topic: Topic, *, then_partitions: int = 0) -> None:
        producer_ids, possibly_stored = self._accumulator.close_queues(topic)
        for producer_id in producer_ids:
            # With the same id, the broker would take the first batches of the new queues for duplicates.
            self._producer_ids.retire(producer_id)
        # Before callers are answered: they may publish at once, which must go to the new queues.
        self._accumulator.set_partitions(topic, then_partitions)
        self._accumulator.fail(possibly_stored, OutcomeUnknown("The topic was deleted."))

    def _forget(self, name: str) -> None:
        self._missing_since_s.pop(name, None)
        self._fewer_since_s.pop(name, None)
        self._accumulator.forget_unused(name)
        self._client.forget_topic(name)


def _may_collide(name: str) -> bool:
    # In the names of Kafka's metrics, both become the same character.
    return "." in name or "_" in name
