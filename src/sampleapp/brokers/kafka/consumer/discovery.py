"""Keeping up with a topic's metadata: whether it exists, its partitions, and who leads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.client import Client, RequestFailed
from sampleapp.brokers.kafka.consumer.positions import RETRY, Positions
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
        client: Client,
        positions: Positions,
        clock: IReactorTime,
        interval_s: float,
        changed: Callable[[], None],
    ) -> None:
        """
        :param interval_s: seconds from one look to the next while all is well.
        :param changed: is called after each look.
        """
        self.reason: str | None = None
        """What is wrong with the topic as a whole, for an operator."""
        self._topic = topic
        self._client = client
        self._positions = positions
        self._clock = clock
        self._interval_s = interval_s
        self._changed = changed
        self._idle = Pause(clock)
        self._pace = Pause(clock)
        self._stopped = False
        self._wanted = False
        self._failures = 0
        self._unsettled = 0
        self._missing_since_s: float | None = None

    def stop(self) -> None:
        """End `run`, as soon as the request under way has failed."""
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
                delay_s = self._failed(f"The topic {self._topic} could not be looked up; see the log.")
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
            return self._failed(f"The topic {self._topic} cannot be read: {error.reason.sentence}")
        if self._stopped:
            return 0
        code = self._client.topic_error(self._topic)
        if code == ErrorCode.NONE:
            return self._exists()
        if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
            return self._is_missing(code)
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return self._failed(
                f"The service is not allowed to read the topic {self._topic}; it needs the right DESCRIBE."
            )
        answer = "nothing about it" if code is None else ErrorCode.name_of(code)
        return self._failed(
            f"The topic {self._topic} cannot be read: Kafka answers {answer}.",
            transient=ErrorCode.is_transient(code),
        )

    def _exists(self) -> float:
        self._failures = 0
        self.reason = None
        self._missing_since_s = None
        leaders = {
            number: self._client.leader_of(self._topic, number)
            for number in self._client.partitions_of(self._topic)
        }
        self._log_gone(self._positions.update(leaders, topic=self._topic, now_s=self._clock.seconds()))
        if self._positions.settled:
            self._unsettled = 0
            return self._interval_s
        self._unsettled += 1
        return min(RETRY.delay_s(self._unsettled), _UNSETTLED_POLL_S)

    def _is_missing(self, code: int | None) -> float:
        now_s = self._clock.seconds()
        if self._missing_since_s is None:
            self._missing_since_s = now_s
            self._failures = 0
        self._log_gone(self._positions.missing(now_s=now_s))
        if now_s - self._missing_since_s < _MISSING_AFTER_S:
            self._failures += 1
            return RETRY.delay_s(self._failures)
        self._positions.begin_empty()
        self.reason = None
        if code == ErrorCode.INVALID_TOPIC_EXCEPTION:
            self.reason = f"No topic of Kafka can have the name {self._topic}."
        return _MISSING_POLL_S

    def _failed(self, sentence: str, *, transient: bool = False) -> float:
        self._missing_since_s = None
        self._failures += 1
        if self._failures > 1 or not transient:
            self.reason = sentence
        return RETRY.delay_s(self._failures)

    def _log_gone(self, partitions: Sequence[int]) -> None:
        if partitions:
            self._log.warn(
                "Partitions {partitions} of {topic} are gone; should there be such partitions again, they "
                "are read from their first record on",
                partitions=", ".join(map(str, partitions)),
                topic=self._topic,
            )
