"""The lock file has what the service needs, in versions that it takes."""

from __future__ import annotations

import re
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement

from sampleapp import DISTRIBUTION

ENTRY = re.compile(
    r"(?m)^([a-z0-9.-]+)==(\S+)(?: ; (.*?))? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)"
)


@pytest.fixture(scope="session")
def locked(request):
    text = (request.config.rootpath / "requirements.lock").read_text()
    entries = ENTRY.findall(text)
    assert len(entries) == len(re.findall(r"(?m)^\S+==", text)), "each has hashes"
    return [(name, version) for name, version, _marker, _hashes in entries]


def test_each_requirement_is_there_in_a_version_that_it_allows(locked):
    wanted = [Requirement(text) for text in requires(DISTRIBUTION)]
    for requirement in wanted:
        # The container image has schemas, too.
        if requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in ("", "schemas")
        ):
            versions = [
                version for name, version in locked if name == requirement.name.lower().replace(".", "-")
            ]
            assert any(requirement.specifier.contains(version) for version in versions), requirement


def test_nothing_is_there_that_only_tests_need(locked):
    assert not {name for name, _ in locked} & {"pytest", "hypothesis", "sphinx", "tox", "ruff"}
