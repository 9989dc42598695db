"""How much may wait."""

from __future__ import annotations

__all__ = ["Buffer"]


class Buffer:
    """
    A bounded number of bytes, of which nobody can take all.

    A queue may hold no more than is left free. So one partition whose leader is dead takes at most half
    of the buffer, two of them at most a third each, and something is always left for those that move.
    (Dynamic queue thresholds: Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998.)
    """

    def __init__(self, *, limit_bytes: int) -> None:
        """:param limit_bytes: the bytes of all records that were accepted and not answered yet."""
        self.limit_bytes = limit_bytes
        self.used = 0

    def take(self, size: int, *, held: int) -> bool:
        """
        Take bytes for a record, if there is room.

        :param held: the bytes that the record's own queue has taken already.
        :return: whether they were taken.
        """
        if held + size > self.limit_bytes - self.used:
            return False
        self.used += size
        return True

    def give_back(self, size: int) -> None:
        """A record was answered."""
        self.used -= size
