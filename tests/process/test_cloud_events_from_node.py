"""CloudEvents as the official SDK for JavaScript sends them, in binary, structured and batched mode."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.command import consumed
from tests.support.live_service import LiveService

# npm asks its registry.
pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("send_events.mjs")
SDK = "cloudevents@10.0.0"
DEADLINE_S = 120
NAMES = ("id", "source", "type", "subject", "partitionkey")
JPEG = b"\xff\xd8"


@pytest.fixture
def program(tmp_path):
    """The program, beside the SDK."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("this machine has no Node.js with npm")
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", SDK]
    try:
        subprocess.run(install, cwd=tmp_path, check=True, capture_output=True, timeout=DEADLINE_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip(f"npm cannot install {SDK}")
    return shutil.copy(PROGRAM, tmp_path)


def attributes_of(record):
    headers = record["headers"]
    return {name: headers[f"ce_{name}"] for name in NAMES if f"ce_{name}" in headers}


def test_events_of_all_modes_become_records(program, tmp_path):
    with LiveService(directory=tmp_path) as service:
        ended = subprocess.run(
            ["node", program, service.url], check=True, capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert ended.stdout.splitlines() == [*["200 1"] * 4, "200 2", "422 1"]
        found = {topic: consumed(service, topic) for topic in ("binary", "structured", "batched")}
    common = {"id": "1", "source": "/doors/7", "type": "com.example.opened", "subject": "a b"}
    keyed = {**common, "partitionkey": "k"}
    assert [attributes_of(record) for record in found["binary"]] == [keyed, common]
    assert json.loads(found["binary"][0]["content"]) == {"by": "key"}
    assert base64.b64decode(found["binary"][1]["content_base64"]) == JPEG
    for records in found.values():
        assert [record.get("key") for record in records] == ["k", None]
    for topic in ("structured", "batched"):
        first, second = (json.loads(record["content"]) for record in found[topic])
        assert {name: first[name] for name in keyed} == keyed
        assert first["data"] == {"by": "key"}
        assert base64.b64decode(second["data_base64"]) == JPEG
        for record in found[topic]:
            content_type = record["headers"]["content-type"]
            assert content_type.startswith("application/cloudevents+json")
