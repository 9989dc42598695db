"""An installed wheel, and services that run from it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.live_service import LiveService

BUILD_INPUTS = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "src", "twisted")


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """The environment of a process that finds sampleapp in an installed wheel, and nowhere else first."""
    root = Path(__file__).parents[2]
    wheels, site = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    # From a copy, since building leaves files behind.
    source = tmp_path_factory.mktemp("source")
    subprocess.run(["cp", "-R", *[root / name for name in BUILD_INPUTS], source], check=True)
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, source], check=True
    )
    (wheel,) = wheels.iterdir()
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    environment = {"PYTHONPATH": str(site)}
    found = subprocess.run(
        [sys.executable, "-c", "import sampleapp; print(sampleapp.__file__)"],
        check=True,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert Path(found.stdout.strip()).is_relative_to(site)
    return environment


@pytest.fixture
def start(installed, tmp_path):
    """Starts services, and ends those that the test has left."""
    services = []

    def start(**arguments):
        service = LiveService(directory=tmp_path, environment=installed, **arguments)
        services.append(service)
        return service

    yield start
    for service in services:
        service.kill()
