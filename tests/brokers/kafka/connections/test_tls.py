"""Connections over TLS: whose certificate is taken, and why not."""

from __future__ import annotations

import datetime as dt

import pytest
import pytest_twisted
from OpenSSL import SSL

from sampleapp.brokers.kafka.connections.diagnostics import FailureReason, Peer, tls_failed
from tests.support.brokers import eventually, within
from tests.support.certificates import Authority
from tests.support.connecting import (
    SECRET,
    USER,
    Connecting,
    Names,
    as_client,
    connected,
    trusting,
)
from tests.support.kafka_simulator.server import (
    TODAY,
    Closing,
    FakeBroker,
    ServerTLS,
    Silent,
    listening,
    saying,
    serving,
)


@pytest.mark.parametrize("newest", [SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION])
@pytest_twisted.ensureDeferred
async def test_tls_to_an_address_or_a_name_that_the_certificate_has(authority, newest):
    issued = authority.server(dns=["*.kafka.example"], ip=["127.0.0.1", "::1"])
    async with listening(FakeBroker(), tls=ServerTLS(issued, newest=newest)) as port:
        async with connected(port, trusting(authority)) as inner:
            assert inner.known == TODAY
            assert inner.transport.getPeerCertificate() is not None
        for host in ("b1.kafka.example", "b1.kafka.example."):
            async with connected(port, trusting(authority), host=host, names=Names("127.0.0.1")) as inner:
                assert inner.known == TODAY


@pytest_twisted.ensureDeferred
async def test_an_intermediate_authority_is_trusted_by_its_root_or_by_itself(authority, tmp_path):
    between = Authority(tmp_path, "between", parent=authority)
    async with listening(FakeBroker(), tls=ServerTLS(between.server())) as port:
        for trusted in (authority, between):
            async with connected(port, trusting(trusted)) as inner:
                assert inner.known == TODAY


@pytest_twisted.ensureDeferred
async def test_the_protocol_gets_the_real_tls_transport_and_its_end(authority):
    broker = FakeBroker()
    async with listening(broker, tls=ServerTLS(authority.server())) as port:
        inner = await within(Connecting(port, trusting(authority)).connect())
        broker.connections[0].transport.write(b"x" * 100_000)
        await eventually(lambda: len(inner.received) == 100_000)
        inner.transport.loseConnection()
        await eventually(lambda: inner.lost and broker.lost)
        assert len(inner.lost) == 1


@pytest_twisted.ensureDeferred
async def test_a_certificate_for_another_name(authority):
    issued = authority.server(dns=["a.example", "b.example"], ip=["10.0.0.1"])
    async with listening(FakeBroker(), tls=ServerTLS(issued)) as port:
        reason = await Connecting(port, trusting(authority)).reason()
        assert reason == FailureReason(
            f"The certificate of 127.0.0.1:{port} is for a.example, b.example, 10.0.0.1, not for "
            "127.0.0.1: connect to a name that it has, or give the server a certificate that has this one.",
            "A secure connection to Kafka could not be established.",
            lasting=True,
        )
        elsewhere = Connecting(port, trusting(authority), host="c.example", names=Names("127.0.0.1"))
        assert "not for c.example" in (await elsewhere.reason()).sentence


@pytest_twisted.ensureDeferred
async def test_a_certificate_for_many_other_names(authority):
    issued = authority.server(dns=[f"{i}.example" for i in range(100)], ip=())
    async with listening(FakeBroker(), tls=ServerTLS(issued)) as port:
        reason = await Connecting(port, trusting(authority)).reason()
    assert (
        " is for 0.example, 1.example, 2.example, 3.example, 4.example, and others, not " in reason.sentence
    )


@pytest_twisted.ensureDeferred
async def test_a_certificate_with_a_name_that_is_not_allowed(authority):
    issued = authority.server(dns=["*.com"], ip=["127.0.0.1"])
    async with listening(FakeBroker(), tls=ServerTLS(issued)) as port:
        elsewhere = Connecting(port, trusting(authority), host="b1.com", names=Names("127.0.0.1"))
        reason = await elsewhere.reason()
        async with connected(port, trusting(authority)) as inner:
            assert inner.known == TODAY
    assert reason.sentence.startswith(f"The certificate of b1.com:{port} has a name that is not allowed (")


