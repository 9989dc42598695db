"""Checks that wait for the process: a line with a limit in bytes, in which callers take turns."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from msgspec import Struct
from twisted.internet.defer import Deferred

from sampleapp.errors import Fault, SchemaChecksFull, SchemaChecksOfCallerFull
from sampleapp.validation.schema_version import SchemaVersion

_OVERHEAD_BYTES: Final = 1024
"""Memory for a check besides its contents, in bytes."""


class Client(NamedTuple):
    """The client of a check."""

    caller: str
    """The name of the caller; empty if callers need no credentials: then none has a part of its own."""
    host: str
    """The address, without a port."""

    @property
    def turn(self) -> str:
        """The name under which its checks take turns with those of others."""
        return self.caller or self.host


class CheckInLine(Struct, eq=False):
    """Contents to be checked together."""

    schemas: SchemaVersion
    topics: list[str]
    """Of the contents."""
    contents: list[bytes]
    client: Client
    result: Deferred[dict[int, list[Fault]]]
    """Fires with the faults, by the index of their content."""
    found: dict[int, list[Fault]]
    """The faults that are known already."""
    attempts: int = 0
    """How often the process has ended in the middle of this check."""

    @property
    def size(self) -> int:
        """In bytes."""
        return _OVERHEAD_BYTES + sum(map(len, self.contents))


class Line:
    """
    The checks that wait, and the bytes of these and of the one that runs.

    The clients take turns: one with many checks does not make the others wait for all of them.
    """

    def __init__(self, limit: int) -> None:
        """:param limit: in bytes, of which one caller may have half. One check always fits."""
        self._limit = limit
        self._size = 0
        self._of_callers: dict[str, int] = {}
        self._by_turn: dict[str, deque[CheckInLine]] = {}

    def add(self, check: CheckInLine) -> None:
        """
        Add a check at the end of those of its client.

        :raise SchemaChecksFull: too much waits.
        :raise SchemaChecksOfCallerFull: too much of this caller waits.
        """
        caller, size = check.client.caller, check.size
        of_caller = self._of_callers.get(caller, 0)
        if caller and of_caller and of_caller + size > self._limit // 2:
            raise SchemaChecksOfCallerFull(
                f"Contents of {of_caller} bytes in your other requests wait to be checked by schemas; one "
                f"caller may have {self._limit // 2}. Nothing was published. Send the request again when one "
                "of them is answered."
            )
        if self._size and self._size + size > self._limit:
            raise SchemaChecksFull(
                f"Contents of {self._size} bytes wait to be checked by schemas, and the limit is "
                f"{self._limit}. Nothing was published. Send the request again later."
            )
        self._count(check, size)
        self._by_turn.setdefault(check.client.turn, deque()).append(check)

    def take(self) -> CheckInLine | None:
        """Take the next check: one of the client whose last turn was longest ago. It stays counted."""
        if not self._by_turn:
            return None
        turn = next(iter(self._by_turn))
        checks = self._by_turn.pop(turn)
        check = checks.popleft()
        if checks:
            self._by_turn[turn] = checks
        return check

    def put_back(self, check: CheckInLine) -> None:
        """Have a check that was taken be the next one of its client, whose turn is next."""
        turn = check.client.turn
        checks = self._by_turn.pop(turn, deque())
        checks.appendleft(check)
        self._by_turn = {turn: checks, **self._by_turn}

    def leave(self, check: CheckInLine) -> None:
        """Count a check that was taken no longer."""
        self._count(check, -check.size)

    def _count(self, check: CheckInLine, size: int) -> None:
        self._size += size
        caller = check.client.caller
        left = self._of_callers.get(caller, 0) + size
        if left:
            self._of_callers[caller] = left
        else:
            self._of_callers.pop(caller, None)
