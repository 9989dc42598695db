"""The commands of the page about TLS make certificates that the service and its clients take."""

from __future__ import annotations

import re
import shutil
import subprocess
from textwrap import dedent
from urllib.parse import urlsplit

import pytest
from cryptography import x509

from sampleapp.access.certificate_names import names_in, parse_certificate_name
from tests.support.live_service import LiveService

pytestmark = [
    pytest.mark.page,
    pytest.mark.skipif(
        shutil.which("openssl") is None or shutil.which("curl") is None, reason="needs openssl and curl"
    ),
]


def run(script, directory):
    return subprocess.run(
        ["sh", "-e"], check=True, cwd=directory, input=script, capture_output=True, text=True, timeout=60
    ).stdout


@pytest.fixture
def blocks(project):
    """The shell commands of the page, as a list."""
    page = (project / "docs/howto/tls.rst").read_text(encoding="utf-8")
    found = re.findall(r"^\.\. code-block:: shell\n\n((?: +[^\n]*\n|\n)+)", page, re.MULTILINE)
    return [dedent(block).strip() for block in found]


def test_a_client_with_a_certificate_that_was_made_as_the_page_says_is_taken(project, blocks, tmp_path):
    (server,) = [block for block in blocks if block.startswith("openssl req -x509")]
    (call,) = [block for block in blocks if "--cert thermometer.pem" in block]
    run(server, tmp_path)
    page = (project / "docs/howto/tls.rst").read_text(encoding="utf-8")
    printed = run((project / "docs/howto/client-certificates.sh").read_text(encoding="utf-8"), tmp_path)
    assert f"prints ``{printed.strip()}``" in page
    # The page and the service give the certificate the same names.
    certificate = x509.load_pem_x509_certificate((tmp_path / "thermometer.pem").read_bytes())
    shown = re.findall(r"``((?:subject|dns):[^`]+)``", page)
    assert {parse_certificate_name(name) for name in shown} == set(names_in(certificate))
    endpoint = (
        "https:0:interface=127.0.0.1:privateKey=key.pem:certKey=certificate.pem:clientCA=clients-ca.pem"
    )
    options = ["--listen", f"{endpoint}:clientCertificate=required"]
    with LiveService(directory=tmp_path, options=options) as service:
        service.wait_for_output("Serving 0 readings")
        port = urlsplit(service.wait_for_output(r"Listening at (https://\S+)").group(1)).port
        assert run(call.replace("8443", str(port)).replace("curl", "curl --silent", 1), tmp_path) == "[]"
        with pytest.raises(subprocess.CalledProcessError) as caught:
            run(f"curl -sS --cacert certificate.pem https://localhost:{port}/", tmp_path)
        assert "alert" in caught.value.stderr
