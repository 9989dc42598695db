"""
The service does what it describes, whatever schemathesis thinks of to send.

``SAMPLEAPP_SCHEMATHESIS_EXAMPLES`` says how many requests it makes up for each operation, which are others
each time; ``make fuzz`` asks for many. Without it they are few, and always the same.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import urllib.request
from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.live_service import LiveService
from tests.support.secrets import secret

COMMAND = Path(sys.executable).with_name("schemathesis")
HOOKS = Path(__file__).with_name("schemathesis_hooks.py")
CONFIGURATION = Path(__file__).with_name("schemathesis.toml")
EXAMPLES = os.environ.get("SAMPLEAPP_SCHEMATHESIS_EXAMPLES")

pytestmark = pytest.mark.slow


def run(service, *options):
    """Let it send what it thinks of, and return what it says of the answers."""
    with urllib.request.urlopen(f"{service.url}docs") as response:
        file = re.search(r'"docs/(docs\.[^"]+\.css)"', response.read().decode())[1]
    ended = subprocess.run(
        [
            *(COMMAND, "--config-file", CONFIGURATION, "run", f"{service.url}openapi.json"),
            *("--checks", "all", "--mode", "all", "--continue-on-failure", "--no-color"),
            # DELETE takes a record away, and not the topic that its path names.
            *("--exclude-checks", "use_after_free"),
            *("--max-examples", EXAMPLES or "5"),
            *([] if EXAMPLES else ["--generation-deterministic"]),
            *options,
        ],
        cwd=service.directory,
        env={
            **os.environ,
            "SAMPLEAPP_DOCS_FILE": file,
            "SCHEMATHESIS_HOOKS": str(HOOKS),
            "NO_PROXY": "*",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout}{ended.stderr}"
    return ended.stdout


def assert_all_was_tried(said, service):
    with urllib.request.urlopen(f"{service.url}openapi.json") as response:
        operations = response.read().count(b'"operationId"')
    # It leaves out the one that it has the description from, and one is disabled.
    assert re.search(rf"Tested: +{operations - 2}\n", said), said
    assert int(re.search(r"(\d+) generated", said)[1]) > 5 * operations
    assert "Traceback" not in service.output


def test_every_answer_is_one_that_is_described(tmp_path):
    with LiveService(directory=tmp_path, broker="memory:") as service:
        assert_all_was_tried(run(service), service)


def test_every_answer_to_callers_and_others_is_one_that_is_described(tmp_path):
    token = secret(f"sampleapp_{secrets.token_urlsafe(32)}")
    callers = tmp_path / "callers.toml"
    callers.write_text(
        f"""
        [callers.tester]
        publish = ["*"]
        consume = ["*"]
        read = true
        metrics = true
        [[callers.tester.tokens]]
        sha256 = "{sha256(token.encode()).hexdigest()}"
        """
    )
    options = ["--callers", str(callers)]
    with LiveService(directory=tmp_path, broker="memory:", options=options) as service:
        said = run(service, "--header", f"Authorization: Bearer {token}")
        assert_all_was_tried(said, service)
        assert token not in service.output