@pytest_twisted.ensureDeferred
async def test_a_certificate_without_any_name_is_not_accepted_for_its_common_name(authority):
    issued = authority.server("localhost", dns=(), ip=())
    async with listening(FakeBroker(), tls=ServerTLS(issued)) as port:
        connecting = Connecting(port, trusting(authority), host="localhost", names=Names("127.0.0.1"))
        reason = await connecting.reason()
    assert reason.sentence.startswith(
        f"The certificate of localhost:{port} names no host: it needs DNS:localhost as a"
    )


@pytest_twisted.ensureDeferred
async def test_a_certificate_of_another_authority(authority, tmp_path):
    other = Authority(tmp_path, "other")
    async with listening(FakeBroker(), tls=ServerTLS(other.server())) as port:
        reason = await Connecting(port, trusting(authority)).reason()
        assert reason.sentence == (
            f"The certificate of 127.0.0.1:{port} is not signed by a trusted authority: check that the file "
            "given with ca= has the authority that signed it."
        )
        assert reason.lasting
        reason = await Connecting(port, "kafka+tls://").reason()
        assert reason.sentence == (
            f"The certificate of 127.0.0.1:{port} is not signed by a trusted authority: give the authority's "
            "certificate with ca=."
        )


@pytest_twisted.ensureDeferred
async def test_a_certificate_that_has_expired(authority):
    async with listening(FakeBroker(), tls=ServerTLS(authority.expired())) as port:
        reason = await Connecting(port, trusting(authority)).reason()
    assert reason.sentence == (
        f"The certificate of 127.0.0.1:{port} has expired: renew it, or set this machine's clock."
    )
    assert reason.lasting


@pytest_twisted.ensureDeferred
async def test_a_certificate_that_is_not_valid_yet(authority):
    issued = authority.server(start=dt.timedelta(hours=1))
    async with listening(FakeBroker(), tls=ServerTLS(issued)) as port:
        reason = await Connecting(port, trusting(authority)).reason()
    assert reason.sentence.startswith(f"The certificate of 127.0.0.1:{port} is not valid yet: ")


@pytest_twisted.ensureDeferred
async def test_a_clients_certificate_is_not_one_for_a_broker(authority):
    async with listening(FakeBroker(), tls=ServerTLS(authority.client())) as port:
        reason = await Connecting(port, trusting(authority)).reason()
    assert reason.sentence.startswith(f"The certificate of 127.0.0.1:{port} cannot be used (OpenSSL's ")


@pytest_twisted.ensureDeferred
async def test_nothing_is_asked_of_a_broker_whose_certificate_is_not_right(authority, tmp_path):
    broker = FakeBroker(mechanisms=["PLAIN"], users={USER: SECRET})
    async with listening(broker, tls=ServerTLS(authority.server(dns=["a.example"], ip=()))) as port:
        await Connecting(port, trusting(authority, "sasl=PLAIN")).reason()
        await eventually(lambda: broker.lost)
    assert broker.requests == []


@pytest.mark.parametrize("newest", [SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION])
@pytest_twisted.ensureDeferred
async def test_a_broker_that_requires_a_client_certificate(authority, tmp_path, newest):
    tls = ServerTLS(authority.server(), client_ca=authority.certificate, newest=newest)
    async with listening(FakeBroker(), tls=tls) as port:
        async with connected(port, trusting(authority, *as_client(authority.client()))) as inner:
            assert inner.known == TODAY
        reason = await Connecting(port, trusting(authority)).reason()
        if newest == SSL.TLS1_3_VERSION:
            assert reason.sentence == (
                f"127.0.0.1:{port} requires a client certificate: give certificate= and key=."
            )
        else:
            # TLS 1.2 has no alert for this alone.
            assert "whether it requires a client certificate" in reason.sentence
        assert reason.lasting
        stranger = Authority(tmp_path, "stranger").client("strange")
        reason = await Connecting(port, trusting(authority, *as_client(stranger))).reason()
        assert reason.sentence == (
            f"127.0.0.1:{port} rejected the client certificate (unknown ca): check that the broker trusts "
            "its authority, and that it has not expired."
        )
        assert reason.lasting


