"""Log lines about partitions that fail, or work again: one line for all with the same reason."""

from __future__ import annotations

from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.connections.failure_reason import FailureReason

__all__ = ["DeliveryLog"]

_GATHERING_S: Final = 0.5
"""The delay of a line, in seconds, so that it names all partitions that fail at the same time."""
_NAMED: Final = 20
"""Maximum partitions named in a line: an outage of a large cluster concerns thousands."""

_SLOW: Final = "The broker is slow."
"""The reason if no attempt has failed."""


class DeliveryLog:
    """
    Logs partitions whose records are not acknowledged in time.

    A broker that fails is the leader of many partitions, so they are gathered for `_GATHERING_S`.
    """

    _log = Logger()

    def __init__(self, *, clock: IReactorTime) -> None:
        """:param clock: times the lines."""
        self._clock = clock
        self.failing: set[tuple[str, int]] = set()
        """The partitions that fail, by topic and number. Only this object changes it."""
        self._new: dict[str, list[tuple[str, int]]] = {}
        self._again: list[tuple[str, int]] = []
        self._due_s: float | None = None

    def failed(self, topic: str, partition: int, reason: FailureReason | None) -> None:
        """Log that records of a partition were not acknowledged in time; once, until `acknowledged`."""
        if (topic, partition) not in self.failing:
            self.failing.add((topic, partition))
            sentence = _SLOW if reason is None else reason.sentence
            self._new.setdefault(sentence, []).append((topic, partition))
            self._begin()

    def acknowledged(self, topic: str, partition: int) -> None:
        """Log that a partition works again, if it had failed."""
        if (topic, partition) in self.failing:
            self.failing.discard((topic, partition))
            self._again.append((topic, partition))
            self._begin()

    def forget(self, topics: set[str]) -> None:
        """Forget the partitions of all topics except these."""
        self.failing = {each for each in self.failing if each[0] in topics}

    def is_waiting(self) -> bool:
        """Return ``True`` if a line is still to be written."""
        return self._due_s is not None

    def write(self, *, at_once: bool = False) -> None:
        """Write the lines that are due; with `at_once`, all."""
        if self._due_s is None or (self._clock.seconds() < self._due_s and not at_once):
            return
        self._due_s = None
        new, self._new = self._new, {}
        again, self._again = self._again, []
        for reason, partitions in new.items():
            self._log.warn(
                "Records for {partitions} are not acknowledged in time, and their callers get 503 or 504: "
                "{reason}",
                partitions=_named(partitions),
                reason=reason,
            )
        if again:
            self._log.info("Records for {partitions} are acknowledged again.", partitions=_named(again))

    def _begin(self) -> None:
        if self._due_s is None:
            self._due_s = self._clock.seconds() + _GATHERING_S


def _named(partitions: list[tuple[str, int]]) -> str:
    """Format partitions, as in ``partitions 0, 3, 7 of t``; up to `_NAMED` of them."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(set(partitions))[:_NAMED]:
        by_topic.setdefault(topic, []).append(partition)
    parts = [
        f"{'partition' if len(numbers) == 1 else 'partitions'} {', '.join(map(str, numbers))} of {topic}"
        for topic, numbers in by_topic.items()
    ]
    more = len(set(partitions)) - _NAMED
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")
