"""The security of connections: the files for TLS, and SASL without TLS."""

from __future__ import annotations

import os
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa, x25519
from twisted.internet.task import Clock

from sampleapp.brokers.kafka.config import KafkaConfig, parse
from sampleapp.brokers.kafka.connections.security import CurrentSecurity, FileReader, Security
from sampleapp.errors import StartUpError
from tests.support.certificates import Authority, key_pem
from tests.support.files import written
from tests.support.secrets import secret

SECRET = secret("s3cr3t-Xyzzy", "a password")


def test_plain_without_tls_is_worth_a_warning(warnings):
    environ = {"SAMPLEAPP_KAFKA_USERNAME": "me", "SAMPLEAPP_KAFKA_PASSWORD": SECRET}
    for url in ("kafka://a", "kafka://a?sasl=SCRAM-SHA-256", "kafka+tls://a?sasl=PLAIN"):
        CurrentSecurity(parse(url), environ=environ, clock=Clock())
    assert warnings == []
    CurrentSecurity(parse("kafka://a?sasl=PLAIN"), environ=environ, clock=Clock())
    assert len(warnings) == 1
    assert SECRET not in warnings[0]


def test_without_sasl_there_is_no_mechanism_and_nothing_to_authenticate_with():
    security = Security.load(parse("kafka://a"), environ={}, files=FileReader())
    assert security.peer("a", 9092).mechanism is None
    assert security.tls_for("a") is None
    with pytest.raises(RuntimeError):
        security.sasl_steps()


def load(**options):
    query = "&".join(f"{name}={quote(str(path))}" for name, path in options.items())
    return Security.load(parse(f"kafka+tls://a?{query}"), environ={}, files=FileReader())


def why_not(**options):
    with pytest.raises(StartUpError) as caught:
        load(**options)
    return str(caught.value)


def test_a_file_of_authorities_and_a_client_certificate_with_its_chain_are_loaded(tmp_path, authority):
    issued = Authority(tmp_path, "between", parent=authority).client()
    both = written(
        tmp_path / "two.pem",
        authority.certificate.read_bytes() + Authority(tmp_path, "x").certificate.read_bytes(),
    )
    assert load(ca=both, certificate=issued.certificate, key=issued.key).tls_for("a") is not None
    in_one = written(tmp_path / "one.pem", issued.certificate.read_bytes() + issued.key.read_bytes())
    in_one.chmod(0o600)
    assert load(ca=both, certificate=in_one, key=in_one).tls_for("a") is not None


@pytest.mark.parametrize("option", ["ca", "certificate", "key"])
def test_a_missing_file_is_named_with_its_option(tmp_path, authority, option):
    issued = authority.client()
    options = {"ca": authority.certificate, "certificate": issued.certificate, "key": issued.key}
    missing = tmp_path / "missing"
    message = why_not(**options | {option: missing})
    assert f"The file {missing}, given with {option}=, does not exist" in message


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\xff",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\n",
    ],
)
@pytest.mark.parametrize("option", ["ca", "certificate"])
def test_a_file_without_certificates_is_rejected(tmp_path, authority, option, content):
    bad = written(tmp_path / "bad.pem", content)
    options = {"ca": authority.certificate, "certificate": bad, "key": bad} | {option: bad}
    assert f"{bad}, given with {option}=, has no certificates in PEM, or a damaged one" in why_not(**options)


@pytest.mark.parametrize(
    ("pem", "what"),
    [
        (b"", "has no private key in PEM"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "has no private key in PEM"),
        (key_pem(ec.generate_private_key(ec.SECP256R1())), "does not belong to the first certificate"),
        (key_pem(ed25519.Ed25519PrivateKey.generate()), "does not belong to the first certificate"),
        (key_pem(x25519.X25519PrivateKey.generate()), "does not belong to the first certificate"),
        (key_pem(ec.generate_private_key(ec.SECP256R1()), password=b"x"), "is encrypted: decrypt it"),
        (
            key_pem(
                ec.generate_private_key(ec.SECP256R1()),
                form=serialization.PrivateFormat.TraditionalOpenSSL,
                password=b"x",
            ),
            "is encrypted: decrypt it",
        ),
    ],
)
def test_a_key_that_cannot_be_used_is_rejected_with_the_reason(tmp_path, authority, pem, what):
    issued = authority.client()
    bad = written(tmp_path / "bad.key", pem)
    message = why_not(certificate=issued.certificate, key=bad)
    assert f"{bad}, given with key=, {what}" in message


def test_a_key_in_the_older_form_of_rsa_or_ec_is_taken(tmp_path, authority):
    issued = authority.client()
    key = serialization.load_pem_private_key(issued.key.read_bytes(), None)
    older = written(tmp_path / "older.key", key_pem(key, form=serialization.PrivateFormat.TraditionalOpenSSL))
    assert b"BEGIN EC PRIVATE KEY" in older.read_bytes()
    assert load(certificate=issued.certificate, key=older).tls_for("a") is not None


@pytest.mark.filterwarnings("ignore:.*key size:DeprecationWarning")
def test_a_key_that_is_too_weak_for_openssl_is_rejected(authority):
    issued = authority.client(key=rsa.generate_private_key(65537, 1024))
    message = why_not(certificate=issued.certificate, key=issued.key)
    assert message.startswith("OpenSSL rejected the files given with ca=, certificate= and key=: ")


def test_paths_are_taken_that_are_not_utf_8(tmp_path, authority):
    strange = tmp_path / os.fsdecode(b"\xff.pem")
    strange.write_bytes(authority.certificate.read_bytes())
    config = KafkaConfig(addresses=(("a", 9092),), tls=True, ca=strange)
    assert Security.load(config, environ={}, files=FileReader()).tls_for("a") is not None


def test_a_key_that_everybody_may_read_is_worth_a_warning(authority, warnings):
    issued = authority.client()
    load(certificate=issued.certificate, key=issued.key)
    assert warnings == []
    issued.key.chmod(0o644)
    load(certificate=issued.certificate, key=issued.key)
    assert len(warnings) == 1
