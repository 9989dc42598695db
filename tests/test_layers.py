"""Rules about the code that import-linter has no words for."""

from __future__ import annotations

import ast
from http import HTTPStatus

import pytest


@pytest.fixture
def modules(project):
    root = project / "src" / "sampleapp"
    return {str(path.relative_to(root)): ast.parse(path.read_text()) for path in root.rglob("*.py")}


def test_only_one_module_knows_the_statuses_of_errors(modules):
    knowing = {
        name
        for name, tree in modules.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in HTTPStatus.__members__
        and HTTPStatus[node.attr] >= 400
        and name.startswith("web/")
    }
    assert knowing == {"web/problems.py"}


OWNERS = {
    "sqlite3": "brokers/sqlite/",
    "afkak": "brokers/kafka/",
    "aiokafka": "brokers/kafka/",
    "cramjam": "brokers/kafka/",
    "hypothesis": "testing/",
    "prometheus_client": "metrics/",
    "jwt": "access/",
    "pytest": "testing/",
    "pytest_twisted": "testing/",
}


def imported(tree):
    """The top-level packages that a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield node.module.partition(".")[0]


def test_each_of_these_libraries_is_imported_in_one_place_only(modules):
    found = {
        (library, name) for name, tree in modules.items() for library in imported(tree) if library in OWNERS
    }
    assert [(library, name) for library, name in found if not name.startswith(OWNERS[library])] == []
    assert {library for library, _ in found} == set(OWNERS)


def test_no_module_imports_the_global_reactor_when_it_is_imported(modules):
    for name, tree in modules.items():
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module == "twisted.internet":
                assert "reactor" not in [alias.name for alias in node.names], name
            if isinstance(node, ast.Import):
                assert "twisted.internet.reactor" not in [alias.name for alias in node.names], name
