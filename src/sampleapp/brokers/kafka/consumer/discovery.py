"""Keeping up with a topic's metadata: whether it exists, its partitions, and who leads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import UUID

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.client import ClusterClient, RequestFailed
from sampleapp.brokers.kafka.consumer.positions import RETRY, Obstacle, Positions
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.shared.pause import Pause

__all__ = ["Discovery"]

_MISSING_AFTER_S: Final = 1.0
"""Brokers learn one by one of a new topic, so the first of them that does not know it proves nothing."""
_MISSING_POLL_S: Final = 0.5
_UNSETTLED_POLL_S: Final = 1.0
_LEAST_PACE_S: Final = 0.1


class Discovery:
    """The loop that asks for the metadata of one topic, for as long as the following runs."""

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
        begin_anew: Callable[[str | None], None],
    ) -> None:
        """
        :param interval_s: seconds from one look to the next while all is well.
        :param changed: is called after each look.
        :param begin_anew: is called when the topic that was read is no more, before what there is instead is
            put into the positions. With the reason, unless it is that the topic does not exist.
        """
        self.obstacle: Obstacle | None = None
        """What is wrong with the topic as a whole."""
        self.waits_for: str | None = "Kafka has not answered yet."
        """What has to be known of it first, though nothing is wrong; for any caller."""
        self.topic_id: UUID | None = None
        """Of the topic that is read; ``None`` where the brokers have no ids, and while it does not exist."""
        self._topic = topic
        self._client = client
        self._positions = positions
        self._clock = clock
        self._interval_s = interval_s
        self._changed = changed
        self._begin_anew = begin_anew
        self._idle = Pause(clock)
        self._pace = Pause(clock)
        self._stopped = False
        self._wanted = False
        self._failures = 0
        self._unsettled = 0
        self._missing_since_s: float | None = None
        self._said_missing = False
        self._former_ids: set[UUID] = set()

    def stop(self) -> None:
        """End `run`, as soon as the request in flight has failed."""
        self._stopped = True
        self._idle.end()
        self._pace.end()

    def look_again(self) -> None:
        """What is known may be out of date."""
        self._wanted = True
        self._idle.wake()

    async def run(self) -> None:
        """Look until stopped."""
        while not self._stopped:
            looked_at_s = self._clock.seconds()
            try:
                delay_s = await self._look()
            except Exception:  # noqa: BLE001 -- nothing cancels this, and looking has to go on
                self._log.failure("Looking for topic {topic} failed unexpectedly", topic=self._topic)
                delay_s = self._failed(
                    f"The topic {self._topic} could not be looked up; see the log.",
                    "The topic could not be looked up.",
                )
            self._changed()
            if not self._wanted:
                await self._idle.sleep(delay_s)
            early_s = looked_at_s + _LEAST_PACE_S - self._clock.seconds()
            if early_s > 0:
                await self._pace.sleep(early_s)
            self._wanted = False

    async def _look(self) -> float:
        """:return: seconds to wait before the next look."""
        try:
            await self._client.load_metadata([self._topic], auto_create=False)
        except RequestFailed as error:
            return self._failed(
                f"The topic {self._topic} cannot be read: {error.reason.sentence}",
                f"The topic cannot be read: {error.reason.public}",
            )
        if self._stopped:
            return 0
        code = self._client.topic_error(self._topic)
        if code == ErrorCode.NONE:
            return self._exists()
        if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
            return self._is_missing(code)
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return self._failed(
                f"The service is not allowed to read the topic {self._topic}; it needs the right DESCRIBE.",
                "The service is not allowed to read the topic.",
            )
        answer = "nothing about it" if code is None else ErrorCode.name_of(code)
        return self._failed(
            f"The topic {self._topic} cannot be read: Kafka answers {answer}.",
            f"The topic cannot be read: Kafka answers {answer}.",
            transient=ErrorCode.is_transient(code),
        )

    def _exists(self) -> float:
        topic_id = self._client.topic_id(self._topic)
        if self.topic_id is not None and topic_id in self._former_ids:
            # A broker that has not heard of the change yet.
            self._unsettled += 1
            return RETRY.delay_s(self._unsettled)
        if topic_id is not None:
            # No id comes twice, so this topic was there all the time, and the brokers did not know it.
            self._former_ids.discard(topic_id)
        self._failures = 0
        self.obstacle = self.waits_for = None
        self._missing_since_s = None
        now_s = self._clock.seconds()
        leaders = {
            number: self._client.leader_of(self._topic, number)
            for number in self._client.partitions_of(self._topic)
        }
        if self._said_missing:
            self._said_missing = False
            self._log.info(
                "The topic {topic} exists now, with {count} partition(s)",
                topic=self._topic,
                count=len(leaders),
            )
        if self.topic_id is not None and topic_id not in (None, self.topic_id):
            self._former_ids.add(self.topic_id)
            self._begin_anew("It was deleted and made again")
        self.topic_id = topic_id or self.topic_id
        gone = self._positions.update(leaders, topic=self._topic, now_s=now_s)
        if gone:
            # No topic ever loses some of its partitions.
            self._begin_anew(
                f"It was deleted and made again without partition(s) {', '.join(map(str, gone))}"
            )
            self._positions.update(leaders, topic=self._topic, now_s=now_s)
        if self._positions.settled:
            self._unsettled = 0
            return self._interval_s
        self._unsettled += 1
        return min(RETRY.delay_s(self._unsettled), _UNSETTLED_POLL_S)

    def _is_missing(self, code: int | None) -> float:
        now_s = self._clock.seconds()
        self.waits_for = "Kafka does not know the topic now; whether it exists is asked again."
        if self._missing_since_s is None:
            self._missing_since_s = now_s
            self._failures = 0
        gone = self._positions.missing(now_s=now_s)
        if now_s - self._missing_since_s < _MISSING_AFTER_S:
            self._failures += 1
            return RETRY.delay_s(self._failures)
        self.obstacle = None
        if gone and not self._positions:
            self._begin_anew(None)
        self._positions.begin_empty()
        if not self._positions:
            self._does_not_exist(code)
        return _MISSING_POLL_S

    def _does_not_exist(self, code: int | None) -> None:
        self.waits_for = None
        if self.topic_id is not None:
            self._former_ids.add(self.topic_id)
            self.topic_id = None
        if code == ErrorCode.INVALID_TOPIC_EXCEPTION:
            self.obstacle = Obstacle(
                f"No topic of Kafka can have the name {self._topic}.",
                "No topic of Kafka can have the name of this one.",
            )
        elif not self._said_missing:
            self._said_missing = True
            self._log.warn(
                "The topic {topic} does not exist in Kafka; create it. It is followed as soon as it exists",
                topic=self._topic,
            )

    def _failed(self, sentence: str, public: str, *, transient: bool = False) -> float:
        self._missing_since_s = None
        self._failures += 1
        if self._failures > 1 or not transient:
            self.obstacle = Obstacle(sentence, public)
        return RETRY.delay_s(self._failures)
