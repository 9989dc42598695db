"""Swagger UI's files in the package are those of one version, and a script renews them."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest

SCRIPT = "release/swagger_ui.py"
FOLDER = "src/sampleapp/web/openapi/swagger_ui"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_files_are_those_of_the_version_that_is_named(project):
    script = runpy.run_path(str(project / SCRIPT))
    files = contents(project / FOLDER)
    assert {name: sha256(content).hexdigest() for name, content in files.items()} == script["FILES"]
    assert f'"{script["VERSION"]}"'.encode() in files["swagger-ui-bundle.js"]
    assert {"LICENSE", "NOTICE"} < set(files)


@pytest.fixture
def renew(project, tmp_path):
    """Run the script in a copy of the project, with an npm that has the files as a test gives them."""
    copy = tmp_path / "project"
    for each in (SCRIPT, FOLDER):
        (copy / each).parent.mkdir(parents=True)
    shutil.copy(project / SCRIPT, copy / SCRIPT)
    shutil.copytree(project / FOLDER, copy / FOLDER)
    published = tmp_path / "package"
    shutil.copytree(project / FOLDER, published)
    npm = tmp_path / "npm"
    pack = f'echo "$*" > {tmp_path}/asked; cp {tmp_path}/published.tgz swagger-ui-dist.tgz'
    npm.write_text(f"#!/bin/sh\n{pack}\n")
    npm.chmod(0o755)

    def run():
        with tarfile.open(tmp_path / "published.tgz", "w:gz") as archive:
            archive.add(published, "package")
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [sys.executable, copy / SCRIPT],
            check=False,
            env={**os.environ, "PATH": path},
            stderr=subprocess.PIPE,
            text=True,
        )
        return done, (tmp_path / "asked").read_text()

    run.folder, run.published = copy / FOLDER, published
    return run


def test_the_script_writes_the_files_of_the_version_that_is_named(project, renew):
    Path(renew.folder, "swagger-ui.css").write_bytes(b"changed by hand")
    done, asked = renew()
    assert (done.returncode, done.stderr) == (0, "")
    assert f"swagger-ui-dist@{runpy.run_path(str(project / SCRIPT))['VERSION']}" in asked.split()
    assert contents(renew.folder) == contents(project / FOLDER)


def test_files_with_other_digests_change_nothing_and_their_digests_are_shown(project, renew):
    Path(renew.published, "swagger-ui-bundle.js").write_bytes(b"another version")
    done, _ = renew()
    assert done.returncode == 1
    assert "Nothing was changed" in done.stderr
    assert f'"swagger-ui-bundle.js": "{sha256(b"another version").hexdigest()}",' in done.stderr
    assert contents(renew.folder) == contents(project / FOLDER)
