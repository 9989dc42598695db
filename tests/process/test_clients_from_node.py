"""Libraries for JavaScript: clients for event streams that come back, and signers of webhooks."""

from __future__ import annotations

import json
import shutil
import subprocess
from base64 import b64encode
from contextlib import ExitStack
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.support.callers import FULL, token_of
from tests.support.command import publish
from tests.support.live_service import LiveService
from tests.support.secrets import secret
from tests.support.waiting import wait_until

# npm asks its registry.
pytestmark = pytest.mark.slow

LIBRARIES = (
    "event-source-polyfill@1.0.31",
    "eventsource@4.1.1",
    "reconnecting-eventsource@1.6.5",
    "standardwebhooks@1.1.1",
    "svix@1.99.1",
)
DEADLINE_S = 120
CLIENTS = ("EventSource", "EventSourcePolyfill", "ReconnectingEventSource")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """A directory with the programs and libraries of these tests."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("this machine has no Node.js with npm")
    directory = tmp_path_factory.mktemp("libraries")
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", *LIBRARIES]
    try:
        subprocess.run(install, cwd=directory, check=True, capture_output=True, timeout=DEADLINE_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip(f"npm cannot install {', '.join(LIBRARIES)}")
    for program in ("read_streams.mjs", "sign_webhooks.mjs"):
        shutil.copy(Path(__file__).with_name(program), directory)
    return directory


def test_clients_for_event_streams_have_each_record_once_through_restarts(libraries, tmp_path):
    output = tmp_path / "output.txt"

    def printed():
        return [tuple(line.split()) for line in output.read_text().splitlines()]

    def has_printed(content):
        return lambda: {(name, content) for name in CLIENTS} <= set(printed())

    with ExitStack() as stack:
        service = stack.enter_context(LiveService(directory=tmp_path))
        publish(service, "orders", "a", "b", key="17")
        with output.open("wb") as file:
            # event-source-polyfill writes about each connection that is refused.
            reader = subprocess.Popen(
                ["node", "read_streams.mjs", service.url, "6"],
                cwd=libraries,
                stdout=file,
                stderr=subprocess.DEVNULL,
            )
        stack.callback(reader.wait)
        stack.callback(reader.kill)
        for before, contents in (("b", ("c", "d")), ("d", ("e", "f"))):
            wait_until(has_printed(before), "all clients have what was there", deadline_s=DEADLINE_S)
            port = service.url.rstrip("/").rpartition(":")[2]
            service.stop()
            service = stack.enter_context(
                LiveService(directory=tmp_path, listen=f"tcp:{port}:interface=127.0.0.1")
            )
            publish(service, "orders", *contents, key="17")
        assert reader.wait(DEADLINE_S) == 0
    for name in CLIENTS:
        found = [content for client, content in printed() if client == name]
        # Node.js sends Sec-Fetch-Mode, as browsers do.
        assert found.count("404") == 1
        found.remove("404")
        assert found == list("abcdef")


def test_what_the_libraries_of_svix_and_standard_webhooks_sign_is_published(libraries, tmp_path):
    key = secret("whsec_" + b64encode(b"0123456789abcdefghijklmn").decode(), "the secret of a hook")
    (tmp_path / "invoices.secret").write_text(key)
    (tmp_path / "invoices.secret").chmod(0o600)
    (tmp_path / "callers.toml").write_text(
        FULL + '[hooks.invoices]\ntopic = "t"\nscheme = "standard"\nsecret_files = ["invoices.secret"]\n'
    )
    with LiveService(directory=tmp_path, options=["--callers", "callers.toml"]) as service:
        ended = subprocess.run(
            ["node", "sign_webhooks.mjs", service.url, key],
            cwd=libraries,
            check=True,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert ended.stdout.split() == [
            word
            for prefix in ("webhook", "svix")
            for status in (200, 200, 401, 401)
            for word in (prefix, str(status))
        ]
        request = Request(
            f"{service.url}topics/t/records", headers={"Authorization": f"Bearer {token_of('full')}"}
        )
        with urlopen(request) as page:
            contents = [json.loads(json.loads(line)["content"]) for line in page]
    assert contents == [{"type": "invoice.paid", "note": "café"}] * 4
