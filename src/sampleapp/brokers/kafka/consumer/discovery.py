"""Discovery of topics: their existence, their partitions and their leaders."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

from msgspec import Struct
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from sampleapp.brokers.kafka.cluster_client import ClusterClient, RequestFailed
from sampleapp.brokers.kafka.consumer.offsets import Name
from sampleapp.brokers.kafka.consumer.partition import RETRY, Positions
from sampleapp.brokers.kafka.consumer.read_failures import (
    NOT_AUTHORIZED,
    ReadFailure,
    read_failed,
    topic_rejected,
    unanswered,
)
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.concurrency.waiting import Pause
from sampleapp.errors import BrokerUnavailable, TopicNotAuthorized, UnknownTopic
from sampleapp.model import is_legal_topic

_UNKNOWN_AFTER_S: Final = 0.1
"""A new topic is not known to all brokers at once: another one is asked after this time, in seconds."""
_DELETED_AFTER_S: Final = 1.0
"""A topic counts as deleted after this time, in seconds: brokers learn of topics one after another."""
_UNUSABLE_AFTER_S: Final = 2.0
_RETRY_S: Final = 0.1
_MOST_TOPICS: Final = 500
"""The most topics that are remembered."""
_MISSING_POLL_S: Final = 0.5
_UNSETTLED_POLL_S: Final = 1.0
_LEAST_PACE_S: Final = 0.1

_NO_SUCH_TOPIC: Final = "The topic does not exist. Create it first, or check its name."


class TopicView(Struct, frozen=True):
    """The state of a topic, as a broker has told it."""

    topic_id: UUID | None
    """``None`` with Kafka before 2.8."""
    leaders: Mapping[int, int | None]
    """The node id of each partition's leader, by number; ``None`` if there is none at the moment."""
    leader_epochs: Mapping[Name, int]
    """They grow with each election (KIP-320); -1 if it is not known."""
    loaded_at_s: float
    """When it was asked for, in seconds of the reactor's clock."""
    log_starts: dict[int, int]
    """The first offset of partitions that were read, by number. It may have changed since."""


class _TopicIds:
    """
    The id of a topic of some name, and the ids of former ones.

    After a topic was deleted and created again, a broker that is behind still answers with the former id.
    """

    def __init__(self) -> None:
        self.current: UUID | None = None
        """``None`` if the topic does not exist, or the brokers have no topic ids."""
        self._former: set[UUID] = set()

    def is_former(self, topic_id: UUID | None) -> bool:
        """Return ``True`` for the id of a topic that was deleted before the current one was created."""
        return self.current is not None and topic_id in self._former

    def note(self, topic_id: UUID | None) -> bool:
        """
        Note an id in a response.

        :return: ``True`` if the topic was deleted and created again.
        """
        if topic_id is None or topic_id == self.current:
            return False
        had_another = self.current is not None
        self.note_deleted()
        # Ids are unique, so this topic existed all the time, and the brokers did not know it.
        self._former.discard(topic_id)
        self.current = topic_id
        return had_another

    def note_deleted(self) -> None:
        """Note that the topic does not exist any longer."""
        if self.current is not None:
            self._former.add(self.current)
            self.current = None


