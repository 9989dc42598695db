"""Clients of streams of records, which check that they get everything, once, and in order."""

from __future__ import annotations

import json
from http import HTTPStatus
from random import Random
from types import SimpleNamespace

from twisted.internet.task import Clock

from sampleapp.feeds import Feeds
from sampleapp.records.positions import parse_position
from sampleapp.web.read.registry import OpenStreams
from sampleapp.web.read.streams import RecordStreams
from sampleapp.web.read.topic_reads import TopicReads
from sampleapp.web.responses import Event
from sampleapp.web.server import Exchange, Fields, Peer
from tests.support.event_streams import EventReader, RecordingSink
from tests.support.faulty_broker import FaultyBroker

__all__ = ["Client", "StreamService"]


class StreamService:
    """Streams of the records of a memory broker with faults."""

    def __init__(self, **topic):
        self.clock = Clock()
        self.clock.advance(1000)
        self.topic = FaultyBroker(self.clock, **topic)
        self.feeds = Feeds(self.topic, self.clock, make_event=Event)
        self.places = OpenStreams(clock=self.clock, random=Random(19))
        self.streams = RecordStreams(
            TopicReads(self.topic), self.feeds, streams=self.places, clock=self.clock
        )

    def ask(self, query="", **fields):
        """Ask for a stream."""
        names = [(name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()]
        exchange = Exchange(Peer(None), b"-", 0.0)
        request = SimpleNamespace(
            query=query.encode(), fields=Fields(names), reservation=None, exchange=exchange
        )
        return self.streams.open(request, "t")

    def open(self, query="", **fields):
        """Ask for a stream; return its answer, or a failure."""
        found = []
        self.ask(query, **fields).addBoth(found.append)
        for _ in range(100):
            if found:
                break
            self.clock.advance(0.001)
        return found[0]

    def client(self, query="", *, settle_s=0.1, unsent=0, **more):
        """A client that has connected, and has waited."""
        client = Client(self, query, **more)
        client.connect(unsent=unsent)
        self.run(settle_s)
        return client

    def run(self, seconds=5.0, step=0.05):
        """Let time pass: a fifth of a second in milliseconds, then in larger steps."""
        passed = 0.0
        while passed < seconds:
            small = 0.001 if passed < 0.2 else step
            self.clock.advance(small)
            passed += small


class Sink(RecordingSink):
    """A sink that keeps events as they are."""

    unsent = 0

    def __init__(self, source):
        super().__init__(source)
        self.events = []

    def write(self, event):
        self.events.append(event)
        return super().write(event)


class Client:
    """
    A client that comes back with the last id.

    ``position`` is its own: after everything that it has got or was told to be missing.
    """

    def __init__(self, service, query="", *, key=None, headers=(), partitions=None):
        self.service = service
        self.query = query
        self.key = key
        self.headers = headers
        self.partitions = partitions
        self.reader = EventReader()
        self.sink = None
        self.rejection = None
        self.records = []
        self.told = []
        """The events that are no records: their name and data."""
        self.position = None
        self._read = 0

    def connect(self, *, unsent=0, **fields):
        """Connect, or come back with the last id."""
        if self.reader.last_event_id:
            fields["last_event_id"] = self.reader.last_event_id
        found = self.service.open(self.query, **fields)
        if getattr(found, "source", None) is None:
            self.rejection = found
            return
        assert found.status is HTTPStatus.OK
        self.rejection = None
        self.sink = Sink(found.source)
        self.sink.unsent = unsent
        self._read = 0
        self.reader.come_back()
        found.source.begin(self.sink)

    @property
    def is_connected(self):
        return self.sink is not None and self.sink.ended_by is None

    def stop_reading(self):
        self.sink.is_full = True

    def read_on(self):
        if self.sink.is_full:
            self.sink.resume()

    def cut(self, part=1.0):
        """Lose the connection, and of what was sent last all but a part."""
        last = self.sink.sent[self._read :]
        self._take(last[: int(len(last) * part)])
        self.sink.finish("client")
        self.sink = None

    def read(self):
        """Read everything that was sent."""
        if self.sink is not None:
            sent = self.sink.sent[self._read :]
            self._read = len(self.sink.sent)
            self._take(sent)
            if self.sink.ended_by is not None:
                self.sink = None
        return self

    @property
    def values(self):
        return [record["content"] for record in self.records]

    def _take(self, received):
        *blocks, rest = received.split(b"\n\n")
        for block in blocks:
            before = self.reader.last_event_id
            events = self.reader.feed(block + b"\n\n")
            for event in events:
                self._on_event(event)
            if self.reader.last_event_id != before:
                self._check_id(self.reader.last_event_id)
        self.reader.feed(rest)

    def _on_event(self, event):
        data = json.loads(event.data)
        if event.event == "message":
            self._on_record(data)
        else:
            self.told.append((event.event, data))
            if event.event == "gap":
                for gone in data["gone"]:
                    self.position[gone["partition"]] = gone["earliest"]
            else:
                self.position = {}
                self.generation = event.event_id.split("~")[0]

    def _on_record(self, data):
        self.records.append(data)
        partition, offset = data["partition"], data["offset"]
        if self.position is None:
            raise AssertionError("a record before the first position")
        begin = self.position.get(partition, self._begin(partition))
        missed = self.records_between(partition, begin, offset)
        assert not missed, f"nothing was said of {missed}"
        assert offset >= self.position.get(partition, 0), f"{data} is there twice"
        self.position[partition] = offset + 1

    def _check_id(self, text):
        position = parse_position(text)
        if self.position is None:
            self.position = dict(position.offsets)
            self.generation = position.topic_id
            return
        assert position.topic_id == self.generation
        for partition, offset in position.offsets.items():
            own = self.position.get(partition, min(offset, self._begin(partition)))
            between = self.records_between(partition, min(own, offset), max(own, offset))
            assert not between, f"the id {text} is not the position {self.position}: {between}"
            self.position[partition] = offset

    def _begin(self, partition):
        """Where a partition begins that is new to the client: at the first record that is left."""
        begins = self.service.topic.begins
        return begins[partition] if partition < len(begins) else 0

    def records_between(self, partition, begin, end):
        """The records that are for this client; those that have expired do not count."""
        topic = self.service.topic
        if self.partitions is not None and partition not in self.partitions:
            return []
        if partition >= len(topic.logs) or self.generation != topic.topic_id:
            return []
        return [
            record.offset
            for record in topic.logs[partition][begin:end]
            if record is not None and record.matches(self.key, self.headers)
        ]

    def require_everything(self):
        """Check that there is nothing in the topic that it has not got and was not told of."""
        topic = self.service.topic
        assert self.is_connected, (self.rejection, self.sink)
        assert self.generation == topic.topic_id
        for partition, log in enumerate(topic.logs):
            begin = max(self.position.get(partition, 0), topic.begins[partition])
            left = self.records_between(partition, begin, len(log))
            assert not left, f"not sent: {left} of partition {partition}; position {self.position}"
