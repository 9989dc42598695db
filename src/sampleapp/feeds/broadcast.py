"""Subscribers of a feed, in groups that get the same events: each event is encoded once for all of them."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, islice
from typing import Any, Final, Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace
from twisted.logger import Logger

from sampleapp.model import ConsumerRecord
from sampleapp.records.event_stream import END_OF_EVENT, begin_event
from sampleapp.records.positions import LONGEST_POSITION, without_epochs
from sampleapp.records.record_lines import record_line

MAX_FREQUENT_ID: Final = 128
"""Bytes of the longest id that each event has. A longer one is only on the last event of a group."""

_START: Final = begin_event()


def id_line(position: bytes) -> bytes:
    """Return the line with the id of an event; the rest of the event follows."""
    return b"id: %b\n" % position


def record_events(records: Iterable[ConsumerRecord]) -> list[bytes]:
    """Encode the event of each record, without an id."""
    return [b"%b%b%b" % (_START, record_line(record), END_OF_EVENT) for record in records]


WORK_AT_ONCE: Final = 800
"""The work for records in one step, as `Subscribers.take_some` counts it: 1 or 2 ms."""
_LARGE: Final = 8 * 1024
"""Bytes of events above which each subscriber is asked for room: what it does not take stays in memory."""
Header: TypeAlias = "tuple[str, bytes | None]"
Headers: TypeAlias = "tuple[tuple[str, bytes], ...]"
_Name: TypeAlias = "tuple[bytes | None, Headers]"
_SKIPPED: Final = b"-"
_NONE: Final[frozenset[int]] = frozenset()
_NO_HEADERS: Final[frozenset[Header]] = frozenset()
_OVER: Final = object()


class Selection(Struct, frozen=True):
    """The records that a subscriber gets, of one topic."""

    topic_id: str
    """The id of the topic, for positions."""
    partitions: frozenset[int] | None = None
    """The only partitions; ``None`` for all, with those that are added."""
    skipped: frozenset[int] = _NONE
    """Partitions that are left out of all."""
    key: bytes | None = None
    """The only key; ``None`` for all records."""
    headers: Headers = ()
    """The headers that each record must have, ascending."""

    def has(self, partition: int) -> bool:
        """Return whether it has the records of a partition."""
        if self.partitions is None:
            return partition not in self.skipped
        return partition in self.partitions


class Subscriber(Protocol):
    """A stream that gets the events of a group."""

    group: SubscriberGroup | None
    """The group that it has joined; set by the group."""
    joined: int
    """The number of the first chunk for it; set by the group."""
    position: bytes
    """Where to go on after everything that it was given; set by the group."""

    def has_room(self, event: Any) -> bool:
        """Return whether it may be given a large event; if not, it is detached before it."""

    def receive(self, event: Any, count: int) -> bool:
        """
        Take some events.

        :param event: made by ``make_event``; the same object for all subscribers.
        :param count: the number of records in it.
        :return: false to leave the group: the subscriber can take nothing more at the moment.
        """

    def detached(self, *, is_reset: bool) -> None:
        """
        Handle the end of its membership: it must read from its position on by itself, and then join again.

        :param is_reset: the topic was made again, or cut.
        """

    def failed(self) -> None:
        """End, after a fault in one of the other methods: events for it may be lost."""


class _Chunk(Struct, frozen=True):
    """Events that all members of a group get in one fragment."""

    number: int
    event: Any
    count: int
    position: bytes


class SubscriberGroup:
    """The subscribers with the same partitions and key."""

    __slots__ = (
        "_chunks",
        "_fragments",
        "_members",
        "_next_number",
        "_passing",
        "_retiring",
        "broadcast",
        "headers",
        "key",
        "wanted",
    )

    _log = Logger()

    def __init__(self, broadcast: Broadcast, key: bytes | None, headers: Headers) -> None:
        self.broadcast: Final = broadcast
        self.key: Final = key
        self.headers: Final = headers
        self.wanted: Final = frozenset(headers)
        """The same headers."""
        self._members: dict[Subscriber, None] = {}
        self._fragments: list[tuple[bytes, bytes]] = []
        self._chunks: deque[_Chunk] = deque()
        self._next_number = 0
        self._passing: tuple[_Chunk, Iterator[Subscriber]] | None = None
        self._retiring: bool | None = None

    def __bool__(self) -> bool:
        return bool(self._members)

    def __len__(self) -> int:
        return len(self._members)

    @property
    def has_unsent(self) -> bool:
        """True if its members do not have all events yet, or are not detached yet."""
        is_changing = self._passing is not None or self._retiring is not None
        return is_changing or bool(self._fragments or self._chunks)

    def add(self, subscriber: Subscriber, make_event: Callable[[bytes], Any]) -> None:
        """Add a subscriber, which gets the events that are added from now on."""
        self._seal(make_event)
        subscriber.joined = self._next_number
        subscriber.position = self.broadcast.position
        subscriber.group = self
        self._members[subscriber] = None

    def remove(self, subscriber: Subscriber) -> None:
        """Remove a subscriber, at any time."""
        self._members.pop(subscriber, None)
        subscriber.group = None

    def append(self, fragment: tuple[bytes, bytes]) -> None:
        """Add an event: its id, or nothing, and its data."""
        self._fragments.append(fragment)

    def retire(self, *, is_reset: bool) -> None:
        """Drop all unsent events, and detach all subscribers in the next calls of `pass_on`."""
        if not self.has_unsent:
            for subscriber in self._members:
                subscriber.position = self.broadcast.position
        self._retiring = is_reset
        self._fragments.clear()
        self._chunks.clear()
        self._passing = None

    def pass_on(self, count: int, make_event: Callable[[bytes], Any]) -> bool:
        """
        Hand events to some subscribers.

        :param count: the most subscribers to handle now.
        :return: whether there is more to do.
        """
        if self._retiring is not None:
            for member in list(islice(reversed(self._members), count)):
                # It may have left because of another one.
                if member.group is self:
                    self._hand_over(member, None)
            return bool(self._members)
        if self._passing is None:
            if not self._chunks:
                self._seal(make_event)
            if not self._chunks:
                return False
            self._passing = self._chunks[0], iter(list(self._members))
            self._chunks.popleft()
        chunk, subscribers = self._passing
        hand_over = self._hand_over if len(chunk.event) <= _LARGE else self._hand_over_if_room
        for _ in range(count):
            subscriber = next(subscribers, None)
            if subscriber is None:
                self._passing = None
                return self.has_unsent
            if subscriber.group is self:
                hand_over(subscriber, chunk)
        return True

    def _hand_over_if_room(self, subscriber: Subscriber, chunk: _Chunk) -> None:
        if subscriber.joined > chunk.number or subscriber.has_room(chunk.event):
            self._hand_over(subscriber, chunk)
        else:
            self._hand_over(subscriber, None)

    def _hand_over(self, subscriber: Subscriber, chunk: _Chunk | None) -> None:
        try:
            if chunk is None:
                self.remove(subscriber)
                subscriber.detached(is_reset=bool(self._retiring))
            elif subscriber.joined <= chunk.number:
                subscriber.position = chunk.position
                if not subscriber.receive(chunk.event, chunk.count):
                    self.remove(subscriber)
        except Exception:  # noqa: BLE001 -- a fault of one subscriber must not keep events from the others
            self._log.failure("A fault in a stream of records; its connection was cut")
            self.remove(subscriber)
            subscriber.failed()

    def _seal(self, make_event: Callable[[bytes], Any]) -> None:
        """Make one chunk of the events that have no chunk yet."""
        if not self._fragments:
            return
        fragments, position = self._fragments, self.broadcast.position
        data = b"".join([part for fragment in fragments[:-1] for part in fragment])
        # The last one always has an id, which is after what other groups have got as well.
        data += id_line(position) + fragments[-1][1]
        self._chunks.append(_Chunk(self._next_number, make_event(data), len(fragments), position))
        self._next_number += 1
        fragments.clear()


class Broadcast:
    """The positions of all subscribers of some partitions, and their groups."""

    __slots__ = (
        "_parts",
        "_position",
        "by_header",
        "by_key",
        "everything",
        "has_frequent_ids",
        "heartbeat",
        "selection",
    )

    def __init__(self, vector: Mapping[int, int], selection: Selection) -> None:
        """
        :param vector: the offset to read next of each partition; the first record for those without one.
        :param selection: its key and headers do not matter.
        """
        self.selection: Final = selection
        self.everything: SubscriberGroup | None = None
        self.by_key: dict[bytes, SubscriberGroup] = {}
        # By one of the headers of each: a record must not be compared with those of all groups.
        self.by_header: dict[Header, dict[_Name, SubscriberGroup]] = {}
        self._parts: list[bytes] = []
        self._position: bytes | None = None
        self.heartbeat: Any = None
        """The event with nothing but the position; made when it is needed."""
        for partition in vector if selection.partitions is None else sorted(selection.partitions):
            self._set(partition, _offset(vector.get(partition)))
        for partition in selection.skipped:
            self._set(partition, _SKIPPED)
        self.has_frequent_ids = len(self.position) <= MAX_FREQUENT_ID
        """True if each event has an id: it is short."""

    @property
    def has_groups(self) -> bool:
        """True if there is a group."""
        return self.everything is not None or bool(self.by_key) or bool(self.by_header)

    @property
    def groups(self) -> list[SubscriberGroup]:
        """All groups."""
        groups = [*self.by_key.values(), *chain.from_iterable(map(dict.values, self.by_header.values()))]
        return groups if self.everything is None else [self.everything, *groups]

    @property
    def position(self) -> bytes:
        """The position after all records that were added, as text."""
        position = self._position
        if position is None:
            position = self._position = b"%b~%b" % (
                self.selection.topic_id.encode("ascii"),
                b".".join(self._parts),
            )
            if len(position) > LONGEST_POSITION:
                position = self._position = without_epochs(position.decode("ascii")).encode("ascii")
        return position

    def knows(self, partition: int) -> bool:
        """Return whether it has a position in a partition."""
        return partition < len(self._parts) and self._parts[partition] not in (b"", _SKIPPED)

    def move(self, partition: int, offset: int) -> None:
        """Set the position in a partition."""
        self._set(partition, b"%a" % offset)

    def move_past(self, record: ConsumerRecord) -> None:
        """Set the position in the partition of a record to that after it."""
        # Not with `move`, since this is done for each record.
        offset, epoch = record.offset + 1, record.leader_epoch
        self._set(record.partition, b"%d" % offset if epoch < 0 else b"%de%d" % (offset, epoch))

    def group(self, key: bytes | None, headers: Headers = ()) -> SubscriberGroup:
        """Return the group for a key and headers, or for all records."""
        if headers:
            return self._group_of_headers(key, headers)
        if key is None:
            if self.everything is None:
                self.everything = SubscriberGroup(self, None, ())
            return self.everything
        group = self.by_key.get(key)
        if group is None:
            group = self.by_key[key] = SubscriberGroup(self, key, ())
        return group

    def _group_of_headers(self, key: bytes | None, headers: Headers) -> SubscriberGroup:
        name = key, headers
        indexed = [self.by_header.get(header, {}) for header in headers]
        for groups in indexed:
            if name in groups:
                return groups[name]
        # The rarest one: that of few groups.
        header, _ = min(zip(headers, indexed, strict=True), key=lambda each: len(each[1]))
        group = SubscriberGroup(self, key, headers)
        self.by_header.setdefault(header, {})[name] = group
        return group

    def candidates(self, headers: AbstractSet[Header]) -> list[SubscriberGroup]:
        """Return the groups for headers of which a record has at least one: each must be compared."""
        by_header = self.by_header
        return [group for header in by_header.keys() & headers for group in by_header[header].values()]

    def drop(self, group: SubscriberGroup) -> None:
        """Forget an empty group."""
        if group is self.everything:
            self.everything = None
        elif group.key is not None and self.by_key.get(group.key) is group:
            del self.by_key[group.key]
        for header in group.headers:
            groups = self.by_header.get(header, {})
            if groups.get((group.key, group.headers)) is group:
                del groups[group.key, group.headers]
                if not groups:
                    del self.by_header[header]

    def _set(self, partition: int, part: bytes) -> None:
        parts = self._parts
        if partition >= len(parts):
            filler = b"" if self.selection.partitions is None else _SKIPPED
            parts.extend([filler] * (partition + 1 - len(parts)))
        parts[partition] = part
        self._position = self.heartbeat = None


def _offset(offset: int | None) -> bytes:
    return b"" if offset is None else b"%a" % offset


class Subscribers:
    """All subscribers of a feed."""

    def __init__(self, *, make_event: Callable[[bytes], Any]) -> None:
        """:param make_event: see `Feeds`."""
        self._make_event: Final = make_event
        self._broadcasts: dict[Selection, Broadcast] = {}
        self._busy: OrderedDict[SubscriberGroup, None] = OrderedDict()
        self._taking: Generator[None, None, None] | None = None
        self._work = 0

    def __bool__(self) -> bool:
        return bool(self._broadcasts) or bool(self._busy)

    @property
    def is_busy(self) -> bool:
        """True if `pass_on` has something to do."""
        return bool(self._busy)

    def join(self, subscriber: Subscriber, vector: Mapping[int, int], selection: Selection) -> None:
        """
        Add a subscriber for the records that are taken from now on.

        :param vector: the offset of each partition from which on records are taken.
        """
        name = replace(selection, key=None, headers=())
        broadcast = self._broadcasts.get(name)
        if broadcast is None:
            known = {partition: offset for partition, offset in vector.items() if name.has(partition)}
            broadcast = self._broadcasts[name] = Broadcast(known, name)
        broadcast.group(selection.key, selection.headers).add(subscriber, self._make_event)

    def leave(self, subscriber: Subscriber) -> None:
        """Remove a subscriber, if it has joined."""
        group = subscriber.group
        if group is not None:
            group.remove(subscriber)
            if not group and not group.has_unsent:
                self._drop(group)

    @property
    def is_taking(self) -> bool:
        """True if `take_some` has something to do. Until that is done, call neither `pass_on` nor `join`."""
        return self._taking is not None

    def take(self, partition: int, records: Sequence[ConsumerRecord]) -> int:
        """
        Begin to encode records of a partition, once for all, and to add them to all groups that they are for.

        :return: the work that was done; see `take_some`.
        """
        self._taking = self._take(partition, records)
        return self.take_some()

    def take_some(self) -> int:
        """
        Go on with the records of `take`.

        :return: the work: 1 for each record and selection, and 1 for each group whose headers were compared
            with those of a record. Each costs 1 or 2 us. It is not much more than `WORK_AT_ONCE`.
        """
        self._work = 0
        if self._taking is not None and next(self._taking, _OVER) is _OVER:
            self._taking = None
        return self._work

    def _take(self, partition: int, records: Sequence[ConsumerRecord]) -> Generator[None, None, None]:
        events: Sequence[bytes] = ()
        headers: Sequence[AbstractSet[Header]] = ()
        for broadcast in list(self._broadcasts.values()):
            if not broadcast.selection.has(partition):
                continue
            try:
                if broadcast.by_header and not headers:
                    # Once for all groups: a record may have a thousand headers.
                    headers = [set(record.headers) for record in records]
                for index, record in enumerate(records):
                    broadcast.move_past(record)
                    self._work += 1
                    fragment = None
                    for group in self._groups_for(
                        broadcast, record.key, headers[index] if headers else _NO_HEADERS
                    ):
                        if group is not None:
                            if fragment is None:
                                events = events or record_events(records)
                                name = id_line(broadcast.position) if broadcast.has_frequent_ids else b""
                                fragment = name, events[index]
                            self._busy[group] = None
                            group.append(fragment)
                        if self._work >= WORK_AT_ONCE:
                            yield
            except BaseException:
                # Nothing of the records was passed on: all groups are before them still.
                broadcast.move(partition, records[0].offset)
                raise

    def _groups_for(
        self, broadcast: Broadcast, key: bytes | None, headers: AbstractSet[Header]
    ) -> Iterable[SubscriberGroup | None]:
        """Return the groups for a record, and ``None`` in between."""
        groups = broadcast.everything, broadcast.by_key.get(key) if key is not None else None
        if not broadcast.by_header:
            return groups
        return chain(groups, self._compare(broadcast, key, headers))

    def _compare(
        self, broadcast: Broadcast, key: bytes | None, headers: AbstractSet[Header]
    ) -> Iterator[SubscriberGroup | None]:
        """Yield the groups for headers that a record has, and ``None`` for each that was compared in vain."""
        for group in broadcast.candidates(headers):
            self._work += 1
            yield group if group.wanted <= headers and group.key in (None, key) else None

    def begin_at(self, partition: int, offset: int, *, is_new: bool) -> None:
        """Note that the records of a partition before an offset do not come."""
        for broadcast in list(self._broadcasts.values()):
            if not broadcast.selection.has(partition):
                continue
            if is_new and offset == 0 and not broadcast.knows(partition):
                broadcast.move(partition, 0)
            else:
                self._retire(broadcast, is_reset=False)

    def passed(self, partition: int, offset: int) -> None:
        """Move past offsets of a partition that have no record."""
        for broadcast in self._broadcasts.values():
            if broadcast.selection.has(partition):
                broadcast.move(partition, offset)

    def retire_all(self, *, is_reset: bool) -> None:
        """Detach all subscribers, gradually; drop the records that are being taken."""
        if self._taking is not None:
            self._taking.close()
            self._taking = None
        for broadcast in list(self._broadcasts.values()):
            self._retire(broadcast, is_reset=is_reset)

    def pass_on(self, count: int) -> None:
        """Hand events to up to ``count`` subscribers."""
        group = next(iter(self._busy))
        if not group.pass_on(count, self._make_event):
            del self._busy[group]
            if not group:
                self._drop(group)

    def heartbeat(self, broadcast: Broadcast) -> Any:
        """Return the event that has nothing but the position of a broadcast."""
        if broadcast.heartbeat is None:
            broadcast.heartbeat = self._make_event(id_line(broadcast.position) + b"\n")
        return broadcast.heartbeat

    def _retire(self, broadcast: Broadcast, *, is_reset: bool) -> None:
        for group in broadcast.groups:
            self._busy[group] = None
            group.retire(is_reset=is_reset)
        del self._broadcasts[broadcast.selection]

    def _drop(self, group: SubscriberGroup) -> None:
        broadcast = group.broadcast
        broadcast.drop(group)
        if self._broadcasts.get(broadcast.selection) is broadcast and not broadcast.has_groups:
            del self._broadcasts[broadcast.selection]
