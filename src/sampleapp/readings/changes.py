"""
The changes of the collection, in their order, with the entity tag after each.

A tag costs the encoding of the block that has changed, about 0.2 ms. So the changes are told in groups: those
that came while the last group was made. The first changes of a group are told one by one, each with its tag;
of the rest, several of one reading are one, and only the last has a tag. Groups are made in slices, and with
pauses, so that they take about a tenth of the time of the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace
from twisted.internet.interfaces import IReactorTime

from sampleapp.concurrency.slices import SlicedWork
from sampleapp.errors import ReadingsNotReady
from sampleapp.model import Reading
from sampleapp.readings.blocks import Representation, Snapshot
from sampleapp.readings.collection import Readings

_SINGLY: Final = 16
"""The most changes of a group that are told one by one."""
_BLOCKS_SINGLY: Final = 100
"""The most blocks of a collection for that: a snapshot takes about 10 us for them."""
_ENCODED_AT_ONCE: Final = 64 * 1024
"""Work before the time is looked at, as `Snapshot.encode` counts it: some 1,000 readings, in about 0.5 ms."""
_TOLD_AT_ONCE: Final = 500
"""Changes that are told in one call: they are encoded in about 1 ms, if their ids are not long."""
_PAUSE: Final = 9
"""A pause takes this many times as long as the group before it took to make,"""
_LONGEST_PAUSE_S: Final = 1.0
"""but at most so long, in seconds."""
_OVER: Final = object()


class Change(Struct, frozen=True, gc=False):
    """A reading has a new value, is new, or was removed."""

    id: str
    value: float | None
    """``None``: the reading was removed."""
    etag: str | None
    """The entity tag of version 2 after this change, in quotes; ``None`` inside a group."""


class ReadingsState(Struct, frozen=True):
    """The collection after all changes that were told."""

    representation: Representation
    """Version 2."""
    number: int
    """The number of changes until then; see `Changes.number`."""


_Single: TypeAlias = tuple[Change, Snapshot, int]
"""A change without its tag, the collection after it, and its number."""


class IChangesObserver(Protocol):
    """The observer of the changes of a collection."""

    def began(self, state: ReadingsState) -> None:
        """Start from a state: at the beginning, and when the topic was deleted and made again."""

    def changed(self, changes: Sequence[Change], state: ReadingsState | None) -> Iterator[None]:
        """
        Learn of the next changes: an observer that applies them in their order has the collection's order.

        :param changes: none if a group has only readings that are gone again.
        :param state: the collection after them; ``None`` if more of the same group follow.
        :return: the steps of the observer's work, each of less than a millisecond. They may be left undone
            once it is ignored.
        """


class Changes:
    """Tells one observer of all changes of the collection. Without an observer, it costs nothing."""

    def __init__(self, *, clock: IReactorTime, unavailable_reason: Callable[[], str | None]) -> None:
        """
        :param clock: schedules slices and pauses.
        :param unavailable_reason: returns the reason why the readings are not complete, or ``None``.
        """
        self._clock = clock
        self._unavailable_reason = unavailable_reason
        self._observer: IChangesObserver | None = None
        self._readings: Readings | None = None
        self._is_complete = False
        self.number = 0
        """The number of changes of which the observer is told, now or later. It never goes back."""
        self._must_begin = False
        self._singly: list[_Single] = []
        # In the order in which readings that are new to the observer come to their end.
        self._rest: dict[str, Change] = {}
        # Those ids of `_rest` that the observer does not have, and those that it has and must remove first.
        self._new: set[str] = set()
        self._removed: set[str] = set()
        self._telling: Iterator[None] | None = None
        self._worked_s = 0.0
        self._work = SlicedWork(
            clock,
            self._step,
            fault="Telling changes of the readings failed; starting again with all readings",
            on_fault=self._failed,
        )

    def use(self, readings: Readings) -> None:
        """Take another collection, which is not complete yet."""
        self._disconnect()
        self._readings = readings
        self._is_complete = False

    def complete(self) -> None:
        """The collection is complete: from now on, its changes are told."""
        self._is_complete = True
        if self._observer is not None:
            self._connect()

    def require_complete(self) -> None:
        """
        Check that the collection is complete.

        :raise ReadingsNotReady: it is not; with the reason.
        """
        unavailable_reason = self._unavailable_reason()
        if unavailable_reason is not None:
            raise ReadingsNotReady(unavailable_reason)

    def observe(self, observer: IChangesObserver) -> None:
        """Tell an observer of the state, soon or once it is complete, and then of all changes."""
        self._observer = observer
        if self._is_complete:
            self._connect()

    def ignore(self) -> None:
        """Stop observing."""
        self._observer = None
        self._disconnect()

    def _connect(self) -> None:
        if self._readings is not None:
            self._readings.on_change = self._change
            self._must_begin = True
            self._work.run_later()

    def _disconnect(self) -> None:
        if self._readings is not None:
            self._readings.on_change = None
        self._work.stop()
        self._telling = None
        self._forget()

    def _forget(self) -> None:
        self._singly, self._rest, self._new, self._removed = [], {}, set(), set()

    def _change(
        self,
        readings: Sequence[Reading] | None = (),
        /,
        *,
        removed: Sequence[str] = (),
        are_new: bool = False,
    ) -> None:
        self.number += 1
        self._work.run_later()
        if readings is None:
            self._must_begin = True
        if self._must_begin or self._readings is None or readings is None:
            return
        changes = [Change(each, None, None) for each in removed]
        changes += [Change(reading.id, reading.value, None) for reading in readings]
        if len(changes) == 1 and not self._rest and len(self._singly) < self._most_singly(self._readings):
            self._singly.append((changes[0], self._readings.snapshot(2), self.number))
            return
        for change in changes:
            self._put_off(change, is_new=are_new and change.value is not None)

    def _put_off(self, change: Change, *, is_new: bool) -> None:
        reading_id, rest = change.id, self._rest
        if is_new and reading_id not in rest:
            self._new.add(reading_id)
        if change.value is None and reading_id not in self._new:
            self._removed.add(reading_id)
        if is_new:
            # At its new place, the end.
            rest.pop(reading_id, None)
        rest[reading_id] = change

    @staticmethod
    def _most_singly(readings: Readings) -> int:
        return _SINGLY if readings.blocks <= _BLOCKS_SINGLY else 1

    def _step(self) -> float | None:
        """Tell some more; pause after each group. See `SlicedWork`."""
        if self._telling is None:
            if not (self._must_begin or self._singly or self._rest):
                return None
            self._worked_s = 0.0
            self._telling = self._tell()
        telling, began_s = self._telling, self._clock.seconds()
        is_over = next(telling, _OVER) is _OVER
        self._worked_s += self._clock.seconds() - began_s
        # The observer may have left in between, or the collection may be another one.
        if is_over and self._telling is telling:
            self._telling = None
            return min(self._worked_s * _PAUSE, _LONGEST_PAUSE_S)
        return 0.0

    def _failed(self) -> None:
        # The observer starts again from a whole state.
        self._telling = None
        self._must_begin = True

    def _tell(self) -> Iterator[None]:
        """Tell a state, or the changes up to now."""
        if self._readings is None or self._observer is None:
            return
        number, observer = self.number, self._observer
        if self._must_begin:
            self._must_begin = False
            self._forget()
            snapshot = self._readings.snapshot(2)
            yield from _encode(snapshot)
            observer.began(ReadingsState(snapshot.representation(), number))
            return
        singly, rest, removed = self._singly, self._rest, self._removed
        group = self._readings.snapshot(2) if rest else None
        self._forget()
        if singly:
            yield from _tell_singly(observer, singly)
        if group is not None:
            yield from _encode(group)
            state = ReadingsState(group.representation(), number)
            yield from _tell_group(observer, _changes(rest, removed), state)


def _encode(snapshot: Snapshot) -> Iterator[None]:
    while not snapshot.encode(at_once=_ENCODED_AT_ONCE):
        yield
    # The digest of thousands of blocks takes half a millisecond, too.
    yield


def _tell_singly(observer: IChangesObserver, singly: Sequence[_Single]) -> Iterator[None]:
    changes = []
    waiting = deque(singly)
    while waiting:
        # A snapshot is dropped once it has told its tag: each has the whole text of a block of its own.
        change, snapshot, number = waiting.popleft()
        yield from _encode(snapshot)
        state = ReadingsState(snapshot.representation(), number)
        changes.append(replace(change, etag=state.representation.etag))
        yield
    yield from observer.changed(changes, state)
    yield


def _tell_group(
    observer: IChangesObserver, changes: Iterator[Change], state: ReadingsState
) -> Iterator[None]:
    some = list(islice(changes, _TOLD_AT_ONCE))
    while subscription := list(islice(changes, _TOLD_AT_ONCE)):
        yield from observer.changed(some, None)
        some = subscription
        yield
    if some:
        some[-1] = replace(some[-1], etag=state.representation.etag)
    yield from observer.changed(some, state)
    yield


def _changes(rest: Mapping[str, Change], removed: Container[str]) -> Iterator[Change]:
    for reading_id, change in rest.items():
        if reading_id in removed:
            yield Change(reading_id, None, None)
        if change.value is not None:
            yield change
