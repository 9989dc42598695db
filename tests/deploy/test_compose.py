"""compose.yaml starts a service and a Kafka that fit together, for this machine only."""

from __future__ import annotations

import os
import subprocess
import sys
from urllib.parse import urlsplit

import pytest
import yaml


@pytest.fixture(scope="module")
def services(request):
    return yaml.safe_load((request.config.rootpath / "deploy/compose.yaml").read_text())["services"]


def test_the_service_would_start_with_its_variables(services, tmp_path):
    checked = subprocess.run(
        [sys.executable, "-m", "sampleapp", "--check"],
        env={**os.environ, **services["sampleapp"]["environment"]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


def test_the_service_asks_kafka_at_the_address_that_kafka_names(services):
    broker = urlsplit(services["sampleapp"]["environment"]["SAMPLEAPP_BROKER"])
    assert broker.hostname in services
    advertised = services["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert advertised == f"PLAINTEXT://{broker.netloc}"


def test_other_machines_reach_neither(services):
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports == ["127.0.0.1:8080:8080"]


def test_kafka_keeps_its_records_on_the_volume(services):
    directory = services["kafka"]["environment"]["KAFKA_LOG_DIRS"]
    assert services["kafka"]["volumes"] == [f"kafka:{directory}"]
