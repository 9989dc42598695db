"""The service and its clients with TLS."""

from __future__ import annotations

import datetime as dt
import http.client
import os
import ssl
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.process import (
    DEADLINE_S,
    connect,
    publish,
)


@pytest.fixture
def certificate(tmp_path):
    """A certificate for localhost and its key, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    key_file, certificate_file = tmp_path / "key.pem", tmp_path / "certificate.pem"
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return key_file, certificate_file


def test_tls_works_beside_plain_http(start, certificate):
    key_file, certificate_file = certificate
    tls = f"ssl:0:interface=127.0.0.1:privateKey={key_file}:certKey={certificate_file}"
    service = start(options=["--listen", tls, "--max-body", "1000"])
    secure = urlsplit(service.wait_for_output(r"Listening at (https://\S+)").group(1))
    context = ssl.create_default_context(cafile=certificate_file)
    context.set_alpn_protocols(["h2", "http/1.1"])

    def connect_securely():
        return http.client.HTTPSConnection("localhost", secure.port, timeout=DEADLINE_S, context=context)

    with closing(connect_securely()) as connection, closing(connect(service)) as plain:
        assert publish(connection, "1", topic="readings", key="a") == (
            200,
            {"topic": "readings", "partition": 0, "offset": 0},
        )
        assert publish(plain, "2", topic="readings", key="a")[1]["offset"] == 1
    with closing(connect_securely()) as connection:
        status, problem = publish(connection, "x" * 1000)
        assert (status, problem["status"]) == (413, 413)
    with closing(connect_securely()) as idle:
        assert publish(idle, "3")[0] == 200
        # The limit for bodies would not hold in HTTP/2.
        assert idle.sock.selected_alpn_protocol() == "http/1.1"
        # A client that does not answer the end of TLS is not waited for.
        assert service.stop() == -15
    assert "still running" not in service.output
    # Nobody who reads the log knows the names of classes.
    assert "FrontDoorSite" not in service.output


def test_a_certificate_that_is_not_trusted_is_told_apart_from_an_answer_that_is_no_http(start, certificate):
    key_file, certificate_file = certificate
    tls = f"ssl:0:interface=127.0.0.1:privateKey={key_file}:certKey={certificate_file}"
    service = start(options=["--listen", tls])
    port = urlsplit(service.wait_for_output(r"Listening at (https://\S+)").group(1)).port
    reasons = {"localhost": "it has expired, or no authority", "127.0.0.1": "it is for another host name"}
    for host, reason in reasons.items():
        done = subprocess.run(
            [Path(sys.executable).with_name("sampleapp"), "publish", "t", "c"],
            check=False,
            env={**os.environ, "SAMPLEAPP_URL": f"https://{host}:{port}/"},
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 1
        sentence = f"The certificate of https://{host}:{port}/messages is not one to trust: {reason}"
        assert sentence in done.stderr
        assert ("SSL_CERT_FILE" in done.stderr) == (host == "localhost")
        assert "SSL routines" not in done.stderr
        assert "Is the service running?" not in done.stderr
        assert "may have been published" not in done.stderr
