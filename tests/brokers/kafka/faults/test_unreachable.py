"""Addresses at which there is no Kafka: what is said of them, and that there is no storm."""

from __future__ import annotations

import logging

import pytest
import pytest_twisted
from twisted.internet import reactor

from sampleapp.errors import (
    BrokerUnavailable,
)
from tests.brokers.kafka.faults.running import (
    FOR_EVER,
    listening,
    nothing_listening,
    running,
    soon,
    soon_failed,
    values_in,
)
from tests.support.brokers import Recorder, eventually, record, settled, within
from tests.support.faster_time import FasterReactor
from tests.support.mock_cluster import (
    METADATA,
    Tap,
)


@pytest_twisted.ensureDeferred
async def test_new_records_are_rejected_soon_while_no_broker_can_be_reached_and_older_ones_wait_on(mock):
    async with running(mock.bootstrap, reactor=FasterReactor(), stop_within_s=0.5) as broker:
        await within(broker.publish(record("t", b"stored")))
        mock.broker_down()
        older, newer = broker.publish(record("t", b"older")), []
        older.addErrback(lambda failure: failure.value)

        def one_is_rejected():
            answer = broker.publish(record("t", b"newer"))
            answer.addErrback(lambda failure: failure.value).addCallback(newer.append)
            return bool(newer)

        await eventually(one_is_rejected)
        assert type(newer[0]) is BrokerUnavailable
        assert not older.called


@pytest_twisted.ensureDeferred
async def test_without_any_broker_it_starts_and_says_so_and_works_once_there_is_one(mock):
    mock.broker_down()
    async with running(mock.bootstrap) as broker:
        waiting = broker.publish(record("t", b"early"))
        host, port = mock.addresses[1]
        await eventually(lambda: f"{host}:{port}" in " ".join(broker.health().reasons))
        assert not broker.health().ready
        (public_reason,) = broker.health().public_reasons
        assert host not in public_reason
        assert str(port) not in public_reason
        mock.broker_up()
        await within(waiting)
        await eventually(lambda: broker.health().ready)
    assert await values_in(mock) == [b"early"]


@pytest_twisted.ensureDeferred
async def test_one_broker_out_of_those_in_the_url_is_enough(mock):
    async with nothing_listening() as dead:
        host, port = mock.addresses[3]
        async with running(f"{dead},{host}:{port}") as broker:
            await soon(broker.publish(record("t")))
            await eventually(lambda: broker.health().ready)


@pytest_twisted.ensureDeferred
async def test_an_address_that_rejects_connections_is_named_with_what_to_check():
    async with nothing_listening() as address, running(address, delivery_timeout="0.5") as broker:
        error = await soon_failed(broker.publish(record("t")))
        assert type(error) is BrokerUnavailable
        assert address not in str(error)
        [reason] = broker.health().reasons
        assert address in reason
        assert "refused" in reason


@pytest_twisted.ensureDeferred
async def test_an_http_server_is_told_from_kafka():
    answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    async with listening(answer=answer) as server, running(server.address, delivery_timeout="1.5") as broker:
        error = await soon_failed(broker.publish(record("t")))
        assert isinstance(error, BrokerUnavailable)
        assert not error.possibly_published
        [reason] = broker.health().reasons
        assert server.address in reason
        assert "HTTP" in reason


@pytest_twisted.ensureDeferred
async def test_a_peer_that_says_nothing_is_given_up():
    async with listening() as server, running(server.address, delivery_timeout="0.5") as broker:
        assert type(await soon_failed(broker.publish(record("t")))) is BrokerUnavailable
        await eventually(lambda: "did not answer" in " ".join(broker.health().reasons))


@pytest_twisted.ensureDeferred
async def test_an_advertised_address_that_cannot_be_reached_is_named(mock):
    async with nothing_listening() as dead, Tap(mock, reactor) as tap:
        host, _, port = dead.rpartition(":")
        for broker_id in tap.addresses:
            tap.addresses[broker_id] = (host, int(port))
        async with running(tap.bootstrap, delivery_timeout="0.5") as broker:
            assert type(await soon_failed(broker.publish(record("t")))) is BrokerUnavailable
            await eventually(lambda: "advertise" in " ".join(broker.health().reasons))
            [reason] = broker.health().reasons
            assert dead in reason


@pytest.mark.parametrize("behaviour", ["closes", "garbage", "silent"])
@pytest_twisted.ensureDeferred
async def test_there_is_no_storm_of_connections_to_what_does_not_work(behaviour):
    behaviours = {
        "closes": {"on_connection": lambda transport: transport.abortConnection()},
        "garbage": {"on_connection": lambda transport: transport.write(b"\xff" * 100)},
        "silent": {},
    }
    async with (
        listening(**behaviours[behaviour]) as server,
        running(server.address, delivery_timeout="1") as broker,
    ):
        broker.follow(topic="t", observer=Recorder())
        ends = await settled(broker, [record("t", key=b"%d" % n) for n in range(100)])
        assert {type(each) for each in ends} == {BrokerUnavailable}
        # Publishing and following have connections of their own, and try again after ever longer pauses.
        assert 1 <= server.connections <= 30


@pytest_twisted.ensureDeferred
async def test_there_is_no_storm_of_connections_to_a_cluster_that_drops_them(mock):
    async with Tap(mock, reactor) as tap, running(tap.bootstrap, delivery_timeout="1") as broker:
        tap.lose_answers(METADATA, FOR_EVER)
        assert type(await soon_failed(broker.publish(record("t")))) is BrokerUnavailable
        assert tap.connections <= 60
        await eventually(lambda: tap.connections >= 3)


@pytest_twisted.ensureDeferred
async def test_nothing_stays_connected_after_stop(mock):
    async with listening() as silent, Tap(mock, reactor) as tap:
        async with running(f"{silent.address},{tap.bootstrap}", reactor=FasterReactor()) as broker:
            broker.follow(topic="t", observer=Recorder())
            await within(broker.publish(record("t")))
        await eventually(lambda: not tap.open_connections and not silent.open)


@pytest_twisted.ensureDeferred
async def test_what_goes_wrong_is_said_by_the_broker_and_not_by_the_library_below_it(mock, caplog):
    mock.set_leader("t", 0, -1)
    async with running(mock.bootstrap, reactor=FasterReactor(), delivery_timeout="0.6") as broker:
        broker.follow(topic="absent", observer=Recorder())
        following = broker.follow(topic="t", observer=Recorder())
        await settled(broker, [record("t"), record("absent")])
        await within(following.stop())
        mock.broker_down()
        await eventually(lambda: not broker.health().ready)
    # A handler of last resort would print them.
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == []
