"""
Compares all that the service says about each record: its answers, its pages and its streams.

Records have numbers, from which their keys and contents follow. So a byte is enough to remember one.
"""

from __future__ import annotations

import random
import time
from collections import Counter

__all__ = ["ANSWERED", "PAGED", "STREAMED", "Faults", "Ledger", "Readings"]

ANSWERED, PAGED, STREAMED, UNKNOWN, REJECTED = 1, 2, 4, 8, 16
OVERDUE_S = 120
"""So long may be between the answer to a message and its record in pages and streams."""
STALE_S = 60
"""So long may be between the answer to a reading and its value in the readings."""
READINGS = 20
OBSERVERS = ("version 1", "version 2", "changes")
"""The ways in which the readings are read, each of which is checked for itself."""

_DICE = random.Random(1)
_TEXT = "".join(_DICE.choices('abcdefghijklmnopqrstuvwxyz     0123456789"\\/<&üñ日😀\u2028', k=400))


class Faults:
    """Failed checks: all are counted, and the first ones are printed."""

    PRINTED = 30

    def __init__(self) -> None:
        self.count = 0
        self._began_s = time.perf_counter()

    def add(self, text: str) -> None:
        self.count += 1
        if self.count <= self.PRINTED:
            minute = (time.perf_counter() - self._began_s) / 60
            print(f"FAULT after {minute:.2f} minutes: {text[:400]}", flush=True)


class Ledger:
    """The records of one topic: each must be answered, and read once in pages and once in a stream."""

    def __init__(self, topic: str, faults: Faults, *, has_keys: bool = True) -> None:
        self.topic = topic
        self._has_keys = has_keys
        self._faults = faults
        self._states = bytearray()
        self._places: dict[tuple[int, int], tuple[int, float]] = {}
        self._partitions: dict[str, int] = {}

    @property
    def count(self) -> int:
        return len(self._states)

    @property
    def open(self) -> int:
        """The records that have been heard of and are still to be heard of."""
        return sum(1 for n, _ in self._places.values() if not self._is_settled(n))

    @property
    def published(self) -> int:
        """The records that were read in pages."""
        return sum(1 for state in self._states if state & PAGED)

    def counts(self) -> Counter[str]:
        """The number of records that were answered, and that were read."""
        names = {ANSWERED: "responded", PAGED: "in pages", STREAMED: "in streams", UNKNOWN: "unknown"}
        counts: Counter[str] = Counter()
        for state, count in Counter(self._states).items():
            for bit, name in names.items():
                if state & bit:
                    counts[name] += count
        return counts

    def new(self) -> int:
        """The number of a record that is going to be sent."""
        self._states.append(0)
        return len(self._states) - 1

    def key(self, n: int) -> str | None:
        return f"key-{n % 97}" if self._has_keys and n % 4 else None

    @staticmethod
    def content(n: int) -> str:
        start = n % 211
        return f"{n:010d} {_TEXT[start : start + 40 + n % 89]}"

    def responded(self, n: int, place: tuple[int, int]) -> None:
        self._meet(n, ANSWERED, place)

    def rejected(self, n: int) -> None:
        """The service has promised that it is not published."""
        if self._states[n]:
            self._faults.add(f"{self.topic}: record {n} was rejected, and is in the topic.")
        self._states[n] |= REJECTED

    def unknown(self, n: int) -> None:
        """The service has said that it may or may not be published."""
        self._states[n] |= UNKNOWN

    def read(self, place: tuple[int, int], key: str | None, content: str | None, bit: int) -> None:
        """:param bit: `PAGED` or `STREAMED`."""
        number = (content or "")[:10]
        n = int(number) if number.isdecimal() else -1
        if not 0 <= n < len(self._states) or (key, content) != (self.key(n), self.content(n)):
            self._faults.add(f"{self.topic} {place}: this record was never sent: {key!r}, {content!r}")
            return
        if key is not None and self._partitions.setdefault(key, place[0]) != place[0]:
            self._faults.add(f"{self.topic} {place}: the key {key} was in another partition before.")
        self._meet(n, bit, place)

    def sweep(self) -> None:
        """Report records that are overdue, and forget complete ones."""
        now_s = time.perf_counter()
        for place, (n, since_s) in list(self._places.items()):
            if self._is_settled(n):
                del self._places[place]
            elif now_s - since_s > OVERDUE_S:
                del self._places[place]
                self._faults.add(
                    f"{self.topic} {place}: record {n} is incomplete after {OVERDUE_S} s: {self._names(n)}"
                )

    def _meet(self, n: int, bit: int, place: tuple[int, int]) -> None:
        if self._states[n] & (bit | REJECTED):
            self._faults.add(
                f"{self.topic} {place}: record {n} comes again, or was rejected: {self._names(n)}"
            )
        self._states[n] |= bit
        known = self._places.get(place)
        if known is None:
            self._places[place] = n, time.perf_counter()
        elif known[0] != n:
            self._faults.add(f"{self.topic} {place}: records {known[0]} and {n} have the same place.")
        if self._is_settled(n):
            self._places.pop(place, None)

    def _is_settled(self, n: int) -> bool:
        state = self._states[n]
        return bool(state & PAGED and state & STREAMED and state & (ANSWERED | UNKNOWN))

    def _names(self, n: int) -> str:
        state = self._states[n]
        names = {ANSWERED: "responded", PAGED: "paged", STREAMED: "streamed", UNKNOWN: "504", REJECTED: "503"}
        return ", ".join(name for bit, name in names.items() if state & bit)


class Readings:
    """
    The readings that are published and seen. Number n is the value n / 4 of the reading n modulo 20.

    So each value tells of which reading it is, and a reading never falls.
    """

    def __init__(self, faults: Faults) -> None:
        self.sent = 0
        self._faults = faults
        self._acknowledged: dict[int, list[tuple[float, int]]] = {n: [] for n in range(READINGS)}
        self._seen: dict[str, dict[int, int]] = {observer: {} for observer in OBSERVERS}

    def new(self) -> int:
        self.sent += 1
        return self.sent - 1

    @staticmethod
    def key(n: int) -> str:
        return f"sensor-{n % READINGS}"

    @staticmethod
    def content(n: int) -> str:
        return str(n / 4)

    def responded(self, n: int) -> None:
        self._acknowledged[n % READINGS].append((time.perf_counter(), n))

    def see(self, observer: str, value: float, key: str | None = None) -> None:
        """:param observer: one of `OBSERVERS`."""
        n = int(value * 4)
        seen = self._seen[observer]
        if n / 4 != value or n >= self.sent or (key is not None and key != self.key(n)):
            self._faults.add(f"{observer}: the reading {key} never had the value {value}.")
        elif n < seen.get(n % READINGS, 0):
            self._faults.add(
                f"{observer}: {self.key(n)} is {value}, and was {seen[n % READINGS] / 4} before."
            )
        seen[n % READINGS] = n

    def sweep(self) -> None:
        """Report values that an observer has not seen in time."""
        expected_before_s = time.perf_counter() - STALE_S
        for reading, acknowledged in self._acknowledged.items():
            while acknowledged and acknowledged[0][0] < expected_before_s:
                _, n = acknowledged.pop(0)
                for observer, seen in self._seen.items():
                    if seen.get(reading, -1) < n:
                        self._faults.add(f"{observer}: {self.key(n)} is not {n / 4} after {STALE_S} s.")
