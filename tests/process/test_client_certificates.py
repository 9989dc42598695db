"""The command and the Python client present a certificate to a service that asks for one."""

from __future__ import annotations

import os
import subprocess
from urllib.parse import urlsplit

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from sampleapp.client import Client
from tests.support.certificates import DAY, Authority, key_pem
from tests.support.command import COMMAND
from tests.support.files import written
from tests.support.process import DEADLINE_S

CALLERS = """
[callers.thermometer]
certificates = ["subject:CN=thermometer"]
publish = ["t"]
consume = ["t"]
read = true
"""


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def sampleapp(start, authority, tmp_path):
    """Runs a command against a service that knows callers by their certificates; returns how it ended."""
    # Only for the name.
    server = authority.server(ip=())
    callers = written(tmp_path / "callers.toml", CALLERS)
    tls = (
        f"https:0:interface=127.0.0.1:privateKey={server.key}:certKey={server.certificate}"
        f":clientCA={authority.certificate}"
    )
    service = start(options=["--listen", tls, "--callers", str(callers)])
    port = urlsplit(service.wait_for_output(r"Listening at (https://\S+)").group(1)).port

    def run(*arguments, host="localhost", **variables):
        return subprocess.run(
            [COMMAND, *map(str, arguments)],
            check=False,
            capture_output=True,
            cwd=tmp_path,
            env={
                **os.environ,
                "SAMPLEAPP_URL": f"https://{host}:{port}/",
                "SSL_CERT_FILE": str(authority.certificate),
                **variables,
            },
            text=True,
            timeout=DEADLINE_S,
        )

    return run


COMMANDS = [
    (["publish", "t", "c", "--key", "k"], '"offset":0'),
    (["publish", "t", "--lines", "lines.txt"], ""),
    (["delete", "t", "k"], '"offset":2'),
    (["consume", "t", "--limit", "1"], '"content":"c"'),
    (["readings"], "[]"),
]


def test_every_command_is_known_by_its_certificate_from_options_or_variables(sampleapp, authority, tmp_path):
    one = authority.client("thermometer")
    written(tmp_path / "lines.txt", "1\n")
    both = written(tmp_path / "both.pem", one.certificate.read_text() + one.key.read_text(), mode=0o600)
    for arguments, printed in COMMANDS:
        ended = sampleapp(*arguments, "--client-certificate", one.certificate, "--client-key", one.key)
        assert (ended.returncode, printed in ended.stdout) == (0, True), ended
    assert sampleapp("readings", SAMPLEAPP_CLIENT_CERTIFICATE=str(both)).returncode == 0
    variables = {"SAMPLEAPP_CLIENT_CERTIFICATE": str(one.certificate), "SAMPLEAPP_CLIENT_KEY": str(one.key)}
    assert sampleapp("readings", **variables).returncode == 0


def test_a_certificate_changes_nothing_about_the_trust_in_the_service(sampleapp, authority, tmp_path):
    one = authority.client("thermometer")
    arguments = ["publish", "t", "c", "--client-certificate", one.certificate, "--client-key", one.key]
    ended = sampleapp(*arguments, SSL_CERT_FILE=str(Authority(tmp_path, "other").certificate))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "is not signed by a trusted authority" in ended.stderr
    ended = sampleapp(*arguments, host="127.0.0.1")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "is for localhost, not for 127.0.0.1" in ended.stderr


def test_a_certificate_that_the_service_does_not_accept_is_told(sampleapp, authority, tmp_path):
    foreign = Authority(tmp_path, "foreign").client("thermometer")
    for certificate, arguments in [
        (foreign, ["publish", "t", "c"]),
        (foreign, ["publish", "t", "--lines", "lines.txt"]),
        (foreign, ["consume", "t"]),
        (authority.client("thermometer", start=-2 * DAY, end=-DAY), ["readings"]),
    ]:
        written(tmp_path / "lines.txt", "1\n")
        files = ["--client-certificate", certificate.certificate, "--client-key", certificate.key]
        ended = sampleapp(*arguments, *files)
        assert (ended.returncode, ended.stdout) == (1, ""), ended
        assert "does not accept the client certificate" in ended.stderr
        assert "may have been published" not in ended.stderr.lower()
    ended = sampleapp("readings")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "(401)" in ended.stderr


def test_files_that_cannot_be_used_are_a_fault_of_the_command_line(sampleapp, authority, tmp_path):
    one, other = authority.client("one"), authority.client("other")
    key = load_pem_private_key(one.key.read_bytes(), password=None)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(key_pem(key, password=b"a password"))
    cases = [
        ([tmp_path / "nowhere.pem"], "nowhere.pem: No such file or directory."),
        ([one.certificate], "there is no private key in"),
        ([one.certificate, other.key], "does not belong to the certificate in"),
        ([one.key, one.key], "there is no certificate in"),
        ([one.certificate, encrypted], "is encrypted, and there is nobody to ask for a password."),
    ]
    for files, sentence in cases:
        options = zip(("--client-certificate", "--client-key"), files, strict=False)
        ended = sampleapp("readings", *(each for option in options for each in option))
        assert (ended.returncode, ended.stdout) == (2, "")
        assert sentence in ended.stderr
        assert "Invalid value for '--client-certificate': " in ended.stderr
        with pytest.raises(ValueError, match=sentence.replace(".", r"\.")):
            Client(
                base_url="https://localhost",
                reactor=None,
                **dict(zip(("client_certificate", "client_key"), files, strict=False)),
            )
    for arguments in (["readings"], ["consume", "t"], ["publish", "t", "--lines", "/dev/null"]):
        url = ["--url", "http://localhost/"]
        ended = sampleapp(*arguments, *url, "--client-certificate", one.certificate, "--client-key", one.key)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert "is presented over TLS only: give the service's URL with https://" in ended.stderr
    ended = sampleapp("consume", "t", "--broker", "sqlite:records", "--client-certificate", one.certificate)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--client-certificate is for the service: give its URL" in ended.stderr
    with pytest.raises(ValueError, match="for the client's own agent"):
        Client(base_url="https://a", reactor=None, client_certificate=one.certificate, agent=object())
    ended = sampleapp("readings", "--client-key", one.key)
    assert (ended.returncode, "A client key needs a client certificate." in ended.stderr) == (2, True)
