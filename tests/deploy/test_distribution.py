"""No page, docstring or tool fetches ``sampleapp`` from a package index, where it is a stranger's."""

from __future__ import annotations

import re

import pytest
from packaging.utils import canonicalize_name

from sampleapp import DISTRIBUTION

FOLDERS = ("benchmarks", "deploy", "distributions", "docs", "release", "src", "twisted")
INSTALLER = re.compile(
    r"\b(?:uvx|(?:pip3?|pipx|uv(?: pip| tool)?|poetry|pdm|conda)(?: -\S+)* (?:add|download|install|run))\b"
    r"(?P<arguments>[^`\n]*)"
)
# An extra, a version, or an address on an index.
NAMED = re.compile(r"\bsampleapp(?:\[[\w, -]+\]| ?[<>=~!]= ?\d)|pypi\S*/sampleapp(?![\w-])")


def fetched(text):
    """Return the names that a text fetches from an index; a command without one means the project."""
    found = {"sampleapp" for _ in NAMED.finditer(text)}
    for match in INSTALLER.finditer(text.replace("\\\n", " ")):
        arguments = [each.strip("'\"") for each in match["arguments"].split() if not each.startswith("-")]
        # Of a path, such as ./sampleapp, this is the dot.
        names = [re.match(r"[\w.-]*", each)[0].rstrip(".") for each in arguments]
        found |= {canonicalize_name(each) for each in names} if names else {"sampleapp"}
    return found


def pages(root):
    """Yield all that a reader may follow: the pages, the sources, and what builds and deploys."""
    yield from (
        each for each in root.iterdir() if each.is_file() and each.suffix in {"", ".ini", ".md", ".py"}
    )
    for folder in FOLDERS:
        for path in (root / folder).rglob("*"):
            if path.is_file() and not re.search(r"_build/|__pycache__/|\.egg-info/", str(path)):
                yield path


def test_nothing_fetches_sampleapp_by_its_name(request):
    texts = {str(path): path.read_text(errors="replace") for path in pages(request.config.rootpath)}
    assert [path for path, text in texts.items() if "sampleapp" in fetched(text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "``pip install sampleapp``",
        "pip install 'sampleapp[schemas]'",
        "an extra: sampleapp[schemas]",
        "python -m pip --quiet install --upgrade \\\n    SampleApp==1.0",
        "so ``pipx install`` is enough",
        "pipx run sampleapp serve",
        "uvx sampleapp serve",
        "uv tool install sampleapp",
        "uv add sampleapp>=1",
        "sampleapp >= 1.0",
        "pkg:pypi/sampleapp@1.0",
        "https://pypi.example/project/sampleapp/",
    ],
)
def test_a_text_that_fetches_it_would_be_noticed(text):
    assert "sampleapp" in fetched(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install .",
        "pip install '.[schemas]'",
        f"pip install {DISTRIBUTION}",
        f"pkg:pypi/{DISTRIBUTION}@1",
        "pipx install ./sampleapp",
        "python -m sampleapp --broker memory:",
    ],
)
def test_the_sources_and_the_name_of_the_distribution_may_be_installed(text):
    assert "sampleapp" not in fetched(text)
