"""SASL's PLAIN, SCRAM and OAUTHBEARER, as pure steps: against the RFCs' examples, and a server that lies."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.brokers.kafka.connections import sasl_mechanisms
from sampleapp.brokers.kafka.connections.sasl_mechanisms import (
    Credentials,
    SaslError,
    SaslRejected,
    ServerUnproven,
    Token,
)
from tests.support.examples import examples
from tests.support.kafka_simulator.server import FakeBroker, ScramServer

ME = Credentials(username="user", password="pencil")
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"

# RFC 7677, section 3.
SHA_256 = (
    "sha256",
    "n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    (
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    ),
    "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
)
# No RFC has one for SHA-512; this one is in use among other implementations.
SHA_512 = (
    "sha512",
    "n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    (
        "r=rOprNGfwEbeRWgbNEkqO02431b08-2f89-4bad-a4e6-80c0564ec865,"
        "s=Yin2FuHTt/M0kJWb0t9OI32n2VmOGi3m+JfjOvuDF88=,i=4096"
    ),
    (
        "c=biws,r=rOprNGfwEbeRWgbNEkqO02431b08-2f89-4bad-a4e6-80c0564ec865,"
        "p=Hc5yec3NmCD7t+kFRw4/3yD6/F3SQHc7AVYschRja+Bc3sbdjlA0eH1OjJc0DD4ghn1tnXN5/Wr6qm9xmaHt4A=="
    ),
    "v=BQuhnKHqYDwQWS5jAw4sZed+C9KFUALsbrq81bB0mh+bcUUbbMPNNmBIupnS2AmyyDnG5CTBQtkjJ9kyY4kzmw==",
)


def pencil(hash_name):
    return lambda salt, iterations: hashlib.pbkdf2_hmac(hash_name, b"pencil", salt, iterations)


def example_steps(hash_name="sha256"):
    return sasl_mechanisms.scram("user", pencil(hash_name), hash_name=hash_name, nonce=CLIENT_NONCE)


def finish(steps, answer):
    with pytest.raises(StopIteration):
        steps.send(answer)


@pytest.mark.parametrize("example", [SHA_256, SHA_512], ids=["SHA-256", "SHA-512"])
def test_scram_says_what_the_example_says_and_accepts_the_servers_proof(example):
    hash_name, client_first, server_first, client_final, server_final = example
    steps = example_steps(hash_name)
    assert next(steps).decode() == client_first
    assert steps.send(server_first.encode()).decode() == client_final
    finish(steps, server_final.encode())


@given(
    mechanism=st.sampled_from(["SCRAM-SHA-256", "SCRAM-SHA-512"]),
    username=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1),
    password=st.text(st.characters(codec="utf-8"), min_size=1),
    iterations=st.integers(4096, 4200),
)
@examples(20)
def test_scram_and_a_server_convince_one_another_of_any_name_and_password(
    mechanism, username, password, iterations
):
    server = ScramServer(FakeBroker(users={username: password}, iterations=iterations), mechanism)
    steps = sasl_mechanisms.mechanism_steps(mechanism, Credentials(username=username, password=password))()
    is_right, challenge = server.next(next(steps))
    assert is_right
    is_right, final = server.next(steps.send(challenge))
    assert is_right
    finish(steps, final)


def test_every_connection_has_a_nonce_of_its_own_and_the_password_is_salted_once(monkeypatch):
    salted = []
    original = hashlib.pbkdf2_hmac
    monkeypatch.setattr(hashlib, "pbkdf2_hmac", lambda *args: salted.append(args[2]) or original(*args))
    begin = sasl_mechanisms.mechanism_steps("SCRAM-SHA-256", ME)
    nonces = set()
    for salt in (b"one", b"two", b"one", b"two"):
        steps = begin()
        nonce = next(steps).decode().removeprefix("n,,n=user,r=")
        nonces.add(nonce)
        steps.send(f"r={nonce}more,s={base64.b64encode(salt).decode()},i=4096".encode())
    assert salted == [b"one", b"two"]
    assert len(nonces) == 4


@pytest.mark.parametrize(
    ("challenge", "what"),
    [
        (b"", "not one of SCRAM"),
        (b"\xff", "not UTF-8"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=AAAA", "not one of SCRAM"),
        (b"s=AAAA,r=rOprNGfwEbeRWgbNEkqOx,i=4096", "not one of SCRAM"),
        (b"m=x,r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=4096", "not one of SCRAM"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=,i=4096", "not one of SCRAM"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=AAA,i=4096", "invalid base64"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=-1", "not one of SCRAM"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=04096", "not one of SCRAM"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=\xd9\xa1\xd9\xa1\xd9\xa1\xd9\xa1", "not one of SCRAM"),
        (b"r=rOprNGfwEbeRWgbNEkqO,s=AAAA,i=4096", "did not add to the nonce"),
        (b"r=another,s=AAAA,i=4096", "did not add to the nonce"),
        (b"r=,s=AAAA,i=4096", "not one of SCRAM"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=4095", "asks for 4095 iterations, not 4096 to 100000"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=100001", "asks for 100001 iterations"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=9999999999", "asks for 9999999999 iterations"),
        (b"e=other-error", "not one of SCRAM"),
    ],
)
def test_a_first_message_that_is_not_right_ends_it_before_the_password_is_used(challenge, what):
    used = []
    steps = sasl_mechanisms.scram(
        "user", lambda *args: used.append(args), hash_name="sha256", nonce=CLIENT_NONCE
    )
    next(steps)
    with pytest.raises(SaslError, match=what):
        steps.send(challenge)
    assert used == []


@pytest.mark.parametrize("iterations", [4096, 16_384, 100_000])
def test_as_many_iterations_as_kafka_allows_and_more_are_taken(iterations):
    steps = sasl_mechanisms.scram("user", lambda *_: b"salted", hash_name="sha256", nonce=CLIENT_NONCE)
    next(steps)
    assert steps.send(f"r={CLIENT_NONCE}x,s=AAAA,i={iterations},extension=1".encode()).startswith(b"c=biws")


@pytest.mark.parametrize(
    ("final", "error", "what"),
    [
        (b"v=" + base64.b64encode(bytes(32)), ServerUnproven, "does not know the password"),
        (b"v=AAAA", ServerUnproven, "does not know the password"),
        (b"v=AAA", SaslError, "invalid base64"),
        (b"v=", SaslError, "not one of SCRAM"),
        (b"", SaslError, "not one of SCRAM"),
        (b"\xff", SaslError, "not UTF-8"),
        (b"e=invalid-proof", SaslRejected, "rejected the proof"),
        (b"e=", SaslRejected, "rejected the proof"),
    ],
)
def test_a_last_message_that_proves_nothing_is_not_accepted(final, error, what):
    steps = example_steps()
    next(steps)
    steps.send(SHA_256[2].encode())
    with pytest.raises(error, match=what) as caught:
        steps.send(final)
    assert type(caught.value) is error


def test_plain_says_all_in_one_message_and_takes_any_answer():
    steps = sasl_mechanisms.mechanism_steps("PLAIN", Credentials(username="m\u00fc", password="p,=w"))()
    assert next(steps) == "\0m\u00fc\0p,=w".encode()
    finish(steps, b"")


def test_the_escapes_of_a_name_in_scram_are_those_of_the_rfc():
    steps = sasl_mechanisms.scram("a=b,c", pencil("sha256"), hash_name="sha256", nonce="x")
    assert next(steps) == b"n,,n=a=3Db=2Cc,r=x"


def test_credentials_are_in_no_error_of_the_steps():
    steps = sasl_mechanisms.mechanism_steps(
        "SCRAM-SHA-256", Credentials(username="somebody", password="hidden")
    )()
    next(steps)
    with pytest.raises(SaslError) as caught:
        steps.send(b"r=x,s=AAAA,i=4096")
    assert "somebody" not in repr(caught.value)
    assert "hidden" not in repr(caught.value)


def bearer(*extensions):
    steps = sasl_mechanisms.oauthbearer(Token("vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg=="), extensions)
    return steps, next(steps)


def test_oauthbearer_says_all_in_one_message_as_the_rfc_has_it():
    # RFC 7628, section 4.1, without a user name, a host and a port, which Kafka does not take.
    steps, first = bearer()
    assert first == b"n,,\x01auth=Bearer vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==\x01\x01"
    finish(steps, b"")


def test_extensions_follow_the_token():
    steps, first = bearer(("logicalCluster", "lkc-1"), ("identityPoolId", "pool = 2"))
    assert first.endswith(b"==\x01logicalCluster=lkc-1\x01identityPoolId=pool = 2\x01\x01")
    finish(steps, b"")


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b'{"status":"invalid_token"}', "invalid_token"),
        (b'{"status": "insufficient_scope", "scope": "kafka"}', "insufficient_scope"),
        # RFC 7628, section 4.3.
        (
            b'{"status":"invalid_token","scope":"example_scope","openid-configuration":"https://x/.well"}',
            "invalid_token",
        ),
        (b'{"status":"vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg=="}', None),
        (b'{"status":["invalid_token"]}', None),
        (b"{}", None),
    ],
)
def test_an_error_answer_is_answered_before_the_rejection_comes_and_only_a_known_reason_is_told(
    answer, status
):
    steps, _ = bearer()
    assert steps.send(answer) == b"\x01"
    with pytest.raises(SaslRejected) as caught:
        steps.throw(SaslRejected("it said no"))
    assert caught.value.status == status
    assert "vF9" not in repr(caught.value)


def test_a_server_that_goes_on_after_an_error_is_not_trusted():
    steps, _ = bearer()
    steps.send(b'{"status":"invalid_token"}')
    with pytest.raises(SaslError, match="it continues after an error"):
        steps.send(b"")


@given(st.binary(min_size=1) | st.sampled_from([b"[" * 100_000, b"null", b'"invalid_token"', b"\xff{}"]))
def test_whatever_else_a_server_answers_is_an_error_that_repeats_nothing(answer):
    steps, _ = bearer()
    with pytest.raises(SaslError) as caught:
        # What happens to be an object in JSON is one, without a reason that is known.
        steps.throw(SaslRejected("it said no")) if steps.send(answer) == b"\x01" else None
    assert str(caught.value) in {"its answer is not an error of OAUTHBEARER", "it rejected the token"}
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("begin", [bearer, lambda: (example_steps(),)])
def test_a_rejection_outside_of_the_mechanism_is_one_of_the_mechanism(begin):
    steps = begin()[0]
    if begin is not bearer:
        next(steps)
    with pytest.raises(SaslRejected, match="it said no"):
        steps.throw(SaslRejected("it said no"))
