"""The configurations on the page for log shippers, read by the programs, where they are installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from urllib.parse import urlsplit

import pytest
import yaml

from sampleapp.web.errors import FAULT, ROWS

PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"
CHECKS = {
    "syslog-ng.conf": ["syslog-ng", "--syntax-only", "--no-caps", "-f"],
    "rsyslog.conf": ["rsyslogd", "-N1", "-f"],
    "fluent-bit.conf": ["fluent-bit", "--dry-run", "-c"],
    "vector.yaml": ["vector", "validate", "--no-environment"],
    "collectd.conf": ["collectd", "-t", "-C"],
    "alertmanager.yml": ["amtool", "check-config"],
    "fluentd.conf": ["fluentd", "--dry-run", "-c"],
    "otel-collector.yaml": ["otelcol", "validate", "--config"],
    "telegraf.conf": ["telegraf", "config", "check", "--config"],
}
READERS_AND_KEYS = {406, 410, 501}
"""Statuses that the text has, beside the table."""
WORKERS = {409}
"""Statuses that only workers get."""


@pytest.fixture
def directory(project):
    return project / "docs/howto/log-shippers"


@pytest.mark.parametrize("name", CHECKS)
def test_the_program_understands_its_configuration(directory, tmp_path, name):
    program, *options = CHECKS[name]
    found = shutil.which(program, path=PATH)
    if found is None:
        pytest.skip(f"needs {program}")
    # The package of rsyslog makes that directory.
    text = (directory / name).read_text(encoding="utf-8").replace("/var/spool/rsyslog", str(tmp_path))
    (tmp_path / name).write_text(text, encoding="utf-8")
    checked = subprocess.run(
        [found, *options, tmp_path / name], check=False, capture_output=True, text=True, timeout=60
    )
    if "could not load module 'omhttp'" in checked.stderr:
        pytest.skip("rsyslog has no omhttp")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_page_shows_each_configuration(project, directory):
    page = (project / "docs/howto/log-shippers.rst").read_text(encoding="utf-8")
    shown = re.findall(r"literalinclude:: log-shippers/(\S+)", page)
    assert sorted(shown) == sorted(CHECKS) == sorted(path.name for path in directory.iterdir())


def test_the_page_has_every_status_of_a_request_that_publishes(project):
    page = (project / "docs/howto/log-shippers.rst").read_text(encoding="utf-8")
    rows = re.findall(r"^   \* - (\d{3}(?:, \d{3})*)$", page, re.MULTILINE)
    shown = [int(status) for row in rows for status in row.split(", ")]
    statuses = {*(row.status for row in ROWS.values()), FAULT.status, 200}
    assert sorted(shown) == sorted(statuses - READERS_AND_KEYS - WORKERS)
    assert all(f"``{status}``" in page for status in READERS_AND_KEYS)


def test_batches_are_within_the_limit_of_the_service(directory):
    from sampleapp.web.server import Limits

    vector = yaml.safe_load((directory / "vector.yaml").read_text(encoding="utf-8"))
    (kibibytes,) = re.findall(
        r"batch-bytes\((\d+)Kb\)", (directory / "syslog-ng.conf").read_text(encoding="utf-8")
    )
    (mebibytes,) = re.findall(
        r"chunk_limit_size (\d+)m", (directory / "fluentd.conf").read_text(encoding="utf-8")
    )
    sizes = [
        vector["sinks"]["sampleapp"]["batch"]["max_bytes"],
        int(kibibytes) * 1024,
        int(mebibytes) * 1024 * 1024,
    ]
    # The last line may go beyond the limit of the shipper.
    assert max(sizes) + Limits().max_body <= Limits().max_batch_body


def test_the_configurations_name_paths_of_the_service(directory):
    texts = {path.name: path.read_text(encoding="utf-8") for path in directory.iterdir()}
    urls = [url for text in texts.values() for url in re.findall(r"http://[^\s\"]+", text)]
    assert {urlsplit(url).path for url in urls} == {
        "/messages",
        *(f"/topics/{topic}" for topic in ("collectd", "alerts", "otel-logs", "telegraf")),
    }
    assert 'restPath="messages"' in texts["rsyslog.conf"]
    assert re.search(r"^ +uri +/messages$", texts["fluent-bit.conf"], re.MULTILINE)
