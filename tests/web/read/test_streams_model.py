"""A model: whatever happens to the topic and to connections, clients get everything once, or are told."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.examples import examples
from tests.support.stream_clients import StreamService

KEYS = (None, b"a", b"b")
PLACES = st.integers(0, 2)


class Streams(RuleBasedStateMachine):
    """Some clients of a topic of one to three partitions, which come back when they were cut."""

    @initialize(partitions=st.integers(1, 2), has_ids=st.booleans(), at_once=st.sampled_from([1, 3, 100]))
    def begin(self, partitions, has_ids, at_once):
        self.service = StreamService(partitions=partitions, has_ids=has_ids)
        self.topic.deliver_at_once = at_once
        self.clients = [self.service.client() for _ in range(2)]
        self.service.run(1)

    @property
    def topic(self):
        return self.service.topic

    # The topic

    @rule(place=PLACES, key=st.sampled_from(KEYS), count=st.sampled_from([1, 1, 3, 30]))
    def publish(self, place, key, count):
        for number in range(count):
            self.topic.append(place % len(self.topic.logs), b"%d" % number, key)

    @rule(place=PLACES, length=st.sampled_from([100, 40_000]))
    def publish_much(self, place, length):
        for _ in range(5):
            self.topic.append(place % len(self.topic.logs), b"x" * length, b"a")

    @rule(place=PLACES)
    def end_transaction(self, place):
        self.topic.end_transaction(place % len(self.topic.logs))

    @rule(place=PLACES, left=st.integers(0, 3))
    def expire(self, place, left):
        partition = place % len(self.topic.logs)
        self.topic.expire(partition, max(0, len(self.topic.logs[partition]) - left))

    @precondition(lambda self: len(self.topic.logs) < 3)
    @rule()
    def add_partition(self):
        self.topic.add_partition()

    # Without ids, nobody can tell a topic that was made again from the former one while he is away.
    @precondition(lambda self: self.topic.has_ids and self.topic.generation < 3)
    @rule(partitions=st.integers(1, 2))
    def make_again(self, partitions):
        self.topic.make(partitions)

    @rule(is_held=st.sampled_from([False, False, True]))
    def hold_following(self, is_held):
        self.topic.hold_following(is_held)

    @rule(is_reachable=st.sampled_from([True, True, False]))
    def reach(self, is_reachable):
        self.topic.is_reachable = is_reachable

    @rule(seconds=st.sampled_from([0.002, 0.01, 0.1, 3.0, 3.0, 40.0]))
    def wait(self, seconds):
        self.service.run(seconds)

    # Clients

    @precondition(lambda self: len(self.clients) < 4 and self.topic.is_reachable)
    @rule(
        start=st.sampled_from(["", "from=earliest", "from=latest", "from=1970-01-01T00:00:03Z"]),
        key=st.sampled_from(KEYS),
        is_of_one_partition=st.booleans(),
    )
    def come(self, start, key, is_of_one_partition):
        query = start
        if key is not None:
            query += f"&key={key.decode()}"
        if is_of_one_partition:
            query += "&partition=0"
        partitions = {0} if is_of_one_partition else None
        self.clients.append(self.service.client(query.lstrip("&"), key=key, partitions=partitions))

    def some(self, place):
        connected = [client for client in self.clients if client.is_connected]
        return connected[place % len(connected)] if connected else None

    @rule(place=PLACES, part=st.floats(0, 1))
    def cut(self, place, part):
        client = self.some(place)
        if client is not None:
            client.cut(part)

    @rule(place=PLACES)
    def stop_reading(self, place):
        client = self.some(place)
        if client is not None:
            client.stop_reading()

    @rule(place=PLACES)
    def read_on(self, place):
        client = self.some(place)
        if client is not None:
            client.read_on()

    @rule()
    def come_back(self):
        for client in self.clients:
            if not client.is_connected:
                client.connect()

    @invariant()
    def nothing_is_missing_or_repeated(self):
        for client in getattr(self, "clients", ()):
            if client.sink is not None and not client.sink.is_full:
                client.read()

    def teardown(self):
        if not hasattr(self, "service"):
            return
        self.topic.is_reachable = True
        self.topic.hold_following(is_held=False)
        for client in self.clients:
            if client.is_connected:
                client.read_on()
        self.service.run(30)
        for client in self.clients:
            client.read()
            for _ in range(3):
                if not client.is_connected:
                    client.connect()
                    self.service.run(5)
                    client.read()
            client.require_everything()
        for client in self.clients:
            client.cut()
        assert self.service.places.numbers
        for numbers in self.service.places.numbers.values():
            assert (numbers.open, numbers.behind) == (0, 0)
        self.service.run(100)
        assert len(self.service.feeds) == 0
        assert self.service.clock.getDelayedCalls() == []


TestStreams = Streams.TestCase
TestStreams.settings = examples(25, stateful_step_count=30)
