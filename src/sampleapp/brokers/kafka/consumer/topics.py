"""The partitions and the leaders of topics that are read, as of a few seconds ago at most."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from msgspec import Struct
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from sampleapp.brokers.kafka.cluster_client import ClusterClient, RequestFailed
from sampleapp.brokers.kafka.consumer.failures import NOT_AUTHORIZED, read_failed, topic_rejected
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.errors import BrokerUnavailable, TopicNotAuthorized, UnknownTopic
from sampleapp.model import is_legal_topic

__all__ = ["DELETED_AFTER_S", "Leader", "TopicIds", "TopicView", "Topics"]

_UNKNOWN_AFTER_S: Final = 0.1
"""A new topic is not known to all brokers at once: another one is asked after this time, in seconds."""
DELETED_AFTER_S: Final = 1.0
"""A topic counts as deleted after this time, in seconds: brokers learn of topics one after another."""
_UNUSABLE_AFTER_S: Final = 2.0
_RETRY_S: Final = 0.1
_MOST_TOPICS: Final = 500
"""The most topics that are remembered."""

_NO_SUCH_TOPIC: Final = "The topic does not exist. Create it first, or check its name."


class Leader(Struct, frozen=True, gc=False):
    """The leader of a partition."""

    node_id: int | None
    """``None`` if there is none at the moment."""
    epoch: int
    """Grows with each election (KIP-320); -1 if it is not known."""


class TopicView(Struct, frozen=True):
    """The state of a topic, as a broker has told it."""

    topic_id: UUID | None
    """``None`` with Kafka before 2.8."""
    leaders: Mapping[int, Leader]
    """By the number of the partition."""
    loaded_at_s: float
    """When it was asked for, in seconds of the reactor's clock."""
    log_starts: dict[int, int]
    """The first offset of partitions that were read, by number. It may have changed since."""


class TopicIds:
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
        self._ids: dict[str, TopicIds] = {}

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
        ids = self._ids.setdefault(topic, TopicIds())
        # If all say so, it was the other response that was behind.
        if ids.is_former(topic_id) and not believe:
            return None
        leaders = {
            number: Leader(client.leader_of(topic, number), client.leader_epoch_of(topic, number))
            for number in client.partitions_of(topic)
        }
        log_starts: dict[int, int] = {}
        ids.note(topic_id)
        if known is not None and known.topic_id is not None and topic_id == known.topic_id:
            log_starts = known.log_starts
            # A broker that is behind may answer: elections and new partitions are not undone.
            for number, leader in known.leaders.items():
                if number not in leaders or leaders[number].epoch < leader.epoch:
                    leaders[number] = leader
        view = TopicView(topic_id, leaders, asked_at_s, log_starts)
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
            if since_s >= (DELETED_AFTER_S if topic in self._views else _UNKNOWN_AFTER_S):
                self._forget(topic)
                raise UnknownTopic(_NO_SUCH_TOPIC)
        elif since_s >= _UNUSABLE_AFTER_S:
            raise BrokerUnavailable(topic_rejected(topic, error).public)

    def _forget(self, topic: str) -> None:
        # The client would keep it for ever, and callers may invent names.
        self._views.pop(topic, None)
        self._ids.pop(topic, None)
        self._client.forget_topic(topic)
