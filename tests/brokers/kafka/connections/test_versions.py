"""The first question on a connection: which versions the broker has, and who asks."""

from __future__ import annotations

from importlib.metadata import version

import pytest
import pytest_twisted

from tests.support.brokers import eventually, within
from tests.support.connecting import (
    Connecting,
    connected,
)
from tests.support.kafka_simulator.server import (
    API_VERSIONS,
    TODAY,
    FakeBroker,
    listening,
)


@pytest_twisted.ensureDeferred
async def test_the_broker_is_told_which_software_connects():
    broker = FakeBroker()
    async with listening(broker) as port, connected(port):
        assert broker.software == ["sampleapp", version("sampleapp-http-gateway")]


@pytest.mark.parametrize("says_known_versions", [True, False])
@pytest_twisted.ensureDeferred
async def test_a_broker_that_does_not_know_the_question_of_today_is_asked_as_it_knows(says_known_versions):
    ranges = TODAY | {API_VERSIONS: (0, 2)}
    broker = FakeBroker(ranges=ranges, says_known_versions=says_known_versions)
    async with listening(broker) as port, connected(port) as inner:
        assert inner.known == ranges
        assert [version for _, version, _ in broker.requests] == [3, 2 if says_known_versions else 0]
        assert len(broker.connections) == 1


@pytest_twisted.ensureDeferred
async def test_a_broker_that_closes_the_connection_on_the_question_of_today_is_asked_the_first_one_next():
    broker = FakeBroker(closing_on={(API_VERSIONS, 3)})
    async with listening(broker) as port:
        connecting = Connecting(port)
        reason = await connecting.reason()
        assert "closed the connection without an answer" in reason.sentence
        inner = await within(connecting.connect())
        assert inner.known == TODAY
        inner.transport.abortConnection()
        await eventually(lambda: inner.lost)
    assert [version for _, version, _ in broker.requests] == [3, 0]


@pytest_twisted.ensureDeferred
async def test_a_broker_that_closes_the_connection_on_any_question_is_asked_either_way_in_turn():
    broker = FakeBroker(closing_on={API_VERSIONS})
    async with listening(broker) as port:
        connecting = Connecting(port)
        sentences = set()
        for _ in range(4):
            sentences.add((await connecting.reason()).sentence)
    assert len(sentences) == 1
    assert [version for _, version, _ in broker.requests] == [3, 0, 3, 0]


@pytest.mark.parametrize(
    ("ranges", "what"),
    [
        ({0: (0, 2)}, "supports Produce only up to version 2: this service needs Kafka 2.1 or newer."),
        ({1: (0, 3)}, "supports Fetch only up to version 3: this service needs Kafka 2.1 or newer."),
        ({2: (0, 0)}, "supports ListOffsets only up to version 0: this service needs Kafka 2.1 or newer."),
        ({3: (0, 3)}, "supports Metadata only up to version 3: this service needs Kafka 2.1 or newer."),
        ({0: (9, 20)}, "supports Produce only from version 9 on: upgrade this service."),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_broker_without_our_versions_is_incompatible_and_says_which(ranges, what):
    async with listening(FakeBroker(ranges=TODAY | ranges)) as port:
        reason = await Connecting(port).reason()
    assert reason.sentence == f"127.0.0.1:{port} {what}"
    assert reason.incompatible
    assert reason.lasting


@pytest_twisted.ensureDeferred
async def test_the_controllers_own_listener_is_not_one_for_clients():
    controller = {key: ends for key, ends in TODAY.items() if key not in {0, 3}}
    async with listening(FakeBroker(ranges=controller)) as port:
        reason = await Connecting(port).reason()
    assert reason.sentence == (
        f"127.0.0.1:{port} does not support Metadata requests: give a listener of a broker, not of a KRaft "
        "controller."
    )
    assert reason.incompatible


@pytest_twisted.ensureDeferred
async def test_a_broker_that_does_not_say_its_versions():
    async with listening(FakeBroker(versions_error=35)) as port:
        reason = await Connecting(port).reason()
    assert "UNSUPPORTED_VERSION" in reason.sentence
    assert reason.incompatible
