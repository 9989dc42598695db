"""A fetch session, against a broker's side of it."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from sampleapp.brokers.kafka.consumer.fetch_session import FetchSession, SessionKey
from sampleapp.brokers.kafka.protocol import SessionFetchRequest
from tests.support.kafka_simulator.sessions import Sessions

keys = st.builds(
    SessionKey, st.sampled_from("ab"), st.sampled_from([None, UUID(int=1), UUID(int=2)]), st.integers(0, 2)
)


def request_of(session):
    made = session.next_request()
    fields = {name: getattr(made, name) for name in made.__struct_fields__}
    return SessionFetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=1, partition_max_bytes=1, read_committed=True, **fields
    )


class Pair:
    """The two sides of a session, and what the broker has to have."""

    def __init__(self, *, has_sessions):
        self.broker, self.session = Sessions(), FetchSession()
        self.has_sessions = has_sessions
        self.wanted = {}

    def put(self, key, offset):
        # A name is in a session once.
        for other in [each for each in self.wanted if each[::2] == key[::2] and each != key]:
            self.session.remove(other)
            del self.wanted[other]
        self.session.put(key, offset)
        self.wanted[key] = offset

    def remove(self, number):
        if self.wanted:
            key = sorted(self.wanted, key=str)[number % len(self.wanted)]
            self.session.remove(key)
            del self.wanted[key]

    def forget(self):
        self.broker.forget()

    def lose_a_request(self):
        self.session.next_request()
        self.session.lost()

    def lose_an_answer(self):
        self.ask()
        self.session.lost()

    def ask(self):
        found = self.broker.begin(request_of(self.session), has_sessions=self.has_sessions)
        if isinstance(found, int):
            self.session.lost(found)
            # The next one is right.
            found = self.broker.begin(request_of(self.session), has_sessions=self.has_sessions)
        self.session.responded(found.id)
        assert found.uses_ids is all(key.topic_id is not None for key in self.wanted)
        names = {(topic, number): offset for (topic, _, number), offset in found.offsets.items()}
        assert names == {(key.topic, key.partition): offset for key, offset in self.wanted.items()}


steps = st.one_of(
    st.tuples(st.just(Pair.put), keys, st.integers(0, 3)),
    st.tuples(st.just(Pair.remove), st.integers(0, 20)),
    st.tuples(st.sampled_from([Pair.ask, Pair.lose_a_request, Pair.lose_an_answer, Pair.forget])),
)


@given(st.lists(steps, max_size=40), st.booleans())
def test_a_broker_always_has_the_partitions_that_are_wanted_or_the_session_begins_again(steps, has_sessions):
    pair = Pair(has_sessions=has_sessions)
    for step, *arguments in steps:
        step(pair, *arguments)


def test_what_has_not_changed_is_not_named_again():
    session, key = FetchSession(), SessionKey("a", None, 0)
    session.put(key, 5)
    assert session.next_request().topics == [("a", [(0, 5)])]
    session.responded(7)
    second = session.next_request()
    assert (second.session_id, second.session_epoch, second.topics) == (7, 1, [])
    session.responded(7)
    session.remove(key)
    session.put(key, 6)
    third = session.next_request()
    assert (third.session_epoch, third.topics, third.forgotten) == (2, [("a", [(0, 6)])], [])


def test_the_epoch_begins_again_at_one(monkeypatch):
    monkeypatch.setattr("sampleapp.brokers.kafka.consumer.fetch_session._MAX_EPOCH", 3)
    session, epochs = FetchSession(), []
    for _ in range(6):
        epochs.append(session.next_request().session_epoch)
        session.responded(7)
    assert epochs == [0, 1, 2, 3, 1, 2]
