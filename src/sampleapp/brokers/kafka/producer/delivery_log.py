"""Lines in the operator's log about partitions: one for all that fail, or work again, for one reason."""

from __future__ import annotations

from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.connections.failure_reason import FailureReason

__all__ = ["DeliveryLog"]

_GATHERING_S: Final = 0.5
_NAMED: Final = 20
"""How many partitions a line names: an outage of a large cluster concerns thousands."""

_SLOW: Final = "The broker is slow."


class DeliveryLog:
    """
    Which partitions have records that are not acknowledged in time.

    A broker that fails takes many partitions with it, so what is to be said is gathered for a short time.
    """

    _log = Logger()

    def __init__(self, *, clock: IReactorTime) -> None:
        """:param clock: says when what was gathered is due."""
        self._clock = clock
        self.failing: set[tuple[str, int]] = set()
        """By topic and number. Only this object changes it."""
        self._new: dict[str, list[tuple[str, int]]] = {}
        self._again: list[tuple[str, int]] = []
        self._due_s: float | None = None

    def failed(self, topic: str, partition: int, reason: FailureReason | None) -> None:
        """Note that records of a partition were not acknowledged in time: once, until it works again."""
        if (topic, partition) not in self.failing:
            self.failing.add((topic, partition))
            sentence = _SLOW if reason is None else reason.sentence
            self._new.setdefault(sentence, []).append((topic, partition))
            self._begin()

    def acknowledged(self, topic: str, partition: int) -> None:
        """Note that a partition works."""
        if (topic, partition) in self.failing:
            self.failing.discard((topic, partition))
            self._again.append((topic, partition))
            self._begin()

    def forget(self, topics: set[str]) -> None:
        """Forget what is known of all other topics than these."""
        self.failing = {each for each in self.failing if each[0] in topics}

    def is_waiting(self) -> bool:
        """Return whether something is still to be written."""
        return self._due_s is not None

    def write(self, *, at_once: bool = False) -> None:
        """Write what is due."""
        if self._due_s is None or (self._clock.seconds() < self._due_s and not at_once):
            return
        self._due_s = None
        new, self._new = self._new, {}
        again, self._again = self._again, []
        for reason, partitions in new.items():
            self._log.warn(
                "Records for {partitions} are not acknowledged in time: {reason}",
                partitions=_named(partitions),
                reason=reason,
            )
        if again:
            self._log.info("Records for {partitions} are acknowledged again.", partitions=_named(again))

    def _begin(self) -> None:
        if self._due_s is None:
            self._due_s = self._clock.seconds() + _GATHERING_S


def _named(partitions: list[tuple[str, int]]) -> str:
    """Name partitions as people do: ``partitions 0, 3 and 7 of t``; not more of them than can be read."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(set(partitions))[:_NAMED]:
        by_topic.setdefault(topic, []).append(partition)
    parts = [
        f"{'partition' if len(numbers) == 1 else 'partitions'} {', '.join(map(str, numbers))} of {topic}"
        for topic, numbers in by_topic.items()
    ]
    more = len(set(partitions)) - _NAMED
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")