@pytest_twisted.ensureDeferred
async def test_a_client_certificate_with_the_chain_to_its_authority(authority, tmp_path):
    between = Authority(tmp_path, "between", parent=authority)
    tls = ServerTLS(authority.server(), client_ca=authority.certificate)
    url = trusting(authority, *as_client(between.client()))
    async with listening(FakeBroker(), tls=tls) as port, connected(port, url) as inner:
        assert inner.known == TODAY


@pytest_twisted.ensureDeferred
async def test_a_plain_text_port_that_is_spoken_to_in_tls(authority):
    async with listening(FakeBroker()) as port:
        reason = await Connecting(port, trusting(authority)).reason()
    assert reason.sentence == (
        f"127.0.0.1:{port} closed the connection during the TLS handshake: if it is a plain-text port, use "
        "kafka:// for it."
    )
    assert not reason.lasting


@pytest.mark.parametrize(
    "words",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\0\0\x06\0\0\0\x01\0\x23",
        b"SSH-2.0-OpenSSH_9.7\r\n",
        b"\xff" * 9,
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_server_that_answers_tls_in_plain_text(authority, words):
    async with listening(saying(words)) as port:
        reason = await Connecting(port, trusting(authority)).reason()
    assert reason.sentence == (
        f"127.0.0.1:{port} does not speak TLS: use kafka:// for this port, or give the port of a TLS "
        "listener."
    )
    assert reason.lasting


@pytest.mark.parametrize(
    ("has_certificate", "what"),
    [
        (False, "requires a client certificate: give certificate= and key=."),
        (
            True,
            (
                "rejects the client certificate: check that it trusts its authority, and that it has not "
                "expired."
            ),
        ),
    ],
)
def test_an_alert_of_an_old_kafka_that_cannot_be_decrypted(has_certificate, what):
    peer = Peer(host="kafka", port=9093, tls=True, client_certificate=has_certificate)
    # As OpenSSL 3 has it in its queue.
    said = [
        ("SSL routines", "", "decryption failed or bad record mac"),
        ("SSL routines", "", "record layer failure"),
    ]
    reason = tls_failed(peer, SSL.Error(said))
    assert reason.sentence == (
        "kafka:9093 sent data after the TLS handshake that cannot be decrypted, as Kafka does when it " + what
    )
    assert reason.lasting


@pytest_twisted.ensureDeferred
async def test_a_server_that_does_not_answer_tls(authority):
    async with listening(serving(Silent)) as port:
        reason = await Connecting(port, trusting(authority), timeout_s=0.5).reason()
    assert "accepted the connection but did not answer the TLS handshake in time" in reason.sentence
    assert not reason.lasting


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (
            {"timeout_s": 0.3},
            "did not answer in time: check that this is the port of a Kafka listener, and that",
        ),
        (
            {},
            "closed the connection without an answer: if it requires a client certificate, give certificate=",
        ),
    ],
)
@pytest_twisted.ensureDeferred
async def test_tls_works_but_nothing_behind_it_does(authority, options, what):
    behind = serving(Silent if options else Closing)
    async with listening(behind, tls=ServerTLS(authority.server())) as port:
        reason = await Connecting(port, trusting(authority), **options).reason()
        assert what in reason.sentence
        assert "kafka+tls" not in reason.sentence


@pytest_twisted.ensureDeferred
async def test_a_broker_that_closes_the_connection_on_the_client_certificate_without_a_word(authority):
    async with listening(serving(Closing), tls=ServerTLS(authority.server())) as port:
        reason = await Connecting(port, trusting(authority, *as_client(authority.client()))).reason()
    assert "check that the broker trusts the client certificate" in reason.sentence
