"""Certificates that are renewed while the service runs, and clients that show theirs."""

from __future__ import annotations

import http.client
import os
import signal
import ssl
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from tests.support.callers import by, caller
from tests.support.certificates import Authority
from tests.support.live_service import LiveService
from tests.support.process import DEADLINE_S, publish
from tests.support.waiting import wait_until


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def serve(tmp_path):
    """Starts the service with an endpoint; returns it, and the port."""
    services = []

    def serve(key, certificate, *arguments, options=()):
        description = ":".join(
            ["https", "0", "interface=127.0.0.1", f"privateKey={key}", f"certKey={certificate}", *arguments]
        )
        service = LiveService(directory=tmp_path, options=["--listen", description, *options])
        services.append(service)
        return service, urlsplit(service.wait_for_output(r"Listening at (https://\S+)").group(1)).port

    yield serve
    for service in services:
        service.kill()


def connect(port, authority, *, client=None):
    context = ssl.create_default_context(cafile=authority.certificate)
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    connection = http.client.HTTPSConnection("localhost", port, timeout=DEADLINE_S, context=context)
    connection.connect()
    return connection


def served(port, authority):
    """The certificate that a new connection is shown."""
    with closing(connect(port, authority)) as connection:
        return ssl.DER_cert_to_PEM_cert(connection.sock.getpeercert(binary_form=True)).encode()


def first(issued):
    certificate = x509.load_pem_x509_certificate(issued.certificate.read_bytes())
    return certificate.public_bytes(Encoding.PEM)


class Files:
    """A key and a certificate in use, and ways to put others in their place."""

    def __init__(self, directory, issued):
        self.directory = directory
        self.key, self.certificate = directory / "tls.key", directory / "tls.crt"
        self.write(issued)

    def write(self, issued):
        self.certificate.write_bytes(issued.certificate.read_bytes())
        self.key.write_bytes(issued.key.read_bytes())

    def rename(self, issued):
        for source, target in [(issued.certificate, self.certificate), (issued.key, self.key)]:
            new = target.with_suffix(".new")
            new.write_bytes(source.read_bytes())
            new.replace(target)


class Projected(Files):
    """The same, as Kubernetes projects a secret: links through one link that is swapped."""

    def __init__(self, directory, issued):
        self.directory, self.count = directory, 0
        self.key, self.certificate = directory / "tls.key", directory / "tls.crt"
        self.swap(issued)
        self.key.symlink_to("..data/tls.key")
        self.certificate.symlink_to("..data/tls.crt")

    def swap(self, issued):
        self.count += 1
        data = self.directory / f"..{self.count}"
        data.mkdir()
        (data / "tls.key").write_bytes(issued.key.read_bytes())
        (data / "tls.crt").write_bytes(issued.certificate.read_bytes())
        link = self.directory / "..data_tmp"
        link.symlink_to(data.name)
        link.replace(self.directory / "..data")


@pytest.mark.parametrize(
    "replace",
    [Files.rename, *(pytest.param(each, marks=pytest.mark.slow) for each in (Files.write, Projected.swap))],
)
def test_a_renewed_certificate_is_shown_to_new_connections_while_old_ones_go_on(
    serve, authority, tmp_path, replace
):
    old, new = authority.server("old"), authority.server("new")
    (tmp_path / "files").mkdir()
    kind = Projected if replace is Projected.swap else Files
    files = kind(tmp_path / "files", old)
    service, port = serve(files.key, files.certificate)
    with closing(connect(port, authority)) as connection:
        assert publish(connection, "1")[0] == 200
        assert served(port, authority) == first(old)
        replace(files, new)
        wait_until(lambda: served(port, authority) == first(new), DEADLINE_S)
        assert publish(connection, "2")[0] == 200
    service.wait_for_output(r"Reloaded the key and certificates of https:0\.")


def test_a_hangup_reads_the_files_again_and_ends_nothing(serve, authority, tmp_path):
    old, new = authority.server("old"), authority.server("new")
    files = Files(tmp_path, old)
    service, port = serve(files.key, files.certificate)
    for count in (1, 2):
        service.process.send_signal(signal.SIGHUP)
        service.wait_for_output(rf"(?s)(Reloaded the key and certificates of https:0\..*){{{count}}}")
    assert served(port, authority) == first(old)
    files.write(new)
    service.process.send_signal(signal.SIGHUP)
    wait_until(lambda: served(port, authority) == first(new), DEADLINE_S)


