"""SASL on a connection: who is let in, and why not."""

from __future__ import annotations

from urllib.parse import quote

import pytest
import pytest_twisted

from sampleapp.brokers.kafka.connections.diagnostics import FailureReason
from tests.support.brokers import eventually
from tests.support.connecting import (
    SECRET,
    USER,
    Connecting,
    as_client,
    connected,
    trusting,
)
from tests.support.files import written
from tests.support.kafka_simulator.server import (
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    TODAY,
    FakeBroker,
    ServerTLS,
    listening,
)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("newest", [0, 1, 2])
@pytest_twisted.ensureDeferred
async def test_right_credentials_with_each_mechanism_and_version(mechanism, newest):
    broker = FakeBroker(
        ranges=TODAY | {36: (0, newest)},
        mechanisms=["SCRAM-SHA-256", "PLAIN", "SCRAM-SHA-512"],
        users={USER: SECRET},
        lifetime_ms=3_600_000,
    )
    async with listening(broker) as port, connected(port, f"kafka://?sasl={mechanism}") as inner:
        assert inner.known == TODAY | {36: (0, newest)}
        assert inner.session_lifetime_ms == (3_600_000 if newest else 0)
        assert broker.requests[:2] == [(18, 3, b"sampleapp-test"), (17, 1, b"sampleapp-test")]
        assert {version for key, version, _ in broker.requests if key == 36} == {min(newest, 1)}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("users", [{USER: "other"}, {}])
@pytest_twisted.ensureDeferred
async def test_wrong_credentials(mechanism, users):
    # A broker's own callback may say anything, also what must not be repeated.
    broker = FakeBroker(mechanisms=[mechanism], users=users, rejection=f"{USER} has not {SECRET}")
    async with listening(broker) as port:
        reason = await Connecting(port, f"kafka://?sasl={mechanism}").reason()
        await eventually(lambda: broker.lost)
    assert reason == FailureReason(
        f"127.0.0.1:{port} rejected the credentials for {mechanism}: check the user name and the password, "
        f"and that the broker has this user for {mechanism}.",
        "Kafka did not authenticate this service.",
        lasting=True,
        is_rejection=True,
    )


@pytest_twisted.ensureDeferred
async def test_a_mechanism_that_is_not_offered():
    broker = FakeBroker(mechanisms=["SCRAM-SHA-512", "GSSAPI", "PLAIN"])
    async with listening(broker) as port:
        reason = await Connecting(port, "kafka://?sasl=SCRAM-SHA-256").reason()
    assert reason.sentence == (
        f"127.0.0.1:{port} does not offer SCRAM-SHA-256: it offers GSSAPI, PLAIN and SCRAM-SHA-512; set "
        "sasl= to an offered mechanism, or enable SCRAM-SHA-256 on the broker."
    )
    assert reason.lasting


@pytest_twisted.ensureDeferred
async def test_a_listener_without_sasl():
    async with listening(FakeBroker(mechanisms=None)) as port:
        reason = await Connecting(port, "kafka://?sasl=PLAIN").reason()
    assert reason.sentence == (
        f"127.0.0.1:{port} has no SASL on this listener: leave out sasl=, or give the port of a SASL "
        "listener."
    )
    assert reason.lasting


@pytest.mark.parametrize("key", [SASL_HANDSHAKE, SASL_AUTHENTICATE])
@pytest_twisted.ensureDeferred
async def test_a_broker_that_closes_the_connection_during_sasl(key):
    broker = FakeBroker(mechanisms=["PLAIN"], users={USER: SECRET}, closing_on={key})
    async with listening(broker) as port:
        reason = await Connecting(port, "kafka://?sasl=PLAIN").reason()
    assert reason.sentence == (
        f"127.0.0.1:{port} closed the connection during SASL with PLAIN: check that SASL is "
        "enabled on this listener, and read the log of the broker."
    )
    assert not reason.lasting


@pytest.mark.parametrize("key", [SASL_HANDSHAKE, SASL_AUTHENTICATE])
@pytest_twisted.ensureDeferred
async def test_a_broker_that_does_not_answer_during_sasl(key):
    broker = FakeBroker(mechanisms=["PLAIN"], silent_on={key})
    async with listening(broker) as port:
        reason = await Connecting(port, "kafka://?sasl=PLAIN", timeout_s=0.5).reason()
    assert f"127.0.0.1:{port} did not finish SASL with PLAIN in time" in reason.sentence
    assert not reason.lasting