class Topics:
    """The views of topics, which are loaded again when they are too old for a read."""

    def __init__(self, *, client: ClusterClient, clock: IReactorTime) -> None:
        """:param client: loads the metadata; never creates a topic."""
        self._client = client
        self._clock = clock
        self._views: OrderedDict[str, TopicView] = OrderedDict()
        self._ids: dict[str, _TopicIds] = {}

    async def get(self, topic: str, *, max_age_s: float) -> TopicView:
        """
        Return the view of a topic.

        :param max_age_s: an older view is loaded again; 0 for a view that is loaded from now on.
        :raise UnknownTopic: it does not exist, or cannot exist.
        :raise TopicNotAuthorized: the service may not see it.
        :raise BrokerUnavailable: no broker has answered, or the topic cannot be used.
        :raise BrokerIncompatible: no broker supports the request.
        """
        if not is_legal_topic(topic):
            raise UnknownTopic(_NO_SUCH_TOPIC)
        known = self._views.get(topic)
        if known is not None and self._clock.seconds() - known.loaded_at_s < max_age_s:
            self._views.move_to_end(topic)
            return known
        began_s = self._clock.seconds()
        while True:
            asked_at_s = self._clock.seconds()
            try:
                await self._client.load_metadata([topic], auto_create=False)
            except RequestFailed as error:
                raise read_failed(error) from error
            error_code = self._client.topic_error(topic)
            if error_code == ErrorCode.NONE:
                is_late = self._clock.seconds() - began_s >= _UNUSABLE_AFTER_S
                view = self._learn(topic, asked_at_s, believe=is_late)
                if view is not None:
                    return view
            else:
                self._reject(topic, error_code, since_s=self._clock.seconds() - began_s)
            await deferLater(self._clock, _RETRY_S)

    def _learn(self, topic: str, asked_at_s: float, *, believe: bool) -> TopicView | None:
        """:return: ``None`` if the broker has not heard yet that the topic was made again."""
        client, known = self._client, self._views.get(topic)
        topic_id = client.topic_id(topic)
        ids = self._ids.setdefault(topic, _TopicIds())
        # If all say so, it was the other response that was behind.
        if ids.is_former(topic_id) and not believe:
            return None
        leaders = {number: client.leader_of(topic, number) for number in client.partitions_of(topic)}
        epochs = {(topic, number): client.leader_epoch_of(topic, number) for number in leaders}
        log_starts: dict[int, int] = {}
        ids.note(topic_id)
        if known is not None and known.topic_id is not None and topic_id == known.topic_id:
            log_starts = known.log_starts
            # A broker that is behind may answer: elections and new partitions are not undone.
            for name, epoch in known.leader_epochs.items():
                if epochs.get(name, -2) < epoch:
                    epochs[name], leaders[name[1]] = epoch, known.leaders[name[1]]
        view = TopicView(topic_id, leaders, epochs, asked_at_s, log_starts)
        self._views[topic] = view
        self._views.move_to_end(topic)
        if len(self._views) > _MOST_TOPICS:
            self._forget(next(iter(self._views)))
        return view

    def _reject(self, topic: str, error: int | None, *, since_s: float) -> None:
        """Raise the error of a topic, unless another broker should be asked first."""
        if error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            self._forget(topic)
            raise TopicNotAuthorized(NOT_AUTHORIZED)
        if error == ErrorCode.INVALID_TOPIC_EXCEPTION:
            self._forget(topic)
            raise UnknownTopic(_NO_SUCH_TOPIC)
        if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            if since_s >= (_DELETED_AFTER_S if topic in self._views else _UNKNOWN_AFTER_S):
                self._forget(topic)
                raise UnknownTopic(_NO_SUCH_TOPIC)
        elif since_s >= _UNUSABLE_AFTER_S:
            raise BrokerUnavailable(topic_rejected(topic, error).public)

    def _forget(self, topic: str) -> None:
        # The client would keep it for ever, and callers may invent names.
        self._views.pop(topic, None)
        self._ids.pop(topic, None)
        self._client.forget_topic(topic)


