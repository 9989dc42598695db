"""Each file that names the version of the package names the one of setup.py."""

from __future__ import annotations

import re

import pytest


@pytest.fixture(scope="module")
def version(request):
    (version,) = re.findall(r'(?m)^    version="(.+)",$', (request.config.rootpath / "setup.py").read_text())
    return version


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("CHANGELOG.md", r"(?m)\A(?:(?!## ).*\n)*## (\S+) "),
        ("CONTRIBUTING.md", r"/blob/v(\S+)"),
        ("CONTRIBUTING.md", r"tag the commit:\s+`v(.+)`"),
        ("Containerfile", r"image\.version=(\S+)"),
        ("deploy/compose.yaml", r"image: sampleapp:(\S+)"),
        ("deploy/kubernetes/Chart.yaml", r"appVersion: (\S+)"),
        ("deploy/kubernetes/kustomization.yaml", r"(?:version|newTag): ([^\s}]+)"),
        ("docs/howto/containers.rst", r"\bsampleapp:(\d\S*)"),
        ("setup.py", r"/blob/v(\S+)\. "),
    ],
)
def test_a_file_that_names_the_version_names_the_one_of_the_package(request, version, file, pattern):
    found = set(re.findall(pattern, (request.config.rootpath / file).read_text()))
    assert found == {version}
