"""Rules about the code that import-linter has no words for."""

from __future__ import annotations

import ast
import re
import tomllib
from http import HTTPStatus
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def modules(project):
    root = project / "src"
    return {
        str(path.relative_to(root)).removeprefix("sampleapp/"): ast.parse(path.read_text())
        for path in root.rglob("*.py")
    }


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
    assert knowing == {"web/errors.py"}


OWNERS = {
    "sqlite3": "brokers/sqlite/",
    "afkak": "brokers/kafka/",
    "aiokafka": "brokers/kafka/",
    "cramjam": "brokers/kafka/",
    "prometheus_client": "metrics/",
    "jwt": "access/",
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


# Each verifies no server, or as Twisted does: a certificate without a name is accepted for every host.
UNVERIFIED = [
    "Agent",
    "BrowserLikePolicyForHTTPS",
    "CertificateOptions",
    "ClientContextFactory",
    "ProxyAgent",
    "SSL4ClientEndpoint",
    "clientFromString",
    "connectSSL",
    "optionsForClientTLS",
    "startTLS",
    "treq",
    "urlopen",
]
VERIFIED = {
    **{name: set() for name in UNVERIFIED},
    "Agent": {"outgoing/https.py"},
    # These connect with what they are given.
    "HTTPClient": {"client/_exchange.py"},
    "wrapClientTLS": {"brokers/kafka/connections/endpoints.py"},
    "TLS_CLIENT_METHOD": {"outgoing/verified_tls.py"},
    "create_default_context": set(),
}


def names_used(tree):
    """What a module imports by name, or has as an attribute of something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.Attribute):
            yield node.attr


def test_connections_to_servers_with_tls_are_made_in_one_place_only(modules):
    used = {name: set() for name in VERIFIED}
    for module, tree in modules.items():
        for name in used.keys() & set(names_used(tree)):
            used[name].add(module)
    assert used == VERIFIED


def test_no_module_imports_the_global_reactor_when_it_is_imported(modules):
    for name, tree in modules.items():
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module == "twisted.internet":
                assert "reactor" not in [alias.name for alias in node.names], name
            if isinstance(node, ast.Import):
                assert "twisted.internet.reactor" not in [alias.name for alias in node.names], name


@pytest.fixture
def layers(project):
    """The rows that import-linter enforces, from the top, by the package that they are in."""
    settings = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    return {each["containers"][0]: each["layers"] for each in contracts if each["type"] == "layers"}


@pytest.mark.parametrize(
    ("title", "package"),
    [
        ("The layers", "sampleapp"),
        ("The connections", "sampleapp.web.server"),
        ("The broker for Kafka", "sampleapp.brokers.kafka"),
    ],
)
def test_the_page_on_the_architecture_has_the_layers_that_are_enforced(project, layers, title, package):
    page = (project / "docs/explanation/architecture.rst").read_text(encoding="utf-8")
    _, _, rest = page.partition(f"\n{title}\n{'-' * len(title)}\n")
    section = re.split(r"\n[^\n]+\n(?:-{4,}|~{4,})\n", rest)[0]
    # A row is the term of a definition list: modules in double backquotes.
    rows = re.findall(r"^(``\w+``(?: \| ``\w+``)*)\n   \S", section, re.MULTILINE)
    assert [re.findall(r"\w+", row) for row in rows] == [re.findall(r"\w+", row) for row in layers[package]]


def rows_of_changes(project):
    """The table of places to look at: for each row, the files with the names to look for in them."""
    page = (project / "docs/explanation/architecture.rst").read_text(encoding="utf-8")
    section = page.partition("To change something, look at")[2].partition("The flows")[0]
    for row in section.split("   * - ")[2:]:
        change, _, places = row.partition("\n")
        files = re.findall(r"``([\w/]+\.\w+)``(?:\s+\(((?:``\w+``(?:, )?)+)\))?", places)
        yield change, [(name, re.findall(r"\w+", symbols)) for name, symbols in files]


PLACES = list(rows_of_changes(Path(__file__).parents[1]))


@pytest.mark.parametrize(("change", "places"), PLACES, ids=[change for change, _ in PLACES])
def test_a_file_to_look_at_has_what_it_is_looked_at_for(project, modules, change, places):
    assert places, change
    for name, symbols in places:
        if name not in modules:
            assert (project / name).exists()
            continue
        body = modules[name].body
        defined = {each.name for each in body if hasattr(each, "name")}
        defined |= {each.target.id for each in body if isinstance(each, ast.AnnAssign)}
        assert symbols
        assert set(symbols) <= defined, name


def test_every_package_says_in_one_sentence_what_it_is(modules):
    packages = {
        name: ast.get_docstring(tree) for name, tree in modules.items() if name.endswith("__init__.py")
    }
    assert {name for name, docstring in packages.items() if not docstring} == set()