class Discovery:
    """A loop that loads the metadata of one topic until the following is stopped."""

    _log = Logger()

    def __init__(
        self,
        *,
        topic: str,
        client: ClusterClient,
        positions: Positions,
        clock: IReactorTime,
        interval_s: float,
        changed: Callable[[], None],
        reset: Callable[[str | None], None],
    ) -> None:
        """
        :param interval_s: the time between two loads without errors, in seconds.
        :param changed: called after each load.
        :param reset: called when the topic was deleted or replaced, before the positions get the partitions
            of the new topic. With the reason for the log; ``None`` if the topic does not exist.
        """
        self.failure: ReadFailure | None = None
        """An error of the topic as a whole."""
        self.waits_for: str | None = "Kafka has not answered yet."
        """The reason why reading has not begun, if it is not an error; for any caller."""
        self._ids = _TopicIds()
        self._topic = topic
        self._client = client
        self._positions = positions
        self._clock = clock
        self._interval_s = interval_s
        self._changed = changed
        self._reset = reset
        self._idle = Pause(clock)
        self._pace = Pause(clock)
        self._loading: Deferred[None] | None = None
        self._stopped = False
        self._wanted = False
        self._failures = 0
        self._unsettled = 0
        self._missing_since_s: float | None = None
        self._said_missing = False

    @property
    def topic_id(self) -> UUID | None:
        """The id of the topic; ``None`` if it does not exist, or the brokers have no topic ids."""
        return self._ids.current

    def stop(self) -> None:
        """End `run`."""
        self._stopped = True
        if self._loading is not None:
            self._loading.cancel()
        self._idle.end()
        self._pace.end()

    def refresh(self) -> None:
        """Load the metadata soon: it may be out of date."""
        self._wanted = True
        self._idle.wake()

    async def run(self) -> None:
        """Load until stopped."""
        while not self._stopped:
            loaded_at_s = self._clock.seconds()
            try:
                delay_s = await self._load()
            except Exception:  # noqa: BLE001 -- any fault: nothing cancels this, and the loop must go on
                self._log.failure("Loading the metadata of topic {topic} failed", topic=self._topic)
                failure = ReadFailure(
                    f"The topic {self._topic} could not be looked up; see the log.",
                    "The topic could not be looked up.",
                    "look-up",
                )
                delay_s = self._failed(failure)
            self._changed()
            if not self._wanted:
                await self._idle.sleep(delay_s)
            early_s = loaded_at_s + _LEAST_PACE_S - self._clock.seconds()
            if early_s > 0:
                await self._pace.sleep(early_s)
            self._wanted = False

    async def _load(self) -> float:
        """:return: the time until the next load, in seconds."""
        try:
            self._loading = self._client.load_metadata([self._topic], auto_create=False)
            await self._loading
        except CancelledError:
            if not self._stopped:
                raise
            return 0
        except RequestFailed as error:
            return self._failed(unanswered(self._topic, error.reason))
        if self._stopped:
            return 0
        return self._learn(self._client.topic_error(self._topic))

    def _learn(self, code: int | None) -> float:
        if code == ErrorCode.NONE:
            return self._exists()
        if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
            return self._note_missing(code)
        return self._failed(topic_rejected(self._topic, code), transient=ErrorCode.is_transient(code))

    def _exists(self) -> float:
        topic_id = self._client.topic_id(self._topic)
        if self._ids.is_former(topic_id):
            self._unsettled += 1
            return RETRY.delay_s(self._unsettled)
        self._failures = 0
        self.failure = self.waits_for = None
        self._missing_since_s = None
        now_s = self._clock.seconds()
        leaders = {
            number: self._client.leader_of(self._topic, number)
            for number in self._client.partitions_of(self._topic)
        }
        if self._said_missing:
            self._said_missing = False
            self._log.info(
                "The topic {topic} exists now, with {count} partition(s). Reading begins.",
                topic=self._topic,
                count=len(leaders),
            )
        if self._ids.note(topic_id):
            self._reset("The topic was deleted and created again")
        gone = self._positions.update(leaders, now_s=now_s)
        if gone:
            # The partitions of a topic are never removed: this is another topic.
            self._reset(
                f"The topic was deleted and created again without partition(s) {', '.join(map(str, gone))}"
            )
            self._positions.update(leaders, now_s=now_s)
        if self._positions.settled:
            self._unsettled = 0
            # At the same moments for all topics, so that one request has all of them.
            return self._interval_s - now_s % self._interval_s
        self._unsettled += 1
        return min(RETRY.delay_s(self._unsettled), _UNSETTLED_POLL_S)

    def _note_missing(self, code: int | None) -> float:
        now_s = self._clock.seconds()
        self.waits_for = "Kafka does not know the topic at the moment; it is asked again."
        if self._missing_since_s is None:
            self._missing_since_s = now_s
            self._failures = 0
        gone = self._positions.note_missing(now_s=now_s)
        if now_s - self._missing_since_s < _DELETED_AFTER_S:
            self._failures += 1
            return RETRY.delay_s(self._failures)
        self.failure = None
        if gone and not self._positions:
            self._reset(None)
        self._positions.mark_empty()
        if not self._positions:
            self._report_missing(code)
        return _MISSING_POLL_S

    def _report_missing(self, code: int | None) -> None:
        self.waits_for = None
        self._ids.note_deleted()
        if code == ErrorCode.INVALID_TOPIC_EXCEPTION:
            self.failure = topic_rejected(self._topic, code)
        elif not self._said_missing:
            self._said_missing = True
            self._log.warn(
                "The topic {topic} does not exist in Kafka. Create it; it is read as soon as it exists.",
                topic=self._topic,
            )

    def _failed(self, failure: ReadFailure, *, transient: bool = False) -> float:
        self._missing_since_s = None
        self._failures += 1
        if self._failures > 1 or not transient:
            self.failure = failure
        return RETRY.delay_s(self._failures)
