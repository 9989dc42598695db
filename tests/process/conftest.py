"""An installed wheel, and services that run from it."""

from __future__ import annotations

import datetime as dt
import fcntl
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.live_service import LiveService

BUILD_INPUTS = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "src", "twisted")


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """The environment of a process that finds sampleapp in an installed wheel, and nowhere else first."""
    directory = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        # The processes of a run share one: its directory is the parent of theirs.
        directory = directory.parent
    site = directory / "site"
    with (directory / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not site.exists():
            install(site, tmp_path_factory.mktemp("build"))
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


def install(site, scratch):
    """Install a wheel of the sources into the directory, which appears when all is in it."""
    root = Path(__file__).parents[2]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    # From a copy, since building leaves files behind.
    source, wheels, installed = scratch / "source", scratch / "wheels", scratch / "site"
    source.mkdir()
    subprocess.run(["cp", "-R", *[root / name for name in BUILD_INPUTS], source], check=True)
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, source], check=True
    )
    (wheel,) = wheels.iterdir()
    subprocess.run([*pip, "install", "--no-deps", "--target", installed, wheel], check=True)
    installed.rename(site)


@pytest.fixture(scope="session")
def two_at_a_time():
    """Runs commands that do not disturb one another, ahead of the tests that look at how they ended."""
    pool = ThreadPoolExecutor(2)
    yield pool
    pool.shutdown(cancel_futures=True)


@pytest.fixture
def start(installed, tmp_path):
    """Starts services, and ends those that the test has left."""
    services = []

    def start(*, environment=None, **arguments):
        service = LiveService(
            directory=tmp_path, environment={**installed, **(environment or {})}, **arguments
        )
        services.append(service)
        return service

    yield start
    for service in services:
        service.kill()


@pytest.fixture
def certificate(tmp_path):
    """A certificate for localhost and its key, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    key_file, certificate_file = tmp_path / "key.pem", tmp_path / "certificate.pem"
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return key_file, certificate_file
