"""While requests run and the file changes, each is judged by what counts when its header is whole."""

from __future__ import annotations

import json

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tests.support.callers import by, caller
from tests.support.examples import examples
from tests.support.in_memory import InMemoryService, ManualBroker, request_bytes
from tests.web.http import JSON

NAMES = ("a", "b", "c")
TOPICS = ("t", "t.x", "u")

rights = st.fixed_dictionaries(
    {
        "read": st.booleans(),
        "publish": st.sets(st.sampled_from(["t", "t*", "*x", "u", "*"]), max_size=2),
        "until": st.none() | st.integers(1, 5),
    }
)
FITS = {
    "t": {"t"},
    "t*": {"t", "t.x"},
    "*x": {"t.x"},
    "u": {"u"},
    "*": {"t", "t.x", "u"},
}


class Reloads(RuleBasedStateMachine):
    """A model of the rights of each caller, and of the expected answer to each request."""

    halves = Bundle("halves")
    """Requests of which the body has not come whole."""

    def __init__(self):
        super().__init__()
        # A file must have a caller; no request uses the token of this one.
        self.service = InMemoryService(broker=ManualBroker(), callers=caller("z"))
        self.callers = {}
        self.waiting = []
        self.connections = {name: self.service.connect() for name in NAMES}
        self.statuses = {name: [] for name in NAMES}
        self.methods = {name: [] for name in NAMES}
        self.published = 0

    def now_s(self):
        return self.service.clock.seconds()

    @rule(granted=st.dictionaries(st.sampled_from(NAMES), rights))
    def change_the_file(self, granted):
        texts = [caller("z")]
        self.callers = {}
        for name, its in granted.items():
            until_s = None if its["until"] is None else self.now_s() + its["until"]
            end = None
            if until_s is not None:
                seconds = int(until_s) - 1_700_000_000
                end = f"2023-11-14T22:{13 + (20 + seconds) // 60:02}:{(20 + seconds) % 60:02}Z"
            lines = [f"read = {str(its['read']).lower()}", f"publish = {json.dumps(sorted(its['publish']))}"]
            texts.append(caller(name, *lines, until=end))
            topics = set().union(*(FITS[pattern] for pattern in its["publish"]))
            self.callers[name] = (its["read"], topics, bool(its["publish"]), until_s)
        self.service.use_callers("".join(texts))

    @rule(seconds=st.sampled_from([1, 2]))
    def time_passes(self, seconds):
        if self.now_s() < 1_700_000_000 + 2000:
            self.service.clock.advance(seconds)

    def granted(self, name):
        its = self.callers.get(name)
        if its is None or (its[3] is not None and self.now_s() >= its[3]):
            return None
        return its

    @rule(name=st.sampled_from(NAMES), method=st.sampled_from(["GET", "HEAD"]))
    def read(self, name, method):
        its = self.granted(name)
        self.expect(name, method, 401 if its is None else 200 if its[0] else 403)
        self.send_all(name, request_bytes(method, "/", [by(name)]))

    def expect(self, name, method, status):
        self.methods[name].append(method)
        self.statuses[name].append(status)

    def send_all(self, name, data):
        self.connections[name].send(data)
        self.check(name)

    @rule(name=st.sampled_from(NAMES), topic=st.sampled_from(TOPICS))
    def publish(self, name, topic):
        connection, body, status = self.begin(name, topic)
        connection.send(body)
        self.settle(connection, status)

    @rule(target=halves, name=st.sampled_from(NAMES), topic=st.sampled_from(TOPICS))
    def begin_to_publish(self, name, topic):
        return self.begin(name, topic)

    @rule(half=consumes(halves))
    def publish_the_rest(self, half):
        connection, body, status = half
        connection.send(body)
        self.settle(connection, status)

    def begin(self, name, topic):
        its = self.granted(name)
        body = json.dumps({"topic": topic, "content": "c"}).encode()
        headers = [*JSON, by(name), (b"Content-Length", b"%d" % len(body))]
        connection = self.service.connect()
        connection.send(request_bytes("POST", "/messages", headers))
        if its is None:
            # The answer does not wait for the body.
            assert connection.responses(["POST"])[0].status == 401
            return connection, b"", 401
        assert connection.sent == b""
        return connection, body, 200 if topic in its[1] else 403

    def settle(self, connection, status):
        if status == 200:
            self.published += 1
            assert len(self.service.broker.records) == self.published
            assert connection.sent == b""
            self.waiting.append(connection)
        else:
            assert connection.responses(["POST"])[0].status == status

    @rule()
    def the_broker_acknowledges(self):
        if self.waiting:
            connection = self.waiting.pop(0)
            self.service.broker.acknowledge()
            assert connection.responses(["POST"])[0].status == 200

    def check(self, name):
        responses = self.connections[name].responses(self.methods[name])
        assert [response.status for response in responses] == self.statuses[name]

    @invariant()
    def nothing_is_published_that_was_rejected(self):
        assert len(self.service.broker.records) == self.published


TestReloads = Reloads.TestCase
TestReloads.settings = examples(60, stateful_step_count=30)
