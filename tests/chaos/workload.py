"""The clients of a run, and the history of their requests and responses."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock

from tests.chaos.clients import ANSWER_S, Client, PageReader, Publisher, ReadingsReader, fetch
from tests.chaos.history import NOT_STORED, History, Item, Readings
from tests.chaos.logs import Logs
from tests.chaos.nemesis import CUT, GROWN, KEYS, READINGS, REMADE, SHORT
from tests.chaos.workers import WORK
from tests.real_kafka.service import VERSION_2
from tests.real_kafka.stream_clients import StreamClient

__all__ = ["Workload"]

_PAUSE_S = 0.3
"""On average, between two requests of a publisher."""
_LATE_S = 60
"""The longest time for which a late reader does not read."""
_LINES = 60
"""At most in a batch of messages to work through."""
_READING_IDS = ("abc", "defg")
"""Of each of their publishers; a character is an id."""
_READ = (KEYS, GROWN, SHORT, CUT, REMADE)


class Workload:
    """Publishers and readers of all topics, through all gateways."""

    def __init__(self, urls: Sequence[str], *, seed: int, has_work: bool = False) -> None:
        """:param has_work: whether the topic `WORK` is published to, too."""
        self._urls, self._seed = urls, seed
        self._publishers = [
            *(
                self._publisher(KEYS, n, keys, identified=0.6)
                for n, keys in enumerate(3 * ["a", "bc", " ", "d "])
            ),
            *(self._publisher(GROWN, n, keys) for n, keys in enumerate(["a", "bc "])),
            self._publisher(SHORT, 0, "a "),
            self._publisher(CUT, 0, "abcd ", pause_s=_PAUSE_S / 3),
            self._publisher(REMADE, 0, "a ", may_be_missing=True),
            *(self._publisher(READINGS, n, keys, numbers=True) for n, keys in enumerate(_READING_IDS)),
            *(self._publisher(WORK, n, "abcd ", lines=_LINES) for n in range(2 * has_work)),
        ]
        self._pages = [
            *(PageReader(f"page of {topic}", urls, topic, seed=seed) for topic in _READ),
            *(
                PageReader(f"late page of {topic}", urls, topic, seed=seed, rest_s=_LATE_S)
                for topic in (SHORT, CUT)
            ),
        ]
        self._streams = {
            f"stream of {topic}": (topic, self._stream(f"/topics/{topic}/records?from=earliest", urls))
            for topic in _READ
        }
        slow = self._stream(f"/topics/{KEYS}/records?from=earliest", urls, is_slow=True)
        self._streams[f"slow stream of {KEYS}"] = KEYS, slow
        self._readings = ReadingsReader("readings", urls, seed=seed, always=_READING_IDS[0][0])
        self._changes = [self._stream("/changes", [url]) for url in urls]

    @property
    def remaking(self) -> Lock:
        """Held while the topic `REMADE` must not be published to."""
        return next(each.turn for each in self._publishers if each.topic == REMADE)

    @property
    def requests(self) -> int:
        """The number of requests to publish until now, each counted once."""
        return sum(len(each.requests) for each in self._publishers)

    @property
    def broken(self) -> list[str]:
        """Responses that no client expects."""
        return [text for each in (*self._clients(), *self._all_streams()) for text in each.broken]

    def start(self) -> None:
        """Begin to publish and to read."""
        for each in (*self._clients(), *self._all_streams()):
            each.start()

    def finish_publishing(self, *, deadline_s: float) -> None:
        """Publish no more, and wait for the missing responses. :raise AssertionError: not in time."""
        for each in self._publishers:
            each.is_enough.set()
        for each in (*self._pages, *self._all_streams()):
            each.hurry()
        until_s = time.monotonic() + deadline_s
        for each in self._publishers:
            each.join(max(0, until_s - time.monotonic()))
            assert not each.is_alive(), f"{each.name}: its requests are not answered"

    def stop(self) -> None:
        """Stop all clients."""
        for each in self._clients():
            each.is_enough.set()
        for each in self._clients():
            each.join(ANSWER_S)
        for each in self._all_streams():
            each.stop()

    def history(self, logs: Logs) -> History:
        """Everything until now but the readings; see `add_readings`."""
        streams = {
            name: (topic, [Item(item.event, item.data) for item in list(each.items)])
            for name, (topic, each) in self._streams.items()
        }
        return History(
            requests=[request for each in self._publishers for request in each.requests],
            topics=logs.topics,
            readers={**{each.name: (each.topic, list(each.items)) for each in self._pages}, **streams},
        )

    def add_readings(self, history: History) -> History:
        """Ask each gateway for its readings."""
        history.readings_topic = READINGS
        history.served = dict(self._readings.found)
        history.readings = {
            url: _readings(url, stream) for url, stream in zip(self._urls, self._changes, strict=True)
        }
        return history

    def counts(self, history: History) -> Mapping[str, Counter]:
        """How often there was what, for people."""
        outcomes: Counter[str] = Counter()
        for request in history.requests:
            for n in range(len(request.records)):
                said = {each.outcomes[n] for each in request.attempts}
                is_placed = bool(request.places(n))
                outcomes[
                    "acknowledged" if is_placed else "rejected" if said == {NOT_STORED} else "unknown"
                ] += 1
        return {
            "records that were sent": outcomes,
            "responses to publishers": sum((each.counts for each in self._publishers), Counter()),
            "responses to readers of pages": sum((each.counts for each in self._pages), Counter()),
            "responses to GET /": self._readings.counts,
            "responses to streams": sum((Counter(each.statuses) for each in self._all_streams()), Counter()),
            "what readers got": Counter(
                f"{item.kind} of {topic}" for topic, items in history.readers.values() for item in items
            ),
        }

    def _publisher(self, topic: str, number: int, keys: str, *, numbers: bool = False, **more) -> Publisher:
        """:param keys: each character is a key; a space is none."""
        return Publisher(
            f"{topic}-{number}",
            self._urls,
            topic,
            seed=self._seed + number,
            keys=[None if each == " " else each for each in keys],
            number=(number + 1) * 10**7 if numbers else None,
            **{"pause_s": _PAUSE_S, **more},
        )

    def _stream(self, path: str, urls: Sequence[str], *, is_slow: bool = False) -> StreamClient:
        return StreamClient(path, urls, path, seed=self._seed, is_slow=is_slow)

    def _clients(self) -> list[Client]:
        return [*self._publishers, *self._pages, self._readings]

    def _all_streams(self) -> list[StreamClient]:
        return [*(each for _, each in self._streams.values()), *self._changes]


def _readings(url: str, stream: StreamClient) -> Readings:
    _, _, version_1 = fetch(url, "/")
    _, headers, version_2 = fetch(url, "/", Accept=VERSION_2)
    return Readings(
        version_1=json.loads(version_1),
        version_2=[(each["id"], each["value"]) for each in json.loads(version_2)],
        etag=headers["ETag"].strip('"'),
        changes=list(_changes(list(stream.items))),
    )


def _changes(items: Sequence) -> Iterator[tuple[str, Mapping[str, float]]]:
    found: dict[str, float] = {}
    for each in items:
        if each.event == "readings":
            found = {reading["id"]: reading["value"] for reading in each.data}
        elif each.event == "reading":
            found[each.data["id"]] = each.data["value"]
        else:
            # One that it never got is a fault, too.
            del found[each.data["id"]]
        yield each.event_id, dict(found)