@pytest_twisted.ensureDeferred
async def test_a_broker_that_is_too_old_for_sasl():
    ranges = {key: ends for key, ends in TODAY.items() if key != SASL_AUTHENTICATE}
    async with listening(FakeBroker(ranges=ranges | {17: (0, 0)}, mechanisms=["PLAIN"])) as port:
        reason = await Connecting(port, "kafka://?sasl=PLAIN").reason()
        assert reason.sentence == (
            f"127.0.0.1:{port} does not support SaslAuthenticate requests: "
            "this service needs Kafka 2.1 or newer."
        )
        assert reason.incompatible
        async with connected(port) as inner:
            assert inner.known == ranges | {17: (0, 0)}


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (
            {"final": b"v=AAAA"},
            "did not prove that it knows the password for SCRAM-SHA-256: it may not be the broker",
        ),
        ({"final": b"e=other-error"}, "rejected the credentials for SCRAM-SHA-256"),
        ({"final": b"?"}, "violates SCRAM-SHA-256 (its last message is not one of SCRAM)"),
        (
            {"iterations": 10_000_000},
            "violates SCRAM-SHA-256 (it asks for 10000000 iterations, not 4096",
        ),
        ({"iterations": 1}, "violates SCRAM-SHA-256 (it asks for 1 iterations, not 4096"),
        ({"nonce": ""}, "violates SCRAM-SHA-256 (it did not add to the nonce"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_server_that_does_not_prove_itself_is_not_used(options, what):
    broker = FakeBroker(mechanisms=["SCRAM-SHA-256"], users={USER: SECRET}, **options)
    async with listening(broker) as port:
        reason = await Connecting(port, "kafka://?sasl=SCRAM-SHA-256").reason()
        await eventually(lambda: broker.lost)
    assert f"127.0.0.1:{port} {what}" in reason.sentence
    assert reason.lasting


@pytest_twisted.ensureDeferred
async def test_tls_with_a_client_certificate_and_sasl_at_once(authority):
    broker = FakeBroker(mechanisms=["SCRAM-SHA-512"], users={USER: SECRET}, piece=5)
    tls = ServerTLS(authority.server(), client_ca=authority.certificate)
    url = trusting(authority, *as_client(authority.client()), "sasl=SCRAM-SHA-512")
    async with listening(broker, tls=tls) as port, connected(port, url) as inner:
        assert inner.known == TODAY


def with_token(path, *more):
    return "&".join(["kafka://?sasl=OAUTHBEARER", f"token_file={quote(str(path))}", *more])


@pytest.mark.parametrize("newest", [0, 1])
@pytest_twisted.ensureDeferred
async def test_a_token_that_the_broker_takes(tmp_path, newest):
    broker = FakeBroker(
        ranges=TODAY | {36: (0, newest)}, mechanisms=["OAUTHBEARER"], tokens=[SECRET], lifetime_ms=60_000
    )
    url = with_token(written(tmp_path / "token", f"{SECRET}\n"), "extensions=logicalCluster=lkc-1")
    async with listening(broker) as port, connected(port, url) as inner:
        assert inner.session_lifetime_ms == (60_000 if newest else 0)
    assert broker.authenticated == [f"n,,\x01auth=Bearer {SECRET}\x01logicalCluster=lkc-1\x01\x01".encode()]


@pytest.mark.parametrize(
    ("challenge", "why"),
    [
        (b'{"status":"invalid_token"}', " (invalid_token)"),
        (b'{"status":"%s"}' % SECRET.encode(), ""),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_token_that_the_broker_rejects(tmp_path, challenge, why):
    broker = FakeBroker(mechanisms=["OAUTHBEARER"], challenge=challenge, rejection=f"{SECRET} is not right")
    async with listening(broker) as port:
        reason = await Connecting(port, with_token(written(tmp_path / "token", SECRET))).reason()
        await eventually(lambda: broker.lost)
    assert reason == FailureReason(
        f"127.0.0.1:{port} rejected the token for OAUTHBEARER{why}: check that the token in the file of "
        "token_file= has not expired, and has the issuer, audience and scope that the broker expects.",
        "Kafka did not authenticate this service.",
        lasting=True,
        is_rejection=True,
    )
    # It was told that the error has arrived (RFC 7628, section 3.2.3), and had its last word.
    assert [key for key, _, _ in broker.requests].count(SASL_AUTHENTICATE) == 2


@pytest_twisted.ensureDeferred
async def test_an_answer_that_is_no_error_of_oauthbearer(tmp_path):
    broker = FakeBroker(mechanisms=["OAUTHBEARER"], challenge=SECRET.encode())
    async with listening(broker) as port:
        reason = await Connecting(port, with_token(written(tmp_path / "token", SECRET))).reason()
    assert reason.sentence == (
        f"127.0.0.1:{port} violates OAUTHBEARER (its answer is not an error of OAUTHBEARER): check "
        "that it is a Kafka broker."
    )
