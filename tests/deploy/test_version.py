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
        ("distributions/client/pyproject.toml", r"(?m)^version = \"(.+)\"$"),
        ("distributions/testing/pyproject.toml", r"(?m)^version = \"(.+)\"$"),
        ("distributions/testing/pyproject.toml", r"sampleapp-http-gateway == (\S+)\""),
        ("docs/howto/containers.rst", r"\bsampleapp:(\d\S*)"),
        ("README.md", r"The version is (\S+),"),
        ("SECURITY.md", r"The first version, (\S+),"),
        ("setup.py", r"/blob/v(\S+)\. "),
    ],
)
def test_a_file_that_names_the_version_names_the_one_of_the_package(request, version, file, pattern):
    found = set(re.findall(pattern, (request.config.rootpath / file).read_text()))
    assert found == {version}


def test_all_files_agree_that_the_version_is_released_or_not(request):
    texts = {
        name: (request.config.rootpath / name).read_text()
        for name in ("CHANGELOG.md", "README.md", "SECURITY.md")
    }
    unreleased = re.search(r"(?m)^## .*\(unreleased\)$", texts.pop("CHANGELOG.md")) is not None
    assert {name: "not released yet" in text for name, text in texts.items()} == dict.fromkeys(
        texts, unreleased
    )


def test_the_classifier_calls_a_version_stable_that_is_no_candidate(request, version):
    (status,) = re.findall(
        r"Development Status :: \d - ([^\"]+)", (request.config.rootpath / "setup.py").read_text()
    )
    assert status == ("Beta" if "rc" in version else "Production/Stable")
