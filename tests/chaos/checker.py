"""
The promises of the service, checked for a history against the logs of the topics.

It knows nothing of the service: what is in the topics comes from another client of Kafka.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tests.chaos.history import FOREIGN, NOT_STORED, History, Item, Place, Readings, Request, Topic
from tests.real_kafka.reading import Stored

__all__ = ["check", "check_reader", "check_readings", "expected_readings"]

FINGERPRINT = "idempotency-fingerprint"
"""The header that the service adds to a record with an idempotency key."""

Where = tuple[int, Place]
"""A generation of a topic, and a place in it."""


def check(history: History) -> list[str]:
    """Return a sentence for each promise that was broken."""
    found = []
    for name, topic in history.topics.items():
        requests = [each for each in history.requests if each.topic == name]
        places = _places(topic)
        for request in requests:
            found += [f"{name}: {each}" for each in _check_request(request, topic, places)]
        found += [f"{name}: {each}" for each in _check_order(requests, places)]
        found += [f"{name}: {each}" for each in _check_origin(requests, topic)]
    for reader, (name, items) in history.readers.items():
        found += [f"{reader}: {each}" for each in check_reader(history, name, items)]
    return found + list(check_readings(history))


def _places(topic: Topic) -> Mapping[str, Sequence[Where]]:
    """Each place of each value. Of a topic that elections may cut, only those that there are at the end."""
    logs = [log.values() for log in topic.generations]
    if topic.is_cut:
        logs[-1] = topic.latest
    places = defaultdict(list)
    for generation, log in enumerate(logs):
        for each in log:
            if each.value is not None:
                places[each.value.decode()].append((generation, (each.partition, each.offset)))
    return places


def _is_deleted(topic: Topic, place: Place) -> bool:
    partition, offset = place
    return offset < topic.starts.get(partition, 0)


def _check_request(request: Request, topic: Topic, places: Mapping[str, Sequence[Where]]) -> Iterator[str]:
    for n, sent in enumerate(request.records):
        name = f"{sent.value!r} of {request.sender}"
        said = request.places(n)
        outcomes = [each.outcomes[n] for each in request.attempts]
        if sent.value is None:
            last = len(topic.generations) - 1
            there: Sequence[Where] = [(last, place) for place in said if place in topic.generations[last]]
        else:
            there = places.get(sent.value, [])
        is_kept = not topic.is_cut and not all(_is_deleted(topic, place) for place in said)
        wrong = {
            "was answered with different places": len(said) > 1,
            "is stored more than once": len(there) > 1,
            "was published with the idempotency key of another": there and request.is_rejected,
            "is elsewhere": there and said and said.isdisjoint(place for _, place in there),
            "is lost": said and not there and is_kept,
            "is stored, and was answered as not stored": there and set(outcomes) == {NOT_STORED},
        }
        yield from (f"{name} {each}: at {there}, answers {outcomes}" for each in wrong if wrong[each])
        for generation, place in there:
            stored = topic.generations[generation][place]
            if _content(stored) != (sent.key, sent.value, dict(sent.headers)):
                yield f"{name} was altered: sent {sent}, stored {stored}"
    if request.is_identified:
        yield from _check_replays(request)


def _content(stored: Stored) -> tuple[str | None, str | None, dict[str, str]]:
    headers = {name: value.decode() for name, value in stored.headers if name != FINGERPRINT}
    key, value = (None if each is None else each.decode() for each in (stored.key, stored.value))
    return key, value, headers


def _check_replays(request: Request) -> Iterator[str]:
    """Check the header ``Idempotent-Replayed``."""
    name = f"{request.records[0].value!r} of {request.sender}"
    complete = [each for each in request.attempts if all(isinstance(o, tuple) for o in each.outcomes)]
    firsts = [each for each in complete if not each.is_replayed]
    if len(firsts) > len(request.records):
        yield f"{name} was published {len(firsts)} times by what the responses say"
    for each in complete:
        if not each.is_replayed and any(other.ended_s < each.begun_s for other in complete):
            yield f"{name} was answered as published again, after a response with its place"
        if each.is_replayed and not any(o.begun_s < each.ended_s for o in request.attempts if o is not each):
            yield f"{name} was answered as a repeat, and was sent once"


def _check_order(requests: Sequence[Request], places: Mapping[str, Sequence[Where]]) -> Iterator[str]:
    """A client's records with one key are in the order in which it sent them, in each partition."""
    last: defaultdict[tuple, tuple[int, str]] = defaultdict(lambda: (-1, ""))
    """Of each sender, key, generation and partition, the last offset that was answered."""
    for request in requests:
        # Records that a later attempt has stored may come after those of an earlier one.
        is_whole = not request.is_identified or request.attempts[0].outcomes == request.attempts[-1].outcomes
        so_far = dict(last)
        for n, sent in enumerate(request.records):
            for generation, (partition, offset) in places.get(sent.value or "", [])[:1]:
                line = request.sender, sent.key, generation, partition
                before = (last if is_whole else so_far).get(line, (-1, ""))
                if offset <= before[0]:
                    yield f"{sent.value!r} of {request.sender} is before {before[1]!r}"
                # A record whose place no response has may be stored late.
                if request.places(n) and offset > last[line][0]:
                    last[line] = offset, sent.value or ""


