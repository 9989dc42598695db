"""
Idempotence (KIP-98, KIP-360): what lets a broker recognise a batch that it has already stored.

A batch carries a producer id, an epoch and the number of its first record. The broker takes the next
number of the same id and epoch only, answers a repetition as it did the first time, and refuses what
is of an earlier epoch.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

__all__ = ["Sequence"]

_MAX_EPOCH: Final = 2**15 - 2
_SEQUENCES: Final = 2**31
"""After the greatest 32-bit number comes 0 again."""


class Sequence(Struct):
    """The numbering of one partition's records."""

    producer_id: int
    epoch: int
    next: int = 0
    """The number of the next record that is sent for the first time."""

    def advance(self, count: int) -> None:
        """So many records were stored."""
        self.next = (self.next + count) % _SEQUENCES

    def fenced(self) -> Sequence | None:
        """
        The numbering to go on with when it is unknown whether a batch was stored.

        Its epoch is the next one, so that the batch is refused if it still arrives, as it may from the
        socket of a broker that was stopped for a while. As KIP-360 has it, no broker has to be asked.

        :return: ``None`` when there is no next epoch: it takes another producer id.
        """
        if self.epoch >= _MAX_EPOCH:
            return None
        return Sequence(producer_id=self.producer_id, epoch=self.epoch + 1)
