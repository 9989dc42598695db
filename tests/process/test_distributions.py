"""The distributions of a part of the sources, built and used on their own."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution, distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sampleapp import DISTRIBUTION

PROGRAM = """
import sys
from twisted.internet.task import react
from sampleapp.client import Client

async def main(reactor, url):
    client = Client(base_url=url, reactor=reactor)
    metadata = await client.publish(topic="readings", key="kitchen", content="21.5")
    page = await client.read(topic="readings")
    print(metadata.offset, page.records[0].value, await client.readings())
    await client.close()

react(main, sys.argv[1:])
"""


@pytest.fixture(scope="module", params=["client", "testing"])
def part(request):
    return request.param


@pytest.fixture(scope="module")
def site(project, tmp_path_factory, part):
    """A directory that has what the wheel of a part installs."""
    source, wheels, site = (tmp_path_factory.mktemp(name) for name in ("source", "wheels", "site"))
    # From a copy, since building leaves files behind.
    (source / "distributions").mkdir()
    for path in ("src", "LICENSE", f"distributions/{part}"):
        subprocess.run(["cp", "-R", project / path, source / path], check=True)
    for name in ("src", "LICENSE"):
        link = source / "distributions" / part / name
        # The source distribution has no links.
        if not link.is_symlink():
            link.symlink_to(f"../../{name}")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels]
    subprocess.run([*build, source / "distributions" / part], check=True)
    (wheel,) = wheels.iterdir()
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    return site


def imports(path):
    """Yield the modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield node.module


def needed(site, package):
    """Return the modules that the files of a package import, and those that these import in turn."""
    todo, found = sorted((site / package).rglob("*.py")), set()
    while todo:
        new = set(imports(todo.pop())) - found
        found |= new
        for name in new:
            base = site / name.replace(".", "/")
            todo += [path for path in (base.with_suffix(".py"), *base.glob("*.py")) if path.exists()]
    return found


@pytest.fixture
def required(site):
    """The distributions that the wheel names."""
    (metadata,) = distributions(path=[str(site)])
    return {canonicalize_name(Requirement(text).name) for text in metadata.requires or []}


@pytest.mark.slow
def test_all_that_it_imports_is_in_it_or_required_by_it(site, required, part):
    package = {"client": "sampleapp/client", "testing": "sampleapp_testing"}[part]
    provided = set()
    for name in required:
        # What a condition leaves out, such as a version of Python, is not installed.
        with suppress(PackageNotFoundError):
            provided |= {file.parts[0].removesuffix(".py") for file in distribution(name).files or ()}
    if DISTRIBUTION in required:
        # Files of an editable installation are not listed.
        provided.add("sampleapp")
    if "twisted" in required:
        # `tls`, an extra of Twisted, brings it.
        provided.add("OpenSSL")
    missing = set()
    for name in needed(site, package):
        top = name.partition(".")[0]
        path = site / name.replace(".", "/")
        is_here = path.is_dir() or path.with_suffix(".py").exists()
        if top not in sys.stdlib_module_names and not is_here and top not in provided:
            missing.add(name)
    assert missing == set()


@pytest.mark.slow
@pytest.mark.parametrize("part", ["testing"], indirect=True)
def test_the_contract_requires_the_package_and_has_nothing_of_it(site, required):
    assert "sampleapp-http-gateway" in required
    assert {path.name for path in site.iterdir() if path.suffix != ".dist-info"} == {"sampleapp_testing"}


@pytest.mark.slow
@pytest.mark.parametrize("part", ["client"], indirect=True)
def test_the_client_alone_publishes_and_reads(site, start):
    service = start(broker="memory:")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, service.url],
        check=True,
        env={"PYTHONPATH": str(site)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.stdout == "0 b'21.5' [21.5]\n"


def test_the_package_has_nothing_of_the_contract(installed):
    script = "import importlib.metadata as m; print(*m.files('sampleapp-http-gateway'), sep='\\n')"
    files = subprocess.run(
        [sys.executable, "-c", script], check=True, env=installed, stdout=subprocess.PIPE, text=True
    ).stdout
    assert "sampleapp/client/__init__.py" in files
    assert not re.search("sampleapp_testing|pytest", files)
