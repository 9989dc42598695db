"""Clients that generators of others make of ``/openapi.json`` publish a message, bytes and many records."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from base64 import b64decode
from pathlib import Path

import pytest

from tests.support.command import stored
from tests.support.live_service import LiveService

pytestmark = pytest.mark.page

PAGE = "docs/howto/generate-client.rst"
DEADLINE_S = 300
"""A module may have to be fetched and compiled."""
PYTHON_GENERATOR = Path(sys.executable).with_name("openapi-python-client")
IMAGE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def service(tmp_path):
    directory = tmp_path / "service"
    directory.mkdir()
    with LiveService(directory=directory) as service:
        yield service


def commands(project, language):
    """What the page shows for a language, but what starts the program."""
    page = (project / PAGE).read_text(encoding="utf-8")
    (tab,) = re.findall(rf"(?ms)^   \.\. tab-item:: {language}$.*?(?=^   \.\. tab-item|^\S)", page)
    (shown,) = re.findall(r"(?m)^ +\.\. code-block:: shell\n\n((?: +\S.*\n)+)", tab)
    *first, _start = shown.replace("\\\n", " ").splitlines()
    return [each.strip() for each in first]


def run(*command, directory, **environment):
    return subprocess.run(
        list(map(str, command)),
        cwd=directory,
        env={**os.environ, "NO_PROXY": "*", **environment},
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=DEADLINE_S,
    )


def printed(*command, directory, **environment):
    ended = run(*command, directory=directory, **environment)
    assert ended.returncode == 0, f"{ended.stdout}{ended.stderr}"
    return ended.stdout


def stored_bytes(service, topic):
    """The keys and values of what is in a topic, by the service itself."""
    with urllib.request.urlopen(f"{service.url}topics/{topic}/records") as page:
        records = [json.loads(line) for line in page]
    return [(each["key"], b64decode(each["content_base64"])) for each in records]


def assert_all_is_stored(service):
    assert stored(service, "readings") == [("kitchen", "21.5"), ("kitchen", "21.5"), ("hall", "19")]
    assert stored_bytes(service, "images") == [("logo", IMAGE)]


@pytest.mark.skipif(not PYTHON_GENERATOR.exists(), reason="openapi-python-client is not installed")
def test_a_client_of_openapi_python_client_publishes_a_message_bytes_and_records(project, service, tmp_path):
    tools = f"{PYTHON_GENERATOR.parent}{os.pathsep}{os.environ['PATH']}"
    for command in commands(project, "Python"):
        if not command.startswith("pip "):
            here = command.replace("http://127.0.0.1:8080/", service.url)
            printed(*shlex.split(here), directory=tmp_path, PATH=tools)
    program = project / "docs/howto/with_generated_python.py"
    shown = printed(
        *(sys.executable, program, service.url),
        directory=tmp_path,
        PYTHONPATH=str(tmp_path / "sampleapp-client"),
    )
    message, image, records = shown.splitlines()
    assert "partition=0, offset=0" in message
    assert "partition=0, offset=0" in image
    assert [f"offset={offset}" in records for offset in (0, 1, 2)] == [False, True, True]
    assert_all_is_stored(service)


@pytest.mark.skipif(shutil.which("go") is None, reason="this machine does not have Go")
def test_a_client_of_oapi_codegen_publishes_a_message_bytes_and_lines(project, service, tmp_path):
    shutil.copy(project / "docs/howto/with_generated_go.go", tmp_path / "main.go")
    for command in commands(project, "Go"):
        here = command.replace("http://127.0.0.1:8080/", service.url)
        ended = run("sh", "-c", here, directory=tmp_path)
        if "dial tcp" in ended.stderr:
            pytest.skip("no proxy for Go's modules can be reached")
        assert ended.returncode == 0, f"{here}: {ended.stdout}{ended.stderr}"
    shown = printed("go", "run", ".", service.url, directory=tmp_path)
    assert [line for line in shown.splitlines() if line] == [
        '200 OK {"topic":"readings","partition":0,"offset":0}',
        '200 OK {"topic":"images","partition":0,"offset":0}',
        '200 OK {"topic":"readings","partition":0,"offset":1}',
        '{"topic":"readings","partition":0,"offset":2}',
    ]
    assert_all_is_stored(service)
