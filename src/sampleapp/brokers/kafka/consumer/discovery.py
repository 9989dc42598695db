"""Discovery of a topic: its existence, its partitions and their leaders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.cluster_client import ClusterClient, RequestFailed
from sampleapp.brokers.kafka.consumer.failures import ReadFailure, topic_rejected, unanswered
from sampleapp.brokers.kafka.consumer.partition import RETRY
from sampleapp.brokers.kafka.consumer.positions import Positions
from sampleapp.brokers.kafka.consumer.topics import DELETED_AFTER_S, TopicIds
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.concurrency.pause import Pause

__all__ = ["Discovery"]

_MISSING_POLL_S: Final = 0.5
_UNSETTLED_POLL_S: Final = 1.0
_LEAST_PACE_S: Final = 0.1


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
        self.ids = TopicIds()
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
        if self.ids.is_former(topic_id):
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
        if self.ids.note(topic_id):
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
        if now_s - self._missing_since_s < DELETED_AFTER_S:
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
        self.ids.note_deleted()
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
