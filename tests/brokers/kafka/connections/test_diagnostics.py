"""One sentence for each reason why an address is not that of a broker that can be used."""

from __future__ import annotations

import errno
import os
import socket

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.error import ConnectError, NoRouteError

from sampleapp.brokers.kafka.config import parse
from sampleapp.brokers.kafka.connections.diagnostics import FailureReason, Peer, not_connected
from sampleapp.brokers.kafka.connections.endpoints import make_endpoint_factory
from sampleapp.brokers.kafka.connections.security import CurrentSecurity
from tests.support.connecting import (
    Connecting,
    Names,
)
from tests.support.kafka_simulator.server import (
    Closing,
    FakeBroker,
    ServerTLS,
    Silent,
    listening,
    saying,
    serving,
)

# --- no connection -------------------------------------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_a_rejected_connection():
    async with listening(serving(Silent)) as port:
        pass
    reason = await Connecting(port).reason()
    assert reason == FailureReason(
        f"127.0.0.1:{port} refused the connection: check the host and the port, and that the broker runs.",
        "Kafka cannot be reached.",
        lasting=False,
    )


@pytest_twisted.ensureDeferred
async def test_a_name_that_does_not_resolve():
    reason = await Connecting(9092, host="kafka.example", names=Names()).reason()
    assert reason.sentence == (
        "The host name of kafka.example:9092 cannot be resolved: check how it is written, and the DNS."
    )
    assert not reason.lasting


@pytest_twisted.ensureDeferred
async def test_a_name_that_cannot_be_one_as_a_broker_may_advertise_it():
    connecting = Connecting(9092)
    make = make_endpoint_factory(
        security=CurrentSecurity(parse("kafka://a"), environ={}, clock=reactor),
        client_id="me",
        timeout_s=20,
    )
    connecting.endpoint = make(reactor, "a..b", 9092)
    connecting.host = "a..b"
    assert "cannot be resolved" in (await connecting.reason()).sentence


@pytest_twisted.ensureDeferred
async def test_a_name_server_that_does_not_answer():
    connecting = Connecting(9092, host="kafka.example", names=Names(answering=False), timeout_s=0.02)
    reason = await connecting.reason()
    assert reason.sentence.startswith("kafka.example:9092 did not accept a connection in time: check the ")
    assert not reason.lasting


@pytest_twisted.ensureDeferred
async def test_an_address_that_there_is_no_way_to_is_named_with_what_the_system_says_of_it():
    # A multicast address: no TCP connection to it is possible anywhere.
    with socket.socket() as one, pytest.raises(OSError, match=r".") as rejected:
        one.connect(("224.0.0.1", 9092))
    reason = await Connecting(9092, host="224.0.0.1").reason()
    assert reason.sentence == (
        f"224.0.0.1:9092 cannot be reached ({os.strerror(rejected.value.errno)}): check the address, and the "
        "network to it."
    )
    assert not reason.lasting


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NoRouteError(errno.EHOSTUNREACH), "No route to host"),
        (ConnectError(errno.ENETUNREACH, "network"), "Network is unreachable"),
        (ConnectError(string="odd"), "no reason is known"),
    ],
)
def test_why_there_is_no_connection_is_said_in_the_words_of_the_system(error, said):
    reason = not_connected(Peer(host="a.example", port=9092), error)
    assert reason.sentence == (
        f"a.example:9092 cannot be reached ({said}): check the address, and the network to it."
    )


# --- not a broker, or not this way ---------------------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_a_server_that_does_not_answer():
    async with listening(serving(Silent)) as port:
        reason = await Connecting(port, timeout_s=0.5).reason()
    assert reason.sentence == (
        f"127.0.0.1:{port} accepted the connection but did not answer in time: check that this is the port "
        "of a Kafka listener, and that the broker is not overloaded; if it is a TLS port, use kafka+tls://."
    )
    assert not reason.lasting


@pytest_twisted.ensureDeferred
async def test_a_server_that_closes_the_connection():
    async with listening(serving(Closing)) as port:
        reason = await Connecting(port).reason()
    assert reason.sentence == (
        f"127.0.0.1:{port} closed the connection without an answer: if it is a TLS port, use kafka+tls://. "
        "Kafka older than 0.10 also does this, and is not supported."
    )
    assert not reason.lasting


@pytest_twisted.ensureDeferred
async def test_a_tls_port_that_is_spoken_to_in_plain_text(authority):
    async with listening(FakeBroker(), tls=ServerTLS(authority.server())) as port:
        reason = await Connecting(port).reason()
    assert "use kafka+tls://" in reason.sentence


@pytest_twisted.ensureDeferred
async def test_a_tls_port_that_says_so_with_an_alert():
    async with listening(saying(b"\x15\x03\x03\0\x02\x02\x50", closing=True)) as port:
        reason = await Connecting(port).reason()
    assert reason.sentence == f"127.0.0.1:{port} speaks TLS: use kafka+tls:// for this port."
    assert reason.lasting


@pytest_twisted.ensureDeferred
async def test_a_web_server():
    async with listening(saying(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")) as port:
        reason = await Connecting(port).reason()
    assert reason == FailureReason(
        f"127.0.0.1:{port} answers in HTTP, so it is not a Kafka listener: check the host and the port.",
        "The server at the address of Kafka is not Kafka.",
        lasting=True,
    )


@pytest.mark.parametrize(
    "words", [b"SSH-2.0-OpenSSH_9.7\r\n", b"-ERR unknown\r\n", b"\0\0\0\x04nope", b"\x7f" * 5]
)
@pytest_twisted.ensureDeferred
async def test_another_server(words):
    async with listening(saying(words)) as port:
        reason = await Connecting(port).reason()
    assert reason.sentence == (
        f"127.0.0.1:{port} does not answer in Kafka's protocol: check the host and the port."
    )
    assert reason.lasting


@pytest_twisted.ensureDeferred
async def test_a_server_that_closes_the_connection_in_the_middle_of_something_else():
    async with listening(saying(b"no", closing=True)) as port:
        reason = await Connecting(port).reason()
    assert "does not answer in Kafka's protocol" in reason.sentence