def _check_origin(requests: Sequence[Request], topic: Topic) -> Iterator[str]:
    known = {sent.value for request in requests for sent in request.records}
    for stored in (each for log in topic.generations for each in log.values()):
        value = None if stored.value is None else stored.value.decode()
        if value not in known and not (value or "").startswith(FOREIGN):
            yield f"was never sent: {stored}"


def check_reader(history: History, name: str, items: Sequence[Item]) -> list[str]:
    """Check that a reader got each record once and in order, or was told that it is missing."""
    reader = _Reader(history, name)
    try:
        for item in items:
            {"message": reader.message, "gap": reader.gap, "reset": reader.reset}[item.kind](item.data)
        reader.end()
    except _Broken as error:
        return [str(error)]
    return []


class _Broken(Exception):
    """A promise to a reader."""


class _Reader:
    def __init__(self, history: History, name: str) -> None:
        self._topic = history.topics[name]
        self._sent = {
            sent.value: (sent.key, sent.value, dict(sent.headers))
            for request in history.requests
            if request.topic == name
            for sent in request.records
        }
        self._last = len(self._topic.generations) - 1
        self._generation = None if self._last else 0
        """That of the records since the last reset, as far as they tell."""
        self._next: dict[int, int] = {}
        """The offset to read next of each partition, since the last reset."""
        self._since_reset: list[Mapping] = []
        self._offsets = [_by_partition(log) for log in self._topic.generations]
        if not self._last and not self._topic.is_cut:
            # Some may have been deleted before librdkafka read them.
            requests = [each for each in history.requests if each.topic == name]
            said = [place for each in requests for n in range(len(each.records)) for place in each.places(n)]
            self._offsets = [_by_partition({*self._topic.generations[0], *said})]

    def message(self, data: Mapping) -> None:
        place = partition, offset = data["partition"], data["offset"]
        if offset < self._next.get(partition, 0):
            raise _Broken(f"got {place} again, or too late: {data}")
        generation = self._generation_of(place, data)
        if self._generation is not None and generation != self._generation:
            raise _Broken(f"was not told that the topic was made again, before {data}")
        self._generation = generation
        self._expect_nothing_before(partition, offset)
        self._next[partition] = offset + 1
        self._since_reset.append(data)

    def gap(self, data: Mapping) -> None:
        for gone in data["gone"]:
            partition, asked, earliest = gone["partition"], gone["asked"], gone["earliest"]
            self._expect_nothing_before(partition, asked)
            if not asked < earliest <= self._topic.starts.get(partition, 0):
                raise _Broken(f"was told of a gap that is not there: {gone}")
            self._next[partition] = max(self._next.get(partition, 0), earliest)

    def reset(self, data: Mapping) -> None:
        expected = "position-unknown" if self._topic.is_cut else "topic-replaced"
        if data["reason"] != expected or not (self._last or self._topic.is_cut):
            raise _Broken(f"was told of a reset for no reason: {data}")
        self._generation = None if self._last else 0
        self._next.clear()
        self._since_reset.clear()

    def end(self) -> None:
        """Check what the reader has not got."""
        if self._generation not in (self._last, None):
            raise _Broken("was not told that the topic was made again")
        self._generation = self._last
        if self._topic.is_cut:
            self._end_of_cut()
            return
        for partition in self._offsets[self._last]:
            self._expect_nothing_before(partition, float("inf"), is_end=True)

    def _end_of_cut(self) -> None:
        log = {(each.partition, each.offset): each for each in self._topic.latest}
        got = {(data["partition"], data["offset"]): data for data in self._since_reset}
        for place, data in got.items():
            if place not in log or _content(log[place]) != _content_of(data):
                raise _Broken(f"was not told that the log was cut: got {data}, but has {log.get(place)}")
        if log.keys() - got.keys():
            raise _Broken(f"never got {sorted(log.keys() - got.keys())[:3]}, nor was told")

    def _generation_of(self, place: Place, data: Mapping) -> int:
        got = _content_of(data)
        for generation, log in enumerate(self._topic.generations):
            if place in log and _content(log[place]) == got:
                return generation
        is_gone = self._topic.is_cut or _is_deleted(self._topic, place)
        if is_gone and (got == self._sent.get(got[1]) or (got[1] or "").startswith(FOREIGN)):
            return self._last
        stored = self._topic.generations[self._last].get(place)
        raise _Broken(f"got what is not in the topic: {data}; there is {stored}")

    def _expect_nothing_before(self, partition: int, end: float, *, is_end: bool = False) -> None:
        if self._generation is None or self._topic.is_cut:
            return
        begin = self._next.get(partition)
        if begin is None:
            # It begins with the first record that there was.
            begin = self._topic.starts.get(partition, 0) if self._generation == self._last else 0
        offsets = self._offsets[self._generation].get(partition, [])
        lost = [offset for offset in offsets if begin <= offset < end]
        if is_end:
            lost = [offset for offset in lost if not _is_deleted(self._topic, (partition, offset))]
        if lost:
            raise _Broken(f"never got {len(lost)} records of partition {partition}, {lost[:3]}, nor was told")


def _by_partition(places: Iterable[Place]) -> dict[int, list[int]]:
    found = defaultdict(list)
    for partition, offset in sorted(places):
        found[partition].append(offset)
    return found


def _content_of(data: Mapping) -> tuple[str | None, str | None, dict[str, str]]:
    headers = {name: value for name, value in data.get("headers", {}).items() if name != FINGERPRINT}
    return data.get("key"), data["content"], headers


def expected_readings(records: Sequence[Stored]) -> list[tuple[str, float]]:
    """The readings that a topic has: the last value of each id, in the order of their first records."""
    found: dict[bytes, tuple[tuple[int, int, int], float]] = {}
    for each in sorted(records, key=lambda each: (each.partition, each.offset)):
        assert each.key is not None
        if each.value is None:
            found.pop(each.key, None)
            continue
        first = each.timestamp_ms, each.partition, each.offset
        found[each.key] = found.get(each.key, (first, 0.0))[0], float(each.value)
    return [(key.decode(), value) for key, (_, value) in sorted(found.items(), key=lambda item: item[1][0])]


def check_readings(history: History) -> Iterator[str]:
    """Check what each gateway serves as readings at the end, if that is known."""
    if not history.readings:
        return
    expected = expected_readings(history.topics[history.readings_topic].latest)
    for gateway, found in history.readings.items():
        yield from (f"{gateway}: {each}" for each in _check_gateway(found, expected, history.served))
    tags = {found.etag for found in history.readings.values()}
    if len(tags) > 1:
        yield f"gateways have different entity tags of the same readings: {tags}"


def _check_gateway(
    found: Readings, expected: Sequence[tuple[str, float]], served: Mapping[str, Mapping[str, float]]
) -> Iterator[str]:
    if list(found.version_2) != list(expected):
        yield f"the readings are {found.version_2}, but the log says {expected}"
    if list(found.version_1) != [value for _, value in expected]:
        yield f"version 1 of the readings is {found.version_1}, but the log says {expected}"
    if not found.changes or found.changes[-1] != (found.etag, dict(expected)):
        yield f"the changes come to {found.changes[-1:]}, but the log says {found.etag}, {expected}"
    for etag, readings in found.changes:
        if served.get(etag, readings) != readings:
            yield f"the changes come to {readings} at {etag}, which was served as {served[etag]}"
