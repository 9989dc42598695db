"""The command and the Python client present a certificate to a service that asks for one."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from sampleapp.client import Client
from tests.support import command
from tests.support.certificates import DAY, Authority, key_pem
from tests.support.files import written

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
    """Run a command against a service that knows callers by their certificates; return stdout and stderr."""
    # Only for the name.
    server = authority.server(ip=())
    callers = written(tmp_path / "callers.toml", CALLERS)
    tls = (
        f"https:0:interface=127.0.0.1:privateKey={server.key}:certKey={server.certificate}"
        f":clientCA={authority.certificate}"
    )
    service = start(options=["--listen", tls, "--callers", str(callers)])
    port = urlsplit(service.wait_for_output(r"Listening at (https://\S+)").group(1)).port

    def run(*arguments, host="localhost", code=0, **variables):
        return command.sampleapp(
            service,
            *arguments,
            url=f"https://{host}:{port}/",
            code=code,
            environment={"SSL_CERT_FILE": str(authority.certificate), **variables},
        )

    return run


def test_every_command_is_known_by_its_certificate_from_options_or_variables(sampleapp, authority, tmp_path):
    one = authority.client("thermometer")
    lines = written(tmp_path / "lines.txt", "1\n")
    both = written(tmp_path / "both.pem", one.certificate.read_text() + one.key.read_text(), mode=0o600)
    for arguments, printed in [
        (["publish", "t", "c", "--key", "k"], '"offset":0'),
        (["publish", "t", "--lines", str(lines)], ""),
        (["delete", "t", "k"], '"offset":2'),
        (["consume", "t", "--limit", "1"], '"content":"c"'),
        (["readings"], "[]"),
    ]:
        files = ["--client-certificate", one.certificate, "--client-key", one.key]
        assert printed in sampleapp(*arguments, *files)[0]
    assert sampleapp("readings", SAMPLEAPP_CLIENT_CERTIFICATE=str(both)) == ("[]\n", "")
    variables = {"SAMPLEAPP_CLIENT_CERTIFICATE": str(one.certificate), "SAMPLEAPP_CLIENT_KEY": str(one.key)}
    assert sampleapp("readings", **variables) == ("[]\n", "")


def test_a_certificate_changes_nothing_about_the_trust_in_the_service(sampleapp, authority, tmp_path):
    one = authority.client("thermometer")
    arguments = ["publish", "t", "c", "--client-certificate", one.certificate, "--client-key", one.key]
    other = str(Authority(tmp_path, "other").certificate)
    stdout, stderr = sampleapp(*arguments, code=1, SSL_CERT_FILE=other)
    assert stdout == ""
    assert "is not signed by a trusted authority" in stderr
    stdout, stderr = sampleapp(*arguments, host="127.0.0.1", code=1)
    assert stdout == ""
    assert "is for localhost, not for 127.0.0.1" in stderr


def test_a_certificate_that_the_service_does_not_accept_is_told(sampleapp, authority, tmp_path):
    foreign = Authority(tmp_path, "foreign").client("thermometer")
    lines = written(tmp_path / "lines.txt", "1\n")
    for certificate, arguments in [
        (foreign, ["publish", "t", "c"]),
        (foreign, ["publish", "t", "--lines", str(lines)]),
        (foreign, ["consume", "t"]),
        (authority.client("thermometer", start=-2 * DAY, end=-DAY), ["readings"]),
    ]:
        files = ["--client-certificate", certificate.certificate, "--client-key", certificate.key]
        stdout, stderr = sampleapp(*arguments, *files, code=1)
        assert stdout == ""
        assert "does not accept the client certificate" in stderr
        assert "may have been published" not in stderr.lower()
    stdout, stderr = sampleapp("readings", code=1)
    assert stdout == ""
    assert "(401)" in stderr


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
        stdout, stderr = sampleapp("readings", *(each for option in options for each in option), code=2)
        assert stdout == ""
        assert sentence in stderr
        assert "Invalid value for '--client-certificate': " in stderr
        with pytest.raises(ValueError, match=sentence.replace(".", r"\.")):
            Client(
                base_url="https://localhost",
                reactor=None,
                **dict(zip(("client_certificate", "client_key"), files, strict=False)),
            )
    for arguments in (["readings"], ["consume", "t"], ["publish", "t", "--lines", "/dev/null"]):
        url = ["--url", "http://localhost/"]
        files = ["--client-certificate", one.certificate, "--client-key", one.key]
        stdout, stderr = sampleapp(*arguments, *url, *files, code=2)
        assert stdout == ""
        assert "is presented over TLS only: give the service's URL with https://" in stderr
    of_broker = ["consume", "t", "--broker", "sqlite:records"]
    stdout, stderr = sampleapp(*of_broker, "--client-certificate", one.certificate, code=2)
    assert stdout == ""
    assert "--client-certificate is for the service: give its URL" in stderr
    with pytest.raises(ValueError, match="for the client's own agent"):
        Client(base_url="https://a", reactor=None, client_certificate=one.certificate, agent=object())
    _, stderr = sampleapp("readings", "--client-key", one.key, code=2)
    assert "A client key needs a client certificate." in stderr
