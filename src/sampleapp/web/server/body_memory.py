"""The memory budget of all request bodies together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sampleapp.web.request_errors import BodyMemoryFull, BodyNeedsTooMuchMemory

__all__ = ["BodyMemory", "Share"]

_SMALL: Final = 64 * 1024
"""A request that needs up to this many bytes may also use the part that is kept for small requests."""
_KEPT_FOR_SMALL: Final = 1 / 8


class BodyMemory:
    """
    A budget of bytes for the bodies of requests, and for the records and answers made of them.

    A request that does not fit is refused. It does not wait, so requests that each hold a part cannot wait
    for one another. An eighth is for small requests only, so that large ones cannot keep them out.
    """

    __slots__ = ("_count_refusal", "limit", "most_for_one", "reserved")

    def __init__(self, limit: int, *, count_refusal: Callable[[str], None] | None = None) -> None:
        """
        :param limit: for all requests together, in bytes.
        :param count_refusal: called for each request that does not fit, with the name of the option that is
            the limit.
        """
        self.limit = limit
        self.most_for_one = limit - int(limit * _KEPT_FOR_SMALL)
        """The most memory that one request gets, in bytes, unless it is small."""
        self.reserved = 0
        """The memory of all requests together, in bytes: never more than the limit."""
        self._count_refusal = count_refusal

    def refusal(self, size: int) -> BodyMemoryFull | BodyNeedsTooMuchMemory:
        """Count a request that is refused a share of this size, in bytes, and return the error."""
        if self._count_refusal is not None:
            self._count_refusal("max-body-memory")
        most = self.limit if size <= _SMALL else self.most_for_one
        return BodyNeedsTooMuchMemory(size, most) if size > most else BodyMemoryFull(self.limit)


class Share:
    """
    The part of the budget that belongs to one request.

    A connection has one share, and uses it for one request after the other.
    """

    __slots__ = ("_memory", "size")

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self.size = 0
        """In bytes."""

    def resize(self, size: int) -> None:
        """
        Set the memory that the request needs from now on.

        :param size: the total, in bytes; a smaller size than before returns the rest to the budget.
        :raise BodyMemoryFull: there is too little room now; the share is unchanged.
        :raise BodyNeedsTooMuchMemory: no request may have this size; the share is unchanged.
        """
        memory = self._memory
        reserved = memory.reserved + size - self.size
        if size > self.size and reserved > (memory.limit if size <= _SMALL else memory.most_for_one):
            raise memory.refusal(size)
        memory.reserved = reserved
        self.size = size

    def release(self) -> None:
        """Return the whole share to the budget."""
        self._memory.reserved -= self.size
        self.size = 0
