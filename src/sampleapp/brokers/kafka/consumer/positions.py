"""How far each partition of a topic has been read, from whom, and what keeps it from being read on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sampleapp.brokers.kafka.protocol import Fetched
from sampleapp.brokers.shared.backoff import Backoff
from sampleapp.model import EARLIEST, Start

__all__ = ["RETRY", "Partition", "Positions"]

RETRY: Final = Backoff(first_s=0.1, max_s=5.0)
"""Between attempts to read."""

_GONE_AFTER_S: Final = 1.0
"""Brokers learn one by one of a change, so that one of them may not know a partition that is there."""
_NOTHING_LEFT_AFTER_S: Final = 5.0


class Partition:
    """The state of one partition; who reads it changes the attributes."""

    def __init__(self, number: int, *, existed: bool) -> None:
        """:param existed: whether it was there when following began, so that catching up waits for it."""
        self.number = number
        self.existed = existed
        self.leader: int | None = None
        self.position: int | None = None
        """The offset to read next; ``None`` until it is known where the partition begins."""
        self.goal: int | None = None
        """The high watermark when the position was first looked up: what catching up waits for."""
        self.suspect = False
        """Whether the position may be outside of the log, whose extent has to be looked up then."""
        self.beyond_since_s: float | None = None
        """Since when the leader says that its log ends before the position."""
        self.request: object = None
        """The last request that asks about it: an answer to any other one comes too late."""
        self.delivering = False
        self.turn = 0
        """Who was served longest ago is asked for first, so that none starves (KIP-74)."""
        self.failures = 0
        self.reason: str | None = None
        """What is wrong, for an operator."""
        self.retry_at_s = 0.0
        self.missing_since_s: float | None = None
        """Since when the metadata does not have it."""
        self._awaited = existed
        self._nothing_since_s: float | None = None

    @property
    def located(self) -> bool:
        """Whether there is a position to read from."""
        return self.position is not None and not self.suspect

    def is_due(self, now_s: float) -> bool:
        """Whether something may be asked about it now."""
        return not self.delivering and self.retry_at_s <= now_s

    def is_awaited(self) -> bool:
        """Whether catching up waits for it."""
        if self._awaited and self.goal is not None and self.position is not None:
            self._awaited = self.position < self.goal
        return self._awaited

    def failed(self, sentence: str, *, now_s: float, transient: bool = False) -> None:
        """
        Something about it went wrong: it is left alone for a while, each time longer.

        :param transient: whether it happens now and then in a cluster that is well, as when another
            broker takes the lead; that is worth telling only if it goes on.
        """
        self.failures += 1
        self.retry_at_s = now_s + RETRY.delay_s(self.failures)
        if self.failures > 1 or not transient:
            self.reason = sentence

    def worked(self) -> None:
        """It was read from without an error."""
        self.failures = 0
        self.reason = None
        self.missing_since_s = None

    def found_nothing(self, fetched: Fetched, *, now_s: float) -> None:
        """
        Its leader had nothing to send from the position on, although nothing else used up the answer.

        That is so at the end of the log, and before a transaction that is still open. It is so as well
        where compaction has removed the last records below the high watermark, and where an unclean
        election has cut them off: then no fetch ever reaches the goal. Java's consumer waits there for
        ever; here catching up does not wait longer than a while. The position stays where it is: a broker
        that keeps old segments elsewhere (KIP-405) sends nothing when it takes too long to get them.
        """
        position = self.position
        open_transaction = (
            position is not None and fetched.last_stable_offset <= position < fetched.high_watermark
        )
        if open_transaction or not self.is_awaited():
            self._nothing_since_s = None
        elif self._nothing_since_s is None:
            self._nothing_since_s = now_s
        elif now_s - self._nothing_since_s >= _NOTHING_LEFT_AFTER_S:
            self._awaited = False

    def found_something(self) -> None:
        """Its leader has sent batches."""
        self._nothing_since_s = None


class Positions:
    """All partitions of one topic, as far as they are known."""

    def __init__(self, *, start: Start = EARLIEST, only: int | None = None) -> None:
        """
        :param start: where to begin in those partitions that exist when following begins.
        :param only: the number of the one partition that counts; all do by default.
        """
        self.start = start
        self.exists: bool | None = None
        """Whether the topic has partitions that count, as of the last look."""
        self._only = only
        self._partitions: dict[int, Partition] = {}
        self._begun = False

    def update(self, leaders: Mapping[int, int | None], *, topic: str, now_s: float) -> list[int]:
        """
        Take in what the metadata has; the first time it says which partitions existed at the start.

        :param leaders: the node id of each partition's leader; ``None`` if it has none.
        :return: the partitions that are gone for good. A partition counts as gone when for a while neither
            the metadata nor its leader has known it.
        """
        if self._only is not None:
            leaders = {number: leader for number, leader in leaders.items() if number == self._only}
        self.exists = bool(leaders)
        for number, leader in leaders.items():
            partition = self._partitions.get(number)
            if partition is None:
                partition = self._partitions[number] = Partition(number, existed=not self._begun)
            partition.missing_since_s = None
            if leader is None:
                partition.failed(
                    f"Partition {number} of the topic {topic} has no leader, so nothing can be read from it.",
                    now_s=now_s,
                    transient=True,
                )
            elif leader != partition.leader:
                partition.retry_at_s = now_s
            partition.leader = leader
        self._begun = True
        return self._drop([number for number in self._partitions if number not in leaders], now_s)

    def begin_empty(self) -> None:
        """There was no partition at the start; those that come are new."""
        self._begun = True
        self.exists = False

    def missing(self, *, now_s: float) -> list[int]:
        """
        Take in that the metadata does not have the topic.

        :return: the partitions that are gone for good, as by `update`.
        """
        return self._drop(list(self._partitions), now_s)

    def led_by(self, node_id: int) -> list[Partition]:
        """The partitions that a broker leads, those that were served longest ago first."""
        return sorted(
            (each for each in self._partitions.values() if each.leader == node_id),
            key=lambda partition: (partition.turn, partition.number),
        )

    def leaders(self) -> set[int]:
        """The node ids of all leaders."""
        return {each.leader for each in self._partitions.values() if each.leader is not None}

    @property
    def begun(self) -> bool:
        """Whether it is known which partitions there were at the start."""
        return self._begun

    @property
    def settled(self) -> bool:
        """Whether every partition has been read from without an error."""
        return not any(
            each.failures or each.leader is None or each.missing_since_s is not None
            for each in self._partitions.values()
        )

    @property
    def caught_up(self) -> bool:
        """Whether all that was there at the start has been read."""
        return self._begun and not any(each.is_awaited() for each in self._partitions.values())

    @property
    def reason(self) -> str | None:
        """What is wrong with one of them, if something is."""
        return next((each.reason for each in self._partitions.values() if each.reason is not None), None)

    def _drop(self, numbers: list[int], now_s: float) -> list[int]:
        gone = []
        for number in numbers:
            partition = self._partitions[number]
            if partition.missing_since_s is None:
                partition.missing_since_s = now_s
            elif (
                now_s - partition.missing_since_s >= _GONE_AFTER_S
                and partition.failures
                and not partition.delivering
            ):
                # What is still asked about it is answered too late.
                partition.request = None
                del self._partitions[number]
                gone.append(number)
        return gone
