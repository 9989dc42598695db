"""Clients that read a topic as event streams and come back, and what must be true of all that they got."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.support.event_streams import EventReader

__all__ = ["Item", "Reference", "StreamClient", "check_items"]

_SILENCE_S = 25.0
"""The service sends something every 15 seconds."""
_RETRY_S = 0.3


class Item(NamedTuple):
    """An event, with the position after it."""

    event: str
    data: dict
    event_id: str


class StreamClient:
    """
    Reads streams of one path in a thread of its own, and comes back with ``Last-Event-ID``.

    It leaves now and then, and reads slowly now and then. Each time it asks any of the services.
    """

    def __init__(
        self,
        name: str,
        urls: Sequence[str],
        path: str,
        *,
        seed: int = 0,
        is_slow: bool = False,
    ) -> None:
        self.name = name
        self.items: list[Item] = []
        self.statuses: defaultdict[int, int] = defaultdict(int)
        self.broken: list[str] = []
        self._urls = urls
        self._path = path
        self._random = random.Random(seed)
        self._is_slow = is_slow
        self._reader = EventReader()
        self._stopping = threading.Event()
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hurry(self) -> None:
        """Read as fast as there is something to read from now on."""
        self._is_slow = False

    def stop(self) -> None:
        self._stopping.set()
        sock = self._socket
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(60)
        assert not self._thread.is_alive(), self.name

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._read_one()
            except (OSError, http.client.HTTPException):
                self.statuses[0] += 1
            except Exception as error:  # noqa: BLE001 -- the test shows it
                self.broken.append(repr(error))
                return
            self._reader.come_back()
            self._stopping.wait(self._random.uniform(0, 2 * _RETRY_S))

    def _read_one(self) -> None:
        url = urlsplit(self._random.choice(self._urls))
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=_SILENCE_S)
        headers = {"Accept": "text/event-stream"}
        if self._reader.last_event_id:
            headers["Last-Event-ID"] = self._reader.last_event_id
        with contextlib.closing(connection):
            connection.connect()
            self._socket = connection.sock
            if self._is_slow:
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.request("GET", self._path, headers=headers)
            answer = connection.getresponse()
            self.statuses[answer.status] += 1
            if answer.status != http.client.OK:
                assert answer.status in (404, 429, 503), (answer.status, answer.read())
                return
            leave_at_s = time.monotonic() + self._random.uniform(2, 20)
            while time.monotonic() < leave_at_s and not self._stopping.is_set():
                received = answer.read1(8192 if self._is_slow else 65536)
                if not received:
                    return
                for each in self._reader.feed(received):
                    self.items.append(Item(each.event, json.loads(each.data), each.event_id))
                if self._is_slow:
                    self._stopping.wait(self._random.choice([0, 0, 0.02, 0.1, 0.5]))


class Reference:
    """
    What was in the topic, in each of its generations, as a consumer that is not ours has read it.

    Each value begins with the number of its generation and a colon.
    """

    def __init__(self) -> None:
        self.records: defaultdict[int, dict[tuple[int, int], tuple[bytes | None, str]]] = defaultdict(dict)
        """By generation, and by partition and offset: key and value."""
        self.deleted_before: defaultdict[tuple[int, int], int] = defaultdict(int)
        """The first offset that a partition of a generation still has."""

    def add(self, generation: int, stored: Sequence) -> None:
        """Add what there is now."""
        known = self.records[generation]
        for each in stored:
            value = each.value.decode()
            assert value.startswith(f"{generation}:"), value
            place = each.partition, each.offset
            assert known.setdefault(place, (each.key, value)) == (each.key, value), place


def check_items(
    name: str,
    items: Sequence[Item],
    reference: Reference,
    *,
    wanted: Callable[[int, bytes | None], bool] = lambda *_: True,
) -> Mapping[str, int]:
    """
    Check that a client got each record once and in order, or was told that it is missing.

    :param wanted: decides by partition and key whether the client has asked for a record.
    :return: how many items of each kind there were.
    :raise AssertionError: a record was lost, repeated, not in order or never stored; with the place.
    """
    return _Check(name, items, reference, wanted).run()


class _Check:
    def __init__(
        self,
        name: str,
        items: Sequence[Item],
        reference: Reference,
        wanted: Callable[[int, bytes | None], bool],
    ) -> None:
        self._name, self._items, self._reference, self._wanted = name, items, reference, wanted
        self._by_partition = _by_partition(reference, wanted)
        self._generation = 0
        self._next: defaultdict[int, int] = defaultdict(int)
        self._position: Mapping[int, int] = {}
        """The offsets in the last id: records that are gone after one of them are told."""
        self._where = "the beginning"

    def run(self) -> Mapping[str, int]:
        counts: defaultdict[str, int] = defaultdict(int)
        kinds = {"message": self._record, "gap": self._gap, "reset": self._reset}
        for index, item in enumerate(self._items):
            counts[item.event] += 1
            self._where = f"item {index}: {item}, after {self._position}"
            kinds[item.event](index, item.data)
            position = _offsets_in(item.event_id)
            for partition in position.keys() - self._position.keys():
                self._begin(partition, position[partition])
            self._position = position
        self._where = "the end"
        self._demand(
            self._generation == max(self._reference.records), "has not noticed that the topic was made again"
        )
        for partition in self._by_partition[self._generation]:
            self._expect_nothing_before(partition, float("inf"))
        return counts

    def _record(self, _: int, data: dict) -> None:
        partition, offset, value = data["partition"], data["offset"], data["content"]
        self._demand(
            int(value.split(":")[0]) == self._generation, f"was not told of generation {value.split(':')[0]}"
        )
        records = self._reference.records[self._generation]
        key, expected = records.get((partition, offset), (None, None))
        self._demand(value == expected, f"got what is not in the topic, but {expected!r}")
        self._demand(self._wanted(partition, key), "got what it has not asked for")
        self._demand(offset >= self._next[partition], "got a record again, or too late")
        if partition not in self._position:
            self._begin(partition, offset)
        self._expect_nothing_before(partition, offset)
        self._next[partition] = offset + 1

    def _begin(self, partition: int, offset: int) -> None:
        """Begin at the first record that a partition still has when the client first reads it."""
        if not self._next[partition]:
            self._next[partition] = min(offset, self._reference.deleted_before[self._generation, partition])

    def _gap(self, _: int, data: dict) -> None:
        for gone in data["gone"]:
            partition, asked, earliest = gone["partition"], gone["asked"], gone["earliest"]
            self._expect_nothing_before(partition, asked)
            begins_at = self._reference.deleted_before[self._generation, partition]
            self._demand(asked < earliest <= begins_at, f"was told of a gap, but the first is {begins_at}")
            self._next[partition] = max(self._next[partition], earliest)

    def _reset(self, index: int, data: dict) -> None:
        self._demand(data == {"reason": "topic-replaced"}, "was told of a wrong reason")
        # What was left of the former topic cannot be read any more.
        self._next.clear()
        # Several generations may have gone by unseen.
        rest = self._items[index + 1 :]
        following = next((each for each in rest if each.event in ("message", "reset")), None)
        if following is not None and following.event == "message":
            self._generation = int(following.data["content"].split(":")[0])
        else:
            self._generation = min(self._generation + 1, max(self._reference.records))

    def _expect_nothing_before(self, partition: int, end: float) -> None:
        offsets = self._by_partition[self._generation][partition]
        lost = [offset for offset in offsets if self._next[partition] <= offset < end]
        self._demand(
            not lost,
            f"never got {len(lost)} records of partition {partition}: {lost[:5]}, and those before "
            f"{self._reference.deleted_before[self._generation, partition]} were deleted",
        )

    def _demand(self, condition: bool, what: str) -> None:  # noqa: FBT001 -- as an assert
        assert condition, f"{self._name}, generation {self._generation}: {what}; at {self._where}"


def _offsets_in(event_id: str) -> Mapping[int, int]:
    places = event_id.partition("~")[2].split(".")
    return {partition: int(place) for partition, place in enumerate(places) if place.isdigit()}


def _by_partition(reference: Reference, wanted: Callable[[int, bytes | None], bool]) -> dict:
    found: dict = defaultdict(lambda: defaultdict(list))
    for generation, records in reference.records.items():
        for (partition, offset), (key, _) in sorted(records.items()):
            if wanted(partition, key):
                found[generation][partition].append(offset)
    return found