def test_files_that_do_not_fit_change_nothing_until_they_do(serve, authority, tmp_path):
    old, new = authority.server("old"), authority.server("new")
    files = Files(tmp_path, old)
    service, port = serve(files.key, files.certificate)
    files.certificate.write_bytes(new.certificate.read_bytes())
    service.wait_for_output(
        r"Could not reload the key and certificates of https:0; the previous version stays in use: the "
        rf"private key in {files.key} does not belong to the certificate in {files.certificate}\. Give a "
        r"certificate and its own key\."
    )
    assert served(port, authority) == first(old)
    files.key.write_bytes(new.key.read_bytes()[:60])
    service.wait_for_output(r"has no end: the file was cut off\.")
    assert served(port, authority) == first(old)
    files.key.unlink()
    service.wait_for_output(rf"cannot read {files.key}: No such file or directory\.")
    assert served(port, authority) == first(old)
    files.key.write_bytes(new.key.read_bytes())
    wait_until(lambda: served(port, authority) == first(new), DEADLINE_S)


def test_with_a_new_authority_those_of_the_old_one_are_rejected_from_then_on(serve, authority, tmp_path):
    (tmp_path / "clients").mkdir()
    before = Authority(tmp_path / "clients", "before")
    after = Authority(tmp_path / "clients", "after")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(before.certificate.read_bytes())
    issued = authority.server()
    service, port = serve(issued.key, issued.certificate, f"clientCA={trusted}", "clientCertificate=required")
    with closing(connect(port, authority, client=before.client())) as connection:
        assert publish(connection, "1")[0] == 200
        trusted.write_bytes(after.certificate.read_bytes())
        service.wait_for_output(r"Reloaded the key and certificates of https:0\.")
        assert publish(connection, "2")[0] == 200
    for client in (before.client(), None):
        with (
            pytest.raises(ssl.SSLError, match="alert"),
            closing(connect(port, authority, client=client)) as connection,
        ):
            # With TLS 1.3 the client is told after it has been done with the handshake.
            publish(connection, "3")
    with closing(connect(port, authority, client=after.client())) as connection:
        assert publish(connection, "3")[0] == 200
    service.wait_for_output(
        r"Rejected the client certificates of 1 TLS connection\(s\)\. The last one, from 127"
    )
    # One with a certificate that is not trusted, and one without.
    service.wait_for_output(r"(?s)Rejected the client certificates.*Rejected the client certificates")


def test_a_certificate_that_ends_soon_is_warned_of_at_the_start(serve, authority):
    issued = authority.server()
    service, _ = serve(issued.key, issued.certificate)
    service.wait_for_output(
        rf"The certificate of CN=server in {issued.certificate} expires at \S+ \S+ UTC\. Renew it"
    )


def test_any_program_of_twistd_can_use_such_an_endpoint(authority, tmp_path):
    issued = authority.server()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("hello")
    endpoint = rf"https:0:{issued.key}:{issued.certificate}:interface=\:\:1"
    with subprocess.Popen(
        [
            *[sys.executable, Path(sys.executable).with_name("twistd"), "-n", "--pidfile="],
            *["web", "--listen", endpoint, "--path", tmp_path / "site"],
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            port = next(
                int(line.rpartition(" ")[2]) for line in process.stdout if "(TLS) starting on" in line
            )
            context = ssl.create_default_context(cafile=authority.certificate)
            with closing(
                http.client.HTTPSConnection("::1", port, timeout=DEADLINE_S, context=context)
            ) as connection:
                context.check_hostname = False
                connection.request("GET", "/")
                assert connection.getresponse().read() == b"hello"
        finally:
            process.terminate()


def status_on(connection, **headers):
    connection.request("GET", "/", headers=headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def test_one_endpoint_serves_callers_with_certificates_and_callers_with_tokens(serve, authority, tmp_path):
    (tmp_path / "callers.toml").write_text(
        caller("t", "read = true")
        + '\n[callers.thermometer]\nread = true\ncertificates = ["subject:CN=thermometer"]\n'
    )
    issued = authority.server()
    service, port = serve(
        issued.key,
        issued.certificate,
        f"clientCA={authority.certificate}",
        options=["--callers", "callers.toml"],
    )
    service.wait_for_output("Serving 0 readings")
    name, value = by("t")
    token = {name.decode(): value.decode()}
    with closing(connect(port, authority, client=authority.client("thermometer"))) as connection:
        assert status_on(connection) == 200
        # What the request says of its sender decides.
        assert status_on(connection, Authorization="Bearer nonsense") == 401
        assert status_on(connection, **token) == 200
    with closing(connect(port, authority)) as connection:
        assert status_on(connection) == 401
        assert status_on(connection, **token) == 200
    with closing(connect(port, authority, client=authority.client("stranger"))) as connection:
        assert status_on(connection) == 401
        assert status_on(connection, **token) == 200
