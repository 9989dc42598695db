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


def test_no_module_imports_the_global_reactor_when_it_is_imported(modules):
    for name, tree in modules.items():
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module == "twisted.internet":
                assert "reactor" not in [alias.name for alias in node.names], name
            if isinstance(node, ast.Import):
                assert "twisted.internet.reactor" not in [alias.name for alias in node.names], name
