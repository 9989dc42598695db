"""
The seam between afkak's client and ours: what afkak's classes were not made for, and must go on to do.

Over real sockets, against librdkafka's mock cluster behind relays that see every request.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from uuid import UUID

import afkak
import msgspec
import pytest
import pytest_twisted
from afkak.brokerclient import _KafkaBrokerClient
from afkak.client import KafkaClient
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet import reactor
from twisted.internet.defer import CancelledError
from twisted.internet.testing import StringTransport

from sampleapp.brokers.kafka.cluster_client import AfkakClient, RequestFailed
from sampleapp.brokers.kafka.cluster_client.broker_connection import BrokerConnection
from sampleapp.brokers.kafka.config import parse
from sampleapp.brokers.kafka.connections.endpoints import make_endpoint_factory
from sampleapp.brokers.kafka.connections.security import CurrentSecurity
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import EARLIEST, FetchRequest, ListOffsetsRequest, MetadataRequest
from tests.support.brokers import eventually, outcomes, within
from tests.support.connection_listener import Connections
from tests.support.faster_time import FasterReactor
from tests.support.kafka_simulator.server import FakeBroker, Silent, listening, serving
from tests.support.mock_cluster import API_VERSIONS, FETCH, LIST_OFFSETS, METADATA, Tap

OFFSETS = ListOffsetsRequest(topics=[("t", [(0, EARLIEST)])], read_committed=False)


@asynccontextmanager
async def client_of(bootstrap, *, reactor=reactor, environ=None, listener=None):
    config = parse(f"kafka://{bootstrap}")
    client = AfkakClient(
        addresses=config.addresses,
        client_id="tests",
        endpoint_factory=make_endpoint_factory(
            security=CurrentSecurity(config, environ=environ or {}, clock=reactor),
            client_id="tests",
            timeout_s=5,
        ),
        reactor=reactor,
        listener=listener or Connections(),
    )
    try:
        yield client
    finally:
        await within(client.close())


@pytest.fixture
def mock(clusters):
    with clusters.new() as mock:
        mock.create_topic("t", partitions=3)
        yield mock


async def failure_of(deferred):
    [outcome] = await outcomes([deferred])
    assert type(outcome) is RequestFailed, outcome
    return outcome


def test_it_is_the_version_of_afkak_that_the_seam_was_made_for():
    assert afkak.__version__ == "21.5.0.post0"
    assert issubclass(AfkakClient, KafkaClient)
    assert issubclass(BrokerConnection, _KafkaBrokerClient)


@pytest_twisted.ensureDeferred
async def test_metadata_says_who_leads_what(mock):
    mock.set_leader("t", 1, 2)
    async with client_of(mock.bootstrap) as client:
        assert client.topic_error("t") is None
        assert list(client.partitions_of("t")) == []
        assert client.leader_of("t", 1) is None
        await within(client.load_metadata(["t", "absent"]))
        assert client.topic_error("t") == 0
        assert list(client.partitions_of("t")) == [0, 1, 2]
        assert client.leader_of("t", 1) == 2
        assert client.topic_error("absent") == 3
        assert list(client.partitions_of("absent")) == []
        assert sorted(client.node_ids()) == [1, 2, 3]


@pytest_twisted.ensureDeferred
async def test_the_listener_is_told_when_another_broker_leads_a_partition(mock):
    connections = Connections()
    async with client_of(mock.bootstrap, listener=connections) as client:
        for changes in range(3):
            for _ in range(2):
                await within(client.load_metadata(["t"]))
                assert connections.changes == changes
            mock.set_leader("t", 0, 1 + changes)


@pytest_twisted.ensureDeferred
async def test_metadata_says_which_topic_of_a_name_it_is(mock):
    mock.create_topic("u", partitions=1)
    async with client_of(mock.bootstrap) as client:
        assert client.topic_id("t") is None
        await within(client.load_metadata(["t", "u", "absent"]))
        known = client.topic_id("t")
        assert known is not None
        assert client.topic_id("u") not in {None, known}
        assert client.topic_id("absent") is None
        await within(client.load_metadata(["t"]))
        assert client.topic_id("t") == known
        # A broker that does not know of ids does not know whether it is the same one.
        mock.set_api_version(METADATA, 0, 9)
    async with client_of(mock.bootstrap) as client:
        await within(client.load_metadata(["t"]))
        assert list(client.partitions_of("t")) == [0, 1, 2]
        assert client.topic_id("t") is None


@pytest_twisted.ensureDeferred
async def test_a_topic_that_is_forgotten_has_no_id(mock):
    async with client_of(mock.bootstrap) as client:
        await within(client.load_metadata(["t"]))
        client.forget_topic("t")
        assert client.topic_id("t") is None


@pytest_twisted.ensureDeferred
async def test_a_fetch_by_id_is_answered_by_name(mock):
    async with Tap(mock, reactor) as tap, client_of(tap.bootstrap) as client:
        await within(client.load_metadata(["t"]))
        request = FetchRequest(
            topics=[("t", [(0, 0)])],
            topic_ids={"t": client.topic_id("t")},
            max_wait_ms=1,
            min_bytes=1,
            max_bytes=1000,
            partition_max_bytes=1000,
            read_committed=True,
        )
        [fetched] = await within(client.request(client.leader_of("t", 0), request, timeout_s=5))
        assert (fetched.topic, fetched.partition, fetched.error) == ("t", 0, 0)
        assert [each.version for each in tap.of(FETCH)] == [13]
        other = msgspec.structs.replace(request, topic_ids={"t": UUID(int=1)})
        [fetched] = await within(client.request(client.leader_of("t", 0), other, timeout_s=5))
        assert fetched.error == ErrorCode.UNKNOWN_TOPIC_ID


@pytest_twisted.ensureDeferred
async def test_the_first_addresses_are_left_once_the_brokers_are_known(mock):
    async with Tap(mock, reactor) as tap, client_of(tap.bootstrap) as client:
        await within(client.load_metadata([]))
        await eventually(lambda: tap.open_connections == 0)
        await within(client.when_connected(1))
        assert client.is_connected(1)
        assert not client.is_connected(2)


@pytest_twisted.ensureDeferred
async def test_a_request_whose_connection_is_lost_is_not_sent_again(mock):
    async with Tap(mock, reactor) as tap, client_of(tap.bootstrap) as client:
        await within(client.load_metadata(["t"]))
        node_id = client.leader_of("t", 0)
        await within(client.request(node_id, OFFSETS, timeout_s=5))
        before = len(tap.of(LIST_OFFSETS))
        tap.lose_answers(LIST_OFFSETS)
        error = await failure_of(client.request(node_id, OFFSETS, timeout_s=5))
        assert error.sent
        await within(client.request(node_id, OFFSETS, timeout_s=5))
        assert len(tap.of(LIST_OFFSETS)) == before + 2


@pytest_twisted.ensureDeferred
async def test_the_listener_is_told_of_each_connection_and_its_end():
    listener, factory = Connections(), FakeBroker()
    async with listening(factory) as port:
        async with client_of(f"127.0.0.1:{port}", listener=listener) as client:
            await within(client.when_connected(-1))
            assert listener.told == [("connected", "127.0.0.1", port)]
            factory.connections[0].transport.loseConnection()
            await eventually(lambda: not client.is_connected(-1))
            assert listener.kinds() == ["connected", "lost"]
            await within(client.when_connected(-1))
        # Closing the client says nothing about the broker.
        assert listener.kinds() == ["connected", "lost", "connected"]


@pytest_twisted.ensureDeferred
async def test_the_listener_is_told_why_an_attempt_to_connect_fails():
    listener = Connections()
    async with listening(FakeBroker()) as port:
        pass
    async with client_of(f"127.0.0.1:{port}", listener=listener) as client:
        error = await failure_of(client.when_connected(-1))
        assert listener.told == [("failed", "127.0.0.1", port)]
        assert listener.reasons == [error.reason]


@pytest_twisted.ensureDeferred
async def test_the_listener_is_told_when_a_request_is_not_answered_in_time():
    listener, factory = Connections(), FakeBroker(silent_on=(METADATA,))
    async with (
        listening(factory) as port,
        client_of(f"127.0.0.1:{port}", listener=listener) as client,
    ):
        request = MetadataRequest(topics=[], auto_create=False)
        assert (await failure_of(client.request(-1, request, timeout_s=0.5))).sent
        await eventually(lambda: listener.kinds() == ["connected", "lost"])


@pytest_twisted.ensureDeferred
async def test_an_attempt_that_is_given_up_is_not_one_that_failed():
    listener = Connections()
    async with (
        listening(serving(Silent)) as port,
        client_of(f"127.0.0.1:{port}", listener=listener) as client,
    ):
        connecting = client.when_connected(-1)
        await within(client.close())
        assert not (await failure_of(connecting)).sent
        assert listener.told == []


@pytest_twisted.ensureDeferred
async def test_what_is_asked_again_as_soon_as_a_connection_is_lost_takes_a_new_one(mock):
    async with Tap(mock, reactor) as tap, client_of(tap.bootstrap) as client:
        await within(client.load_metadata(["t"]))
        node_id = client.leader_of("t", 0)
        await within(client.when_connected(node_id))
        tap.lose_answers(LIST_OFFSETS)
        again = []
        answer = client.request(node_id, OFFSETS, timeout_s=5)
        answer.addErrback(lambda _: again.append(client.request(node_id, OFFSETS, timeout_s=5)))
        await within(answer)
        [second] = again
        assert (await within(second))[0].error == 0


@pytest_twisted.ensureDeferred
async def test_a_request_that_could_not_be_sent_says_so(mock):
    async with client_of(mock.bootstrap, reactor=FasterReactor()) as client:
        await within(client.load_metadata(["t"]))
        mock.broker_down()
        node_id = client.leader_of("t", 0)
        error = await failure_of(client.request(node_id, OFFSETS, timeout_s=5))
        assert not error.sent
        assert "refused" in error.reason.sentence
        assert not (await failure_of(client.when_connected(node_id))).sent
        error = await failure_of(client.load_metadata(["t"]))
        assert not error.sent
        mock.broker_up()
        await within(client.load_metadata(["t"]))


@pytest_twisted.ensureDeferred
async def test_a_request_that_is_not_answered_in_time_takes_its_connection_with_it(mock):
    async with client_of(mock.bootstrap) as client:
        await within(client.load_metadata(["t"]))
        node_id = client.leader_of("t", 0)
        await within(client.when_connected(node_id))
        mock.set_round_trip(60_000)
        first = client.request(node_id, OFFSETS, timeout_s=0.2)
        other = client.request(node_id, OFFSETS, timeout_s=60)
        errors = await outcomes([first, other])
        assert all(type(error) is RequestFailed and error.sent for error in errors)
        assert "ListOffsets" in errors[0].reason.sentence
        assert not client.is_connected(node_id)


@pytest_twisted.ensureDeferred
async def test_a_request_that_its_maker_gives_up_leaves_the_others_alone(mock):
    async with client_of(mock.bootstrap) as client:
        await within(client.load_metadata(["t"]))
        node_id = client.leader_of("t", 0)
        unsent, stays = (client.request(node_id, OFFSETS, timeout_s=5) for _ in range(2))
        unsent.cancel()
        sent = client.request(node_id, OFFSETS, timeout_s=5)
        await within(stays)
        sent_too = client.request(node_id, OFFSETS, timeout_s=5)
        sent_too.cancel()
        assert [type(each) for each in await outcomes([unsent, sent_too])] == [CancelledError] * 2
        await within(sent)
        await within(client.request(node_id, OFFSETS, timeout_s=5))


@pytest_twisted.ensureDeferred
async def test_an_answer_that_makes_no_sense_fails_the_request_and_costs_the_connection(mock):
    async with Tap(mock, reactor) as tap, client_of(tap.bootstrap) as client:
        await within(client.load_metadata(["t"]))
        node_id = client.leader_of("t", 0)
        tap.alter = lambda api_key, answer: answer[:-3] if api_key == LIST_OFFSETS else answer
        error = await failure_of(client.request(node_id, OFFSETS, timeout_s=5))
        assert error.sent
        assert "not Kafka's" in error.reason.sentence
        assert not client.is_connected(node_id)


@pytest_twisted.ensureDeferred
async def test_an_answer_of_an_absurd_length_costs_the_connection_and_not_the_memory():
    factory = FakeBroker(silent_on=(METADATA,))
    async with listening(factory) as port, client_of(f"127.0.0.1:{port}") as client:
        asked = client.request(-1, MetadataRequest(topics=[], auto_create=False), timeout_s=5)
        await eventually(lambda: any(key == METADATA for key, _, _ in factory.requests))
        factory.connections[-1].transport.write(b"\x7f\xff\xff\xff")
        error = await failure_of(asked)
        assert error.sent


@given(
    st.lists(st.binary(max_size=300), max_size=8),
    st.lists(st.integers(1, 400), max_size=40),
)
def test_answers_are_put_together_however_they_come(frames, cuts):
    received = []

    class Factory:
        def responded(self):
            pass

        def renew_if_idle(self):
            pass

        def handleResponse(self, response):
            received.append(response)

    protocol = BrokerConnection.protocol()
    protocol.factory = factory = Factory()
    factory.proto = protocol
    protocol.makeConnection(StringTransport())
    data = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    for cut in cuts:
        protocol.dataReceived(data[:cut])
        data = data[cut:]
    protocol.dataReceived(data)
    assert received == frames


@pytest_twisted.ensureDeferred
async def test_an_answer_to_nothing_that_was_asked_is_let_be(mock, caplog):
    factory = FakeBroker(behind={18: b"\x00\x00\x00\x04\x00\x00\x00\x63"}, silent_on=(METADATA,))
    async with listening(factory) as port, client_of(f"127.0.0.1:{port}") as client:
        await within(client.when_connected(-1))
        assert client.is_connected(-1)


@pytest_twisted.ensureDeferred
async def test_closing_fails_what_is_under_way_and_whatever_comes_later(mock):
    async with client_of(mock.bootstrap) as client:
        await within(client.load_metadata(["t"]))
        node_id = client.leader_of("t", 0)
        await within(client.when_connected(node_id))
        mock.set_round_trip(60_000)
        sent = client.request(node_id, OFFSETS, timeout_s=60)
        loading = client.load_metadata(["t"])
        connecting = client.when_connected(next(n for n in client.node_ids() if n != node_id))
        closings = [client.close(), client.close()]
        errors = await outcomes([sent, loading, connecting])
        assert [type(error) for error in errors] == [RequestFailed] * 3
        assert [error.sent for error in errors] == [True, False, False]
        assert await outcomes(closings) == [None, None]
        late = [
            client.request(node_id, OFFSETS, timeout_s=5),
            client.load_metadata([]),
            client.when_connected(node_id),
        ]
        assert [type(error) for error in await outcomes(late)] == [RequestFailed] * 3


@pytest_twisted.ensureDeferred
async def test_a_connection_is_renewed_before_its_authentication_expires():
    factory = FakeBroker(mechanisms=["PLAIN"], users={"user": "password"}, lifetime_ms=300)
    environ = {"SAMPLEAPP_KAFKA_USERNAME": "user", "SAMPLEAPP_KAFKA_PASSWORD": "password"}
    async with (
        listening(factory) as port,
        client_of(f"127.0.0.1:{port}?sasl=PLAIN", environ=environ) as client,
    ):
        await within(client.when_connected(-1))
        await eventually(lambda: not client.is_connected(-1))
        await within(client.when_connected(-1))
        assert len(factory.connections) == 2
        factory.silent_on = (METADATA,)
        asked = client.request(-1, MetadataRequest(topics=[], auto_create=False), timeout_s=0.6)
        await eventually(lambda: not client.is_connected(-1))
        # Requests in flight are waited for; new callers get the next connection.
        again = client.when_connected(-1)
        assert not again.called
        assert len(factory.connections) == 2
        assert (await failure_of(asked)).sent
        assert not (await failure_of(again)).sent
        await within(client.when_connected(-1))
        assert len(factory.connections) == 3


@pytest_twisted.ensureDeferred
async def test_what_is_asked_while_a_connection_is_about_to_expire_goes_to_the_next_one():
    factory = FakeBroker(
        mechanisms=["PLAIN"],
        users={"user": "password"},
        lifetime_ms=500,
        silent_on=(METADATA,),
    )
    environ = {"SAMPLEAPP_KAFKA_USERNAME": "user", "SAMPLEAPP_KAFKA_PASSWORD": "password"}
    request = MetadataRequest(topics=[], auto_create=False)
    async with (
        listening(factory) as port,
        client_of(f"127.0.0.1:{port}?sasl=PLAIN", environ=environ) as client,
    ):
        await within(client.when_connected(-1))
        under_way = client.request(-1, request, timeout_s=30)
        await eventually(lambda: not client.is_connected(-1))
        later = [client.request(-1, request, timeout_s=30) for _ in range(3)]
        await eventually(lambda: [key for key, _, _ in factory.requests].count(METADATA) == 1)
        # No caller waits for the requests in flight any more, so the connection is not kept.
        under_way.addErrback(lambda _: None)
        under_way.cancel()
        client.request(-1, request, timeout_s=30).addErrback(lambda _: None).cancel()
        await eventually(lambda: len(factory.connections) == 2)
        await eventually(lambda: [key for key, _, _ in factory.requests].count(METADATA) == 4)
        assert not any(each.called for each in later)
        for each in later:
            each.addErrback(lambda _: None)


@pytest_twisted.ensureDeferred
async def test_a_broker_that_accepts_connections_and_answers_nothing_is_asked_less_and_less():
    factory = FakeBroker(closing_on=(METADATA,))
    faster = FasterReactor()
    async with listening(factory) as port, client_of(f"127.0.0.1:{port}", reactor=faster) as client:
        give_up_s = faster.seconds() + 1.5
        while faster.seconds() < give_up_s:
            error = await failure_of(client.load_metadata([]))
            assert "SASL" in error.reason.sentence
        assert len(factory.connections) < 10


@pytest_twisted.ensureDeferred
async def test_attempts_to_connect_come_at_growing_intervals(mock):
    """afkak alone has made thousands of connections in some seconds to a broker that closes them."""
    factory = FakeBroker(closing_on=(18,))
    faster = FasterReactor()
    async with listening(factory) as port, client_of(f"127.0.0.1:{port}", reactor=faster) as client:
        give_up_s = faster.seconds() + 1.5
        while faster.seconds() < give_up_s:
            await failure_of(client.load_metadata([]))
        assert len(factory.connections) < 10


@pytest.mark.parametrize(("known", "asked"), [((0, 0), [3, 0]), ((0, 2), [3, 0])])
@pytest_twisted.ensureDeferred
async def test_a_cluster_is_asked_for_its_versions_as_it_knows_the_question(mock, known, asked):
    mock.set_api_version(API_VERSIONS, *known)
    async with Tap(mock, reactor) as tap, client_of(tap.bootstrap) as client:
        await within(client.when_connected(-1))
        assert [each.version for each in tap.of(API_VERSIONS)] == asked
        await within(client.load_metadata(["t"]))
        assert list(client.partitions_of("t")) == [0, 1, 2]


@pytest_twisted.ensureDeferred
async def test_a_connection_of_one_owner_is_not_shared_and_goes_on_when_another_is_closed(mock):
    request = MetadataRequest(topics=["t"], auto_create=False)
    async with client_of(mock.bootstrap) as client:
        assert client.new_connection(1) is None
        await within(client.load_metadata(["t"]))
        first, second = client.new_connection(1), client.new_connection(1)
        answers = [await within(each.ask(request, timeout_s=5)) for each in (first, second)]
        assert [each.topics[0].topic for each in answers] == ["t", "t"]
        assert first is not second
        assert not {first, second} & {*client.clients.values()}
        await within(first.close())
        await within(second.ask(request, timeout_s=5))
        assert not (await failure_of(first.ask(request, timeout_s=5))).sent
        await within(second.close())
    assert client.new_connection(1) is None
